"""What pixels are normalised by: the images' own statistics, ImageNet's, or any others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from mdcg.data.dataset import Dataset
from mdcg.data.record import Preprocessing
from mdcg.errors import MdcgError, unknown

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel, pixels in 0..1
Named = Literal["data", "imagenet"]
Normalise = Named | tuple[Sequence[float], Sequence[float]]

IMAGENET: Statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def statistics(normalise: Normalise, measured: Statistics) -> Statistics:
    """Mean and standard deviation for images whose own are `measured`.

    ImageNet's, for one channel, are the average of its three.

    >>> statistics("data", ((0.5,), (0.3,)))
    ((0.5,), (0.3,))
    >>> statistics("imagenet", ((0.5, 0.5, 0.5), (0.3, 0.3, 0.3)))
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    """
    if isinstance(normalise, str):
        if normalise not in ("data", "imagenet"):
            raise unknown("normalisation", normalise, ("data", "imagenet"), about="normalise")
        mean, std = measured if normalise == "data" else IMAGENET
        if len(measured[0]) == 1 and len(mean) == 3:
            mean, std = (round(sum(mean) / 3, 6),), (round(sum(std) / 3, 6),)
    else:
        mean, std = (tuple(map(float, numbers)) for numbers in normalise)
        Preprocessing(0, False, mean, std)  # which refuses what cannot normalise
    if len(mean) != len(measured[0]):
        raise MdcgError(
            f"the images have {len(measured[0])} channels and the normalisation {len(mean)}; give a mean and a "
            "standard deviation for each channel, or 'data'.",
            about="normalise",
        )
    return mean, std


def normalised(dataset: Dataset, normalise: Normalise) -> Dataset:
    """The dataset with pixels normalised as asked for."""
    mean, std = statistics(normalise, (dataset.mean, dataset.std))
    return replace(dataset, mean=mean, std=std)
