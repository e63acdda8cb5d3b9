"""Datasets by name: find the source, verify it, cache it, hand it out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from mdcg.data.cache import Arrays, cache_folder, digest_of, recall, store
from mdcg.data.cifar import CIFAR10, CIFAR100
from mdcg.data.dataset import Dataset, Split
from mdcg.data.digits import read_digits
from mdcg.data.folder import Folder
from mdcg.data.source import fetch, find
from mdcg.data.tinyimagenet import TINYIMAGENET
from mdcg.errors import MdcgError, unknown
from mdcg.files import remove_partial

DATASETS = {
    "digits": "1,797 handwritten digits, 8×8 grey, 10 classes, part of the installation",
    "cifar10": "CIFAR-10: 60,000 images, 32×32, 10 classes (cifar-10-binary.tar.gz)",
    "cifar100": "CIFAR-100: 60,000 images, 32×32, 100 fine classes (cifar-100-binary.tar.gz)",
    "tinyimagenet": "Tiny-ImageNet: 110,000 images, 64×64, 200 classes (tiny-imagenet-200.zip)",
    "folder:PATH": "your own images, as PATH/CLASS/* or PATH/train/CLASS/* and PATH/test/CLASS/*",
}
FOLDER = "folder:"
DEFAULT_FOLDER_SIZE = 32


class Published(Protocol):
    """A dataset with an official archive."""

    @property
    def url(self) -> str: ...
    @property
    def md5(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def archive(self) -> str: ...
    @property
    def probe(self) -> str: ...
    def stamp(self, path: Path) -> str: ...
    def read(self, path: Path) -> Arrays: ...


class Pixels(NamedTuple):
    """How a dataset's pixels are augmented and normalised; no mean: measured on the training images."""

    padding: int
    flip: bool
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CIFAR10_PIXELS = Pixels(4, True, CIFAR10_MEAN, CIFAR10_STD)
CIFAR100_PIXELS = Pixels(4, True, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
TINY_PIXELS = Pixels(8, True, (0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816))
PUBLISHED: dict[str, tuple[Published, Pixels]] = {
    "cifar10": (CIFAR10, CIFAR10_PIXELS),
    "cifar100": (CIFAR100, CIFAR100_PIXELS),
    "tinyimagenet": (TINYIMAGENET, TINY_PIXELS),
}


def load(name: str, data: Path | None = None, size: int | None = None, download: bool = False) -> Dataset:
    """A dataset, ready for use.

    `data` is where archives and unpacked folders are looked for, or `$MDCG_DATA`. Where neither is given, the
    cache folder is, and what is missing there is downloaded; `download` does so into `data` too. `size` is the
    side to which the images of a folder are resized.

    >>> load("digits").classes
    10
    """
    if name.startswith(FOLDER):
        folder = _folder(name, size)
        pixels = Pixels(max(1, folder.size // 8), True)
        return _dataset(name, _cached(f"folder{folder.size}", folder.path, folder.stamp(), folder.read), pixels)
    if size is not None:
        raise MdcgError(f"the image size of {name} is fixed; leave out --image-size, which is for folders.")
    if name == "digits":
        return _dataset(name, read_digits(), Pixels(1, False))
    published, pixels = _published(name)
    path = _locate(name, published, data, download)
    return _dataset(name, _cached(name, path, published.stamp(path), lambda: published.read(path)), pixels)


def verify(name: str, data: Path | None = None, size: int | None = None) -> str:
    """Check every byte of a dataset's source and of its cache; says what was checked."""
    if name == "digits":
        content = read_digits()
        return f"digits: {len(content.train_labels) + len(content.test_labels):,} images, part of scikit-learn."
    if name.startswith(FOLDER):
        folder = _folder(name, size)
        path, fresh = folder.path, folder.read()
        file = _cache_file(f"folder{folder.size}", path, folder.stamp())
    else:
        published, _ = _published(name)
        path = _locate(name, published, data, download=None)
        fresh = published.read(path)  # raises where a file is missing or altered
        file = _cache_file(name, path, published.stamp(path))
    cached = recall(file)
    if cached is not None and not (cached.digest == digest_of(cached) == digest_of(fresh)):
        file.unlink()
        return f"{name}: {path} is whole; its cache {file} was damaged and has been removed."
    images = len(fresh.train_labels) + len(fresh.test_labels)
    return f"{name}: {path} is whole, {images:,} images" + (", and so is its cache." if cached else ".")


def _folder(name: str, size: int | None) -> Folder:
    try:
        path = Path(name.removeprefix(FOLDER)).expanduser().resolve()
        return Folder(path, _checked_size(size))
    except (RuntimeError, ValueError) as error:  # ~nobody, or a name with a NUL in it
        raise MdcgError(f"'{name}' is not a usable path ({error}); check it.") from error
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; check the path and its permissions.") from error


def _published(name: str) -> tuple[Published, Pixels]:
    if name not in PUBLISHED:
        raise unknown("dataset", name, DATASETS)
    return PUBLISHED[name]


def _checked_size(size: int | None) -> int:
    if size is None:
        return DEFAULT_FOLDER_SIZE
    if not 4 <= size <= 1024:
        raise MdcgError(f"the image size must be between 4 and 1024 pixels, not {size}.")
    return size


def _locate(name: str, published: Published, data: Path | None, download: bool | None) -> Path:
    """Folder or archive of a dataset; `download` says whether to fetch it into `data`, None: not at all."""
    chosen = data or (Path(os.environ["MDCG_DATA"]) if os.environ.get("MDCG_DATA") else None)
    if chosen is not None and not chosen.exists():
        raise MdcgError(f"there is no file or folder {chosen}; correct --data (or $MDCG_DATA).")
    root = chosen or cache_folder()
    found = find(root, published.folder, published.archive, published.probe)
    if found is None and (download is None or (chosen is not None and not download)):
        where = f" --data {chosen}" if chosen else ""
        raise MdcgError(
            f"neither {published.folder} nor {published.archive} is in {root}; run 'mdcg data get {name}{where}' first."
        )
    return (found or fetch(published.url, published.md5, root)).resolve()


def _cached(name: str, source: Path, stamp: str, read: Callable[[], Arrays]) -> Arrays:
    file = _cache_file(name, source, stamp)
    content = recall(file)
    if content is None:
        store(file, read())
        for outdated in set(file.parent.glob(_cache_file(name, source, "*").name)) - {file}:
            outdated.unlink(missing_ok=True)  # the source has changed since
        remove_partial(file.parent)
        content = recall(file)
        if content is None:
            raise MdcgError(f"{file} could not be read back just after it was written; check the disk.")
    return content


def _cache_file(name: str, source: Path, stamp: str) -> Path:
    place = hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()
    return cache_folder() / f"{name}-{place}-{stamp}.safetensors"


def _dataset(name: str, content: Arrays, pixels: Pixels) -> Dataset:
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
