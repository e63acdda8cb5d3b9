"""A dataset: uint8 images, integer labels, and what is needed to feed them to a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from mdcg.arguments import plain
from mdcg.data import items, own
from mdcg.data.cache import cached
from mdcg.data.class_names import warn_of_look_alikes
from mdcg.data.content import Arrays, digest_of
from mdcg.data.folder import FOLDER
from mdcg.data.given import Channels, Images, Parts
from mdcg.data.own import Own, Prepared, name_of
from mdcg.data.prepare import content_of
from mdcg.data.record import DatasetRecord
from mdcg.data.registry import record_of
from mdcg.draws import Ints
from mdcg.errors import InputError
from mdcg.files import path_of
from mdcg.pixels.decode import ImageFormat


@dataclass(frozen=True)
class Split:
    """The images and labels for training, or those for testing."""

    images: Tensor  # (n, height, width, channels) uint8, possibly memory-mapped; features (n, 1, 1, features) float32
    labels: Ints  # (n,)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, repr=False)
class Dataset:
    """The images of a dataset with their class names, and how they are augmented and normalised.

    One of your own is made by `from_arrays`, `from_torch`, `from_huggingface` or `from_folder`, and given to
    `mdcg.run`, `mdcg.compare` and `mdcg.Sweep` as `data`; the scenario is then its name and the number of tasks.

    >>> rng, labels = np.random.default_rng(0), np.arange(40) % 4
    >>> images = rng.integers(0, 256, (40, 8, 8), np.uint8)
    >>> Dataset.from_arrays((images, labels), name="noise", class_names=["ant", "bee", "cat", "dog"])
    <Dataset noise: 32 training and 8 test images of 4 classes, 8×8, 1 channel>
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, pixels in 0..1
    std: tuple[float, ...]
    padding: int  # random crop: pixels of zero padding on each side
    flip: bool  # random horizontal flip
    fingerprint: str  # changes when the images do
    own: DatasetRecord | None = field(default=None, compare=False)  # the record of one that is not registered

    @classmethod
    def of(cls, record: DatasetRecord, content: Arrays) -> Dataset:
        """The dataset of a record, whose images were read."""
        _, height, width, channels = content.train_images.shape
        pixels = record.preprocessing_for((channels, height, width))
        return cls(
            name=record.name,
            train=Split(content.train_images, content.train_labels.numpy()),
            test=Split(content.test_images, content.test_labels.numpy()),
            class_names=content.class_names,
            mean=pixels.mean or content.mean,
            std=pixels.std or content.std,
            padding=pixels.padding,
            flip=pixels.flip,
            fingerprint=content.digest or digest_of(content),
            own=record if isinstance(record, Own) else None,
        )

    @classmethod
    def from_arrays(
        cls,
        train: tuple[Any, Any],
        test: tuple[Any, Any] | None = None,
        *,
        name: str,
        class_names: Sequence[str] | None = None,
        channels: Channels | None = None,
        **prepared: Unpack[Prepared],
    ) -> Dataset:
        """Make a dataset of (images, labels), numpy arrays or torch tensors.

        Images are uint8 or floats from 0 to 1: (n, height, width) grey ones, (n, height, width, channels), or (n,
        channels, height, width); `channels="first"` or `"last"` says which where the shape does not. Labels are names,
        or whole numbers, which are places in `class_names` if that is given. Without a test set a fifth of each class
        is held out.

        An array of uint8 with its channels last is not copied: leave it as it is. What is mapped from a file, as
        `numpy.load(…, mmap_mode="r")` does, is never in memory as a whole; where it must be converted or split, the
        result is a file in the cache. `padding`, `flip`, `mean` and `std` say how pixels are prepared.
        """
        own.check(name, prepared)
        parts = Parts.of(
            _pair(train, channels, "training"), None if test is None else _pair(test, channels, "test"), class_names
        )
        if parts.is_mapped and not parts.is_ready:
            return cls._own(name, cached(name, Path(name), parts.stamp, parts.write), prepared)
        return cls._own(name, parts.arrays(), prepared)

    @classmethod
    def from_torch(
        cls,
        train: Any,
        test: Any = None,
        *,
        name: str,
        class_names: Sequence[str] | None = None,
        channels: Channels | None = None,
        size: int | None = None,
        **prepared: Unpack[Prepared],
    ) -> Dataset:
        """Make a dataset of map-style torch datasets, whose items are (image, label).

        An image is a PIL picture, or an array or tensor as in `from_arrays`. All have one size, or pictures are brought
        to `size` × `size` pixels in colour. All are read into the cache; a transform may not be random.
        """
        own.check(name, prepared)
        splits = items.of_torch(train, "training"), None if test is None else items.of_torch(test, "test")
        format = None if size is None else ImageFormat(plain(size, "size"))
        return cls._own(name, items.stored(name, *splits, class_names, channels, format), prepared)

    @classmethod
    def from_huggingface(
        cls,
        train: Any,
        test: Any = None,
        *,
        name: str,
        image: str = "image",
        label: str = "label",
        class_names: Sequence[str] | None = None,
        channels: Channels | None = None,
        size: int | None = None,
        **prepared: Unpack[Prepared],
    ) -> Dataset:
        """Make a dataset of two columns of a `datasets.Dataset`, or of the splits train and test of a `DatasetDict`.

        Images are those of `from_torch`. They are read into the cache once, and again only when the dataset's own
        fingerprint has changed.
        """
        own.check(name, prepared)
        train, test = items.splits_of(train, test)
        splits = (
            items.of_huggingface(train, image, label, "training"),
            None if test is None else items.of_huggingface(test, image, label, "test"),
        )
        format = None if size is None else ImageFormat(plain(size, "size"))
        return cls._own(name, items.stored(name, *splits, class_names, channels, format), prepared)

    @classmethod
    def from_folder(
        cls, path: Path | str, *, size: int | None = None, name: str | None = None, **prepared: Unpack[Prepared]
    ) -> Dataset:
        """Make a dataset of image files, PATH/CLASS/* or PATH/train/CLASS/* and PATH/test/CLASS/*; see `folder:PATH`.

        Images are brought to `size` × `size` pixels, 32 if it is left out. Without a name it has that of the folder.
        """
        folder = path_of(path, home=True)
        chosen = name_of(folder.resolve()) if name is None else name
        own.check(chosen, prepared)
        record = record_of(f"{FOLDER}{folder}")
        return cls._own(chosen, content_of(record, record.source(None, plain(size, "size"), None)), prepared)

    @classmethod
    def _own(cls, name: str, content: Arrays, prepared: Prepared) -> Dataset:
        warn_of_look_alikes(content.class_names)
        record = Own.of(name, content, prepared)
        return cls.of(record, record.content)

    def __repr__(self) -> str:
        channels, height, width = self.shape
        return (
            f"<Dataset {self.name}: {len(self.train):,} training and {len(self.test):,} test images of {self.classes} "
            f"classes, {height}×{width}, {channels} channel{'' if channels == 1 else 's'}>"
        )

    @property
    def record(self) -> DatasetRecord:
        """What is known of the dataset besides its images."""
        return self.own or record_of(self.name)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image: (channels, height, width)."""
        _, height, width, channels = self.train.images.shape
        return channels, height, width

    @property
    def white(self) -> int:
        """The value of a white pixel; 1 where rows of features take the place of images."""
        return 1 if self.train.images.is_floating_point() else 255

    def counts(self) -> Ints:
        """The number of training images of each class."""
        return np.bincount(self.train.labels, minlength=self.classes)


def _pair(given: Any, channels: Channels | None, what: str) -> tuple[Images, Any]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(f"the {what} set is {type(given).__name__}; give a pair (images, labels).")
    return Images.of(given[0], channels, what), given[1]
