"""Online streams: each image comes once, and the memory is a reservoir of what has come.

What comes when, what the reservoir holds meanwhile and what is drawn from it are functions of the seed alone. So nothing
of it is state: an interrupted run finds all of it again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mdcg.draws import Ints, Purpose, permutation, shuffled_cycles, stream


@dataclass(frozen=True)
class OnlineStream:
    """A member's images in the order in which they come, and the place in memory that each of them takes.

    Images come in full batches; what is left of a task when these are made, less than a batch, is left out.
    """

    images: Ints  # (n,) of all tasks
    places: Ints  # (n,) where the image goes in memory; -1: it is not kept
    starts: Ints  # (tasks + 1,) the first step of each task, and the number of all steps
    batch: int
    memory: int  # places

    @classmethod
    def of(cls, tasks: list[Ints], seed: int, batch: int, memory: int, keep_past: bool) -> OnlineStream:
        """Draw the stream of these tasks' images; `keep_past` spares the last image of past tasks in memory."""
        steps = [len(images) // batch for images in tasks]
        coming = [
            images[permutation(len(images), stream(seed, Purpose.ORDER, task))][: count * batch]
            for task, (images, count) in enumerate(zip(tasks, steps, strict=True))
        ]
        starts = np.cumsum([0, *steps])
        places = reservoir(int(starts[-1]) * batch, memory, stream(seed, Purpose.RESERVOIR))
        if keep_past:
            places = _sparing_the_past(places, memory, (starts * batch).tolist())
        return cls(np.concatenate(coming), places, starts, batch, memory)

    def steps(self, task: int) -> int:
        """The number of steps of a task."""
        return int(self.starts[task + 1] - self.starts[task])

    def batches(self, task: int) -> tuple[Ints, Ints]:
        """The images of each step of a task, and the places that they take: (steps, batch) each.

        Of two that go to the same place in one step the later one stays there; the earlier one has no place.
        """
        own = slice(self.starts[task] * self.batch, self.starts[task + 1] * self.batch)
        images, places = (part[own].reshape(-1, self.batch) for part in (self.images, self.places))
        again = (places[:, :, None] == places[:, None, :]) & np.triu(np.ones((self.batch, self.batch), np.bool_), 1)
        return images, np.where(again.any(2), -1, places)

    def held(self, step: int) -> Ints:
        """The number in the stream of what each place holds before a step; -1: nothing yet."""
        held = np.full(self.memory, -1, np.int64)
        kept = np.flatnonzero(self.places[: step * self.batch] >= 0)
        held[self.places[kept]] = kept  # of several in one place the last one stays
        return held

    def draw(self, task: int, size: int, past_only: bool, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Draw a batch from memory for each step of a task: images and their places, (steps, size) each.

        All that is held is equally likely, or with `past_only` what is held of past tasks. Where nothing is, as in the
        first step of all, the row has a current image, to be ignored.
        """
        first, held = int(self.starts[task]), self.held(int(self.starts[task]))
        images, places = np.zeros((2, self.steps(task), size), np.int64)
        images[:] = self.images[first * self.batch]
        for row in range(len(images)):
            usable = np.flatnonzero((held >= 0) & (held < first * self.batch) if past_only else held >= 0)
            if len(usable):
                places[row] = usable[_some(len(usable), size, rng)]
                images[row] = self.images[held[places[row]]]
            came = np.arange((first + row) * self.batch, (first + row + 1) * self.batch)
            kept = came[self.places[came] >= 0]
            held[self.places[kept]] = kept
        return images, places


def reservoir(images: int, places: int, rng: np.random.Generator) -> Ints:
    """The place that each image of a stream takes in a reservoir (Vitter, 1985); -1: none.

    The first ones fill it; image number i, from 1 on, then draws one of i places, and is kept if there is such a place. So
    at any time each image that has come is held with the same probability.
    """
    number = np.arange(images)
    drawn = np.floor(rng.random(images) * (number + 1)).astype(np.int64)
    return np.where(number < places, number, np.where(drawn < places, drawn, -1))


def _sparing_the_past(places: Ints, memory: int, starts: list[int]) -> Ints:
    """Keep out an image that would take the place of the last one of past tasks."""
    spared, held = places.copy(), np.full(memory, -1, np.int64)
    for start, end in zip(starts, starts[1:], strict=False):
        left = int(((held >= 0) & (held < start)).sum())
        for number in start + np.flatnonzero(spared[start:end] >= 0):
            place = spared[number]
            of_past = 0 <= held[place] < start
            if of_past and left == 1:
                spared[number] = -1
                continue
            left -= of_past
            held[place] = number
    return spared


def _some(n: int, size: int, rng: np.random.Generator) -> Ints:
    """Draw `size` of 0..n-1, all different if there are so many."""
    if n < size:
        return shuffled_cycles(n, size, rng)
    return np.argpartition(rng.random(n), size - 1)[:size]
