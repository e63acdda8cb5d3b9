"""Metrics: pure functions of the accuracy matrix R (paper, Appendix "Metrics").

R[i, j] is the accuracy in percent on task j once task i is learned; tasks not yet learned (j > i) are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


def accuracy_matrix(correct: npt.ArrayLike, total: npt.ArrayLike, tasks: Sequence[Sequence[int]]) -> Matrix:
    """Compute R from counts: correct[i, c] of class c after task i, of total[c] images; tasks[j] are task j's classes.

    >>> accuracy_matrix([[3, 1, 0, 0], [2, 0, 4, 2]], [4, 4, 4, 4], [[0, 1], [2, 3]])
    array([[50., nan],
           [25., 75.]])
    """
    hits, counts = np.asarray(correct, np.float64), np.asarray(total, np.float64)
    R = np.full((len(tasks), len(tasks)), np.nan)
    with np.errstate(invalid="ignore"):  # of a task without images to evaluate on nothing can be said: NaN
        for j, classes in enumerate(tasks):
            own = list(classes)
            R[j:, j] = 100 * hits[j:, own].sum(1) / counts[own].sum()
    return R


def overall(correct: npt.ArrayLike, total: npt.ArrayLike) -> float:
    """The accuracy in percent on all images together, from counts of each class.

    >>> overall([3, 1], [4, 4])
    50.0
    """
    return float(100 * np.sum(correct) / np.sum(total))


def acc(R: Matrix) -> float:
    """The accuracy over all tasks at the end: ACC = 1/N Σ_j R[N, j].

    >>> acc(np.array([[90, np.nan], [60, 80]]))
    70.0
    """
    return float(R[-1].mean())


def bwt(R: Matrix) -> float:
    """The mean change of past accuracy, over all pairs: BWT = Σ_{i>j} (R[i, j] − R[j, j]) / (N(N−1)/2)."""
    tasks = len(R)
    i, j = np.tril_indices(tasks, -1)
    return float((R[i, j] - R[j, j]).mean()) if tasks > 1 else float("nan")


def bwt_final(R: Matrix) -> float:
    """The mean change of past accuracy at the end only: BWT-final = mean_{j<N} (R[N, j] − R[j, j])
    (Lopez-Paz and Ranzato, 2017)."""
    return float((R[-1, :-1] - np.diag(R)[:-1]).mean()) if len(R) > 1 else float("nan")


def forgetting(R: Matrix) -> float:
    """The mean over past tasks of (best accuracy before the last task − final accuracy) (Chaudhry et al., 2018)."""
    if len(R) < 2:
        return float("nan")
    return float((np.nanmax(R[:-1, :-1], axis=0) - R[-1, :-1]).mean())


def class_accuracy(correct: npt.ArrayLike, total: npt.ArrayLike) -> Matrix:
    """The accuracy in percent of each class position at the end."""
    final: Matrix = 100 * np.asarray(correct, np.float64)[-1] / np.asarray(total, np.float64)
    return final


NAMES = ("ACC", "BWT", "BWT_final", "forgetting", "anytime")


def summary(R: Matrix, accuracies: Sequence[float]) -> dict[str, float]:
    """The scalar metrics of one run, by the names used in tables and JSON.

    `accuracies` are those on all classes so far, at whatever times they were evaluated; their mean is the average
    anytime accuracy (Caccia et al., 2022).
    """
    return dict(zip(NAMES, (acc(R), bwt(R), bwt_final(R), forgetting(R), float(np.mean(accuracies))), strict=True))


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean and sample standard deviation (NaN for a single value).

    >>> mean_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    numbers = np.asarray(values, np.float64)
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else float("nan")


def spread(mean: float, std: float) -> str:
    """Write mean ± standard deviation, without the latter where there is only one run.

    >>> spread(61.44, 1.92)
    '61.4 ± 1.9'
    """
    if math.isnan(mean):
        return "–"
    return f"{mean:.1f}" + ("" if math.isnan(std) else f" ± {std:.1f}")
