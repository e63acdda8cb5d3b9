"""A person's own images: PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/* split for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mdcg.data.class_names import warn_of_look_alikes
from mdcg.data.content import Arrays, arrays, arrays_without_test
from mdcg.data.images import ImageReader
from mdcg.data.record import DatasetRecord, Source
from mdcg.data.registry import ANY
from mdcg.data.source import stamp
from mdcg.errors import MdcgError
from mdcg.files import shown
from mdcg.pixels.decode import VERSION, ImageFormat

FOLDER = "folder:"
DEFAULT_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class Folders(DatasetRecord):
    """Any folder of images: its path is in the name, its images have the size that is asked for."""

    def source(self, data: Path | None, size: int | None, download: bool | None) -> Source:
        try:
            path = Path(self.name.removeprefix(FOLDER)).expanduser().resolve()
            folder = Folder(path, DEFAULT_SIZE if size is None else size)
        except MdcgError:
            raise  # which may be a ValueError too
        except (RuntimeError, ValueError) as error:  # ~nobody, or a name with a NUL in it
            raise MdcgError(f"'{shown(self.name)}' is not a usable path ({error}); check it.") from error
        except OSError as error:
            raise MdcgError(
                f"cannot read {shown(path)}: {error.strerror}; check the path and its permissions."
            ) from error
        return Source(folder.read, path, f"folder{folder.format.size}", folder.stamp)


class Folder:
    """A folder of images, whose folders are the classes; images of any size are resized to `size` × `size`."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.format = path, ImageFormat(size)
        self.reader = ImageReader(self.format)
        self.is_split = (path / "train").is_dir() and (path / "test").is_dir()
        if (
            (path / "train").is_dir()
            and not self.is_split
            and any(file.is_dir() for file in (path / "train").iterdir())
        ):
            raise MdcgError(
                f"{shown(path)} has a folder train but no folder test; add test with the same classes, or use "
                f"folder:{shown(path)}/train to have a part of it held back."
            )
        self.train = self.reader.find_classes(path / "train" if self.is_split else path)
        self.test = self.reader.find_classes(path / "test") if self.is_split else {}
        if len(self.train) < 2:
            raise MdcgError(
                f"{shown(path)} holds a single class folder; it needs at least two, as PATH/CLASS/*.png or "
                "PATH/train/CLASS/*.png with PATH/test/CLASS/*.png."
            )
        if self.is_split and set(self.test) != set(self.train):
            odd = sorted(set(self.train) ^ set(self.test))[0]
            where = "test" if odd in self.train else "train"
            raise MdcgError(f"class '{shown(odd)}' has no folder in {shown(path / where)}; add it there or remove it.")
        if not self.is_split:
            for files in self.train.values():
                if len(files) < 2:
                    raise MdcgError(
                        f"class folder {shown(files[0].parent)} holds a single image, which cannot serve both training "
                        "and testing; add images or remove it."
                    )
        warn_of_look_alikes(self.train)

    def stamp(self) -> str:
        files = [file for classes in (self.train, self.test) for its in classes.values() for file in its]
        return stamp(files, extra=f"{self.format} {VERSION}")

    def read(self) -> Arrays:
        images, labels = self.reader.read_classes(self.train)
        if self.is_split:
            test = self.reader.read_classes({name: self.test[name] for name in self.train})
            return arrays((images, labels), test, list(self.train))
        return arrays_without_test(images, labels, list(self.train))


FOLDERS = Folders(
    name=f"{FOLDER}{ANY}",
    summary="your own images, as PATH/CLASS/* or PATH/train/CLASS/* and PATH/test/CLASS/*",
    shape=None,
)
