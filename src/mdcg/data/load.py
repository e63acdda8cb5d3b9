"""Datasets by name: find the source, verify it, cache it, hand it out."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mdcg.data.cache import Arrays, cache_folder, check, digest_of, read_cache, write_cache
from mdcg.data.dataset import Dataset, Split
from mdcg.data.record import Bundled, DatasetRecord, Published, Source
from mdcg.data.registry import DATASETS, record_of
from mdcg.errors import MdcgError
from mdcg.files import remove_partial, shown


def load(name: str, data: Path | None = None, size: int | None = None, download: bool = False) -> Dataset:
    """Load a dataset, ready for use.

    `data` is where archives and unpacked folders are looked for, or `$MDCG_DATA`. Where neither is given, the
    cache folder is, and what is missing there is downloaded; `download` does so into `data` too. `size` is the
    side to which the images of a folder are resized.

    >>> load("digits").classes
    10
    """
    record = record_of(name)
    source = record.source(data, size, download)
    content = read_anew(record, source) if source.path is None else _cached(record, source, source.path)
    _, height, width, channels = content.train_images.shape
    pixels = record.preprocessing_for((channels, height, width))
    return Dataset(
        name=name,
        train=Split(content.train_images, content.train_labels.numpy()),
        test=Split(content.test_images, content.test_labels.numpy()),
        class_names=content.class_names,
        mean=pixels.mean or content.mean,
        std=pixels.std or content.std,
        padding=pixels.padding,
        flip=pixels.flip,
        fingerprint=content.digest or digest_of(content),
    )


def verify(name: str, data: Path | None = None, size: int | None = None) -> str:
    """Check every byte of a dataset's source and of its cache; return what was checked."""
    record = record_of(name)
    source = record.source(data, size, download=None)
    fresh = read_anew(record, source)  # raises where a file is missing or altered
    images = f"{len(fresh.train_labels) + len(fresh.test_labels):,} images"
    if source.path is None:
        package = record.part_of if isinstance(record, Bundled) else ""
        return f"{name}: {images}" + (f", part of {package}." if package else ".")
    file = _cache_file(source.label, source.path, source.stamp())
    cached = read_cache(file)
    if cached is not None and not (cached.digest == digest_of(cached) == digest_of(fresh)):
        file.unlink()
        return f"{name}: {source.path} is whole; its cache {file} was damaged and has been removed."
    return f"{name}: {source.path} is whole, {images}" + (", and so is its cache." if cached else ".")


@dataclass(frozen=True)
class CachedFile:
    """A file that mdcg has put into the cache folder."""

    path: Path
    size: int  # bytes
    content: str  # in words


def cached_files() -> list[CachedFile]:
    """What lies in the cache folder: datasets as they were read, and archives that were downloaded; nothing else's."""
    archives = {one.archive: one.name for one in DATASETS.values() if isinstance(one, Published)}
    found = []
    for path in sorted(cache_folder().glob("*")):
        if not path.is_file():
            continue
        if path.name in archives:
            content = f"the archive of {archives[path.name]}"
        elif re.fullmatch(r".+-[0-9a-f]{12}-[^-]+\.safetensors", path.name):
            read = read_cache(path)
            content = _in_words(read) if read else "images, no longer readable"
        else:
            continue
        found.append(CachedFile(path, path.stat().st_size, content))
    return found


def _in_words(content: Arrays) -> str:
    images, names = len(content.train_labels) + len(content.test_labels), content.class_names
    some = ", ".join(map(shown, names[:3])) + (", …" if len(names) > 3 else "")
    return f"{images:,} images of {len(names)} classes: {some}"


def read_anew(record: DatasetRecord, source: Source) -> Arrays:
    """Read the images from their source, not from the cache."""
    try:
        content = source.read()
        check(content, record.shape)
    except MdcgError:
        raise
    except Exception as error:  # a reader is anybody's code
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        kind = "" if type(error) is ValueError and reason else f"{type(error).__name__}: "
        raise MdcgError(f"the dataset {record.name} cannot be read ({kind}{reason}); fix its 'read'.") from error
    return content


def _cached(record: DatasetRecord, source: Source, path: Path) -> Arrays:
    file = _cache_file(source.label, path, source.stamp())
    content = read_cache(file)
    if content is None:
        write_cache(file, read_anew(record, source))
        for outdated in set(file.parent.glob(_cache_file(source.label, path, "*").name)) - {file}:
            outdated.unlink(missing_ok=True)  # the source has changed since
        remove_partial(file.parent)
        content = read_cache(file)
        if content is None:
            raise MdcgError(f"{file} could not be read back just after it was written; check the disk.")
    return content


def _cache_file(label: str, source: Path, stamp: str) -> Path:
    place = hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()
    return cache_folder() / f"{label}-{place}-{stamp}.safetensors"
