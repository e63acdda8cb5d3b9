"""One memory-mapped uint8 file per dataset, so that a second start reads nothing it does not use.

The file is safetensors: a JSON header and raw arrays, never code.
"""

from __future__ import annotations

import hashlib
import os
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
from mdcg.files import whole_file
from mdcg.tensors import header_of, values_of

VERSION = 1


@dataclass(frozen=True)
class Arrays:
    """What a reader makes of a source: images (n, height, width, channels) and labels, train and test."""

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
    """`$MDCG_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("MDCG_CACHE") or pooch.os_cache("mdcg"))


def arrays(
    train: tuple[npt.NDArray[np.uint8], npt.ArrayLike],
    test: tuple[npt.NDArray[np.uint8], npt.ArrayLike],
    class_names: list[str],
) -> Arrays:
    (train_x, train_y), (test_x, test_y) = train, test
    return Arrays(
        torch.from_numpy(np.ascontiguousarray(train_x)),
        torch.from_numpy(np.asarray(train_y, np.int64)),
        torch.from_numpy(np.ascontiguousarray(test_x)),
        torch.from_numpy(np.asarray(test_y, np.int64)),
        tuple(class_names),
        *_statistics(train_x),
    )


def _statistics(images: npt.NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from exact counts of the 256 pixel values."""
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


def store(path: Path, content: Arrays) -> None:
    values = {
        "version": VERSION,
        "class_names": content.class_names,
        "mean": content.mean,
        "std": content.std,
        "digest": digest_of(content),
    }
    with whole_file(path) as partial:
        save_file(content.tensors(), partial, header_of(values))


def recall(path: Path) -> Arrays | None:
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
