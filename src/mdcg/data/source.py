"""The files of a dataset, read from a folder, a tar or a zip archive, without trusting any of them.

Archives are read straight into memory, never unpacked onto the disk; one whose members would land outside their
folder, or are links, is refused whole. How much an archive may hold is said by whoever reads it: what it claims itself
takes no memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import pooch

from mdcg.errors import MdcgError, machine_trouble, reason_of
from mdcg.files import open_file, shown
from mdcg.outputs import Kind, Output

logger = logging.getLogger(__name__)
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
GZIPPED = b"\x1f\x8b"
MOST = 2**32  # bytes that an archive may hold, where nothing else is said
MEMBERS = 2**18  # and files
PIECE = 2**20  # bytes that are read at once
HEADER = 2**16  # bytes in which a tar archive may tell of one file
DEEPEST = 8  # folders in each other
LISTED = 256  # bytes in which a zip archive does, on the average


def find(root: Path, folder: str, archive: str, inside: str) -> Path | None:
    """Find a dataset below `root`: its folder, its archive, or `root` itself if it is that folder.

    `folder` and `inside` may be empty: then no folder is known by its name, or by a file in it.
    """
    if root.is_file() or (folder and root.name == folder) or (inside and (root / inside).exists()):
        return root
    if folder and (root / folder).is_dir():
        return root / folder
    return root / archive if (root / archive).is_file() else None


def fetch(url: str, md5: str, folder: Path, largest: int | None = None) -> Path:
    """Download an archive and check its checksum; one that is broken, or does not end, leaves nothing behind."""
    name = url.rsplit("/", 1)[-1]
    logger.info("downloading %s to %s.", url, folder)
    kind = Kind.told_by(f"what {url} has", lambda file: hashlib.file_digest(file, "md5").hexdigest() == md5)
    with Output(folder / name, kind, advice="").open() as file:
        _download(url, md5, file, folder / name, largest)
    return folder / name


def _download(url: str, md5: str, file: io.BufferedRandom, path: Path, largest: int | None) -> None:
    try:
        pooch.downloaders.choose_downloader(url)(url, file if largest is None else _Filled(file, largest), None)
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


@dataclass
class _Filled:
    """A file that takes no more than so many bytes."""

    file: io.BufferedRandom
    left: int

    def write(self, content: bytes) -> int:
        self.left -= len(content)
        if self.left < 0:
            raise ValueError("more comes than the file can have")
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()


def read(
    path: Path, wanted: Callable[[str], bool], most: int = MOST, members: int = MEMBERS
) -> Iterator[tuple[str, bytes]]:
    """The name and content of each wanted file, in a folder or an archive.

    Names are relative to the dataset's own folder, which archives carry as their first component. An archive that holds
    more than `most` bytes, unpacked, or more files than `members` is refused; of a folder, only wanted files count.
    What macOS puts beside files is no file of a dataset.
    """
    for name, content in found(path, wanted, most, members):
        yield name, content_of(content)


def found(
    path: Path, wanted: Callable[[str], bool], most: int = MOST, members: int = MEMBERS
) -> Iterator[tuple[str, Path | bytes]]:
    """The wanted files as by `read`, but of a folder not their content, only where they are."""
    left = _Left(path, most, members)
    if path.is_dir():
        yield from _in_folder(str(path), wanted, left)
        return
    if not path.name.endswith(ARCHIVES):
        raise MdcgError(f"{shown(path)} is neither a folder nor a .tar.gz or .zip archive; give one of these.")
    try:
        yield from (_read_zip if path.suffix == ".zip" else _read_tar)(path, wanted, left)
    except MdcgError:
        raise
    except PermissionError as error:
        raise MdcgError(f"cannot read {shown(path)}: {error.strerror}; check its permissions.") from error
    except Exception as error:  # anything: what is damaged, encrypted or exotic has no error of its own
        raise machine_trouble(error) or MdcgError(
            f"{shown(path)} is no archive, damaged or cut short ({shown(reason_of(error), 150)}); get it again from "
            "its source."
        ) from error


def content_of(file: Path | bytes) -> bytes:
    """All of a file that was found."""
    if isinstance(file, bytes):
        return file
    try:
        with open_file(file) as opened:
            return opened.read()
    except OSError as error:
        raise machine_trouble(error) or MdcgError(
            f"cannot read {shown(file)}: {error.strerror}; check the file."
        ) from error


@dataclass
class _Left:
    """What a folder or archive may still hold."""

    path: Path
    bytes: int
    members: int

    def __post_init__(self) -> None:
        self.allowed = self.bytes, self.members

    def take(self, name: str, size: int) -> None:
        """Count one more file, and refuse it if that is too much."""
        most, members = self.allowed
        self.bytes, self.members = self.bytes - size, self.members - 1
        if self.bytes < 0:
            raise MdcgError(
                f"{shown(self.path)} holds more than the {most:,} bytes that it can have ('{shown(name, 100)}' has "
                f"{size:,}); get it again from its source."
            )
        if self.members < 0:
            raise MdcgError(
                f"{shown(self.path)} holds more than the {members:,} files that it can have; get it again from its "
                "source."
            )


def _in_folder(folder: str, wanted: Callable[[str], bool], left: _Left, below: str = "") -> Iterator[tuple[str, Path]]:
    """The wanted files in a folder and those not far below it, sorted; links to folders are not followed."""
    try:
        with os.scandir(folder) as entries:
            inner = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        if trouble := machine_trouble(error):
            raise trouble from error
        return  # then its files are missing
    for entry in inner:
        name = below + entry.name
        if entry.is_dir(follow_symlinks=False):
            if name.count("/") < DEEPEST:
                yield from _in_folder(entry.path, wanted, left, f"{name}/")
        elif wanted(name) and not _is_macs(name) and (size := _size(entry)) is not None:
            left.take(name, size)
            yield name, Path(entry.path)


def _size(entry: os.DirEntry[str]) -> int | None:
    """The bytes of a file; None of a folder, of a link that leads nowhere, and of what is gone meanwhile."""
    try:
        about = entry.stat()
    except OSError:
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _read_tar(path: Path, wanted: Callable[[str], bool], left: _Left) -> Iterator[tuple[str, bytes]]:
    with open_file(path) as file:
        packed = file.read(2) == GZIPPED
        file.seek(0)
        stream = _Granted(gzip.GzipFile(fileobj=file) if packed else file, HEADER)
        with tarfile.TarFile(fileobj=stream) as tar:
            while (member := tar.next()) is not None:
                if member.size < 0:
                    raise tarfile.ReadError("a file has less than no bytes")
                # What was read of the archive counts too: skipping it takes as long.
                left.take(member.name, member.size + HEADER - stream.left)
                _refuse_unsafe(path, member.name, is_link=member.issym() or member.islnk() or member.isdev())
                name = _below_top(member.name)
                content = tar.extractfile(member) if member.isreg() and _is_wanted(member.name, wanted) else None
                if content is not None:
                    stream.left = member.size
                    yield name, _all_of(content)
                stream.left = HEADER
                tar.members = []  # type: ignore[attr-defined]  # nobody asks for them again,
                tar.pax_headers = {}  # nor for what was said of all that follow


def _read_zip(path: Path, wanted: Callable[[str], bool], left: _Left) -> Iterator[tuple[str, bytes]]:
    with open_file(path) as file:
        stream = _Granted(file, PIECE + LISTED * left.members)
        with zipfile.ZipFile(stream) as archive:
            members, stream.left = archive.infolist(), sys.maxsize
            for member in members:
                left.take(member.filename, member.file_size)
                unix_type = (member.external_attr >> 16) & 0o170000
                _refuse_unsafe(path, member.filename, is_link=unix_type == 0o120000)
            for member in members:
                if member.is_dir() or not _is_wanted(member.filename, wanted):
                    continue
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # unpacked all at once
                    raise NotImplementedError(f"compression method {member.compress_type} is not read")
                with archive.open(member) as content:
                    yield _below_top(member.filename), _all_of(content)


def _all_of(file: IO[bytes]) -> bytes:
    """The content of a member, piece by piece: memory is taken for what is there, not for what is claimed."""
    return b"".join(iter(lambda: file.read(PIECE), b""))


class _Granted(io.BufferedIOBase):
    """A file of which no more is read than is granted: headers may claim any length."""

    def __init__(self, file: io.BufferedReader | gzip.GzipFile, left: int) -> None:
        self._file, self.left = file, left

    def read(self, size: int | None = -1, /) -> bytes:
        most = self.left + 1
        content = self._file.read(most if size is None or size < 0 else min(size, most))
        self.left -= len(content)
        if self.left < 0:
            raise ValueError("what it says of its files is too long")
        return content

    def seek(self, place: int, whence: int = 0, /) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


def _refuse_unsafe(path: Path, member: str, is_link: bool) -> None:
    pure, where, source = PurePosixPath(member.replace("\\", "/")), shown(path), "get the archive from its source"
    if pure.is_absolute() or ".." in pure.parts or (pure.parts and ":" in pure.parts[0]):
        raise MdcgError(f"{where} holds '{shown(member, 100)}', a path that leads outside; {source}.")
    if is_link:
        raise MdcgError(f"{where} holds '{shown(member, 100)}', a link or device; {source}.")


def _is_wanted(member: str, wanted: Callable[[str], bool]) -> bool:
    return not _is_macs(member) and wanted(_below_top(member))


def _is_macs(name: str) -> bool:
    """Whether macOS has put this beside another file: it is named as that is, and holds what other systems do not keep.

    >>> _is_macs("2750/River/._River_1.jpg"), _is_macs("__MACOSX/2750/River_1.jpg"), _is_macs("2750/River_1.jpg")
    (True, True, False)
    """
    *folders, last = name.removeprefix("./").split("/")
    return last.startswith("._") or "__MACOSX" in folders


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
