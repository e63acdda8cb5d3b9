"""What a step needs beside its images, for all steps of an epoch: drawn or computed before it begins."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mdcg.draws import Ints
from mdcg.train.group import Group
from mdcg.train.schedule import factors

RATE = "rate"  # (K, steps): the factor of the learning rates


def stepwise(group: Group, epoch: int, steps: Ints) -> dict[str, Tensor]:
    """The tensors (K, steps, …) of an epoch in which each member takes so many steps, by name; none without need."""
    found: dict[str, Tensor] = {}
    training, numbers = group.training, [member.numbers for member in group.members]
    if training.schedule != "constant" or any(own.warmup for own in numbers):
        rate = np.ones((len(numbers), int(steps.max())))
        for row, own, count in zip(rate, numbers, steps.tolist(), strict=True):
            now = range(epoch * count, (epoch + 1) * count)
            row[:count] = factors(training.schedule, own.warmup, training.epochs * count, now)
        found[RATE] = torch.from_numpy(rate)
    return found
