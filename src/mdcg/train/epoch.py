"""The draws of one epoch, made before it begins: a step is then a function of the state and its number alone.

An epoch visits every image once, in ⌈n / batch⌉ full batches; the places left in the last one are filled from
the next shuffled round. So all steps have one shape, and no batch is too small for BatchNorm. Members whose
classes have fewer images take fewer steps: they rest while the others finish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mdcg.draws import Ints, Purpose, shuffled_cycles, stream
from mdcg.memory import Memory
from mdcg.train.group import Group
from mdcg.train.precision import Compute


@dataclass(frozen=True)
class EpochDraws:
    """Per member and step: the current images first, then those from memory."""

    index: Tensor  # (K, steps, places) into the training images
    labels: Tensor  # (K, steps, places) class positions
    corner: Tensor  # (K, steps, places, 2)
    flipped: Tensor  # (K, steps, places)
    steps: Ints  # (K,) of each member, on the host

    def tensors(self) -> dict[str, Tensor]:
        return {"index": self.index, "labels": self.labels, "corner": self.corner, "flipped": self.flipped}

    def at(self, step: int | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One step's draws; `step` may be counted on the device, as a tensor (1,)."""
        if isinstance(step, int):
            return self.index[:, step], self.labels[:, step], self.corner[:, step], self.flipped[:, step]
        index, labels, corner, flipped = (part.index_select(1, step)[:, 0] for part in self.tensors().values())
        return index, labels, corner, flipped


def steps_per_epoch(group: Group, task: int) -> Ints:
    """(K,) how many steps each member's epoch takes."""
    batch = group.training.batch_size
    return np.array([-(-len(_pool(group, k, task)) // batch) for k in range(len(group.members))], np.int64)


def draw_epoch(group: Group, memories: list[Memory], task: int, epoch: int, compute: Compute) -> EpochDraws:
    steps = steps_per_epoch(group, task)
    batch = group.training.batch_size
    replays = task > 0 and group.method.uses_memory
    places = 2 * batch if replays else batch
    shape = (len(group.members), int(steps.max()), places)
    index = np.zeros(shape, np.int64)
    labels = np.zeros(shape, np.int64)
    corner = np.zeros((*shape, 2), np.int64)
    flipped = np.zeros(shape, np.bool_)
    for k, (member, view) in enumerate(zip(group.members, group.views, strict=True)):
        count, seed = int(steps[k]), member.seed
        pool = _pool(group, k, task)
        order = shuffled_cycles(len(pool), count * batch, stream(seed, Purpose.ORDER, task, epoch))
        index[k, :count, :batch] = pool[order].reshape(count, batch)
        if replays:
            rng = stream(seed, Purpose.REPLAY, task, epoch)
            index[k, :count, batch:] = memories[k].draw(count, batch, rng)
        index[k, count:] = index[k, 0]  # a resting member is given something valid to ignore
        labels[k] = view.train_positions[index[k]]
        crop, flip = stream(seed, Purpose.CROP, task, epoch), stream(seed, Purpose.FLIP, task, epoch)
        # One batch after the other, so that a method with memory and one without see the same views of the
        # current images.
        for start in range(0, places, batch):
            here = (k, slice(count), slice(start, start + batch))
            corner[here] = crop.random((count, batch, 2)) * (2 * group.dataset.padding + 1)
            flipped[here] = (flip.random((count, batch)) < 0.5) & group.dataset.flip
    put = compute.put
    return EpochDraws(put(index), put(labels), put(corner), put(flipped), steps)


def _pool(group: Group, k: int, task: int) -> Ints:
    view = group.views[k]
    positions = view.scenario.positions(task)
    start = 0 if group.method.trains_on == "seen" else positions.start
    return view.train_indices(range(start, positions.stop))
