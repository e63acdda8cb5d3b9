"""The figure `gates`: its numbers are the probe's, and the drawing is of these numbers, zeros among them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg.data import load
from mdcg.figures import style
from mdcg.figures.base import Row
from mdcg.figures.plots.gates import PANELS, Gates
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.finished import FinishedRun
from tests.fake_runs import finished, spec, with_rows
from tests.figures.layout import drawn, faults

POWERS = [key for _, _, lines in PANELS[:2] for key in lines]


def look(task: int, rng: np.random.Generator, changed: int = 0) -> Row:
    """What the probe measures, with numbers of no meaning."""
    own: Row = {"task": task, "epoch": 20, "step": 0, "changed": changed, "images": 400 * task}
    own |= {key: float(10 ** rng.uniform(-6, 0)) for key in POWERS}
    return own | {"accuracy": 60.0, "accuracy_without": 60.0 - changed / 100}


def run_of(seed: int, under: Path, memory: int = 500, tasks: int = 5, changed: int = 0, **others: Any) -> FinishedRun:
    rng = np.random.default_rng([seed, memory])
    rows = [look(task, rng, changed) for task in range(2, tasks + 1)]
    return with_rows(finished(spec(memory=memory, seed=seed, **others), (2,) * tasks), "gates", rows, under)


def test_it_draws_what_was_measured(tmp_path: Path) -> None:
    runs = [run_of(0, tmp_path, changed=3), run_of(4, tmp_path, changed=9)]
    rows = Gates().numbers(runs)
    assert [(row["seed"], row["task"]) for row in rows] == [(seed, task) for seed in (0, 4) for task in range(2, 6)]
    by_place = {(row["seed"], row["task"]): row for row in rows}
    for run in runs:
        for one in run.measured("gates"):
            row = by_place[run.spec.seed, one["task"]]
            assert all(row[key] == one[key] for key in one if key not in ("epoch", "step"))
            assert row["changed_percent"] == pytest.approx(100 * one["changed"] / one["images"], abs=1e-5)
    axes = Gates().draw(rows).axes
    for ax, (_, _, lines) in zip(axes, PANELS, strict=True):
        named = {line.get_label(): line for line in ax.lines}
        for key, name in lines.items():
            mean = [(by_place[0, task][key] + by_place[4, task][key]) / 2 for task in range(2, 6)]
            assert np.array(named[name].get_data()) == pytest.approx(np.array([range(2, 6), mean]))
        seeds = [line for line in ax.lines if line.get_label() not in lines.values()]
        assert len(seeds) == 2 * len(lines)
    assert [ax.get_yscale() for ax in axes] == ["log", "log", "linear"]


def test_the_caption_counts(tmp_path: Path) -> None:
    rows = Gates().numbers([run_of(0, tmp_path, changed=3), run_of(4, tmp_path, changed=9)])
    said = Gates().caption(rows)
    assert f"{4 * 3 + 4 * 9} of {2 * 400 * (2 + 3 + 4 + 5):,}" in said
    assert "differs by at most 0.09 percentage points" in said
    assert said.endswith("Mean over seeds, and each seed as a thin line.")
    one = Gates().caption(rows[:4])
    assert one.endswith("A single seed.")
    assert "test images" not in said  # they may be held out


def test_gates_that_open_further_than_one(tmp_path: Path) -> None:
    """Then `closed` is below 0, where no scale of powers goes."""
    rows = Gates().numbers([run_of(0, tmp_path), run_of(4, tmp_path)])
    assert "below 0" not in Gates().caption(rows)
    rows[1]["closed_mean"] = -0.4
    picture = drawn(Gates(), rows)
    assert faults(picture) == []
    assert [ax.get_yscale() for ax in picture.axes] == ["linear", "log", "linear"]
    assert picture.axes[0].get_ylim()[0] < -0.4
    assert "on average over gates and images and at most (below 0: open further than 1);" in Gates().caption(rows)


@pytest.mark.parametrize(
    ("memories", "seeds", "tasks"),
    [((500,), 1, 2), ((500,), 1, 20), ((500,), 3, 10), ((200, 500, 2000), 3, 5), ((200, 500, 2000), 3, 20)],
)
def test_any_runs_can_be_drawn(memories: tuple[int, ...], seeds: int, tasks: int, tmp_path: Path) -> None:
    runs = [run_of(seed, tmp_path, memory, tasks, seed) for memory in memories for seed in range(seeds)]
    picture = drawn(Gates(), Gates().numbers(runs))
    assert faults(picture) == []
    assert len(picture.axes) == 3 * len(memories)
    rows = {re.sub("\n.*", "", picture.axes[3 * place].get_ylabel()) for place in range(len(memories))}
    assert rows == ({f"memory {memory:,}" for memory in memories} if len(memories) > 1 else {"1 − opening"})


@pytest.mark.parametrize("zeros", [["gates_moved_rms"], ["gates_moved_rms", "gates_moved_largest"], POWERS])
def test_zero_has_a_place(zeros: list[str], tmp_path: Path) -> None:
    """Weights that did not move at all, or gates so wide open that nothing is left to one."""
    rows = [row | dict.fromkeys(zeros, 0.0) for row in Gates().numbers([run_of(seed, tmp_path) for seed in (0, 1)])]
    picture = drawn(Gates(), rows)
    assert faults(picture) == []
    for ax in picture.axes:
        low, high = ax.get_ylim()
        for line in ax.lines:
            y = np.asarray(line.get_ydata(), float)
            assert np.isfinite(ax.transData.transform(np.column_stack([y, y]))).all()
            assert ((low <= y) & (y <= high)).all()


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([4.5e-5, 2e-4], ["10⁻⁵", "10⁻⁴", "10⁻³"]),
        ([1.0], ["10⁰", "10¹"]),
        ([0.0, 0.03, 12.0], ["0", "10⁻²", "10⁻¹", "10⁰", "10¹", "10²"]),
        ([1e-9, 0.5], ["10⁻⁹", "10⁻⁷", "10⁻⁵", "10⁻³", "10⁻¹"]),
    ],
)
def test_powers_of_ten(values: list[float], labels: list[str]) -> None:
    _, (ax,) = style.panels()
    ax.plot(values)
    style.powers_of_ten(ax, values)
    low, high = ax.get_ylim()
    assert low <= min(values) <= max(values) <= high
    assert [text.get_text() for text in ax.get_yticklabels()] == labels


def test_which_runs(tmp_path: Path) -> None:
    (recipe,) = Gates().wanted(make_recipe(scenario="digits-5", seeds=[0, 1]))
    wanted = recipe.resolve(load("digits"))
    assert {(one.method, one.memory, one.seed) for one in wanted} == {("md-cg", 100, 0), ("md-cg", 100, 1)}
    few, many = [run_of(0, tmp_path, 200)], [run_of(seed, tmp_path) for seed in (0, 1)]
    other = [run_of(seed, tmp_path, beta=5) for seed in (0, 1)]
    single = [run_of(seed, tmp_path, head="single-gate") for seed in range(2)]
    unmeasured, one_task = finished(spec(seed=7)), run_of(8, tmp_path, tasks=1)
    assert Gates().pick([*few, *other, *single, unmeasured, one_task, *many]) == many
    assert Gates().pick([unmeasured, one_task]) == []
