"""Tests of significance against SciPy, plain definitions and numbers by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mdcg.results.statistics import Spread, holm, welch


@given(
    st.tuples(st.integers(2, 30), st.floats(0, 100), st.floats(0.01, 30)),
    st.tuples(st.integers(2, 30), st.floats(0, 100), st.floats(0.01, 30)),
)
def test_welch_by_hand(ours: tuple[int, float, float], theirs: tuple[int, float, float]) -> None:
    """The statistic and the degrees of freedom as Welch and Satterthwaite write them."""
    (n, mean, std), (m, other, its) = ours, theirs
    a, b = std**2 / n, its**2 / m
    t = (mean - other) / math.sqrt(a + b)
    freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))
    expected = 2 * stats.t(freedom).sf(abs(t))
    assert welch(Spread(*ours), Spread(*theirs)) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_welch_says_nothing_without_a_spread() -> None:
    assert welch(Spread(1, 50.0, math.nan), Spread(5, 60.0, 1.0)) is None
    assert welch(Spread(3, 50.0, 0.0), Spread(5, 60.0, 0.0)) is None
    assert welch(Spread(3, 50.0, 0.0), Spread(5, 60.0, 1.0)) is not None


# ---- Holm's correction ----


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([3 * 0.01, 0.06, 2 * 0.03, 4 * 0.005])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_bonferroni_of_every_family_that_a_hypothesis_is_in(ps: list[float]) -> None:
    """The closure principle: rejected is what Bonferroni rejects in every subset that it belongs to."""
    places = range(len(ps))
    subsets = [own for size in range(1, len(ps) + 1) for own in itertools.combinations(places, size)]
    expected = [max(min(1, len(own) * min(ps[j] for j in own)) for own in subsets if place in own) for place in places]
    assert holm(ps) == pytest.approx(expected)
