"""The record of a dataset: its names, where its images are, how they are prepared and how it is trained on.

A dataset is an instance of a small class with `read`: of `Bundled`, where code or a package brings the images, or of
one in `published.py`, where they can be downloaded.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mdcg.data.content import Arrays
from mdcg.errors import MdcgError
from mdcg.stored import HUGE

Shape = tuple[int, int, int]  # channels, height, width
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
SMALL_RESNET_SIDE = 48  # pixels: the largest images for which a small ResNet is the usual backbone


@dataclass(frozen=True)
class Preprocessing:
    """How a dataset's pixels are augmented and normalised; without a mean, it is measured on the training images."""

    padding: int  # random crop: pixels of zero padding on each side
    flip: bool  # random horizontal flip
    mean: tuple[float, ...] | None = None  # per channel, pixels in 0..1
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise MdcgError(f"the padding of a random crop cannot be {self.padding}; give 0 or more.")
        if len(self.mean or ()) != len(self.std or ()):
            raise MdcgError("mean and std belong together; give both for every channel, or neither to measure them.")
        if not all(abs(one) <= HUGE for one in self.mean or ()) or not all(0 < one <= HUGE for one in self.std or ()):
            raise MdcgError(
                f"mean {self.mean} and std {self.std} cannot normalise pixels; give finite ones up to {HUGE:g}, std "
                "above 0."
            )

    @classmethod
    def usual(cls, shape: Shape) -> Preprocessing:
        """The preprocessing of photographs: a crop of up to an eighth, a flip, statistics as measured."""
        return cls(max(1, shape[1] // 8), True)


@dataclass(frozen=True)
class Protocol:
    """How a dataset is trained on where nothing else is asked for."""

    backbone: str
    epochs: int
    batch_size: int
    lr: float = 0.01  # learning rate
    momentum: float = 0.8

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or not 0 < self.lr < math.inf or not 0 <= self.momentum < 1:
            raise MdcgError(
                f"nothing can be trained by {self}; it takes an epoch, batches of two images, an lr above 0 and a "
                "momentum of at least 0 and below 1."
            )

    @classmethod
    def usual(cls, shape: Shape) -> Protocol:
        """The default protocol for images of this shape, where a dataset has none of its own."""
        return cls("resnet18" if shape[1] > SMALL_RESNET_SIDE else "resnet20", epochs=20, batch_size=32)


@dataclass(frozen=True)
class Source:
    """Images of a dataset, found but not yet read."""

    read: Callable[[], Arrays]
    path: Path | None = None  # folder or archive; None: no files, and nothing is cached
    label: str = ""  # how its file in the cache begins
    stamp: Callable[[], str] = str  # changes when the files do


@dataclass(frozen=True, kw_only=True)
class DatasetRecord(ABC):
    """All that is known of a dataset before it is read."""

    name: str
    summary: str  # its line in `mdcg list datasets`
    shape: Shape | None  # of every image; None: as large as is asked for
    short: str = ""  # in the names of scenarios, where the name is too long
    tasks: tuple[int, ...] = ()  # in which it usually comes; each is a scenario of `mdcg list scenarios`
    preprocessing: Preprocessing | None = None  # None: `Preprocessing.usual`
    published: Preprocessing | None = None  # by the paper's published code, where that departs from the paper
    protocol: Protocol | None = None  # None: `Protocol.usual`
    classes: int = 0  # and images to train on, where these are known before it is read
    images: int = 0
    memories: tuple[int, ...] = ()  # that figures of these scenarios show; that in the middle is the usual one
    format: int = 1  # part of a run's identity: raised when a change alters what runs on it compute

    def __post_init__(self) -> None:
        for name, allowed in ((self.name, rf"{NAME}(:.*)?"), (self.short, rf"({NAME})?")):
            if not re.fullmatch(allowed, name, re.DOTALL):
                raise MdcgError(f"'{name}' cannot name a dataset; use letters, digits, dots, dashes and underscores.")
        if not self.summary.strip() or "\n" in self.summary:
            raise MdcgError(f"the dataset {self.name} needs a summary of one line.")
        if self.shape is not None and (len(self.shape) != 3 or min(self.shape) < 1):
            raise MdcgError(f"the shape of {self.name} is {self.shape}; give (channels, height, width).")
        for what, numbers in {"tasks": self.tasks, "memories": self.memories, "format": (self.format,)}.items():
            if not all(isinstance(number, int) and number >= 1 for number in numbers):
                raise MdcgError(f"{what} of {self.name} cannot be {getattr(self, what)}; give whole numbers from 1 on.")
        for chosen in (self.preprocessing, self.published):
            if self.shape and chosen and chosen.mean and len(chosen.mean) != self.shape[0]:
                raise MdcgError(f"mean and std of {self.name} need one number for each of {self.shape[0]} channel(s).")

    @property
    def scenario_name(self) -> str:
        """The name that stands before the number of tasks in the names of its scenarios."""
        return self.short or self.name

    @property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios of this dataset that `mdcg list` shows."""
        return tuple(f"{self.scenario_name}-{tasks}" for tasks in self.tasks)

    def preprocessing_for(self, shape: Shape) -> Preprocessing:
        """The preprocessing for images of this shape."""
        return self.preprocessing or Preprocessing.usual(shape)

    def protocol_for(self, shape: Shape) -> Protocol:
        """The protocol for images of this shape."""
        return self.protocol or Protocol.usual(shape)

    @abstractmethod
    def source(self, data: Path | None, size: int | None, download: bool | None) -> Source:
        """Find its images: in `data`, to be resized to `size`; `download` may fetch them, with None nothing does."""

    def refuse_size(self, size: int | None) -> None:
        """Refuse an image size that is asked for, where all images have one already."""
        if size is not None:
            raise MdcgError(f"the image size of {self.name} is fixed; leave out --image-size, which is for folders.")


@dataclass(frozen=True, kw_only=True)
class Bundled(DatasetRecord):
    """A dataset that code makes or a package brings: always at hand, read anew each time."""

    part_of: str = ""  # the package that brings it

    @abstractmethod
    def read(self) -> Arrays:
        """All images and labels, the same ones every time; see `mdcg.data.arrays`."""

    def source(self, data: Path | None, size: int | None, download: bool | None) -> Source:
        self.refuse_size(size)
        return Source(self.read)
