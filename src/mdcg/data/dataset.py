"""A dataset: uint8 images, integer labels, and what is needed to feed them to a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mdcg.draws import Ints


@dataclass(frozen=True)
class Split:
    """The images and labels for training, or those for testing."""

    images: Tensor  # (n, height, width, channels) uint8, possibly memory-mapped
    labels: Ints  # (n,)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """The images of a dataset with their class names, and how they are augmented and normalised."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, pixels in 0..1
    std: tuple[float, ...]
    padding: int  # random crop: pixels of zero padding on each side
    flip: bool  # random horizontal flip
    fingerprint: str  # changes when the images do

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image: (channels, height, width)."""
        _, height, width, channels = self.train.images.shape
        return channels, height, width

    def counts(self) -> Ints:
        """The number of training images of each class."""
        return np.bincount(self.train.labels, minlength=self.classes)
