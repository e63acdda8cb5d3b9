"""R and its metrics against plain loops and hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdcg import metrics

R = np.array([[90, np.nan, np.nan], [60, 80, np.nan], [30, 50, 70]])


def test_by_hand() -> None:
    assert metrics.acc(R) == (30 + 50 + 70) / 3
    assert metrics.bwt(R) == ((60 - 90) + (30 - 90) + (50 - 80)) / 3
    assert metrics.bwt_final(R) == ((30 - 90) + (50 - 80)) / 2
    assert metrics.forgetting(R) == ((90 - 30) + (80 - 50)) / 2


def test_forgetting_counts_from_the_best_not_the_first() -> None:
    rising = np.array([[50, np.nan, np.nan], [70, 80, np.nan], [40, 60, 90]])
    assert metrics.forgetting(rising) == ((70 - 40) + (80 - 60)) / 2
    assert metrics.bwt_final(rising) == ((40 - 50) + (60 - 80)) / 2


def test_one_task_has_no_transfer() -> None:
    single = np.array([[75.0]])
    assert metrics.acc(single) == 75
    assert all(math.isnan(f(single)) for f in (metrics.bwt, metrics.bwt_final, metrics.forgetting))


@given(st.lists(st.integers(2, 4), min_size=1, max_size=6), st.integers(0, 2**31))
def test_matrix_and_metrics_equal_plain_loops(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tasks, classes = len(sizes), sum(sizes)
    total = rng.integers(1, 20, classes)
    correct = rng.integers(0, total + 1, (tasks, classes))
    tasks_of_classes = [range(sum(sizes[:j]), sum(sizes[: j + 1])) for j in range(tasks)]
    matrix = metrics.accuracy_matrix(correct, total, tasks_of_classes)

    expected = [[math.nan] * tasks for _ in range(tasks)]
    for i in range(tasks):
        for j in range(i + 1):
            own = range(sum(sizes[:j]), sum(sizes[: j + 1]))
            expected[i][j] = 100 * sum(correct[i][c] for c in own) / sum(total[c] for c in own)
    np.testing.assert_allclose(matrix, expected)

    assert metrics.acc(matrix) == pytest.approx(sum(expected[-1]) / tasks)
    if tasks > 1:
        pairs = [expected[i][j] - expected[j][j] for i in range(1, tasks) for j in range(i)]
        assert metrics.bwt(matrix) == pytest.approx(sum(pairs) / (tasks * (tasks - 1) / 2))
        last = [expected[-1][j] - expected[j][j] for j in range(tasks - 1)]
        assert metrics.bwt_final(matrix) == pytest.approx(sum(last) / (tasks - 1))
        best = [max(expected[i][j] for i in range(j, tasks - 1)) for j in range(tasks - 1)]
        lost = [best[j] - expected[-1][j] for j in range(tasks - 1)]
        assert metrics.forgetting(matrix) == pytest.approx(sum(lost) / (tasks - 1))


def test_class_accuracy_and_spread() -> None:
    assert metrics.class_accuracy([[9, 9], [1, 3]], [4, 4]).tolist() == [25, 75]
    assert metrics.mean_std([2, 4, 9]) == pytest.approx((5, math.sqrt((9 + 1 + 16) / 2)))
    assert math.isnan(metrics.mean_std([3.0])[1])
