"""One bad file in a folder of runs: a warning that names it, and commands that are about all runs go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg.execute.cost import cost_per_image
from mdcg.methods import METHODS, Method
from mdcg.methods.naive import Naive
from mdcg.runs.store import Store
from tests.conftest import Cli

RUN = ["--scenario", "digits-2", "--epochs", 1, "--batch-size", 21]
PLAN = "scenario: digits-2\nmethod: naive\nepochs: 1\nbatch_size: 21\nseeds: 0-2\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    mdcg.run(scenario="digits-2", method="naive", epochs=1, batch_size=21, seeds="0-1", out=out, quiet=True)
    return out


@pytest.fixture
def two(trained: Path, runs: Path) -> list[Path]:
    """Results of two runs."""
    shutil.copytree(trained, runs)
    return sorted(runs.glob("*/result.json"))


def changed(path: Path, place: str, value: Any) -> None:
    content = json.loads(path.read_bytes())
    *parents, last = place.split(".")
    inner = content
    for key in parents:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[last] = value
    path.write_text(json.dumps(content))


BAD = [
    ("spec.epochs", 0), ("spec.seed", 2**63), ("spec.seed", -1), ("spec.batch_size", 0), ("spec.memory", 10**400),
    ("spec.lr", 1e308), ("spec.hold_out", 7), ("spec.head_settings.zz", float("nan")),
    ("spec.hyperparameters.x", 10**400),
    ("seconds", 1e308), ("seconds", 10**400), ("seconds", -1), ("members", 0), ("environment.hardware.ram", 10**400),
    ("environment.peak_memory", -1), ("history.0.loss", 10**400), ("history.0.loss", 1e308), ("format", 10**400),
    ("history.0.task", 2**70),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), BAD, ids=lambda one: str(one)[:30])
def test_numbers_that_cannot_be(place: str, value: Any, cli: Cli, two: list[Path], runs: Path, recipe: Path) -> None:
    changed(two[0], place, value)
    recipe.write_text(PLAN)
    listed = cli("runs", "--out", runs)
    assert listed.code == 0
    assert two[1].parent.name in listed.out
    assert "1 entry" in listed.err
    assert str(two[0]) in listed.err
    assert f"{two[0]} is damaged" in cli("show", two[0].parent.name, "--out", runs).sentence()
    made = cli("report", runs, "--out", runs.parent / "report")
    assert made.code == 0
    assert f"{two[0]} is damaged" in made.err
    planned = cli("sweep", recipe, "--out", runs, "--plan")
    assert planned.code == 0
    assert "To train: 2 runs" in planned.out
    assert planned.err.count(f"{two[0]} is damaged") == 1
    assert len(planned.err.strip().splitlines()) == 1


def test_a_history_with_foreign_rows(cli: Cli, two: list[Path], runs: Path) -> None:
    for rows in ([{"task": [1]}], [{"task": 1, "within": "nan"}], [{"task": {}, "within": [[1, "inf"]]}]):
        changed(two[0], "history", rows)
        assert cli("runs", "--out", runs, "--json").code == 0


class Warm(Naive):
    """A method of a package."""

    warmth: float = 1.0


class Renamed(Naive):
    """The same, whose setting is called otherwise."""

    heat: float = 1.0


class Broken(Naive):
    """The same, which is at odds with what it needs by now."""

    warmth: float = 1.0

    def model_post_init(self, context: object) -> None:
        raise RuntimeError("no licence")


@pytest.mark.parametrize("then", [None, Renamed, Broken])
def test_a_time_is_guessed_without_the_method(then: type[Method] | None, cli: Cli, runs: Path, recipe: Path) -> None:
    recipe.write_text(PLAN)
    with METHODS.temporary("zz", Warm):
        assert cli("run", *RUN, "--method", "zz", "--out", runs).code == 0
    ((_, record),) = Store(runs).records()
    if then is not None:
        METHODS.register("zz")(then)
    try:
        planned = cli("sweep", recipe, "--out", runs, "--plan")
        assert (planned.code, planned.err) == (0, "")
        assert cli("figure", "forgetting", "--scenario", "digits-2", "--epochs", 1, "--methods", "naive", "--seeds", 0,
                   "--memory", 20, "--runs", runs, "--out", runs.parent / "figures").code == 0  # fmt: skip
        from mdcg.data import load

        cost = cost_per_image([record.spec], load("digits"), [record], "cpu", None)
        assert cost is not None
        assert not cost.measured
    finally:
        METHODS._known.pop("zz", None)


@pytest.mark.parametrize("content", ["", "{}", '{"reason": 3}', "[" * 10**5])
def test_a_damaged_note_on_a_failure(content: str, cli: Cli, two: list[Path], runs: Path, recipe: Path) -> None:
    recipe.write_text(PLAN)
    two[0].unlink()
    note = two[0].with_name("failed.json")
    note.write_text(content)
    planned = cli("sweep", recipe, "--out", runs, "--plan")
    assert planned.code == 0
    assert planned.err.count(str(note)) == 1
    assert "the run is tried again" in planned.err


@pytest.mark.parametrize(
    "content", ["", "{}", '{"members": [], "probes": []}', '{"members": ["a", "a"], "probes": []}']
)
def test_a_damaged_note_on_a_group(content: str, cli: Cli, two: list[Path], runs: Path, recipe: Path) -> None:
    recipe.write_text(PLAN)
    note = runs / ".groups" / "0123456789abcdef" / "members.json"
    note.parent.mkdir(parents=True)
    note.write_text(content)
    planned = cli("sweep", recipe, "--out", runs)
    assert planned.code == 0
    assert planned.err.count(f"{note}, which names the runs of a group, is damaged") == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--lr", "1e200"], "'lr' is wrong: input should be less than or equal to 1000"),
        (["--weight-decay", "1e300"], "'weight_decay' is wrong: input should be less than or equal to 1000"),
        (
            ["--set", "lam=1e200"],
            "'lam' is too large a number; give one up to 1e+100.",
        ),
    ],
    ids=str,
)
def test_what_could_not_be_read_back_is_not_trained(asked: list[str], said: str, cli: Cli, runs: Path) -> None:
    assert said in cli("run", *RUN, "--method", "md", "--memory", 20, *asked, "--out", runs).sentence()
