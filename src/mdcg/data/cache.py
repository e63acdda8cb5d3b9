"""The cache: one memory-mapped uint8 file per dataset, so that a second start reads nothing it does not use.

The file is safetensors: a JSON header and raw arrays, never code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pooch
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.files import atomic_file
from mdcg.tensors import header_of, values_of

VERSION = 1


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


def cache_folder() -> Path:
    """The folder `$MDCG_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("MDCG_CACHE") or pooch.os_cache("mdcg"))


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
        low, top = int(labels.min()), int(labels.max())
        if low < 0 or top >= classes:
            raise ValueError(f"its {split} labels go from {low} to {top}, but {classes} classes are 0 to {classes - 1}")
        counts = labels.bincount(minlength=classes)
        if not counts.all():
            raise ValueError(f"its class '{content.class_names[int(counts.argmin())]}' has no {split} image")


def statistics(images: npt.NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and standard deviation of each channel, from exact counts of the 256 pixel values."""
    levels = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[-1]):
        count = sum(
            np.bincount(images[start : start + 4096, ..., channel].reshape(-1), minlength=256)
            for start in range(0, len(images), 4096)
        )
        share = count / np.sum(count)
        mean = float(share @ levels)
        means.append(mean)
        stds.append(max(float(np.sqrt(share @ (levels - mean) ** 2)), 1e-3))
    return tuple(means), tuple(stds)


def write_cache(path: Path, content: Arrays) -> None:
    """Write the arrays to the cache."""
    values = {
        "version": VERSION,
        "class_names": content.class_names,
        "mean": content.mean,
        "std": content.std,
        "digest": digest_of(content),
    }
    with atomic_file(path) as partial:
        save_file(content.tensors(), partial, header_of(values))


def read_cache(path: Path) -> Arrays | None:
    """The cached arrays, mapped not read; None where there is no usable file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            values = values_of(file.metadata())
            if values["version"] != VERSION:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            names, mean, std = (tuple(values[key]) for key in ("class_names", "mean", "std"))
            return Arrays(**tensors, class_names=names, mean=mean, std=std, digest=values["digest"])
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None  # cut short or foreign: made anew from the source
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror or error}; delete it and try again.") from error


def digest_of(content: Arrays) -> str:
    """A digest of every byte, for `mdcg data verify`."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in content.tensors().values():
        for chunk in tensor.split(4096):
            digest.update(chunk.numpy().tobytes())
    return digest.hexdigest()
