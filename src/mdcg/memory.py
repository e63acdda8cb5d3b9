"""The memory: at most M images of past classes, balanced, and how a batch is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mdcg.draws import Ints, permutation, shuffled_cycles


@dataclass(frozen=True)
class Draw:
    """The batch that every step takes from memory."""

    size: int
    odd_to_one: bool = False  # places that cannot be shared evenly all go to one class
    classes: range | None = None  # all images of these classes; places left are filled with some once more
    once: bool = False  # batches and their views are drawn once per task and then repeated, see `Memory.rounds`
    second: bool = False  # from the second memory, of a method that has one
    joins: bool = False  # goes through the network with the current images, where other draws have their own pass


@dataclass
class Memory:
    """The indices of the images that one run keeps, by class position.

    A class's images are held in a random order drawn when the class arrived; keeping fewer of them means
    keeping the first ones, so what is dropped later is random too.

    >>> memory = Memory(5)
    >>> memory.add({0: np.arange(10), 1: np.arange(10, 20)}, np.random.default_rng(0))
    >>> len(memory), sorted(len(kept) for kept in memory.by_class.values())
    (5, [2, 3])
    """

    size: int
    by_class: dict[int, Ints] = field(default_factory=dict)  # class position: its images
    second: Memory | None = None  # another one beside it, of a method that has two

    def __len__(self) -> int:
        return sum(len(indices) for indices in self.by_class.values())

    def add(self, arrivals: Mapping[int, Ints], rng: np.random.Generator, share: int | None = None) -> None:
        """Take in new classes, each with the indices of all its images, and make room for them.

        With a `share` of their own, the new classes get that much and nothing gives way to them.
        """
        new = {position: indices[permutation(len(indices), rng)] for position, indices in arrivals.items()}
        if share is None:
            self.by_class = _shared_out({**self.by_class, **new}, self.size, rng)
        else:
            self.by_class |= _shared_out(new, share, rng)

    def refresh(self, arrivals: Mapping[int, Ints], rng: np.random.Generator, share_out: bool = True) -> None:
        """Take in more images of known classes: which ones of a class are held is drawn anew, among old and new.

        Unless shares are for good (`share_out`), a class that had too few images to fill its share may now hold more.
        """
        held = dict(self.by_class)
        for position, indices in arrivals.items():
            known = held.get(position, np.empty(0, np.int64))
            every = np.concatenate([known, indices])
            shuffled = every[permutation(len(every), rng)]
            held[position] = shuffled if share_out else shuffled[: len(known)]
        self.by_class = _shared_out(held, self.size, rng) if share_out else held

    def draw(self, steps: int, draw: Draw, rng: np.random.Generator) -> Ints:
        """Draw indices (steps, size): in each batch classes differ by at most one image (|x_m| = |x|, Section 3.1).

        The odd places go to classes drawn at random; over the epoch each class goes through its images in
        shuffled rounds, so that all of them are used equally often. A draw of whole classes is all their images.
        """
        if draw.classes is not None:
            return self._all_of(draw.classes, steps, draw.size, rng)
        classes = [indices for indices in self._source(draw).by_class.values() if len(indices)]
        if not classes:
            raise ValueError("an empty memory has no batch to give")
        rank = np.argsort(rng.random((steps, len(classes))), axis=1)  # a random order of the classes per step
        place = np.arange(draw.size)
        odd = draw.odd_to_one & (place >= len(classes) * max(1, draw.size // len(classes)))
        class_of_place = rank[:, np.where(odd, 0, place % len(classes))]
        drawn = np.empty((steps, draw.size), np.int64)
        for number, indices in enumerate(classes):
            places = class_of_place == number
            drawn[places] = indices[shuffled_cycles(len(indices), int(places.sum()), rng)]
        return drawn

    def rounds(self, draw: Draw, rng: np.random.Generator) -> Ints:
        """Draw indices (batches, size): all images held, shuffled and cut into whole batches; the rest is left out.

        A memory smaller than one batch gives one, in which images come again.
        """
        held = self._source(draw).indices()
        count = max(1, len(held) // draw.size)
        return held[shuffled_cycles(len(held), count * draw.size, rng)].reshape(count, draw.size)

    def _source(self, draw: Draw) -> Memory:
        if not draw.second:
            return self
        assert self.second is not None, "a draw from a second memory needs one"
        return self.second

    def _all_of(self, classes: range, steps: int, size: int, rng: np.random.Generator) -> Ints:
        """Draw every image as often as places allow; those that get one more are drawn anew in each step."""
        held = np.concatenate([self.by_class.get(position, np.empty(0, np.int64)) for position in classes])
        rounds, odd = divmod(size, len(held))
        all_ = np.tile(held, (steps, rounds))
        if not odd:
            return all_
        some = np.argsort(rng.random((steps, len(held))), axis=1)[:, :odd]
        return np.concatenate([all_, held[some]], axis=1)

    def indices(self) -> Ints:
        """All images held, class after class."""
        return np.concatenate([np.empty(0, np.int64), *self.by_class.values()])

    def copy(self, images: Tensor) -> Exemplars:
        """The pixels of what is held, taken out of the dataset's images."""
        counts = [len(kept) for kept in self.by_class.values()]
        positions = np.repeat(np.array(list(self.by_class), np.int64), np.array(counts, np.int64))
        return Exemplars(images[torch.from_numpy(self.indices())].cpu(), torch.from_numpy(positions))


def share_of_task(size: int, tasks: int, task: int) -> int:
    """The share of one task in a memory that is divided among the tasks for good; odd places go to the first ones.

    >>> [share_of_task(14, 4, task) for task in range(4)]
    [4, 4, 3, 3]
    """
    return size // tasks + (task < size % tasks)


def _shared_out(held: Mapping[int, Ints], total: int, rng: np.random.Generator) -> dict[int, Ints]:
    """The first images of each class, `total` in all."""
    shares = balanced_shares(total, [len(indices) for indices in held.values()], rng)
    return {position: indices[:share] for (position, indices), share in zip(held.items(), shares, strict=True)}


def balanced_shares(total: int, available: list[int], rng: np.random.Generator) -> Ints:
    """Divide `total` slots as evenly as `available` allows, odd ones at random.

    Shares differ by at most one, except that a class which has too few images leaves its surplus to others.

    >>> balanced_shares(10, [2, 9, 9], np.random.default_rng(0)).tolist()
    [2, 4, 4]
    """
    limit = np.asarray(available, np.int64)
    total = min(total, int(limit.sum()))
    # The water level: the most that every class can be given, those with less giving all they have.
    levels = np.arange(min(total, int(limit.max(initial=0))) + 1)
    filled = np.minimum(limit, levels[:, None]).sum(1)
    level = np.searchsorted(filled, total, side="right") - 1
    shares = np.minimum(limit, level)
    odd = total - int(shares.sum())
    with_room = np.flatnonzero(limit > level)
    shares[with_room[permutation(len(with_room), rng)[:odd]]] += 1
    return shares


@dataclass(frozen=True)
class Exemplars:
    """The memory's own copy of its images, for when it must outlive the dataset."""

    images: Tensor  # (n, height, width, channels) uint8; features (n, 1, 1, features) float32
    positions: Tensor  # (n,) class position of each
