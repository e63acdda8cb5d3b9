"""A person's own images: PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/* split for them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdcg.data.cache import Arrays, arrays
from mdcg.data.decode import ImageArray, decode_all
from mdcg.data.record import DatasetRecord, Source
from mdcg.data.registry import ANY
from mdcg.data.source import stamp
from mdcg.draws import Ints, Purpose, hold_out
from mdcg.errors import MdcgError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
TEST_FRACTION = 0.2
FOLDER = "folder:"
DEFAULT_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class Folders(DatasetRecord):
    """Any folder of images: its path is in the name, its images have the size that is asked for."""

    def source(self, data: Path | None, size: int | None, download: bool | None) -> Source:
        try:
            path = Path(self.name.removeprefix(FOLDER)).expanduser().resolve()
            folder = Folder(path, _checked_size(size))
        except (RuntimeError, ValueError) as error:  # ~nobody, or a name with a NUL in it
            raise MdcgError(f"'{self.name}' is not a usable path ({error}); check it.") from error
        except OSError as error:
            raise MdcgError(f"cannot read {path}: {error.strerror}; check the path and its permissions.") from error
        return Source(folder.read, path, f"folder{folder.size}", folder.stamp)


class Folder:
    """A folder of images, whose folders are the classes; images of any size are resized to `size` × `size`."""

    def __init__(self, path: Path, size: int) -> None:
        if not path.is_dir():
            raise MdcgError(f"there is no folder {path}; check the path after 'folder:'.")
        self.path, self.size = path, size
        self.is_split = (path / "train").is_dir() and (path / "test").is_dir()
        if (
            (path / "train").is_dir()
            and not self.is_split
            and any(file.is_dir() for file in (path / "train").iterdir())
        ):
            raise MdcgError(
                f"{path} has a folder train but no folder test; add test with the same classes, or use "
                f"folder:{path}/train to have a part of it held back."
            )
        self.train = _classes(path / "train" if self.is_split else path)
        self.test = _classes(path / "test") if self.is_split else {}
        self.names = sorted(self.train)
        if len(self.names) < 2:
            raise MdcgError(
                f"{path} holds {len(self.names)} class folder(s); it needs at least two, as PATH/CLASS/*.png or "
                "PATH/train/CLASS/*.png with PATH/test/CLASS/*.png."
            )
        if self.is_split and set(self.test) != set(self.train):
            odd = sorted(set(self.train) ^ set(self.test))[0]
            where = "test" if odd in self.train else "train"
            raise MdcgError(f"class '{odd}' has no folder in {path / where}; add it there or remove it.")
        if not self.is_split:
            for name in self.names:
                if len(self.train[name]) < 2:
                    raise MdcgError(
                        f"class folder {path / name} holds a single image, which cannot serve both training and "
                        "testing; add images or remove it."
                    )

    def stamp(self) -> str:
        files = [file for classes in (self.train, self.test) for name in sorted(classes) for file in classes[name]]
        return stamp(files, extra=f"size={self.size}")

    def read(self) -> Arrays:
        images, labels = self._load(self.train)
        if self.is_split:
            return arrays((images, labels), self._load(self.test), self._readable_names())
        train, test = hold_out(labels, TEST_FRACTION, 0, Purpose.TEST_SPLIT)
        return arrays((images[train], labels[train]), (images[test], labels[test]), self._readable_names())

    def _readable_names(self) -> list[str]:
        """The class names as text: folder names may be any bytes, and what is not UTF-8 gets replacement characters."""
        return [os.fsencode(name).decode(errors="replace") for name in self.names]

    def _load(self, classes: dict[str, list[Path]]) -> tuple[ImageArray, Ints]:
        files = [(file, label) for label, name in enumerate(self.names) for file in classes[name]]

        def content(row: int) -> tuple[bytes, str]:
            file = files[row][0]
            try:
                return file.read_bytes(), str(file)
            except OSError as error:
                raise MdcgError(f"cannot read {file}: {error.strerror}; check its permissions.") from error

        return decode_all(len(files), content, self.size), np.array([label for _, label in files], np.int64)


def _checked_size(size: int | None) -> int:
    if size is None:
        return DEFAULT_SIZE
    if not 4 <= size <= 1024:
        raise MdcgError(f"the image size must be between 4 and 1024 pixels, not {size}.")
    return size


def _classes(root: Path) -> dict[str, list[Path]]:
    found = {}
    for folder in sorted(root.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        try:
            files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        except OSError as error:
            raise MdcgError(f"cannot read {folder}: {error.strerror}; check its permissions.") from error
        if not files:
            raise MdcgError(f"class folder {folder} holds no image; add some or remove the folder.")
        found[folder.name] = files
    return found


FOLDERS = Folders(
    name=f"{FOLDER}{ANY}",
    summary="your own images, as PATH/CLASS/* or PATH/train/CLASS/* and PATH/test/CLASS/*",
    shape=None,
)
