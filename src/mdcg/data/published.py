"""The records of datasets that can be downloaded: as one archive, or as several files."""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mdcg.data.cache import cache_folder
from mdcg.data.content import Arrays
from mdcg.data.record import DatasetRecord, Source
from mdcg.data.source import fetch, find, stamp
from mdcg.errors import MdcgError
from mdcg.files import open_file
from mdcg.folders import walk

MD5 = r"[0-9a-f]{32}"


@dataclass(frozen=True, kw_only=True)
class Downloaded(DatasetRecord):
    """A dataset whose files can be downloaded: found, checked, and cached once they were read."""

    largest: int | None = None  # bytes that a file of it may have: a larger one is not even hashed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.largest is not None and self.largest < 1:
            raise MdcgError(f"the largest file of {self.name} cannot have {self.largest} bytes; give 1 or more.")

    @property
    @abstractmethod
    def downloads(self) -> tuple[str, ...]:
        """The files that are downloaded, as they lie in the folder where datasets are looked for."""

    @abstractmethod
    def find(self, root: Path) -> Path | None:
        """The file or folder below `root` that `read` is given; None where something is missing."""

    @abstractmethod
    def missing(self, root: Path) -> str:
        """Say what is missing in `root`, as the beginning of a sentence."""

    @abstractmethod
    def fetch(self, root: Path) -> Path:
        """Download what is missing into `root`, and return what `find` would."""

    @abstractmethod
    def check(self, path: Path) -> None:
        """Refuse files that are not the published ones."""

    @abstractmethod
    def read(self, path: Path) -> Arrays:
        """All images and labels, from what `find` has found."""

    def stamp(self, path: Path) -> str:
        """A digest that changes when the files do: then they are read again."""
        if path.is_file():
            return stamp([path])
        inner = (folder / name for folder, _, names in walk(path) for name in names)
        return stamp(sorted(file for file in inner if file.is_file()))

    def source(self, data: Path | None, size: int | None, download: bool | None) -> Source:
        self.refuse_size(size)
        path = self._locate(data, download)
        return Source(partial(self._checked, path), path, self.name, partial(self.stamp, path))

    def _checked(self, path: Path) -> Arrays:
        self.check(path)
        return self.read(path)

    def _locate(self, data: Path | None, download: bool | None) -> Path:
        chosen = data or (Path(os.environ["MDCG_DATA"]) if os.environ.get("MDCG_DATA") else None)
        if chosen is not None and not chosen.exists():
            raise MdcgError(f"there is no file or folder {chosen}; correct --data (or $MDCG_DATA).")
        root = chosen or cache_folder()
        found = self.find(root)
        if found is None and (download is None or (chosen is not None and not download)):
            where = f" --data {chosen}" if chosen else ""
            raise MdcgError(f"{self.missing(root)}; run 'mdcg data get {self.name}{where}' first.")
        return (found or self.fetch(root)).resolve()


@dataclass(frozen=True, kw_only=True)
class Published(Downloaded):
    """A dataset with an archive that can be downloaded."""

    url: str
    md5: str  # of the archive
    folder: str = ""  # inside the archive: where that was unpacked, it is found too
    probe: str = ""  # a file in this folder, by which it is known under any name

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"\w+://.*/[^/]+", self.url) or not re.fullmatch(MD5, self.md5):
            raise MdcgError(
                f"{self.name} cannot be downloaded from '{self.url}' with md5 '{self.md5}'; give the address of a file "
                "and 32 hexadecimal digits."
            )

    @property
    def archive(self) -> str:
        """The name of the archive's file."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def downloads(self) -> tuple[str, ...]:
        return (self.archive,)

    def find(self, root: Path) -> Path | None:
        return find(root, self.folder, self.archive, self.probe)

    def missing(self, root: Path) -> str:
        what = f"neither {self.folder} nor {self.archive} is" if self.folder else f"{self.archive} is not"
        return f"{what} in {root}"

    def fetch(self, root: Path) -> Path:
        return fetch(self.url, self.md5, root, self.largest)

    def check(self, path: Path) -> None:
        """Refuse an archive that is not the published one. Of a folder nothing is known: there `read` must look."""
        if path.is_file():
            check_md5(path, self.md5, self.largest)


@dataclass(frozen=True, kw_only=True)
class PublishedFiles(Downloaded):
    """A dataset with several files that can be downloaded, and lie in a folder of their own."""

    url: str  # of what holds the files; ends with a slash
    files: dict[str, str]  # name: md5
    folder: str  # where they are put; they are found in any other one that is named, too

    def __post_init__(self) -> None:
        super().__post_init__()
        sums = all(re.fullmatch(MD5, md5) for md5 in self.files.values())
        if not re.fullmatch(r"\w+://.*/", self.url) or not self.files or not sums or not self.folder:
            raise MdcgError(
                f"{self.name} cannot be downloaded from '{self.url}'; give an address that ends with a slash, a "
                "folder, and for each file its md5, 32 hexadecimal digits."
            )

    @property
    def downloads(self) -> tuple[str, ...]:
        return tuple(f"{self.folder}/{name}" for name in self.files)

    def find(self, root: Path) -> Path | None:
        return next((place for place in (root, root / self.folder) if not self._lacks(place)), None)

    def missing(self, root: Path) -> str:
        own = root / self.folder
        place = own if own.is_dir() else root
        return f"{self._lacks(place)[0]} is not in {place}"

    def fetch(self, root: Path) -> Path:
        for name in self._lacks(root / self.folder):
            fetch(self.url + name, self.files[name], root / self.folder, self.largest)
        return root / self.folder

    def check(self, path: Path) -> None:
        """Refuse files that are not the published ones, by the first of them."""
        for name, md5 in self.files.items():
            check_md5(path / name, md5, self.largest)

    def stamp(self, path: Path) -> str:
        return stamp([path / name for name in self.files])

    def _lacks(self, place: Path) -> list[str]:
        return [name for name in self.files if not (place / name).is_file()]


def check_md5(path: Path, md5: str, largest: int | None = None) -> None:
    """Refuse a file that has another md5; one that is larger than it can be is not read."""
    try:
        with open_file(path) as file:
            whole = largest is None or os.fstat(file.fileno()).st_size <= largest
            found = hashlib.file_digest(file, "md5").hexdigest() if whole else ""
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; check its permissions.") from error
    if found != md5:
        raise MdcgError(f"{path} is altered or cut short (its md5 is not {md5}); remove it and run 'mdcg data get'.")
