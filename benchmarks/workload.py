"""What the benchmarks train: a scenario of the paper with its backbone, on random images of the same shape and number.

Their content does not matter for the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdcg.data import Dataset, Split
from mdcg.data.record import DatasetRecord
from mdcg.data.stand_in import stand_in
from mdcg.errors import MdcgError
from mdcg.methods import Method
from mdcg.methods.md_cg import MDCG
from mdcg.models import HEADS
from mdcg.train.group import Group, Member, Numbers, Training

BATCH = 32  # current images of a step, and as many from memory
DIFFERENT = 1000  # random images; those after them are the same again


@dataclass(frozen=True)
class Workload:
    """A scenario, how it is trained on, and how many runs of it are measured together unless others are asked for."""

    title: str
    backbone: str
    side: int  # pixels
    classes: int
    per_class: int  # images to train on
    tested: int  # images of a class to test on
    padding: int
    tasks: int
    epochs: int  # of each task
    memory: int
    lam: float  # of MD-CG
    members: tuple[int, ...]

    @property
    def steps(self) -> int:
        """The steps of an epoch."""
        return -(-self.classes // self.tasks * self.per_class // BATCH)

    def dataset(self, per_class: int | None = None) -> Dataset:
        """The images, all of them or so many of each class."""
        train, test = (self._split(count) for count in (per_class or self.per_class, per_class or self.tested))
        names = tuple(str(label) for label in range(self.classes))
        return Dataset("random", train, test, names, (0.49, 0.48, 0.45), (0.2, 0.2, 0.2), self.padding, True, "random")

    def _split(self, per_class: int) -> Split:
        labels = np.repeat(np.arange(self.classes), per_class)
        return Split(noise(len(labels), self.side, self.side, 3), labels)

    def group(self, members: int, dataset: Dataset, method: Method | None = None, memory: int | None = None) -> Group:
        """So many runs of MD-CG, or of another method, with the training that it brings."""
        chosen = method or MDCG(lam=self.lam)
        settings = {name: default for name, (default, _) in HEADS[chosen.head].settings.items()}
        own: dict[str, Any] = dict(chosen.recipe)
        augment = tuple(own.pop("augment").split("+")) if "augment" in own else ()
        schedule = own.pop("schedule", "constant")
        training = Training(
            self.tasks, self.backbone, chosen.head, self.epochs, BATCH, schedule=schedule, augment=augment
        )
        numbers = Numbers(**own)
        runs = tuple(Member(seed, memory or self.memory, chosen, settings, numbers) for seed in range(members))
        return Group(training, runs, dataset)


def noise(count: int, *shape: int) -> Tensor:
    """So many random images, the first of them different ones."""
    some = np.random.default_rng(0).integers(0, 256, (min(DIFFERENT, count), *shape), dtype=np.uint8)
    return torch.from_numpy(np.resize(some, (count, *shape)))


def random_dataset(record: DatasetRecord) -> Dataset:
    """A dataset as its record tells of it, with random images; a fifth as many to test on, of which it says nothing."""
    blank = stand_in(record)
    if blank is None:
        raise MdcgError(f"how many images {record.name} has is not known before it is read; take another recipe.")
    count, *shape = blank.train.images.shape
    train = Split(noise(count, *shape), blank.train.labels)
    return replace(blank, train=train, test=Split(noise(count // 5, *shape), blank.train.labels[: count // 5]))


C10_5 = Workload(
    title="C10-5",
    backbone="resnet20",
    side=32,
    classes=10,
    per_class=5000,
    tested=1000,
    padding=4,
    tasks=5,
    epochs=20,
    memory=500,
    lam=0.25,
    members=(1, 5, 20, 40),
)
TYM_10 = Workload(
    title="TyM-10",
    backbone="resnet18",
    side=64,
    classes=200,
    per_class=500,
    tested=50,
    padding=8,
    tasks=10,
    epochs=30,
    memory=2000,
    lam=0.1,
    members=(1, 5, 10, 20),
)


def workload_of(backbone: str) -> Workload:
    """The scenario that a backbone is meant for: TyM-10 for ResNet-18, else C10-5."""
    return replace(TYM_10 if backbone.startswith("resnet18") else C10_5, backbone=backbone)
