"""How a classifier fares on labelled images, class by class, and what it has lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mdcg.draws import Ints
from mdcg.header import Label, Version
from mdcg.saved import Probabilities


@dataclass(frozen=True)
class Evaluation:
    """Predictions of labelled images, counted."""

    classes: tuple[Label, ...]  # in order of arrival
    confusion: Ints  # (classes, classes): images of the first that were taken for the second

    @classmethod
    def of(cls, classes: Sequence[Label], truth: Ints, probabilities: Probabilities) -> Evaluation:
        """The evaluation of images whose classes are known by position."""
        count = len(classes)
        flat = np.bincount(truth * count + probabilities.argmax(1), minlength=count * count)
        return cls(tuple(classes), flat.reshape(count, count))

    def __add__(self, other: Evaluation) -> Evaluation:
        return Evaluation(self.classes, self.confusion + other.confusion)

    @property
    def images(self) -> list[int]:
        """Images of each class."""
        counts: list[int] = self.confusion.sum(1).tolist()
        return counts

    @property
    def class_accuracy(self) -> list[float | None]:
        """Accuracy of each class in percent; None of a class without an image."""
        hits = np.diag(self.confusion).tolist()
        return [
            round(100 * right / every, 2) if every else None for right, every in zip(hits, self.images, strict=True)
        ]

    @property
    def accuracy(self) -> float | None:
        """Accuracy over all images in percent."""
        every = int(self.confusion.sum())
        return round(100 * float(np.trace(self.confusion)) / every, 2) if every else None

    def most_taken_for(self, position: int) -> tuple[Label, int] | None:
        """The class that images of this one were most often taken for by mistake, and how many were."""
        row = self.confusion[position].copy()
        row[position] = 0
        other = int(row.argmax())
        return (self.classes[other], int(row[other])) if row[other] else None


def lost(version: Version, points: float) -> dict[int, tuple[float, float]]:
    """Classes, by position, whose accuracy on held-out images fell by more than so many points: before and after."""
    pairs = zip(version.before, version.after[: len(version.before)], strict=True)
    return {
        position: (was, now)
        for position, (was, now) in enumerate(pairs)
        if was is not None and now is not None and was - now > points
    }


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
