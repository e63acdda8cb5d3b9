"""The base class of probes, which look at runs as they train, and never touch them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mdcg.draws import Ints
from mdcg.errors import MdcgError
from mdcg.memory import Memory
from mdcg.methods import Method
from mdcg.models import Head, Model
from mdcg.registry import Registry, first_line
from mdcg.train.augment import Pixels
from mdcg.train.evaluate import features_of, logits_of
from mdcg.train.group import Group
from mdcg.train.precision import Compute
from mdcg.train.stored_logits import StoredLogits

Measured = Mapping[str, Tensor | Sequence[Any]]  # of each quantity one entry per member


@dataclass(frozen=True)
class Images:
    """The images of each member; members may have different ones, and different numbers of them."""

    pixels: Tensor  # of the whole split that they are from, uint8
    index: list[Ints]  # of each member, into `pixels`
    labels: list[Ints]  # of each member, class positions

    def at_most(self, count: int) -> Images:
        """Choose at most so many images of each member, evenly spaced."""
        chosen = [_evenly(len(own), min(count, len(own))) for own in self.index]
        index = [own[some] for own, some in zip(self.index, chosen, strict=True)]
        labels = [own[some] for own, some in zip(self.labels, chosen, strict=True)]
        return Images(self.pixels, index, labels)


def _evenly(total: int, count: int) -> Ints:
    """Choose so many places among `total`, evenly spaced.

    >>> _evenly(7, 3).tolist()
    [0, 2, 4]
    """
    return np.arange(count) * total // max(1, count)


@dataclass(frozen=True)
class Snapshot:
    """A group of K members at one moment: all that a probe may look at, and must leave as it is."""

    group: Group
    model: Model
    start: Model | None  # the model as it was when the task began, from task 2 on, for a probe that needs it
    memories: Sequence[Memory]  # of each member
    stored_logits: StoredLogits | None  # what methods like DER store with the memory
    task: int  # from 0
    epoch: int  # epochs of the task that are over; 0: the head has just grown
    step: int  # steps of the next epoch that are done too
    train_pixels: Tensor
    test_pixels: Tensor
    pixels: Pixels
    compute: Compute

    @property
    def members(self) -> int:
        """The number of members, K."""
        return len(self.group.members)

    @property
    def seen(self) -> int:
        """The number of classes so far, the current task's among them."""
        return self.model.head.classes

    def positions(self, task: int) -> range:
        """The class positions of a task."""
        return self.group.views[0].scenario.positions(task)

    def test(self, classes: range) -> Images:
        """The images of these classes that the runs are evaluated on: test images, or training images held out."""
        index, labels = [], []
        for view in self.group.views:
            own = view.eval_indices
            position = view.eval_positions[own]
            wanted = (position >= classes.start) & (position < classes.stop)
            index.append(own[wanted])
            labels.append(position[wanted])
        return Images(self.test_pixels, index, labels)

    def train(self, classes: range) -> Images:
        """All training images of these classes."""
        return self._of_training([view.train_indices(classes) for view in self.group.views])

    def memory(self, classes: range) -> Images:
        """The images of these classes that are in memory."""
        return self._of_training(
            [
                np.concatenate(
                    [np.empty(0, np.int64), *(memory.by_class.get(position, ()) for position in classes)]
                ).astype(np.int64)
                for memory in self.memories
            ]
        )

    def _of_training(self, index: list[Ints]) -> Images:
        labels = [view.train_positions[own] for view, own in zip(self.group.views, index, strict=True)]
        return Images(self.train_pixels, index, labels)

    def logits(self, images: Images, model: Model | None = None) -> list[Tensor]:
        """The logits of each member (n, classes seen), as in an evaluation; `model` may be `start`."""
        asked = model or self.model
        index, counts = _side_by_side(images.index)
        found = logits_of(asked, images.pixels, index, self.pixels, self.compute)[..., : asked.head.classes]
        return [own[:count] for own, count in zip(found, counts, strict=True)]

    def features(self, images: Images, model: Model | None = None) -> list[Tensor]:
        """The features of each member (n, features): what the backbone gives to the head."""
        index, counts = _side_by_side(images.index)
        found = features_of(model or self.model, images.pixels, index, self.pixels, self.compute)
        return [own[:count] for own, count in zip(found, counts, strict=True)]


def _side_by_side(lists: list[Ints]) -> tuple[Tensor, list[int]]:
    """Put lists of different lengths into one tensor (K, longest); also the length of each."""
    counts = [len(own) for own in lists]
    index = np.zeros((len(lists), max(1, *counts)), np.int64)
    for row, own in zip(index, lists, strict=True):
        row[: len(own)] = own
    return torch.from_numpy(index), counts


class Probe(ABC):
    """A probe; a subclass defines `look`. It is called when a task begins and after each of its epochs, unless `wants`
    says otherwise.

    A probe has no state of its own: a run may be interrupted and go on in another process.

    >>> class Norm(Probe):
    ...     '''Euclidean norm of the classifier's weights.'''
    ...     def look(self, snapshot: Snapshot) -> Measured:
    ...         return {"norm": snapshot.model.head.classifier.weight.detach().flatten(1).norm(dim=1)}
    """

    every: ClassVar[int] = 0  # also look after every so many steps of an epoch
    needs_start: ClassVar[bool] = False  # it looks at `Snapshot.start`

    @abstractmethod
    def look(self, snapshot: Snapshot) -> Measured:
        """Measure by name one entry per member: a tensor (K, …), or a list of K plain values."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        """Whether to look after so many of the task's epochs."""
        return True

    def unsuited(self, method: Method, head: type[Head]) -> str | None:
        """The reason why it cannot look at a method with this head, if any: the end of a sentence without full stop."""
        return None

    @classmethod
    def summary(cls) -> str:
        return first_line(cls)


PROBES: Registry[type[Probe]] = Registry("probe", "mdcg.probes")


class ProbeError(MdcgError):
    """The error of a probe that failed: the runs it looked at are not to blame."""
