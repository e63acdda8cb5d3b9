"""A person's image files: found, read, and counted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from mdcg.data.given import check_class_name
from mdcg.draws import Ints
from mdcg.errors import MachineError, MdcgError, said, unknown
from mdcg.files import readable, shown
from mdcg.pixels.decode import (
    DAMAGED,
    FORMATS,
    UNKNOWN,
    BadImage,
    Decoded,
    Encoded,
    ImageArray,
    ImageFormat,
    ahead,
    attempt,
    reason,
)
from mdcg.pixels.processes import decode_all

OnError = Literal["stop", "skip"]
PathLike = str | os.PathLike[str]

SUFFIXES = {".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
SUFFIXES |= {".ppm", ".pgm", ".pbm", ".pnm"} | ({".avif"} if "AVIF" in FORMATS else set())
# What lies beside images and is not meant as one; hidden files, such as .DS_Store or ._1.png, do too.
BESIDE = {"thumbs.db", "desktop.ini", "__macosx", "@eadir"}
BESIDE_SUFFIXES = {".txt", ".json", ".xml", ".csv", ".tsv", ".md", ".html", ".yaml", ".yml", ".log", ".xmp", ".aae"}
NAMED = 3  # files that a summary names of each kind
KINDS = 6  # kinds that it tells apart


@dataclass
class ImageReader:
    """Finds image files and reads them in one form; counts what was used and what was skipped.

    A file that cannot be read is an error (`on_error="stop"`), or is skipped (`"skip"`). Files in a folder that are no
    images by their names are skipped either way.

    >>> reader = ImageReader(ImageFormat(32), on_error="skip")
    >>> images, kept = reader.read(reader.find("/my/birds"))  # doctest: +SKIP
    >>> reader.summary()  # doctest: +SKIP
    'used 240, skipped 3: 2 .heic, 1 damaged (IMG_2.jpg)'
    """

    format: ImageFormat
    on_error: OnError = "stop"
    used: int = 0
    skipped: list[tuple[Path, str]] = field(default_factory=list)  # file, and why in a word

    def __post_init__(self) -> None:
        if not isinstance(self.on_error, str) or self.on_error not in get_args(OnError):
            raise unknown("answer to an error", self.on_error, get_args(OnError))

    def find(self, named: PathLike | Iterable[PathLike]) -> list[Path]:
        """Image files that a person names: files, which may be called anything, and folders.

        Of a folder, its images are found and those in its sub-folders.
        """
        found = []
        for path in map(path_named, [named] if isinstance(named, str | os.PathLike) else named):
            if not _is_folder(path):
                found.append(path)
                continue
            before = len(self.skipped)
            files, folders = self._scan(path)
            for folder in folders:
                files += self._images(folder)
            if not files:
                raise MdcgError(f"{self._nothing(path, before)}; name image files, or a folder of them.")
            found += files
        return found

    def find_classes(self, root: PathLike) -> dict[str, list[Path]]:
        """The image files of each class, by the name of its folder in `root`."""
        path = path_named(root)
        loose, folders = self._scan(path)
        self.skipped += [(file, "outside the class folders") for file in loose]
        classes: dict[str, list[Path]] = {}
        for folder in folders:
            name, before = readable(Path(folder.name)), len(self.skipped)
            files = self._images(folder)
            if not files:
                raise MdcgError(f"class folder {self._nothing(folder, before)}; add some or remove the folder.")
            if name in classes:  # bytes that cannot be shown are shown alike
                raise MdcgError(f"two class folders in {shown(path)} both read '{shown(name)}'; rename one of them.")
            check_class_name(name)
            classes[name] = files
        if not classes:
            raise MdcgError(
                f"{shown(path)} holds no class folder; put the images of each class in one, as PATH/CLASS/*."
            )
        return classes

    def read(self, files: Iterable[PathLike]) -> tuple[ImageArray, Ints]:
        """All images (n, size, size, 3) at once, and the place among the files of each."""
        paths = [path_named(file) for file in files]
        try:
            images = np.empty((len(paths), self.format.size, self.format.size, 3), np.uint8)
        except MemoryError as error:
            raise MachineError(
                f"there is not enough memory for {len(paths):,} images of {self.format.size} × {self.format.size} "
                "pixels; make them smaller, or use fewer."
            ) from error
        kept: list[int] = []
        with decode_all([_encoded(path) for path in paths], self.format) as decoded:
            found = ((path, self._judged(path, one)) for path, one in zip(paths, decoded, strict=True))
            for place, _, image in self._usable(found):
                images[len(kept)] = image
                kept.append(place)
        return images[: len(kept)], np.array(kept, np.int64)

    def read_classes(self, classes: dict[str, list[Path]]) -> tuple[ImageArray, Ints]:
        """All images of all classes and their labels: the first class is 0."""
        sizes = [len(files) for files in classes.values()]
        images, kept = self.read(file for files in classes.values() for file in files)
        labels = np.repeat(np.arange(len(sizes)), sizes)[kept]
        for name, left in zip(classes, np.bincount(labels, minlength=len(sizes)), strict=True):
            if not left:
                raise MdcgError(
                    f"no image of class '{shown(name)}' can be read ({self.summary()}); repair some or remove it."
                )
        return images, labels

    def stream(self, files: Iterable[PathLike], batch: int = 256) -> Iterator[tuple[list[Path], ImageArray]]:
        """Batches of files and their images (n, size, size, 3): however many files there are, few are in memory."""
        if not isinstance(batch, int) or batch < 1:
            raise MdcgError(f"a batch cannot hold {said(batch)} images; give 1 or more.")
        try:
            every = iter(files)
        except Exception as error:  # whatever it is, it is no list
            raise MdcgError(f"files are named in a list, not by {said(files)}; give their paths.") from error
        paths: list[Path] = []
        images: list[ImageArray] = []
        for _, path, image in self._usable(ahead(self._attempt, map(path_named, every))):
            paths.append(path)
            images.append(image)
            if len(paths) == batch:
                yield paths, np.stack(images)
                paths, images = [], []
        if paths:
            yield paths, np.stack(images)

    def summary(self) -> str:
        """What was used and what was not, in one line."""
        used = f"used {self.used:,}"
        return f"{used}, skipped {len(self.skipped):,}: {_counted(self.skipped)}" if self.skipped else used

    def _nothing(self, folder: Path, before: int) -> str:
        """What to say of a folder without an image, in which all was skipped since there were `before`."""
        instead = self.skipped[before:]
        return f"{shown(folder)} holds no image" + (f" that can be read (but {_counted(instead)})" if instead else "")

    def _usable(self, found: Iterable[tuple[Path, ImageArray | str]]) -> Iterator[tuple[int, Path, ImageArray]]:
        """Each usable file with its place and image, in order."""
        for place, (file, image) in enumerate(found):
            if isinstance(image, str):
                self.skipped.append((file, image))
            else:
                self.used += 1
                yield place, file, image

    def _attempt(self, file: Path) -> tuple[Path, ImageArray | str]:
        """A file and its image, or why it is skipped."""
        return file, self._judged(file, attempt(_encoded(file), self.format))

    def _judged(self, file: Path, decoded: Decoded) -> ImageArray | str:
        """The image of a file, or why it is skipped."""
        image = decoded.image if self.on_error == "skip" else decoded.pixels
        if not isinstance(image, BadImage):
            return image
        if image.why == UNKNOWN:
            return DAMAGED if file.suffix.lower() in SUFFIXES else _kind(file)
        return image.why

    def _images(self, folder: Path) -> list[Path]:
        """The image files in a folder; its sub-folders are skipped."""
        files, folders = self._scan(folder)
        self.skipped += [(inner, "too deep") for inner in folders]
        return files

    def _scan(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Image files and folders in a folder, both sorted; what is neither nor lies beside images is skipped."""
        files, folders = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    path, name = Path(entry.path), entry.name.lower()
                    if name.startswith(".") or name in BESIDE:
                        continue
                    if _is_folder(entry):
                        folders.append(path)
                    elif path.suffix.lower() in SUFFIXES:
                        files.append(path)
                    elif path.suffix.lower() not in BESIDE_SUFFIXES:
                        self.skipped.append((path, _kind(path)))
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, NotADirectoryError):
                raise MdcgError(f"{shown(folder)} is not a folder; check the path.") from error
            raise MdcgError(f"there is no folder {shown(folder)}; check the path.") from error
        except (OSError, ValueError) as error:
            raise MdcgError(f"cannot read {shown(folder)}: {reason(error)}; check its permissions.") from error
        return files, folders


def _encoded(path: Path) -> Encoded:
    return Encoded(shown(path), path)


def path_named(named: PathLike) -> Path:
    """The path of a file that a person has named, which need not be there."""
    try:
        return Path(named)
    except Exception as error:  # an object that only looks like a path
        raise MdcgError(f"a file is named by its path, not by {said(named)}.") from error


def _is_folder(named: Path | os.DirEntry[str]) -> bool:
    try:
        return named.is_dir()
    except OSError:  # then reading it as a file says why
        return False


def _kind(file: Path) -> str:
    """What files that are not images by their names are counted as."""
    return file.suffix.lower() or "without a suffix"


def _counted(skipped: list[tuple[Path, str]]) -> str:
    """Skipped files by why, the most frequent first.

    >>> _counted([(Path("a.heic"), ".heic"), (Path("b.png"), "damaged"), (Path("c.heic"), ".heic")])
    '2 .heic, 1 damaged (b.png)'
    """
    kinds: dict[str, list[str]] = {}
    for file, why in skipped:
        kinds.setdefault(why, []).append(file.name)
    told = []
    for why, names in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        which = [shown(name, 60) for name in names[:NAMED]] + ["…"] * (len(names) > NAMED)
        told.append(f"{len(names):,} {shown(why, 30)}" + ("" if why.startswith(".") else f" ({', '.join(which)})"))
    rest = len(told) - KINDS
    return ", ".join(told[:KINDS]) + (f" and {rest:,} more kinds" if rest > 0 else "")
