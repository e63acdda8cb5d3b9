"""Stand-ins for datasets, whose images are all black and take no memory: a rehearsal needs no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mdcg.data.content import Arrays
from mdcg.data.dataset import Dataset, Split
from mdcg.data.record import DatasetRecord


def stand_in(record: DatasetRecord) -> Dataset | None:
    """Make a dataset as its record tells of it before it is read; None where that does not tell enough."""
    if record.shape is None or record.images < 1 or record.classes < 2:
        return None
    channels, height, width = record.shape
    images, labels = _black((record.images, height, width, channels)), torch.arange(record.images) % record.classes
    names, mean, std = tuple(map(str, range(record.classes))), channels * (0.0,), channels * (1.0,)
    return Dataset.of(record, Arrays(images, labels, images, labels, names, mean, std, digest="not read"))


def blackened(dataset: Dataset) -> Dataset:
    """Replace the images of a dataset; its labels stay."""
    train, test = (Split(_black(split.images.shape), split.labels) for split in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test)


def _black(shape: Sequence[int]) -> Tensor:
    return torch.zeros(1, *shape[1:], dtype=torch.uint8).expand(*shape)
