"""The draws of one epoch, made before it begins: a step is then a function of the state and its number alone.

An epoch visits every image once, in ⌈n / batch⌉ full batches; the places left in the last one are filled from
the next shuffled round. So all steps have one shape, and no batch is too small for BatchNorm. Members whose
classes have fewer images take fewer steps: they rest while the others finish.

The one epoch of an online stream has whole batches alone (`online.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mdcg.draws import WHOLE_TASK, Ints, Purpose, shuffled_cycles, stream
from mdcg.memory import Draw, Memory
from mdcg.train.group import Group
from mdcg.train.stepwise import stepwise

DRAWN = (Purpose.REPLAY, Purpose.CROP, Purpose.FLIP)
#: By this name an epoch's draws have, of a memory whose logits change with the stream, the places (K, steps, places)
#: where each current image goes and where each of the others is. What is not kept goes to a place behind all of them.
KEPT_AT = "kept at"


@dataclass(frozen=True)
class EpochDraws:
    """The draws of an epoch, per member and step: the current images first, then those from memory."""

    index: Tensor  # (K, steps, places) into the training images
    labels: Tensor  # (K, steps, places) class positions
    corner: Tensor  # (K, steps, places, 2)
    flipped: Tensor  # (K, steps, places)
    steps: Tensor  # (K,) how many each member takes
    passes: tuple[int, ...] = field(kw_only=True)  # places of each forward pass of a step
    more: dict[str, Tensor] = field(kw_only=True, default_factory=dict)  # (K, steps, …), see `stepwise`

    def at(self, step: int | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The draws of one step; `step` may be counted on the device, as a tensor (1,)."""
        parts = (self.index, self.labels, self.corner, self.flipped)
        if isinstance(step, int):
            index, labels, corner, flipped = (part[:, step] for part in parts)
        else:
            index, labels, corner, flipped = (part.index_select(1, step)[:, 0] for part in parts)
        return index, labels, corner, flipped

    def more_at(self, step: int | Tensor, *names: str) -> dict[str, Tensor]:
        """What else one step needs, (K, …) by name: all of it, or these."""
        chosen = {name: self.more[name] for name in names or self.more}
        if isinstance(step, int):
            return {name: part[:, step] for name, part in chosen.items()}
        return {name: part.index_select(1, step)[:, 0] for name, part in chosen.items()}

    def to(self, device: torch.device) -> EpochDraws:
        return self._with(lambda part: part.to(device))

    def clone(self) -> EpochDraws:
        return self._with(torch.clone)

    def copy_(self, other: EpochDraws) -> None:
        for mine, its in zip(self._parts(), other._parts(), strict=True):
            mine.copy_(its)
        for name, part in self.more.items():
            part.copy_(other.more[name])

    def _with(self, change: Callable[[Tensor], Tensor]) -> EpochDraws:
        more = {name: change(part) for name, part in self.more.items()}
        return EpochDraws(*map(change, self._parts()), passes=self.passes, more=more)

    def _parts(self) -> tuple[Tensor, ...]:
        return self.index, self.labels, self.corner, self.flipped, self.steps


class Prefetcher:
    """Makes the draws of a group's epochs, the next one's while the current one trains.

    Its thread never touches the GPU: that would spoil a graph which is being captured.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._thread = ThreadPoolExecutor(1, "draws")
        self._next: tuple[tuple[int, int], Future[EpochDraws]] | None = None

    def draw(self, memories: list[Memory], task: int, epoch: int) -> EpochDraws:
        """The draws of one epoch, on the host."""
        if self._next is not None and self._next[0] == (task, epoch):
            draws = self._next[1].result()
        else:
            draws = draw_epoch(self.group, memories, task, epoch)
        self._next = None
        if epoch + 1 < self.group.training.epochs:  # the next task's memory is not there yet
            self._next = ((task, epoch + 1), self._thread.submit(draw_epoch, self.group, memories, task, epoch + 1))
        return draws


def steps_per_epoch(group: Group, task: int) -> Ints:
    """The number of steps that each member's epoch takes, (K,)."""
    if group.online:
        return np.array([stream.steps(task) for stream in group.streams], np.int64)
    batch = group.training.batch_size
    images = [_images(group, k, task) for k in range(len(group.members))]
    return np.array([-(-count // batch) for count in images], np.int64)


def draw_epoch(group: Group, memories: list[Memory], task: int, epoch: int) -> EpochDraws:
    """Draw one epoch for all members, on the host."""
    steps = steps_per_epoch(group, task)
    batch = group.training.batch_size
    draws = group.memory_draws(task)
    ends = np.cumsum([batch, *(draw.size for draw in draws)]).tolist()  # current images, then each draw's
    shape = (len(group.members), int(steps.max()), ends[-1])
    index = np.zeros(shape, np.int64)
    labels = np.zeros(shape, np.int64)
    corner = np.zeros((*shape, 2), np.int64)
    flipped = np.zeros(shape, np.bool_)
    kept_at = np.full(shape, -1, np.int64) if group.online and group.method.stores_logits else None
    for k, (member, view) in enumerate(zip(group.members, group.views, strict=True)):
        count, seed = int(steps[k]), member.seed
        of_epoch, of_task = ([stream(seed, purpose, task, when) for purpose in DRAWN] for when in (epoch, WHOLE_TASK))
        # One batch after the other, so that a method with memory and one without see the same views of the
        # current images.
        for draw, (start, end) in zip([None, *draws], itertools.pairwise([0, *ends]), strict=True):
            once = draw is not None and draw.once
            replay, crop, flip = of_task if once else of_epoch
            here = (k, slice(count), slice(start, end))
            if group.online:
                batches, places = _online_batches(group, k, task, draw, replay)
                if kept_at is not None:
                    kept_at[here] = places
            else:
                batches = _batches(group, memories, k, (task, epoch, count), draw, replay)
            # Those drawn once go round and round, on from epoch to epoch.
            turn = (epoch * count + np.arange(count)) % len(batches) if once else slice(None)
            corners = crop.random((*batches.shape, 2)) * (2 * group.dataset.padding + 1)
            flips = (flip.random(batches.shape) < 0.5) & group.dataset.flip
            index[here], corner[here], flipped[here] = batches[turn], corners[turn], flips[turn]
        index[k, count:] = index[k, 0]  # a resting member is given something valid to ignore
        labels[k] = view.train_positions[index[k]]
    if kept_at is not None:
        kept_at[kept_at < 0] = group.places
    parts = (torch.from_numpy(part) for part in (index, labels, corner, flipped, steps))
    more = stepwise(group, task, epoch, steps, ends)
    if kept_at is not None:
        more[KEPT_AT] = torch.from_numpy(kept_at)
    return EpochDraws(*parts, passes=group.passes(task), more=more)


def _batches(
    group: Group,
    memories: list[Memory],
    k: int,
    when: tuple[int, int, int],
    draw: Draw | None,
    rng: np.random.Generator,
) -> Ints:
    """One member's current images, or those of a draw from its memory: (steps, size)."""
    task, epoch, count = when
    if draw is not None:
        return memories[k].rounds(draw, rng) if draw.once else memories[k].draw(count, draw, rng)
    batch = group.training.batch_size
    pool = memories[k].indices() if group.method.trains_on == "memory" else _pool(group, k, task)
    order = shuffled_cycles(len(pool), count * batch, stream(group.members[k].seed, Purpose.ORDER, task, epoch))
    return pool[order].reshape(count, batch)


def _online_batches(group: Group, k: int, task: int, draw: Draw | None, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """One member's images of an online stream, or a draw from its reservoir, with their places in memory."""
    coming = group.streams[k]
    return coming.batches(task) if draw is None else coming.draw(task, draw.size, group.boundaries, rng)


def _images(group: Group, k: int, task: int) -> int:
    """The number of images that an epoch visits."""
    if group.method.trains_on != "memory":
        return len(_pool(group, k, task))
    return min(group.members[k].memory, sum(len(group.views[k].task_images(past)) for past in range(task + 1)))


def _pool(group: Group, k: int, task: int) -> Ints:
    view = group.views[k]
    if group.method.trains_on == "seen" or group.no_past:
        return np.concatenate([view.task_images(past) for past in range(task + 1)])
    return view.task_images(task)
