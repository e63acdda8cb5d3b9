"""What a step needs beside its images, for all steps of an epoch: drawn or computed before it begins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.draws import Ints, Purpose, stream
from mdcg.train.group import Group, Numbers
from mdcg.train.mixing import BOX, PARTNER, WEIGHT, draw_boxes, draw_partners, draw_weights
from mdcg.train.recolour import AMOUNT, JITTER, OPERATION, PLACE, draw_jitter, draw_operations
from mdcg.train.schedule import RATE, factors

Drawn = dict[str, npt.NDArray[np.generic]]


def stepwise(group: Group, task: int, epoch: int, steps: Ints, ends: Sequence[int]) -> dict[str, Tensor]:
    """The tensors (K, steps, …) of an epoch in which each member takes so many steps, by name; none without need.

    `ends` are where the places of the current images end, and those of each draw from memory.
    """
    own = [
        _drawn(group, member.seed, member.numbers, task, epoch, count, ends)
        for member, count in zip(group.members, steps.tolist(), strict=True)
    ]
    longest = int(steps.max())
    return {name: torch.from_numpy(np.stack([_padded(one[name], longest) for one in own])) for name in own[0]}


def _drawn(group: Group, seed: int, numbers: Numbers, task: int, epoch: int, steps: int, ends: Sequence[int]) -> Drawn:
    """What one member needs in its steps, (steps, …) by name."""
    training, side = group.training, group.dataset.shape[1:]
    found: Drawn = {}
    if training.schedule != "constant" or any(member.numbers.warmup for member in group.members):
        now = range(epoch * steps, (epoch + 1) * steps)
        found[RATE] = factors(training.schedule, numbers.warmup, training.epochs * steps, now)
    # One batch after the other, so that a method with memory and one without see the same current images.
    sizes = [end - start for start, end in itertools.pairwise([0, *ends])]
    if "jitter" in training.augment:
        rng = stream(seed, Purpose.JITTER, task, epoch)
        found[JITTER] = np.concatenate(
            [draw_jitter(rng, (steps, size), numbers.jitter_strength) for size in sizes], axis=1
        )
    if "randaugment" in training.augment:
        rng, count = stream(seed, Purpose.RAND_AUGMENT, task, epoch), training.randaugment_n
        parts = [draw_operations(rng, (steps, size, count), numbers.randaugment_m, side) for size in sizes]
        for name, arrays in zip((OPERATION, AMOUNT, PLACE), zip(*parts, strict=True), strict=True):
            found[name] = np.concatenate(arrays, axis=1)
    if "mixup" in training.augment or "cutmix" in training.augment:
        rng = stream(seed, Purpose.MIX, task, epoch)
        weights = draw_weights(rng, steps, numbers.mix_alpha)
        if "cutmix" in training.augment:
            found[BOX], weights = draw_boxes(rng, weights, side)
        found[WEIGHT] = weights
        rng, starts = stream(seed, Purpose.PARTNER, task, epoch), [0, *ends]
        found[PARTNER] = np.concatenate(
            [draw_partners(rng, steps, start, size) for start, size in zip(starts, sizes, strict=False)], axis=1
        )
    return found


def _padded(part: npt.NDArray[np.generic], steps: int) -> npt.NDArray[np.generic]:
    """Something valid for a resting member to ignore, after its own steps."""
    return np.concatenate([part, np.repeat(part[:1], steps - len(part), axis=0)])
