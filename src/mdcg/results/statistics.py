"""The means with their spread, and how much a difference between two of them is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mdcg import metrics

ALPHA = 0.05  # a difference with a smaller p counts as significant


@dataclass(frozen=True)
class Spread:
    """A mean and the sample standard deviation behind it, NaN where there is none."""

    n: int
    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        return cls(len(values), *metrics.mean_std(values))


def welch(ours: Spread, theirs: Spread) -> float | None:
    """Welch's t-test: the two-sided p of a difference between two means; None where a spread is missing, or both are 0.

    >>> round(welch(Spread(5, 65.0, 1.0), Spread(5, 66.0, 1.5)), 3)
    0.255
    """
    if min(ours.n, theirs.n) < 2 or math.isnan(ours.std) or math.isnan(theirs.std) or ours.std == theirs.std == 0:
        return None
    from scipy.stats import ttest_ind_from_stats  # only here: it takes a while to load

    test = ttest_ind_from_stats(ours.mean, ours.std, ours.n, theirs.mean, theirs.std, theirs.n, equal_var=False)
    return float(test.pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: what each p is worth among all of them, in their order.

    That any of them is below 0.05 by chance alone then happens in 5% of such families, or less.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = least
    return adjusted
