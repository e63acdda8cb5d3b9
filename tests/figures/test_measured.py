"""Figures of what probes have measured: their numbers are the probes', and the drawing is of these numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mdcg
from mdcg.figures.base import RunFigure
from mdcg.figures.plots.bias import Bias
from mdcg.figures.plots.confusion import Confusion, percent
from mdcg.figures.plots.embedding import Embedding, principal
from mdcg.figures.plots.gradients import Gradients
from mdcg.figures.plots.margin import Margin
from mdcg.metrics import Matrix
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.finished import FinishedRun
from mdcg.runs.store import read_record
from mdcg.train.state import MeasuredRow
from tests.conftest import Cli
from tests.fake_runs import finished, spec, with_rows


def run_of(method: str, seed: int, rows: list[MeasuredRow], probe: str, under: Path) -> FinishedRun:
    """Of three tasks of two epochs, with what the probe is said to have measured."""
    of = spec(method, 12, seed, scenario="digits-3", backbone="smallconv", epochs=2)
    return with_rows(finished(of, (4, 3, 3)), probe, rows, under)


def look(task: int, epoch: int, **found: Any) -> MeasuredRow:
    return {"task": task, "epoch": epoch, "step": 0, **found}


def when(row: MeasuredRow) -> tuple[int, int]:
    return row["task"], row["epoch"]


def test_bias_by_hand(tmp_path: Path) -> None:
    """Task 1 was learned to 90% in memory and 80% on test images, task 2 to 70% and 60%; None: nothing in memory."""
    rows = [
        look(2, 0, logit=[1.0], memory_accuracy=[90.0], test_accuracy=[80.0]),
        look(2, 1, logit=[2.0], memory_accuracy=[85.0], test_accuracy=[50.0]),
        look(2, 2, logit=[3.0], memory_accuracy=[95.0], test_accuracy=[60.0]),
        look(3, 0, logit=[3.5, 1.0], memory_accuracy=[94.0, 70.0], test_accuracy=[60.0, 60.0]),
        look(3, 1, logit=[None, 1.5], memory_accuracy=[None, 60.0], test_accuracy=[40.0, 35.0]),
        look(3, 2, logit=[5.0, 2.0], memory_accuracy=[100.0, 71.0], test_accuracy=[30.0, 61.0]),
    ]
    others = [row | {"logit": [4.0] * (row["task"] - 1)} for row in rows]
    runs = [run_of("replay", seed, own, "memory", tmp_path) for seed, own in ((0, rows), (3, others))]
    found = Bias().numbers(runs)
    assert len(found) == 2 * (3 + 3 * 2)  # seeds, looks in task 2 and 3, past tasks
    for row in found:
        (then,) = [one for one in (others if row["seed"] else rows) if when(one) == when(row)]
        for key in ("logit", "memory_accuracy", "test_accuracy"):
            assert row[key] == then[key][row["past_task"] - 1]
    own = [row for row in found if row["seed"] == 0 and row["past_task"] == 1]
    assert [row["memory_forgetting"] for row in own] == [0, -5, 5, 4, None, 10]
    assert [row["test_forgetting"] for row in own] == [0, -30, -20, -20, -40, -50]
    own = [row for row in found if row["seed"] == 0 and row["past_task"] == 2]
    assert [(row["memory_forgetting"], row["test_forgetting"]) for row in own] == [(0, 0), (-10, -25), (1, 1)]

    logits, on_memory, on_test = Bias().draw(found).axes
    nan = float("nan")
    x, y = logits.lines[0].get_data()
    np.testing.assert_array_equal(x, [2, 3, 4, 4, 4, 5, 6, 6])  # epochs, with a break where task 3 begins
    np.testing.assert_array_equal(y, [2.5, 3, 3.5, nan, 3.75, nan, 4.5, nan])
    np.testing.assert_array_equal(on_memory.lines[0].get_ydata(), [0, -5, 5, nan, 4, nan, 10, nan])
    np.testing.assert_array_equal(on_test.lines[0].get_ydata(), [0, -30, -20, nan, -20, -40, -50, nan])
    assert on_memory.get_ylim() == on_test.get_ylim()
    assert "Mean over seeds" in Bias().caption(found)
    assert "A single seed." in Bias().caption([row for row in found if row["seed"] == 3])


def test_margin_draws_what_was_measured(tmp_path: Path) -> None:
    keys, moments = ("truth", "past", "loss", "above_zero"), [(task, epoch) for task in (2, 3) for epoch in (0, 1, 2)]
    rng = np.random.default_rng(0)
    measured = {seed: [look(*moment) | {key: rng.random() for key in keys} for moment in moments] for seed in (0, 3)}
    rows = Margin().numbers([run_of("md-cg", seed, own, "margin", tmp_path) for seed, own in measured.items()])
    by_place = {(row["seed"], *when(row)): row for row in rows}
    assert len(rows) == len(by_place) == 2 * 2 * 3
    for seed, own in measured.items():
        for one in own:
            assert [by_place[seed, *when(one)][key] for key in keys] == [one[key] for key in keys]
    upper, lower = Margin().draw(rows).axes
    for line, key in ((upper.lines[0], "truth"), (upper.lines[1], "past"), (lower.lines[0], "loss")):
        mean = [(one[key] + other[key]) / 2 for one, other in zip(*measured.values(), strict=True)]
        drawn = np.asarray(line.get_ydata(), float)
        np.testing.assert_allclose(drawn, np.array([*mean[:3], np.nan, *mean[3:], np.nan]))


@pytest.mark.parametrize(("method", "figure"), [("replay", Bias()), ("md-cg", Margin())])
def test_one_setting_is_picked(method: str, figure: RunFigure, tmp_path: Path) -> None:
    run = run_of(method, 0, [], figure.probes[0], tmp_path)

    def like(**spec: Any) -> FinishedRun:
        return FinishedRun(run.folder, run.record.model_copy(update={"spec": run.spec.model_copy(update=spec)}))

    small, large = [like(seed=seed) for seed in range(2)], [like(seed=seed, memory=40) for seed in range(3)]
    other = [like(seed=seed, method="ld", hyperparameters={"alpha": 1.0}) for seed in range(4)]
    anew = [like(seed=seed, method="gdumb", hyperparameters={}) for seed in range(5)]
    unmeasured = [FinishedRun(tmp_path, like(seed=seed, memory=50).record) for seed in range(9)]
    assert figure.pick([*anew, *small, *other, *large, *unmeasured]) == large
    assert figure.pick([*other, *small, large[0]]) == small
    assert figure.pick([*small[:1], *other]) == small[:1]
    assert figure.pick([*other[:1], *unmeasured]) == other[:1]
    assert figure.pick(unmeasured) == []
    assert figure.pick(anew) == ([] if method == "replay" else anew)
    if method == "md-cg":  # settings that the paper did not choose come after those that it did
        assert figure.pick([like(hyperparameters={**run.spec.hyperparameters, "lam": 0.125}), run]) == [run]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bias", "--scenario", "digits-5", "--methods", "naive"), "keeps no images in memory"),
        (("bias", "--scenario", "digits-5", "--methods", "gdumb"), "gdumb begins every task with new weights"),
    ],
)
def test_what_cannot_be_drawn_is_said_before_anything_trains(
    words: tuple[str, ...], said: str, cli: Cli, runs: Path
) -> None:
    assert said in cli("figure", *words, "--runs", runs, "--out", runs / "out").sentence()
    assert not list(runs.glob("digits*"))


def by_eigenvectors(points: Matrix) -> tuple[Matrix, list[float]]:
    """Principal components from the covariance matrix, each axis with its largest entry positive."""
    mean = points.mean(0)
    covariance = sum(np.outer(p - mean, p - mean) for p in points) / (len(points) - 1)
    values, vectors = np.linalg.eigh(covariance)
    axes = [vectors[:, -1], vectors[:, -2]]
    axes = [axis if axis[np.abs(axis).argmax()] > 0 else -axis for axis in axes]
    places = np.array([[float((p - mean) @ axis) for axis in axes] for p in points])
    return places, [100 * values[-1] / values.sum(), 100 * values[-2] / values.sum()]


@pytest.mark.parametrize("seed", range(4))
def test_principal_axes_are_those_of_the_covariance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6)) + rng.normal(size=6)
    places, shares = principal(points)
    expected, percents = by_eigenvectors(points)
    np.testing.assert_allclose(places, expected, atol=1e-9)
    np.testing.assert_allclose(shares, percents)


def test_confusion_and_embedding_of_real_runs(runs: Path) -> None:
    small: dict[str, Any] = {"scenario": "digits-2", "memory": 50, "epochs": 1, "batch_size": 64, "seeds": [3, 4]}
    mdcg.run(method="md-cg", **small, out=runs, probes=["confusion", "features"], quiet=True)
    found = [FinishedRun(path.parent, read_record(path.parent)) for path in sorted(runs.glob("*/result.json"))]

    table = Confusion().numbers(Confusion().pick(found))
    shares = []
    for run in found:
        own = [row for row in table if row["seed"] == run.spec.seed]
        counts = np.zeros((10, 10))
        for row in own:
            counts[row["true"], row["predicted"]] += row["count"]
            assert row["task_true"] == (1 if row["true"] < 5 else 2)
            assert row["task_predicted"] == (1 if row["predicted"] < 5 else 2)
        assert len(own) == 100
        assert np.diag(counts).tolist() == run.record.correct[-1]
        assert counts.sum(1).tolist() == run.record.total
        shares.append(100 * counts / np.array(run.record.total)[:, None])
    np.testing.assert_allclose(percent(table), (shares[0] + shares[1]) / 2)

    (run,) = Embedding().pick(found)
    assert run.spec.seed == 3  # maps cannot be averaged
    table = Embedding().numbers([run])
    before, after = json.loads((run.folder / "measured" / "features.json").read_text())["rows"]
    # The same axes for both moments: those of all points together.
    expected, percents = by_eigenvectors(np.array(before["features"] + after["features"]))
    np.testing.assert_allclose([(row["x"], row["y"]) for row in table], expected, rtol=1e-5, atol=1e-5)
    assert [row["moment"] for row in table] == ["before"] * len(before["classes"]) + ["after"] * len(after["classes"])
    assert [row["class"] for row in table] == before["classes"] + after["classes"]
    assert {(row["class"] // 5 + 1, row["task"]) for row in table} == {(1, 1), (2, 2)}
    assert table[0]["share_x"] == pytest.approx(percents[0], abs=0.006)
    left, right = Embedding().draw(table).axes
    assert left.get_xlim() == right.get_xlim()
    assert left.get_ylim() == right.get_ylim()


def test_a_map_is_of_one_seed() -> None:
    (asked,) = Embedding().wanted(make_recipe(scenario="digits-5", seeds=[3, 4], methods="replay,md-cg"))
    assert (asked.seeds, asked.methods) == ([3], ["replay", "md-cg"])


def test_gradients_are_averaged_over_seeds(tmp_path: Path) -> None:
    layers = ["convs.0", "classifier"]
    looks = [(task, epoch) for task in (2, 3) for epoch in (0, 1)]

    def run(seed: int, memory: int = 50) -> FinishedRun:
        cosines = np.random.default_rng(seed).uniform(-1, 1, (len(looks), len(layers))).round(3).tolist()
        cosines[0][0] = None if seed else 0.5  # not a number, of the second seed
        rows = [
            {"task": task, "epoch": epoch, "step": 0, "layers": layers, "cosine": own}
            for (task, epoch), own in zip(looks, cosines, strict=True)
        ]
        own = finished(spec("der", memory, seed, scenario="digits-3", epochs=1), (4, 3, 3))
        return with_rows(own, "gradients", rows, tmp_path)

    found = [run(0), run(1), run(2, memory=30)]
    figure = Gradients()
    picked = figure.pick(found)
    assert picked == found[:2]
    rows = figure.numbers(picked)
    assert len(rows) == 2 * 4 * 2  # seeds, looks, layers
    ax, below, *_ = figure.draw(rows).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == layers
    cells = np.asarray(ax.collections[0].get_array()).reshape(2, 4)
    for line, layer in enumerate(layers):
        for column, look in enumerate(looks):
            own = [row["cosine"] for row in rows if (row["layer"], row["task"], row["epoch"]) == (layer, *look)]
            known = [cosine for cosine in own if cosine is not None]
            assert len(own) == 2
            assert cells[line, column] == pytest.approx(sum(known) / len(known))
    assert below.lines[0].get_ydata() == pytest.approx(cells[1, :2])  # the last layer, in task 2
