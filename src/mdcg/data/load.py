"""Datasets by name: find the source, verify it, cache it, hand it out."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from mdcg.data.cache import cache_file, cache_folder, note_checked, read_cache
from mdcg.data.content import Arrays, digest_of
from mdcg.data.dataset import Dataset
from mdcg.data.prepare import content_of, read_anew
from mdcg.data.published import Downloaded, Published
from mdcg.data.record import Bundled
from mdcg.data.registry import DATASETS, record_of
from mdcg.errors import MdcgError
from mdcg.files import shown


def load(name: str, data: Path | None = None, size: int | None = None, download: bool = False) -> Dataset:
    """Load a dataset, ready for use.

    `data` is where archives and unpacked folders are looked for, or `$MDCG_DATA`. Where neither is given, the
    cache folder is, and what is missing there is downloaded; `download` does so into `data` too. `size` is the
    side to which the images of a folder are resized.

    >>> load("digits").classes
    10
    """
    record = record_of(name)
    return Dataset.of(record, content_of(record, record.source(data, size, download)))


def must_read(name: str, data: Path | None = None, size: int | None = None) -> bool:
    """Whether `load` will read image files, which takes a while: they are there, but not in the cache."""
    try:
        source = record_of(name).source(data, size, download=None)
    except MdcgError:  # they are missing: `load` says so, or downloads them, and then some seconds are no matter
        return False
    return source.path is not None and not cache_file(source.label, source.path, source.stamp()).exists()


def verify(name: str, data: Path | None = None, size: int | None = None) -> str:
    """Check every byte of a dataset's source and of its cache; return what was checked."""
    record = record_of(name)
    source = record.source(data, size, download=None)
    fresh = read_anew(record, source)  # raises where a file is missing or altered
    images = f"{len(fresh.train_labels) + len(fresh.test_labels):,} images"
    if source.path is None:
        package = record.part_of if isinstance(record, Bundled) else ""
        return f"{name}: {images}" + (f", part of {package}." if package else ".")
    file = cache_file(source.label, source.path, source.stamp())
    cached = read_cache(file)
    if file.exists() and not (cached and cached.digest == digest_of(cached) == digest_of(fresh)):
        file.unlink()
        return f"{name}: {source.path} is whole; its cache {file} was damaged and has been removed."
    return f"{name}: {source.path} is whole, {images}" + (", and so is its cache." if cached else ".")


@dataclass(frozen=True)
class CachedFile:
    """A file that mdcg has put into the cache folder."""

    path: Path
    size: int  # bytes
    content: str  # in words

    @property
    def name(self) -> str:
        """The file as it is called in the cache folder: with its own folder, where it has one."""
        return self.path.relative_to(cache_folder()).as_posix()

    def remove(self) -> None:
        """Remove the file, and with the last one its folder."""
        self.path.unlink(missing_ok=True)
        note_checked(cache_folder())
        if self.path.parent != cache_folder():
            with contextlib.suppress(OSError):  # others are left in it
                self.path.parent.rmdir()


def cached_files() -> list[CachedFile]:
    """What lies in the cache folder: datasets as they were read, and files that were downloaded; nothing else's."""
    folder, found = cache_folder(), list[tuple[Path, str]]()
    for record in DATASETS.values():
        for name in record.downloads if isinstance(record, Downloaded) else ():
            if (folder / name).is_file():
                what = "the archive" if isinstance(record, Published) else "a file"
                found.append((folder / name, f"{what} of {record.name}"))
    for path in folder.glob("*.safetensors"):
        if re.fullmatch(r".+-[0-9a-f]{12}-[^-]+\.safetensors", path.name) and path.is_file():
            read = read_cache(path)
            found.append((path, _in_words(read) if read else "images, no longer readable"))
    files = list[CachedFile]()
    for path, content in found:
        with contextlib.suppress(FileNotFoundError):  # another process empties the cache
            files.append(CachedFile(path, path.stat().st_size, content))
    return sorted(files, key=lambda file: file.name)


def _in_words(content: Arrays) -> str:
    images, names = len(content.train_labels) + len(content.test_labels), content.class_names
    some = ", ".join(map(shown, names[:3])) + (", …" if len(names) > 3 else "")
    return f"{images:,} images of {len(names)} classes: {some}"
