"""The figures `bias` and `margin`: their numbers are the probes', and the drawing is of these numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg.experiments.recipe import make_recipe
from mdcg.experiments.store import read_record
from mdcg.figures.base import OfRuns, Run
from mdcg.figures.bias import Bias
from mdcg.figures.make import make
from mdcg.figures.margin import Margin
from tests.conftest import Cli

Row = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both figures in `out`, of two seeds each, and the runs behind them in `runs`."""
    folder = tmp_path_factory.mktemp("bias-margin")
    asked = make_recipe(scenario="digits-3", epochs=2, memory=12, seeds=[0, 3], out=folder / "runs")
    make(["bias", "margin"], asked, folder / "out", True, None, pytest.fail)
    return folder


def rows_of(name: str, folder: Path) -> list[Row]:
    """Those of the CSV."""
    with (folder / "out" / f"{name}-digits-3.csv").open() as file:
        return list(csv.DictReader(file))


def runs_of(method: str, folder: Path) -> list[Run]:
    folders = sorted((folder / "runs").glob(f"digits-3_{method}_*"))
    runs = [Run(own, read_record(own)) for own in folders]
    assert [(run.spec.method, run.spec.seed, run.spec.memory) for run in runs] == [(method, 0, 12), (method, 3, 12)]
    return runs


def measured(run: Run, probe: str) -> list[Row]:
    rows: list[Row] = json.loads((run.folder / "measured" / f"{probe}.json").read_text())["rows"]
    return rows


def with_rows(run: Run, probe: str, rows: list[Row], folder: Path) -> Run:
    """The run as if the probe had measured these."""
    file = folder / str(run.spec.seed) / "measured" / f"{probe}.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"rows": rows, "seconds": 0.0}))
    return Run(folder / str(run.spec.seed), run.record)


def look(task: int, epoch: int, **found: Any) -> Row:
    return {"task": task, "epoch": epoch, "step": 0, **found}


def test_bias_writes_what_was_measured_and_what_follows_from_it(folder: Path) -> None:
    rows, runs = rows_of("bias", folder), runs_of("replay", folder)
    assert len(rows) == 2 * (3 + 3 * 2)  # seeds, looks in task 2 and 3, past tasks
    by_place = {tuple(int(row[key]) for key in ("seed", "task", "epoch", "past_task")): row for row in rows}
    for run in runs:
        looks = {(row["task"], row["epoch"]): row for row in measured(run, "memory")}
        for (task, epoch), found in looks.items():
            for past in range(1, task):
                row = by_place[run.spec.seed, task, epoch, past]
                assert float(row["logit"]) == found["logit"][past - 1]
                for images in ("memory", "test"):
                    now = found[f"{images}_accuracy"][past - 1]
                    then = looks[past + 1, 0][f"{images}_accuracy"][past - 1]
                    assert float(row[f"{images}_accuracy"]) == now
                    assert float(row[f"{images}_forgetting"]) == pytest.approx(now - then, abs=1e-5)


def test_bias_by_hand(folder: Path, tmp_path: Path) -> None:
    """Task 1 was learned to 90% in memory and 80% on test images, task 2 to 70% and 60%; None: nothing in memory."""
    rows = [
        look(2, 0, logit=[1.0], memory_accuracy=[90.0], test_accuracy=[80.0]),
        look(2, 1, logit=[2.0], memory_accuracy=[85.0], test_accuracy=[50.0]),
        look(2, 2, logit=[3.0], memory_accuracy=[95.0], test_accuracy=[60.0]),
        look(3, 0, logit=[3.5, 1.0], memory_accuracy=[94.0, 70.0], test_accuracy=[60.0, 60.0]),
        look(3, 1, logit=[None, 1.5], memory_accuracy=[None, 60.0], test_accuracy=[40.0, 35.0]),
        look(3, 2, logit=[5.0, 2.0], memory_accuracy=[100.0, 71.0], test_accuracy=[30.0, 61.0]),
    ]
    run, other = runs_of("replay", folder)
    others = [row | {"logit": [4.0] * (row["task"] - 1)} for row in rows]
    found = Bias().numbers([with_rows(run, "memory", rows, tmp_path), with_rows(other, "memory", others, tmp_path)])
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


def test_margin_writes_and_draws_what_was_measured(folder: Path) -> None:
    rows, runs = rows_of("margin", folder), runs_of("md-cg", folder)
    assert len(rows) == 2 * 2 * 3
    by_place = {tuple(int(row[key]) for key in ("seed", "task", "epoch")): row for row in rows}
    for run in runs:
        for found in measured(run, "margin"):
            row = by_place[run.spec.seed, found["task"], found["epoch"]]
            for key in ("truth", "past", "loss", "above_zero"):
                assert float(row[key]) == found[key]
    upper, lower = Margin().draw(Margin().numbers(runs)).axes
    for line, key in ((upper.lines[0], "truth"), (upper.lines[1], "past"), (lower.lines[0], "loss")):
        moments = [(task, epoch) for task in (2, 3) for epoch in (0, 1, 2)]
        mean = [(float(by_place[0, *m][key]) + float(by_place[3, *m][key])) / 2 for m in moments]
        drawn = np.asarray(line.get_ydata(), float)
        np.testing.assert_allclose(drawn, np.array([*mean[:3], np.nan, *mean[3:], np.nan]))


@pytest.mark.parametrize(("method", "figure"), [("replay", Bias()), ("md-cg", Margin())])
def test_one_setting_is_picked(method: str, figure: OfRuns, folder: Path, tmp_path: Path) -> None:
    run, _ = runs_of(method, folder)

    def like(**spec: Any) -> Run:
        return Run(run.folder, run.record.model_copy(update={"spec": run.spec.model_copy(update=spec)}))

    small, large = [like(seed=seed) for seed in range(2)], [like(seed=seed, memory=40) for seed in range(3)]
    other = [like(seed=seed, method="ld", hyperparameters={"alpha": 1.0}) for seed in range(4)]
    anew = [like(seed=seed, method="gdumb", hyperparameters={}) for seed in range(5)]
    unmeasured = [Run(tmp_path, like(seed=seed, memory=50).record) for seed in range(9)]
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
