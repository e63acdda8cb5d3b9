"""Heat maps over two settings: their numbers, which runs they are of, and that they can be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from mdcg.data import load
from mdcg.figures.base import Row
from mdcg.figures.plots.maps import means
from mdcg.figures.plots.sigmoid import Sigmoid
from mdcg.figures.plots.tradeoff import Tradeoff
from mdcg.figures.style import styled
from mdcg.recipes.grid import expand, grid_cells
from mdcg.recipes.recipe import Recipe, make_recipe
from mdcg.runs.spec import RunSpec
from tests.fake_runs import finished, spec
from tests.figures.layout import drawn, faults

LAMS, MEMORIES = (0.01, 0.25, 1.0), (200, 500)


def runs_of(seeds: int, **settings: Any) -> list[Any]:
    return [
        finished(spec(memory=memory, seed=seed, lam=lam, **settings))
        for lam in LAMS
        for memory in MEMORIES
        for seed in range(seeds)
    ]


def cell_by_hand(rows: list[Row], lam: float, memory: int, metric: str) -> float:
    total, count = 0.0, 0
    for row in rows:
        if row["lam"] == lam and row["memory"] == memory:
            total, count = total + row[metric], count + 1
    return total / count if count else float("nan")


def test_a_cell_is_the_mean_over_the_seeds_it_has() -> None:
    runs = runs_of(3)
    rows = Tradeoff().numbers(runs[1:-3])  # one cell with two seeds, one with none
    for metric in ("ACC", "BWT"):
        by_hand = [[cell_by_hand(rows, lam, memory, metric) for memory in MEMORIES] for lam in LAMS[::-1]]
        np.testing.assert_allclose(means(rows, "lam", "memory", metric), by_hand)
        assert np.isnan(by_hand[0][1])


def test_rows_hold_the_metrics_of_their_run() -> None:
    run = finished(spec(lam=0.1))
    (row,) = Tradeoff().numbers([run])
    hits = np.array(run.record.correct).reshape(5, 5, 2).sum(2) / 2  # percent: 200 images of each task
    drops = [hits[i, j] - hits[j, j] for i in range(5) for j in range(i)]
    assert row["ACC"] == pytest.approx(hits[-1].mean())
    assert row["BWT"] == pytest.approx(sum(drops) / len(drops), abs=1e-4)
    assert (row["lam"], row["memory"], row["seed"]) == (0.1, 500, 0)


def test_frames_are_around_the_best_accuracy_of_each_memory_size() -> None:
    rows = Tradeoff().numbers(runs_of(2))
    with styled():
        axes = Tradeoff().draw(rows).axes[:2]
    for ax in axes:
        frames = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        centres = {(round(frame.get_x() + 0.46), round(frame.get_y() + 0.44)) for frame in frames}
        expected = set()
        for column, memory in enumerate(MEMORIES):
            found = [cell_by_hand(rows, lam, memory, "ACC") for lam in LAMS[::-1]]
            expected.add((column, found.index(max(found))))
        assert centres == expected


def test_pick_takes_one_set_of_other_settings() -> None:
    usual, other = runs_of(1), runs_of(1, divergence="student-teacher")
    assert Tradeoff().pick([*other, *usual]) == usual  # as many of each: those as the paper chose
    more = runs_of(2, divergence="student-teacher")
    assert Tradeoff().pick([*usual, *more]) == more
    assert Tradeoff().pick([*usual[:-1], *other]) == other  # the fuller map
    assert Tradeoff().pick([*usual, finished(spec("replay"))]) == usual


def test_pick_wants_two_values_of_each_and_more_than_a_diagonal() -> None:
    assert not Tradeoff().pick(runs_of(2)[: 2 * len(MEMORIES)])  # one λ
    assert not Tradeoff().pick([run for run in runs_of(2) if run.spec.memory == 200])
    chosen = [finished(spec(memory=memory)) for memory in (200, 500, 1000, 2000)]  # λ grows with the memory
    assert len({run.spec.hyperparameters["lam"] for run in chosen}) > 1
    assert not Tradeoff().pick(chosen)
    assert not Sigmoid().pick(runs_of(2))


def test_sigmoid_picks_one_memory_size_and_weight() -> None:
    grid = [(gamma, beta) for gamma in (0.5, 1.0) for beta in (0.0, 10.0)]
    at_500 = [finished(spec(gamma=gamma, beta=beta)) for gamma, beta in grid]
    at_200 = [finished(spec(gamma=gamma, beta=beta, memory=200, seed=seed)) for gamma, beta in grid for seed in (0, 1)]
    assert Sigmoid().pick([*at_500, *at_200]) == at_200
    assert Sigmoid().pick([*at_500, *(finished(spec(gamma=g, beta=b, lam=0.7)) for g, b in grid)]) == at_500


def specs_of(recipe: Recipe) -> list[RunSpec]:
    return [spec for cell in grid_cells(expand(recipe.document()), lambda _: load("digits")) for spec in cell.specs]


def test_what_is_wanted() -> None:
    (tradeoff,) = Tradeoff().wanted(make_recipe(scenario="digits-5", methods="md"))
    specs = specs_of(tradeoff)
    cells = {(one.method, one.memory, one.hyperparameters["lam"]) for one in specs}
    assert cells == {("md", m, lam) for m in (50, 100, 200) for lam in (1, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01)}
    assert len({one.group_key() for one in specs}) == 1
    (sigmoid,) = Sigmoid().wanted(make_recipe(scenario="digits-5", memory=50))
    specs = specs_of(sigmoid)
    assert len({one.group_key() for one in specs}) == 1  # all train together
    assert {(one.method, one.memory) for one in specs} == {("md-cg", 50)}
    assert {one.head_settings["beta"] for one in specs} >= {2.5, 10, 20}
    (fewer,) = Sigmoid().wanted(make_recipe(scenario="digits-5", set={"beta": [1, 2]}))
    assert {one.head_settings["beta"] for one in specs_of(fewer)} == {1, 2}


@pytest.mark.parametrize("sizes", [(1, 1), (9, 12)])
def test_small_and_large_maps(sizes: tuple[int, int]) -> None:
    rows: list[Row] = [
        {"method": "md-cg", "seed": 0, "lam": 0.1 * i, "memory": 100 * (j + 1), "ACC": 50.0 + i, "BWT": -10.0 - j}
        for i in range(sizes[0])
        for j in range(sizes[1])
    ]
    assert faults(drawn(Tradeoff(), rows)) == []
