"""The tasks of a drawing: which of many are shown, and which class belongs to which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

SHOWN = 9  # tasks: of more lines nobody could follow one


def some(tasks: Iterable[int]) -> list[int]:
    """The distinct numbers in order; of many some, evenly spaced, the first and the last among them.

    >>> some(range(1, 4)), some(range(1, 18))
    ([1, 2, 3], [1, 3, 5, 7, 9, 11, 13, 15, 17])
    """
    known = sorted(set(tasks))
    places = np.linspace(0, len(known) - 1, min(SHOWN, len(known))).round().astype(int)
    return [known[place] for place in places]


def task_of(sizes: Sequence[int]) -> list[int]:
    """The task, from 1, of each class position.

    >>> task_of([2, 1])
    [1, 1, 2]
    """
    return [task for task, classes in enumerate(sizes, start=1) for _ in range(classes)]
