"""Online streams: each image comes once, and the memory is a reservoir of what has come.

What comes when, what the reservoir holds meanwhile and what is drawn from it are functions of the seed alone. So
nothing of it is state: an interrupted run finds all of it again.

A run goes through a stream in stages. They are its tasks, or, for a method that is not told of tasks and looks out for
new classes by itself, what lies between its finds; ends of tasks, where accuracy is measured, cut stages too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from mdcg.draws import Ints, Purpose, permutation, shuffled_cycles, stream


@dataclass(frozen=True)
class OnlineStream:
    """A member's images in the order in which they come, and the place in memory that each of them takes.

    Images come in full batches; what is left of a task when these are made, less than a batch, is left out.
    """

    images: Ints  # (n,) of all stages
    places: Ints  # (n,) where the image goes in memory; -1: it is not kept
    starts: Ints  # (stages + 1,) the first step of each stage, and the number of all steps
    past: Ints  # (stages,) the step before which, for each stage, everything is past
    batch: int
    memory: int  # places

    @classmethod
    def of(cls, tasks: list[Ints], seed: int, batch: int, memory: int) -> OnlineStream:
        """Draw the stream of these tasks' images, each task a stage."""
        steps = [len(images) // batch for images in tasks]
        coming = [
            images[permutation(len(images), stream(seed, Purpose.ORDER, task))][: count * batch]
            for task, (images, count) in enumerate(zip(tasks, steps, strict=True))
        ]
        starts = np.cumsum([0, *steps])
        places = reservoir(int(starts[-1]) * batch, memory, stream(seed, Purpose.RESERVOIR))
        return cls(np.concatenate(coming), places, starts, starts[:-1], batch, memory)

    def in_stages(self, found: Stages) -> OnlineStream:
        """Cut the stream into other stages."""
        starts = np.array([*found.starts, self.starts[-1]])
        grown = np.where(np.array(found.sizes) > 0, starts[:-1], 0)
        return replace(self, starts=starts, past=np.maximum.accumulate(grown))

    def sparing_the_past(self) -> OnlineStream:
        """Never let an image take the place of the last one that is past, so that memory always has something of it."""
        places, held = self.places.copy(), np.full(self.memory, -1, np.int64)
        bounds = [*np.unique(self.past).tolist(), int(self.starts[-1])]
        for start, end in itertools.pairwise(step * self.batch for step in bounds):
            left = int(((held >= 0) & (held < start)).sum())
            for number in start + np.flatnonzero(places[start:end] >= 0):
                place = places[number]
                of_past = 0 <= held[place] < start
                if of_past and left == 1:
                    places[number] = -1
                    continue
                left -= of_past
                held[place] = number
        return replace(self, places=places)

    def steps(self, stage: int) -> int:
        """The number of steps of a stage."""
        return int(self.starts[stage + 1] - self.starts[stage])

    def batches(self, stage: int) -> tuple[Ints, Ints]:
        """The images of each step of a stage, and the places that they take: (steps, batch) each.

        Of two that go to the same place in one step the later one stays there; the earlier one has no place.
        """
        own = slice(self.starts[stage] * self.batch, self.starts[stage + 1] * self.batch)
        images, places = (part[own].reshape(-1, self.batch) for part in (self.images, self.places))
        again = (places[:, :, None] == places[:, None, :]) & np.triu(np.ones((self.batch, self.batch), np.bool_), 1)
        return images, np.where(again.any(2), -1, places)

    def held(self, step: int) -> Ints:
        """The number in the stream of what each place holds before a step; -1: nothing yet."""
        held = np.full(self.memory, -1, np.int64)
        kept = np.flatnonzero(self.places[: step * self.batch] >= 0)
        held[self.places[kept]] = kept  # of several in one place the last one stays
        return held

    def draw(self, stage: int, size: int, past_only: bool, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Draw a batch from memory for each step of a stage: images and their places, (steps, size) each.

        All that is held is equally likely, or with `past_only` all that is past. Where there is nothing, as in the
        first step of all, the row has a current image, to be ignored.
        """
        first, held = int(self.starts[stage]), self.held(int(self.starts[stage]))
        images, places = np.zeros((2, self.steps(stage), size), np.int64)
        images[:] = self.images[first * self.batch]
        newest = int(self.past[stage]) * self.batch if past_only else len(self.images)
        for row in range(len(images)):
            usable = np.flatnonzero((held >= 0) & (held < newest))
            if len(usable):
                places[row] = usable[_some(len(usable), size, rng)]
                images[row] = self.images[held[places[row]]]
            came = np.arange((first + row) * self.batch, (first + row + 1) * self.batch)
            kept = came[self.places[came] >= 0]
            held[self.places[kept]] = kept
        return images, places


def reservoir(images: int, places: int, rng: np.random.Generator) -> Ints:
    """The place that each image of a stream takes in a reservoir (Vitter, 1985); -1: none.

    The first ones fill it; image number i, from 1 on, then draws one of i places, and is kept if there is such a place.
    So at any time each image that has come is held with the same probability.
    """
    number = np.arange(images)
    drawn = np.floor(rng.random(images) * (number + 1)).astype(np.int64)
    return np.where(number < places, number, np.where(drawn < places, drawn, -1))


@dataclass(frozen=True)
class Stages:
    """What a run goes through one after the other: its tasks, or parts of them."""

    sizes: tuple[int, ...]  # classes that are new in each
    tasks: tuple[int, ...]  # the task that each is a part of
    starts: tuple[int, ...] = ()  # the first step of each, where stages are parts

    def closes(self, stage: int) -> bool:
        """Whether a task ends with this stage."""
        return self.tasks[stage : stage + 2] != (self.tasks[stage],) * 2

    def latest(self, stage: int) -> int:
        """The newest stage up to this one that had new classes, or else the first."""
        return max((number for number in range(stage + 1) if self.sizes[number]), default=0)


def find_stages(classes: Ints, tasks: Ints, look_ahead: int) -> tuple[Stages, list[int]]:
    """Cut a stream where classes arrive that have not been seen; return also the order in which they do.

    `classes` (steps, batch) are those of its images, `tasks` the first step of each task. Whoever finds a new class
    looks ahead for others: all that are new within so many batches arrive together.
    """
    first = {c: int(np.flatnonzero(classes.reshape(-1) == c)[0]) for c in np.unique(classes).tolist()}
    order, arrivals = sorted(first, key=first.__getitem__), dict[int, int]()
    left = list(order)
    while left:
        step = first[left[0]] // classes.shape[1]
        together = [c for c in left if first[c] // classes.shape[1] < step + look_ahead]
        arrivals[step] = len(together)
        left = left[len(together) :]
    starts = sorted({*arrivals, *tasks.tolist()})
    of_task = (np.searchsorted(tasks, starts, side="right") - 1).tolist()
    return Stages(tuple(arrivals.get(start, 0) for start in starts), tuple(of_task), tuple(starts)), order


def _some(n: int, size: int, rng: np.random.Generator) -> Ints:
    """Draw `size` of 0..n-1, all different if there are so many."""
    if n < size:
        return shuffled_cycles(n, size, rng)
    return np.argpartition(rng.random(n), size - 1)[:size]
