"""The files of a dataset, read from a folder, a tar or a zip archive, without trusting any of them.

Archives are read straight into memory, never unpacked onto the disk; one whose members would land outside
their folder, or are links, is refused whole.
"""

from __future__ import annotations

import hashlib
import logging
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedRandom
from pathlib import Path, PurePosixPath

import pooch

from mdcg.errors import MdcgError, machine_trouble
from mdcg.files import atomic_file

logger = logging.getLogger(__name__)
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError),
    *(RuntimeError, NotImplementedError),  # zipfile's words for encrypted and for exotic archives
)


def find(root: Path, folder: str, archive: str, inside: str) -> Path | None:
    """Find a dataset below `root`: its folder, its archive, or `root` itself if it is that folder.

    `folder` and `inside` may be empty: then no folder is known by its name, or by a file in it.
    """
    if root.is_file() or (folder and root.name == folder) or (inside and (root / inside).exists()):
        return root
    if folder and (root / folder).is_dir():
        return root / folder
    return root / archive if (root / archive).is_file() else None


def fetch(url: str, md5: str, folder: Path) -> Path:
    """Download an archive and check its checksum; a broken download leaves nothing behind."""
    name = url.rsplit("/", 1)[-1]
    logger.info("downloading %s to %s.", url, folder)
    with atomic_file(folder / name) as file:
        _download(url, md5, file, folder / name)
    return folder / name


def _download(url: str, md5: str, file: BufferedRandom, path: Path) -> None:
    try:
        pooch.downloaders.choose_downloader(url)(url, file, None)
        file.seek(0)
        if hashlib.file_digest(file, "md5").hexdigest() != md5:
            raise ValueError(f"what came is altered or cut short: its md5 is not {md5}")
    except Exception as error:
        # pooch passes on whatever its downloader, the network or the disk raises
        if machine_trouble(error):
            raise
        reason = "no connection" if "Connection" in type(error).__name__ else str(error).split("\n")[0][:150]
        raise MdcgError(
            f"cannot download {url} ({reason}); check the connection, or put {path.name} into {path.parent} yourself."
        ) from error


def read(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The name and content of each wanted file, in a folder or an archive.

    Names are relative to the dataset's own folder, which archives carry as their first component.
    """
    for name, content in found(path, wanted):
        yield name, content if isinstance(content, bytes) else content_of(content)


def found(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Path | bytes]]:
    """The wanted files as by `read`, but of a folder not their content, only where they are."""
    if path.is_dir():
        yield from _in_folder(str(path), wanted)
        return
    if not path.name.endswith(ARCHIVES):
        raise MdcgError(f"{path} is neither a folder nor a .tar.gz or .zip archive; give one of these.")
    try:
        yield from (_read_zip if path.suffix == ".zip" else _read_tar)(path, wanted)
    except PermissionError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; check its permissions.") from error
    except DAMAGED as error:
        reason = str(error).split("\n")[0]
        raise MdcgError(
            f"{path} is no archive, damaged or cut short ({reason}); get it again from its source."
        ) from error


def content_of(file: Path) -> bytes:
    """All of a file."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise MdcgError(f"cannot read {file}: {error.strerror}; check the file.") from error


def _in_folder(folder: str, wanted: Callable[[str], bool], below: str = "") -> Iterator[tuple[str, Path]]:
    """The wanted files in a folder and those below it, sorted; links to folders are not followed."""
    try:
        with os.scandir(folder) as entries:
            inner = sorted(entries, key=lambda entry: entry.name)
    except PermissionError:
        return
    for entry in inner:
        name = below + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _in_folder(entry.path, wanted, f"{name}/")
        elif wanted(name) and entry.is_file():
            yield name, Path(entry.path)


def _read_tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        for member in tar:
            _refuse_unsafe(path, member.name, is_link=member.issym() or member.islnk() or member.isdev())
            name = _below_top(member.name)
            file = tar.extractfile(member) if member.isreg() and wanted(name) else None
            if file is not None:
                yield name, file.read()


def _read_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        for member in members:
            unix_type = (member.external_attr >> 16) & 0o170000
            _refuse_unsafe(path, member.filename, is_link=unix_type == 0o120000)
        for member in members:
            name = _below_top(member.filename)
            if not member.is_dir() and wanted(name):
                yield name, archive.read(member)


def _refuse_unsafe(path: Path, member: str, is_link: bool) -> None:
    pure = PurePosixPath(member.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or (pure.parts and ":" in pure.parts[0]):
        raise MdcgError(f"{path} holds '{member}', a path that leads outside; get the archive from its source.")
    if is_link:
        raise MdcgError(f"{path} holds '{member}', a link or device; get the archive from its source.")


def _below_top(member: str) -> str:
    return member.removeprefix("./").partition("/")[2]


def stamp(paths: list[Path], extra: str = "") -> str:
    """A short digest of names, sizes and times, which changes when the files do, without reading them."""
    digest = hashlib.blake2b(extra.encode(), digest_size=10)
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise MdcgError(f"cannot read {path}: {error.strerror}; repair or remove it.") from error
        digest.update(os.fsencode(path) + f"|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
