"""The search for hyperparameters: the best of the grid, found without a look at the test images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import mdcg
from mdcg.data import Dataset, load
from mdcg.execute.search import SearchResult, grid_of
from mdcg.methods import METHODS
from mdcg.recipes.document import written
from tests.conftest import Cli

WORDS = ["search", "--scenario", "digits-2", "--method", "md", "--memory", "40", "--epochs", "1"]


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_best_of_the_grid(cli: Cli) -> None:
    """Against the same runs, one at a time."""
    answer = json.loads(cli(*WORDS, "--json").out)
    (choice,) = answer["choices"]
    grid = [1.0, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01]
    assert [point["lam"] for point in choice["grid"]] == grid
    scores = {}
    for lam in grid:
        asked: dict[str, Any] = {"scenario": "digits-2", "method": "md", "memory": 40, "epochs": 1, "set": {"lam": lam}}
        scores[lam] = float(mdcg.run(**asked, hold_out=0.1, out="alone", members=1, quiet=True).ACC[0])
    assert {point["lam"]: point["ACC"] for point in choice["grid"]} == pytest.approx(scores)
    first, second = sorted(scores.values(), reverse=True)[:2]
    assert scores[choice["best"]["lam"]] == first
    assert choice["margin"] == pytest.approx(first - second)
    recipe = yaml.safe_load(Path(answer["recipe"]).read_text())
    assert recipe == {
        "scenario": "digits-2", "method": "md", "epochs": 1, "seeds": "0-4", "memory": 40, "set": choice["best"]
    }  # fmt: skip


def test_a_search_over_learning_rate_and_decay_is_one_group(cli: Cli) -> None:
    """And each of its runs is as alone, to the bit; what it writes is the best of them."""
    asked: dict[str, Any] = {"scenario": "digits-2", "method": "replay", "memory": 20, "epochs": 1, "hold_out": 0.1}
    grid: dict[str, Any] = {"lr": [0.05, 0.01], "weight_decay": [0.0, 0.001, 0.1]}
    plan = mdcg.Sweep.of(written({}), **asked, **grid, device="cpu").plan()
    assert [len(job.specs) for job in plan.jobs] == [6]
    words = ["search", "--scenario", "digits-2", "--method", "replay", "--memory", 20, "--epochs", 1]
    answer = json.loads(cli(*words, "--lr", "0.05,0.01", "--weight-decay", "0,0.001,0.1", "--json").out)
    (choice,) = answer["choices"]
    assert len(choice["grid"]) == 6
    assert len({json.loads(file.read_text())["members"] for file in Path("runs").glob("*/result.json")} | {6}) == 1
    point = choice["grid"][4]
    alone = mdcg.run(**asked, **{key: point[key] for key in grid}, out="alone", quiet=True)
    assert alone.ACC[0] == pytest.approx(point["ACC"])
    recipe = yaml.safe_load(Path(answer["recipe"]).read_text())
    assert {key: recipe[key] for key in grid} == choice["best"]
    assert cli("run", "--recipe", answer["recipe"], "--seeds", 0).code == 0
    printed = cli(*words, "--lr", "0.05,0.01", "--weight-decay", "0,0.001,0.1")
    assert "lr ↓ weight_decay →" in printed.out


def poisoned(name: str, data: Path | None = None, image_size: int | None = None) -> Dataset:
    """All test labels wrong, all test images black."""
    dataset = load(name, data, image_size)
    test = replace(dataset.test, images=0 * dataset.test.images, labels=(dataset.test.labels + 1) % dataset.classes)
    assert not np.array_equal(test.labels, dataset.test.labels)
    return replace(dataset, test=test)


@pytest.mark.usefixtures("all_digits")
def test_the_test_images_are_never_looked_at(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = json.loads(cli(*WORDS, "--json", "--out", "honest").out)
    asked: dict[str, Any] = {"scenario": "digits-2", "method": "md", "memory": 40, "epochs": 1, "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr("mdcg.execute.context.load", poisoned)
        blind = json.loads(cli(*WORDS, "--json", "--out", "blind").out)
        # It would have been seen: the same runs on the test images do change.
        spoilt = mdcg.run(**asked, out="spoilt").ACC[0]
    assert honest == blind
    assert spoilt < mdcg.run(**asked, out="sound").ACC[0] - 20


def test_what_it_writes_can_be_run_and_swept(cli: Cli) -> None:
    assert cli(*WORDS, "--write", "one.yaml").code == 0
    assert cli("run", "--recipe", "one.yaml", "--seeds", "0").code == 0
    assert cli("sweep", "one.yaml", "--seeds", "0").code == 0
    assert len(list(Path("runs").glob("*/result.json"))) == 7 + 1  # on held-out images, and one on the test's
    assert cli(*WORDS, "--memory", "40,60", "--set", "lam=0.1,1", "--write", "two.yaml").code == 0
    both = mdcg.Sweep.read("two.yaml", seeds="0")
    assert [cell.specs[0].memory for cell in both.cells] == [40, 60]
    assert "has axes; give it to 'mdcg sweep'" in cli("run", "--recipe", "two.yaml").sentence()


def test_what_it_prints(cli: Cli) -> None:
    words = ["search", "--scenario", "digits-2", "--method", "der", "--memory", "40", "--epochs", "1"]
    answer = cli(*words, "--set", "alpha=0.1,1", "--set", "beta=0.5,1")
    assert answer.code == 0
    assert "on 10% of the training images, held out, seed 0" in answer.out
    assert "alpha ↓ beta →" in answer.out
    assert answer.out.count("*") == 1
    assert "above the second" in answer.out
    assert "recipe: digits-2-der.yaml" in answer.out


def test_a_point_that_fails(cli: Cli) -> None:
    """It is left out; given again, it is not even tried."""
    words = [*WORDS, "--set", "lam=0.5,1.0e+30"]
    for _ in range(2):
        answer = cli(*words)
        assert answer.code == 0
        assert "left out of the grid: " in answer.err
        assert "lam 0.5, ACC" in answer.out
    words[-1] = "lam=1.0e+29,1.0e+30"
    assert "no point of the grid could be trained" in cli(*words).err


def test_a_grid_of_ones_own() -> None:
    assert grid_of("md", {}) == {"lam": [1.0, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01]}
    assert grid_of("md-cg", {"beta": 5}) == {"beta": 5, "lam": [1.0, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01]}
    assert grid_of("md-cg", {"beta": [5, 10]}) == {"beta": [5, 10]}
    assert grid_of("der", {"alpha": 0.5}) == {"alpha": 0.5, "beta": [0.1, 0.2, 0.5, 0.8, 1.0]}
    assert METHODS["md-cg"].grid == METHODS["md"].grid


def test_ties_and_a_single_point() -> None:
    tie = SearchResult(5, {"lam": [0.1, 1.0]}, {(0.1,): 50.0, (1.0,): 50.0})
    assert tie.best == {"lam": 0.1}
    assert tie.margin == 0
    assert np.isnan(SearchResult(5, {"lam": [0.1]}, {(0.1,): 50.0}).margin)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--method naive", "naive has no grid of its own; there is nothing to choose"),
        ("--method er-ace --memory 40", "er-ace has no grid of its own; give the values to try with --set"),
        ("--method md", "md needs a memory"),
        ("--method md --memory 40 --set lam=0.5", "nothing is left to choose for md"),
        ("--method md --memory 40 --set lamb=0.5,1", "did you mean 'lam'"),
        ("--method md --memory 40 --hold-out 1", "'hold_out' is wrong"),
        ("--memory 40", "no method was named"),
    ],
)
def test_mistakes(cli: Cli, words: str, told: str) -> None:
    assert told in cli("search", "--scenario", "digits-2", *words.split()).sentence()
    assert not Path("runs").exists()


def test_a_file_that_is_there_already(cli: Cli) -> None:
    Path("mine.yaml").write_text("scenario: c10-5\n")
    assert "is not a recipe that a search wrote" in cli(*WORDS, "--write", "mine.yaml").sentence()
    assert Path("mine.yaml").read_text() == "scenario: c10-5\n"
    assert not Path("runs").exists()


def test_the_same_in_python(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what the command prints as JSON, and writes."""
    words = ["search", "--scenario", "digits-2", "--method", "der", "--memory", "20,40", "--epochs", "1", "--json"]
    told = json.loads(cli(*words, "--set", "alpha=0.1,1", "--set", "beta=0.5", "--out", "command").out)
    asked: dict[str, Any] = {"scenario": "digits-2", "method": "der", "epochs": 1, "quiet": True, "out": "python"}
    found = mdcg.search(**asked, memory=[20, 40], set={"alpha": (0.1, 1), "beta": 0.5})
    assert [one.as_json() for one in found.results] == told["choices"]
    rows = [{"memory": one["memory"], **point} for one in told["choices"] for point in one["grid"]]
    assert found.frame().to_dict("records") == rows
    assert found.recipe == yaml.safe_load(Path(told["recipe"]).read_text())
    found.write("mine.yaml")
    assert yaml.safe_load(Path("mine.yaml").read_text()) == found.recipe
    with pytest.raises(mdcg.MdcgError, match="each memory size \\(20, 40\\) has a choice of its own"):
        _ = found.best
    one = mdcg.search(**asked, memory=40, set={"alpha": [0.1, 1], "beta": 0.5})
    assert one.best == told["choices"][1]["best"]
    assert one.margin == told["choices"][1]["margin"]
    assert repr(one).startswith("<Search: memory 40: alpha ")
    assert len(repr(one)) < 100
    again = mdcg.run(**{**one.recipe, "seeds": [0]}, quiet=True)
    assert again.records[0].spec.hyperparameters["alpha"] == one.best["alpha"]
    assert again.records[0].spec.hold_out == 0
    Path("theirs.yaml").write_text("scenario: c10-5\n")
    with pytest.raises(mdcg.MdcgError, match="is not a recipe that a search wrote"):
        one.write("theirs.yaml")


def test_a_point_that_fails_in_python(caplog: pytest.LogCaptureFixture) -> None:
    asked: dict[str, Any] = {"scenario": "digits-2", "method": "md", "memory": 20, "epochs": 1}
    found = mdcg.search(**asked, set={"lam": [0.5, 1e30]})
    assert "left out of the grid: " in caplog.text
    assert found.best == {"lam": 0.5}
    assert np.isnan(found.margin)
    with pytest.raises(mdcg.MdcgError, match="nothing is left to choose for md"):
        mdcg.search(**asked, set={"lam": 0.5})
