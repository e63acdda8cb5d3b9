"""The content of a dataset: images and labels of both splits, checked and measured, whole or piece by piece."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from mdcg.draws import Ints, Purpose, hold_out
from mdcg.pixels.decode import ahead

TEST_FRACTION = 0.2  # of each class, where a source has no test images
PIECE = 2**24  # bytes of images that are looked at, or written, at once
COUNTING = 4  # threads, and no more: of images that are made on the way, each has two pieces in memory
Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel, pixels in 0..1


@dataclass(frozen=True)
class Arrays:
    """The images (n, height, width, channels) and labels that a reader makes of a source, train and test."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of the training images, per channel, pixels in 0..1
    std: tuple[float, ...]
    digest: str = ""

    def tensors(self) -> dict[str, Tensor]:
        return {
            "train_images": self.train_images,
            "train_labels": self.train_labels,
            "test_images": self.test_images,
            "test_labels": self.test_labels,
        }


def arrays(
    train: tuple[npt.ArrayLike, npt.ArrayLike], test: tuple[npt.ArrayLike, npt.ArrayLike], class_names: Sequence[str]
) -> Arrays:
    """Check images and labels of both splits, and return them as a reader does; bad ones raise a ValueError.

    >>> images = np.zeros((4, 8, 8, 3), np.uint8)
    >>> arrays((images, [0, 1, 0, 1]), (images[:2], [0, 1]), ["cat", "dog"]).class_names
    ('cat', 'dog')
    """
    train_x, test_x = _images(train[0], "training"), _images(test[0], "test")
    return Arrays(
        torch.from_numpy(train_x),
        torch.from_numpy(_labels(train[1], "training")),
        torch.from_numpy(test_x),
        torch.from_numpy(_labels(test[1], "test")),
        tuple(class_names),
        *statistics(train_x),
    )


def arrays_without_test(images: npt.NDArray[np.uint8], labels: Ints, class_names: Sequence[str]) -> Arrays:
    """Make the arrays of a source that has no test images: a fixed share of each class is held out."""
    rows, held = held_out_rows(labels)
    return arrays((images[rows], labels[rows]), (images[held], labels[held]), class_names)


def held_out_rows(labels: Ints) -> tuple[Ints, Ints]:
    """The rows to train on and those held out for testing, always the same ones."""
    return hold_out(labels, TEST_FRACTION, 0, Purpose.TEST_SPLIT)


def _images(given: npt.ArrayLike, split: str) -> npt.NDArray[np.uint8]:
    images = np.asarray(given)
    if images.dtype != np.uint8:
        raise ValueError(f"its {split} images are {images.dtype}, not uint8 from 0 to 255")
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(f"its {split} images have shape {images.shape}, not (images, height, width, channels)")
    return np.require(images, requirements=["C", "W"])


def _labels(given: npt.ArrayLike, split: str) -> npt.NDArray[np.int64]:
    labels = np.asarray(given)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"its {split} labels are {labels.dtype} of shape {labels.shape}, not one whole number per image"
        )
    return np.require(labels, np.int64, ["C", "W"])


def check(content: Arrays, shape: tuple[int, int, int] | None) -> None:
    """Refuse with a ValueError what no dataset of this shape (channels, height, width) can hold."""
    if not isinstance(content, Arrays):
        raise ValueError(f"'read' returned {type(content).__name__}, not what mdcg.data.arrays makes")
    classes = len(content.class_names)
    if classes < 2 or not all(isinstance(name, str) and name for name in content.class_names):
        raise ValueError("its class names are not two or more texts")
    high, wide, channels = content.train_images.shape[1:]
    wanted = shape or (channels, high, wide)
    for split, images, labels in (
        ("training", content.train_images, content.train_labels),
        ("test", content.test_images, content.test_labels),
    ):
        found = (images.shape[3], images.shape[1], images.shape[2])
        if found != wanted:
            raise ValueError(f"its {split} images have shape {found}, not {wanted} (channels, height, width)")
        if len(images) != len(labels):
            raise ValueError(f"it has {len(images)} {split} images and {len(labels)} labels of them")
        own = labels.numpy()  # with one thread: torch's would wait for each other while the cores compile kernels
        low, top = int(own.min()), int(own.max())
        if low < 0 or top >= classes:
            raise ValueError(f"its {split} labels go from {low} to {top}, but {classes} classes are 0 to {classes - 1}")
        counts = np.bincount(own, minlength=classes)
        if not counts.all():
            raise ValueError(f"its class '{content.class_names[int(counts.argmin())]}' has no {split} image")


def statistics(images: npt.NDArray[np.uint8]) -> Statistics:
    """The mean and standard deviation of each channel, from exact counts of the 256 pixel values."""
    return statistics_of(_pieces(images), images.shape[-1])


def statistics_of(pieces: Iterable[npt.NDArray[np.uint8]], channels: int) -> Statistics:
    """Measure images that come piece by piece, as `statistics` does."""

    def counted(piece: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        flat = piece.reshape(len(piece), -1, channels)
        return np.array([Image.fromarray(flat[..., channel]).histogram() for channel in range(channels)], np.int64)

    counts = sum(ahead(counted, pieces, COUNTING), np.zeros((channels, 256), np.int64))
    levels = np.arange(256) / 255
    means, stds = [], []
    for count in counts:
        share = count / np.sum(count)
        mean = float(share @ levels)
        means.append(mean)
        stds.append(max(float(np.sqrt(share @ (levels - mean) ** 2)), 1e-3))
    return tuple(means), tuple(stds)


def _pieces(images: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    rows = rows_per_piece(images.shape[1:])
    return (images[start : start + rows] for start in range(0, len(images), rows))


def rows_per_piece(shape: Sequence[int]) -> int:
    """The number of images of this shape that make a piece."""
    return max(1, PIECE // math.prod(shape))


def digest_of(content: Arrays) -> str:
    """A digest of every byte, for `mdcg data verify`."""
    return digest_of_pieces(chunk for tensor in content.tensors().values() for chunk in chunks(tensor))


def digest_of_pieces(pieces: Iterable[npt.NDArray[Any]]) -> str:
    """Make the digest of tensors that come one after the other and piece by piece, as `digest_of` does."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(np.ascontiguousarray(piece).data)
    return digest.hexdigest()


def chunks(tensor: Tensor) -> Iterator[npt.NDArray[Any]]:
    """The content of a tensor, piece by piece."""
    return (chunk.numpy() for chunk in tensor.split(rows_per_piece(tensor.shape[1:])))
