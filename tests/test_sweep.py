"""Sweeps: what they mean, that nothing is lost or done twice, and what they say of bad recipes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from torch import Tensor

import mdcg
from mdcg import paper
from mdcg.experiments.axes import combinations
from mdcg.experiments.display import SweepDisplay
from mdcg.experiments.failures import failure
from mdcg.experiments.plan import begun
from mdcg.experiments.written import read_written
from mdcg.methods.base import METHODS, cross_entropy
from mdcg.scenario import parse
from tests.conftest import Cli

RECIPES = Path(__file__).parent.parent / "recipes"
RECIPE = """
scenario: digits-2
epochs: 3
seeds: 0-2
axes:
  method: [replay, md-cg]
  memory: [30, 60]
"""


def outcome(work: mdcg.Sweep) -> dict[str, tuple[object, ...]]:
    """All that a run's result says and that company or interruptions must not change."""
    return {name: (record.correct, record.history, record.memory) for name, record in work.records().items()}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(RECIPE)
    return path


def keys(path: Path, **given: object) -> list[tuple[object, ...]]:
    found = [combination.recipe for combination in combinations(read_written(path), given)]
    return [(one.method, one.memory, one.head, one.set, one.seeds) for one in found]


def test_every_combination(recipe: Path) -> None:
    seeds = [0, 1, 2]
    assert keys(recipe) == [(m, [size], None, {}, seeds) for m in ("replay", "md-cg") for size in (30, 60)]
    assert {one[-1] == [4] for one in keys(recipe, seeds="4")} == {True}
    recipe.write_text(
        "scenario: digits-2\nset: {gamma: 2}\naxes:\n  set.lam: [0.1, 1]\n  which:\n"
        "    plain: {method: md-cg, memory: 20}\n"
        "    single: {method: md-cg, head: single-gate, memory: 30, set: {beta: 5}}\n"
    )
    assert [(one[0], one[1], one[2], one[3]) for one in keys(recipe)] == [
        ("md-cg", [20], None, {"gamma": 2, "lam": lam}) if which == "plain" else
        ("md-cg", [30], "single-gate", {"gamma": 2, "lam": lam, "beta": 5})
        for lam in (0.1, 1) for which in ("plain", "single")
    ]  # fmt: skip
    # Lists beside the axes are axes too.
    recipe.write_text("scenario: digits-2\nmethods: [replay, md]\nmemory: [20, 30]\nset: {}\n")
    assert [(one[0], one[1]) for one in keys(recipe)] == [(m, [s]) for m in ("replay", "md") for s in (20, 30)]


def test_a_method_without_memory_runs_once(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace("[replay, md-cg]", "[naive, replay]"))
    work = mdcg.Sweep.read(recipe, out=tmp_path / "runs")
    assert [(cell.specs[0].method, cell.specs[0].memory, len(cell.specs)) for cell in work.cells] == [
        ("naive", 0, 3), ("replay", 30, 3), ("replay", 60, 3)
    ]  # fmt: skip


def test_only_some(recipe: Path, tmp_path: Path) -> None:
    def left(**wanted: list[str]) -> list[tuple[str, int, int]]:
        cells = mdcg.Sweep.read(recipe, out=tmp_path / "runs", only=wanted).cells
        return [(cell.specs[0].method, cell.specs[0].memory, len(cell.specs)) for cell in cells]

    assert left(method=["md-cg"]) == [("md-cg", 30, 3), ("md-cg", 60, 3)]
    assert left(memory=["60"], method=["md-cg", "replay"]) == [("replay", 60, 3), ("md-cg", 60, 3)]
    assert left(memory=["60"], seed=["1", "2"], method=["replay"]) == [("replay", 60, 2)]
    with pytest.raises(mdcg.MdcgError, match="unknown axis or setting 'memroy'; did you mean 'memory'"):
        left(memroy=["60"])
    with pytest.raises(mdcg.MdcgError, match="unknown value of method in this recipe 'md-gc'; did you mean 'md-cg'"):
        left(method=["md-gc"])


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_our_recipes(path: Path) -> None:
    """Each table's recipe means the table's cells, and the paper's hyperparameters for each."""
    found = combinations(read_written(path), {})
    content = yaml.safe_load(path.read_text())
    assert {str(one.recipe.seeds) for one in found} == {"[0, 1, 2]" if path.stem == "quick" else "[0, 1, 2, 3, 4]"}
    if path.stem == "quick":
        return
    table, scenario = int(path.stem[5]), content["scenario"]
    parse(scenario)
    printed = {(c.method, c.head, c.memory) for c in paper.cells() if (c.table, c.scenario) == (table, scenario)}
    meant = set()
    for one in found:
        method = one.recipe.method or ""
        (memory,) = one.recipe.memory
        meant.add((method, one.recipe.head or "", memory if METHODS[method].uses_memory else 0))
    assert printed == meant - {("gem", "", 2000)} if scenario == "c100-10" else printed == meant


def test_company_changes_nothing(recipe: Path, tmp_path: Path) -> None:
    alone = mdcg.Sweep.read(recipe, out=tmp_path / "alone", members=1)
    together = mdcg.Sweep.read(recipe, out=tmp_path / "together")
    assert len(alone.plan().jobs) == 12
    assert len(together.plan().jobs) == 2
    assert alone.run(quiet=True) == together.run(quiet=True) == {}
    assert outcome(alone) == outcome(together)
    assert len(outcome(alone)) == 12
    assert alone.plan().jobs == []


def test_killed_five_times(recipe: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments: nothing is lost, nothing done twice, the same bits in the end."""
    recipe.write_text(RECIPE.replace("epochs: 3", "epochs: 6"))  # so that there is something left to kill
    undisturbed = mdcg.Sweep.read(recipe, out=tmp_path / "undisturbed")
    undisturbed.run(quiet=True)
    out, rng = tmp_path / "killed", random.Random(4)
    command = [sys.executable, "-m", "mdcg", "sweep", str(recipe), "--out", str(out), "--members", "3"]
    written: dict[Path, tuple[int, int]] = {}
    killed = 0
    while killed < 5:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        saved = set(out.glob(".groups/*/*.safetensors"))
        while process.poll() is None and set(out.glob(".groups/*/*.safetensors")) <= saved:
            time.sleep(0.01)  # until it has got somewhere
        time.sleep(rng.random())
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
        for file in out.glob("*/result.json"):
            state = (file.stat().st_ino, file.stat().st_mtime_ns)
            assert written.setdefault(file, state) == state
    assert killed == 5
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["settings"]) == 4
    for file, state in written.items():
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == state
    again = mdcg.Sweep.read(recipe, out=out)
    assert outcome(again) == outcome(undisturbed)
    assert not begun(again.site.store)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_told_how_to_go_on(recipe: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "runs"
    command = [sys.executable, "-m", "mdcg", "sweep", str(recipe), "--out", str(out), "--members", "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(out.glob(".groups/*/*.safetensors")):
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert said.strip().endswith("give the same command again to go on.")
    assert begun(mdcg.Sweep.read(recipe, out=out).site.store)


class Fussy(mdcg.Method):
    """Naive, which fails where its limit is small."""

    uses_memory: ClassVar[bool] = True
    limit: int = 3

    def loss(self, step: mdcg.Step) -> Tensor:
        if step.old and self.limit < 2:
            raise RuntimeError("this limit is too small")
        return cross_entropy(step.logits, step.labels)


def test_a_failed_run_and_the_others(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(METHODS, "_known", {**METHODS._known, "fussy": Fussy})
    recipe.write_text(
        "scenario: digits-2\nepochs: 1\nmemory: 30\nseeds: 0-1\naxes:\n  which:\n"
        "    small: {method: fussy, set: {limit: 1}}\n    large: {method: fussy, set: {limit: 5}}\n"
        "    wild: {method: naive, rate: 1.0e+30}\n"
    )
    out = tmp_path / "runs"
    answer = cli("sweep", recipe, "--out", out)
    assert answer.code == 1
    assert "2 of 4 failed runs: RuntimeError: this limit is too small" in answer.err
    assert answer.err.count("1 of 4 failed runs: ") == 2  # each names its run
    assert "large" in answer.out
    work = mdcg.Sweep.read(recipe, out=out)
    assert len(work.records()) == 2
    planned = work.plan()
    assert planned.jobs == []
    assert len(planned.failed) == 4
    assert "4 failed before and are left out; --retry" in cli("sweep", recipe, "--out", out, "--plan").out
    small = work.cells[0].specs[0]
    assert failure(work.site.store, small) == "RuntimeError: this limit is too small"
    assert "Traceback" in json.loads((work.site.store.folder(small) / "failed.json").read_text())["details"]
    # The same again leaves them out and says so; once mended, --retry finishes them.
    assert "RuntimeError: this limit is too small" in cli("sweep", recipe, "--out", out).err
    monkeypatch.setattr(Fussy, "loss", lambda self, step: cross_entropy(step.logits, step.labels))
    answer = cli("sweep", recipe, "--out", out, "--retry")
    assert answer.code == 1  # the wild ones
    assert "too small" not in answer.err
    assert failure(work.site.store, small) is None
    assert len(work.records()) == 4


def test_a_plan_does_nothing(recipe: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "runs"
    answer = cli("sweep", recipe, "--out", out, "--plan")
    assert answer.code == 0
    assert "12 runs in 2 groups to train, about " in answer.out
    assert "The time is from other machines" in answer.out
    assert not out.exists()
    mdcg.Sweep.read(recipe, out=out, only={"seed": ["0"]}).run(quiet=True)
    answer = cli("sweep", recipe, "--out", out, "--plan")
    assert "8 runs in 2 groups to train, about " in answer.out
    assert "other machines" not in answer.out
    assert "4 finished" in answer.out


def test_the_table_beside_the_papers(tmp_path: Path, cli: Cli, recipe: Path) -> None:
    out = tmp_path / "runs"
    answer = cli("sweep", recipe, "--out", out, "--only", "memory=30,seed=0,1")
    assert answer.code == 0
    assert "memory 30" in answer.out
    assert "memory 60" not in answer.out
    assert "mean ± sample std over 2 seeds" in answer.out
    content = json.loads(cli("sweep", recipe, "--out", out, "--only", "memory=30", "--only", "seed=0,1", "--json").out)
    assert [(one["labels"], len(one["runs"])) for one in content["settings"]] == [
        ({"method": "replay", "memory": "30"}, 2), ({"method": "md-cg", "memory": "30"}, 2)
    ]  # fmt: skip
    assert content["failed"] == {}


def test_time_that_is_left(recipe: Path, tmp_path: Path) -> None:
    """After a third of the work in 10 s, twice that is left."""
    now = [0.0]
    work = mdcg.Sweep.read(recipe, out=tmp_path / "runs", members=4, only={"method": ["replay"]})
    planned = work.plan()
    display = SweepDisplay(planned, quiet=True, clock=lambda: now[0])
    assert display.seconds_left() == planned.seconds  # a guess, from other machines
    assert not planned.measured
    from mdcg.experiments.runner import group_of
    from mdcg.train.loop import total_steps

    first = planned.jobs[0]
    group = group_of(first.specs, work.site.dataset(first.specs[0]))
    display.begin("replay", group, total_steps(group), 0)
    display.step(total_steps(group))
    now[0] = 10.0
    share = first.work / sum(job.work for job in planned.jobs)
    assert display.seconds_left() == pytest.approx(10 * (1 - share) / share)
    display.job_ends(first, {})
    assert display.seconds_left() == pytest.approx(10 * (1 - share) / share)


BAD = [
    ("scenario: digits-2\nmethd: naive\n",
     "line 2: unknown setting 'methd'; did you mean 'method'"),
    ("scenario: digits-2\naxes:\n  methd: [naive]\n",
     "line 3: unknown axis 'methd'; did you mean 'method'"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  memory: []\n",
     "line 4: axis 'memory' is empty"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  memory:\n",
     "line 4: axis 'memory' is empty"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory: [30, many]\n",
     "line 4: 'memory' is wrong"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory:\n    - 30\n    - many\n",
     "line 6: 'memory' is wrong"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory: 30\n",
     "line 4: axis 'memory' must be a list of values"),
    ("scenario: digits-2\nmemory: 30\naxes:\n  method: [md, replay]\n  set.lam: [1]\n",
     "line 5: unknown setting of replay 'lam'"),
    ("scenario: digits-2\nmemory: 30\nmethod: md\naxes:\n  set.lamb: [1]\n",
     "line 5: unknown setting of md 'lamb'; did you mean 'lam'"),
    ("scenario: digits-2\nmemory: 30\nmethod: md\naxes:\n  set.lam: [1, -1]\n",
     "line 5: method md: 'lam' is wrong"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  method: [replay]\n",
     "line 4: axis 'method' sets 'method', which"),
    ("scenario: digits-2\nmemory: 9\naxes:\n  method: [md]\n  memory: [30]\n",
     "line 5: axis 'memory' sets 'memory', which"),
    ("scenario: digits-2\naxes:\n  method: [md]\n  memory: [30]\n  which:\n    a: {rate: 1}\n    b: {method: md}\n",
     "line 7: axis 'which' sets 'method', which line 3"),
    ("scenario: digits-2\naxes:\n  method: [md]\n  method: [replay]\n",
     "line 4: 'method' is given twice, also in line 3"),
    ("scenario: digits-2\nscenario: digits-5\n",
     "line 2: 'scenario' is given twice, also in line 1"),
    ("scenario: digits-2\naxes:\n  method: [naive, naive]\n",
     "line 3: axis 'method' has the value naive twice"),
    ("scenario: digits-2\naxes:\n  method: [naive, replya]\n",
     "line 3: unknown method 'replya'; did you mean 'replay'"),
    ("scenario: digits-2\naxes:\n  which:\n    a: {methd: md}\n",
     "line 4: unknown key 'methd'; did you mean 'method'"),
    ("scenario: digits-2\naxes:\n  which:\n    a: md\n",
     "line 4: 'a' must say what it sets"),
    ("scenario: digits-2\naxes:\n  which:\n    a: {method: naive, out: x}\n",
     "line 4: unknown key 'out'"),
    ("scenario: digits-2\naxes:\n  method:\n    a: {method: md}\n",
     "line 3: axis 'method' must be a list of values"),
    ("scenario: digits-2\naxes:\n  seeds: [1, 2]\n",
     "line 3: 'seeds' cannot be an axis"),
    ("scenario: digits-2\naxes: [method]\n",
     "line 2: 'axes' must be"),
    ("scenario: digits-2\nmethod: naive\nset: 3\naxes:\n  rate: [0.1]\n",
     "line 3: 'set' must be"),
    ("scenario: digits-20\naxes:\n  method: [naive]\n",
     "line 1: 10 classes cannot make 20 tasks"),
    ("scenario: digits\naxes:\n  method: [naive]\n",
     "line 1: 'digits' is not a scenario"),
    ("scenario: digits-2\naxes:\n  method: [md]\n",
     "line 3: md needs a memory"),
    ("scenario: digits-2\naxes:\n  method: [md]\n  memory: [30, 5]\n",
     "line 4: a memory of 5 cannot hold one image"),
    ("scenario: digits-2\nmemory: 30\naxes:\n  method: [md]\n  head: [incremental, fixed]\n",
     "line 5: md needs a head"),
    ("scenario: digits-2\nseeds: x\naxes:\n  method: [naive]\n",
     "line 2: 'x' is not a list of seeds"),
    ("scenario: &a digits-2\naxes: &b\n  method: *b\n",
     "contains itself"),
    ("scenario: digits-2\naxes:\n  method: [naive]\n  rate: [0.1, [0.2]]\n",
     "line 4: a value of axis 'rate' must be"),
    ("method: naive\naxes:\n  memory: [3]\n",
     "no scenario was named"),
    ("axes:\n",
     "no scenario was named"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD, ids=[told for _, told in BAD])
def test_bad_recipes(cli: Cli, tmp_path: Path, text: str, told: str) -> None:
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(text)
    sentence = cli("sweep", recipe, "--out", tmp_path / "runs").sentence()
    assert told in sentence
    assert str(recipe) in sentence
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("/no/such.yaml", "cannot read recipe"),
        ("RECIPE --only md-cg", "says not what to keep"),
        ("RECIPE --only method=", "says not what to keep"),
        ("RECIPE --only seed=7", "unknown value of seed"),
        ("RECIPE --only method=md-cg --only memory=60,seed=0 --on moon", "is no place to train on"),
        ("RECIPE --device tpu", "'device' is wrong"),
        ("RECIPE --precision fp8", "unknown precision"),
        ("RECIPE --seeds 3-1", "mdcg: '3-1' is not a usable range"),
    ],
)
def test_bad_commands(cli: Cli, recipe: Path, words: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    assert told in cli("sweep", *words.replace("RECIPE", str(recipe)).split()).sentence()
    assert not (recipe.parent / "runs").exists()


def test_without_ray(cli: Cli, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'mdcg[cluster]'" in cli("sweep", recipe, "--on", "ray").sentence()


def test_another_process_is_at_it(recipe: Path, tmp_path: Path, cli: Cli) -> None:
    from mdcg.files import locked

    out = tmp_path / "runs"
    work = mdcg.Sweep.read(recipe, out=out)
    with locked(work.site.store.folder(work.cells[0].specs[0])):
        answer = cli("sweep", recipe, "--out", out)
    assert f"in use by process {os.getpid()}" in answer.err
    assert "These 6 runs are left to it" in answer.err
    assert answer.code == 0
    assert len(work.records()) == 6
