"""Sweeps: what they mean, that nothing is lost or done twice, and what they say of bad recipes."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from torch import Tensor

import mdcg
from mdcg import paper
from mdcg.execute.plan import Undone
from mdcg.execute.progress import ProgressBars
from mdcg.execute.unfinished import begun, group_folder
from mdcg.files import locked
from mdcg.methods.base import METHODS, cross_entropy
from mdcg.recipes.document import read_document
from mdcg.recipes.grid import expand
from mdcg.runs.failures import failure
from mdcg.scenario import parse
from tests.conftest import Cli
from tests.forked import Server

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = """
scenario: digits-2
epochs: 1
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
    found = [combination.recipe for combination in expand(read_document(path), given)]
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
    # What a method does not have is left out for it, where another one has it.
    recipe.write_text("scenario: digits-2\nmemory: 20\naxes:\n  method: [md, replay]\n  set.lam: [0.1, 1]\n")
    assert [(one[0], one[3]) for one in keys(recipe)] == [
        ("md", {"lam": 0.1}), ("md", {"lam": 1}), ("replay", {}), ("replay", {})
    ]  # fmt: skip
    assert [cell.labels for cell in mdcg.Sweep.read(recipe, out=recipe.parent).cells] == [
        {"method": "md", "set.lam": "0.1"}, {"method": "md", "set.lam": "1"}, {"method": "replay"}
    ]  # fmt: skip
    recipe.write_text("scenario: digits-2\nmemory: 20,40\nmethod: replay\n")
    assert [one[1] for one in keys(recipe)] == [[20], [40]]
    # Older recipes have `rate` for the learning rate.
    recipe.write_text("scenario: digits-2\nmethod: naive\nrate: 0.2\naxes:\n  momentum: [0.1]\n")
    assert [one.recipe.lr for one in expand(read_document(recipe))] == [0.2]
    recipe.write_text("scenario: digits-2\nmethod: naive\naxes:\n  rate: [0.1]\n  w:\n    a: {epochs: 1}\n")
    assert [one.recipe.lr for one in expand(read_document(recipe))] == [0.1]
    # Lists beside the axes are axes too.
    recipe.write_text("scenario: digits-2\nmethods: [replay, md]\nmemory: [20, 30]\nset: {}\n")
    assert [(one[0], one[1]) for one in keys(recipe)] == [(m, [s]) for m in ("replay", "md") for s in (20, 30)]


def test_a_preset_for_all_of_a_recipe(recipe: Path, tmp_path: Path) -> None:
    """`sweep RECIPE --preset published`: the same cells, as the published code."""
    paper, published = (mdcg.Sweep.read(recipe, out=tmp_path, preset=name) for name in ("paper", "published"))
    heads = [{spec.head for cell in work.cells for spec in cell.specs} for work in (paper, published)]
    assert heads == [{"incremental", "cascaded-gates"}, {"incremental", "cascaded-gates-with-own"}]
    assert [cell.labels for cell in paper.cells] == [cell.labels for cell in published.cells]


def test_labels_are_text(recipe: Path, tmp_path: Path) -> None:
    """Whatever YAML would make of them: on and yes are not both True."""
    recipe.write_text(
        "scenario: digits-2\naxes:\n  w:\n    on: {method: naive}\n    yes: {method: cumulative}\n"
        "    1: {method: replay, memory: 30}\n    1.0: {method: replay, memory: 40}\n"
    )
    labels = [cell.labels["w"] for cell in mdcg.Sweep.read(recipe, out=tmp_path / "runs").cells]
    assert labels == ["on", "yes", "1", "1.0"]
    recipe.write_text(RECIPE + "  precision: [fp32, fp64]\n")
    with pytest.raises(mdcg.MdcgError, match="'precision' is an axis"):
        mdcg.Sweep.read(recipe, out=tmp_path / "runs", precision="fp64")


def test_what_is_not_wanted_need_not_be_there(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text("method: naive\naxes:\n  scenario: [digits-2, c10-5]\n")
    here: dict[str, Any] = {"out": tmp_path / "runs", "data": tmp_path}
    assert len(mdcg.Sweep.read(recipe, only={"scenario": ["digits-2"]}, **here).cells) == 1
    with pytest.raises(mdcg.MdcgError, match="cifar10"):
        mdcg.Sweep.read(recipe, **here)


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
    recipe.write_text(RECIPE.replace("[replay, md-cg]", "[naive, replay]"))
    # A method without a memory is the same for every size.
    assert left(memory=["30"]) == [("naive", 0, 3), ("replay", 30, 3)]
    assert left(memory=["60"]) == [("naive", 0, 3), ("replay", 60, 3)]
    assert left(memory=["30"], method=["naive"]) == [("naive", 0, 3)]
    recipe.write_text(RECIPE)
    with pytest.raises(mdcg.MdcgError, match="unknown axis or setting 'memroy'; did you mean 'memory'"):
        left(memroy=["60"])
    with pytest.raises(mdcg.MdcgError, match="unknown value of method in this recipe 'md-gc'; did you mean 'md-cg'"):
        left(method=["md-gc"])


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_our_recipes(path: Path) -> None:
    """Each table's recipe means the table's cells, and the paper's hyperparameters for each."""
    found = expand(read_document(path))
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
    recipe.write_text(RECIPE.replace("seeds: 0-2", "seeds: 0-1"))
    alone = mdcg.Sweep.read(recipe, out=tmp_path / "alone", members=1)
    together = mdcg.Sweep.read(recipe, out=tmp_path / "together")
    assert len(alone.plan().jobs) == 8
    assert len(together.plan().jobs) == 2
    assert alone.run(quiet=True) == together.run(quiet=True) == Undone()
    assert outcome(alone) == outcome(together)
    assert len(outcome(alone)) == 8
    assert alone.plan().jobs == []


def test_killed_five_times(server: Server, recipe: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments: nothing is lost, nothing done twice, the same bits in the end."""
    recipe.write_text(RECIPE.replace("epochs: 1", "epochs: 3"))  # so that there is something left to kill
    undisturbed = mdcg.Sweep.read(recipe, out=tmp_path / "undisturbed")
    undisturbed.run(quiet=True)
    out, rng = tmp_path / "killed", random.Random(4)
    command = ["sweep", recipe, "--out", out, "--members", 3]
    written: dict[Path, tuple[int, int]] = {}
    killed = 0
    while killed < 5:
        process = server.start(*command)
        saved = set(out.glob(".groups/*/*.safetensors"))
        while process.poll() is None and set(out.glob(".groups/*/*.safetensors")) <= saved:
            time.sleep(0.01)  # until it has got somewhere
        time.sleep(rng.random() / 2)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        killed += 1
        for file in out.glob("*/result.json"):
            state = (file.stat().st_ino, file.stat().st_mtime_ns)
            assert written.setdefault(file, state) == state
    assert killed == 5
    done = server.run(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["settings"]) == 4
    for file, state in written.items():
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == state
    again = mdcg.Sweep.read(recipe, out=out)
    assert outcome(again) == outcome(undisturbed)
    assert not begun(again.context.store)


def test_stopped_and_told_how_to_go_on(server: Server, recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace("epochs: 1", "epochs: 3"))
    out = tmp_path / "runs"
    process = server.start("sweep", recipe, "--out", out, "--members", 3)
    while process.poll() is None and not list(out.glob(".groups/*/*.safetensors")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said
    assert said.strip().endswith("give the same command again to go on.")
    assert begun(mdcg.Sweep.read(recipe, out=out).context.store)


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
    assert "2 of 4 runs not finished: RuntimeError: this limit is too small" in answer.err
    assert answer.err.count("1 of 4 runs not finished: ") == 2  # each names its run
    assert "large" in answer.out
    work = mdcg.Sweep.read(recipe, out=out)
    assert len(work.records()) == 2
    planned = work.plan()
    assert planned.jobs == []
    assert len(planned.failed) == 4
    assert "Failed before and left out: 4; --retry" in cli("sweep", recipe, "--out", out, "--plan").out
    small = work.cells[0].specs[0]
    assert failure(work.context.store, small) == "RuntimeError: this limit is too small"
    assert "Traceback" in json.loads((work.context.store.folder(small) / "failed.json").read_text())["details"]
    # The same again leaves them out and says so; once mended, --retry finishes them.
    assert "RuntimeError: this limit is too small" in cli("sweep", recipe, "--out", out).err
    monkeypatch.setattr(Fussy, "loss", lambda self, step: cross_entropy(step.logits, step.labels))
    answer = cli("sweep", recipe, "--out", out, "--retry")
    assert answer.code == 1  # the wild ones
    assert "too small" not in answer.err
    assert failure(work.context.store, small) is None
    assert len(work.records()) == 4


def test_a_plan_does_nothing(recipe: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "runs"
    answer = cli("sweep", recipe, "--out", out, "--plan")
    assert answer.code == 0
    assert "To train: 12 runs in 2 groups, about " in answer.out
    assert "The time is from other machines" in answer.out
    assert not out.exists()
    mdcg.Sweep.read(recipe, out=out, only={"seed": ["0"]}).run(quiet=True)
    answer = cli("sweep", recipe, "--out", out, "--plan")
    assert "To train: 8 runs in 2 groups, about " in answer.out
    assert "other machines" not in answer.out
    assert "Finished: 4." in answer.out


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
    assert content["failed"] == content["left"] == {}


def test_time_that_is_left(recipe: Path, tmp_path: Path) -> None:
    """After a third of the work in 10 s, twice that is left."""
    now = [0.0]
    work = mdcg.Sweep.read(recipe, out=tmp_path / "runs", members=4, only={"method": ["replay"]})
    planned = work.plan()
    display = ProgressBars(planned, quiet=True, clock=lambda: now[0])
    assert display.seconds_left() == planned.seconds  # a guess, from other machines
    assert not planned.measured
    from mdcg.execute.cost import group_of
    from mdcg.train.loop import total_steps

    first = planned.jobs[0]
    group = group_of(first.specs, work.context.dataset(first.specs[0]))
    display.begin("replay", group, total_steps(group), 0)
    display.step(total_steps(group))
    now[0] = 10.0
    share = first.work / sum(job.work for job in planned.jobs)
    assert display.seconds_left() == pytest.approx(10 * (1 - share) / share)
    display.job_ends(first, Undone())
    assert display.seconds_left() == pytest.approx(10 * (1 - share) / share)


BAD = [
    ("scenario: digits-2\nmethd: naive\n",
     "line 2: unknown setting 'methd'; did you mean 'method'"),
    ("scenario: digits-2\naxes:\n  methd: [naive]\n",
     "line 3: unknown axis 'methd'; did you mean 'method'"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  memory: []\n",
     "line 4: 'memory' is empty"),
    ("scenario: digits-2\nmethod: naive\naxes:\n  memory:\n",
     "line 4: 'memory' is empty"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory: [30, many]\n",
     "line 4: 'memory' is wrong"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory:\n    - 30\n    - many\n",
     "line 6: 'memory' is wrong"),
    ("scenario: digits-2\nmethod: md\naxes:\n  memory: 30\n",
     "line 4: axis 'memory' must be a list of values"),
    ("scenario: digits-2\nmemory: 30\naxes:\n  method: [naive, replay]\n  set.lam: [1]\n",
     "line 5: unknown setting of naive, replay 'lam'"),
    ("scenario: digits-2\nmemory: 30\naxes:\n  w:\n    a: {method: md}\n    b: {method: naive, set: {lam: 1}}\n",
     "line 6: unknown setting of naive 'lam'"),
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
     "line 3: 'method' has the value naive twice"),
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
     "line 4: a value of 'rate' must be"),
    ("scenario: digits-2\nmethods: [naive]\naxes:\n  method: [replay]\n",
     "line 4: axis 'method' sets 'method', which line 2"),
    ("scenario: digits-2\nmethod: naive\nmethods: [naive, replay]\n", "line 3: 'method' is given too, in line 2"),
    ("scenario: digits-2\nmemory: 40\naxes:\n  w:\n    a: {method: md, set: {lam: [0.1, 1]}}\n",
     "line 5: 'set.lam' has several values here"),
    ("scenario: digits-2\nmethod: md\nmemory: [[30, 40], [50]]\n", "line 3: a value of 'memory' must be"),
    ("scenario: digits-2\nmethod: naive\ntitle: [a, b]\n", "line 3: 'title' is wrong"),
    ("scenario: digits-2\nmethod: naive\nset: []\n", "line 3: 'set' must be"),
    ("scenario: digits-2\nmethod: naive\naxes: false\n", "line 3: 'axes' must be"),
    ("scenario: digits-2\nset.lam: 0.7\nmethod: md\nmemory: 30\n", "line 2: 'set.lam' belongs under set"),
    ("scenario: digits-2\naxes:\n  w:\n    a: {method: naive, batch-size: 8, batch_size: 16}\n",
     "line 4: 'batch_size' is given twice for 'a'"),
    ("scenario: digits-2\naxes:\n  w:\n    1: {method: naive}\n    2:\n      methd: naive\n",
     "line 6: unknown key 'methd'"),
    ("scenario: digits-2\nmethod: naive\ndata: \"a\\0b\"\n", "line 3: 'data' is wrong"),
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
        ("RECIPE --preset old", "'preset' is wrong: input should be 'paper' or 'published', not 'old'"),
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
    """One run is in use: it is left, all others are trained, and the sweep does not claim to be finished."""
    out = tmp_path / "runs"
    work = mdcg.Sweep.read(recipe, out=out)
    mine = work.cells[0].specs[0]
    with locked(work.context.store.folder(mine)):
        answer = cli("sweep", recipe, "--out", out)
    assert answer.code == 1
    assert "1 of 1 runs not finished: another process is at it" in answer.err
    assert "11 of 12 runs done, 1 not to be had, 0 running, 0 left" in answer.err
    assert len(work.records()) == 11
    assert failure(work.context.store, mine) is None
    assert cli("sweep", recipe, "--out", out).code == 0
    assert len(work.records()) == 12


def test_a_group_in_use_is_not_taken_apart(recipe: Path, tmp_path: Path) -> None:
    """A second command that wants smaller groups leaves the first one's checkpoints alone."""
    out = tmp_path / "runs"
    work = mdcg.Sweep.read(recipe, out=out, only={"method": ["replay"]})
    (job,) = work.plan().jobs
    folder = group_folder(work.context.store, job.specs)
    folder.mkdir(parents=True)
    (folder / "members.json").write_text(json.dumps({"members": [spec.name for spec in job.specs], "probes": []}))
    with contextlib.ExitStack() as stack:
        for spec in job.specs:
            stack.enter_context(locked(work.context.store.folder(spec)))
        undone = mdcg.Sweep.read(recipe, out=out, only={"method": ["replay"]}, members=2).run(quiet=True)
    assert len(undone.left) == 6
    assert (folder / "members.json").exists()


def test_a_plan_changes_nothing_on_disk(recipe: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "runs"
    mdcg.Sweep.read(recipe, out=out, only={"method": ["replay"]}).run(quiet=True)
    work = mdcg.Sweep.read(recipe, out=out)
    rest = out / ".groups" / "zz"
    rest.mkdir(parents=True)
    content = {"members": [spec.name for spec in work.cells[0].specs], "probes": []}
    (rest / "members.json").write_text(json.dumps(content))
    (out / ".groups" / "old.done").mkdir()
    before = sorted(out.rglob("*"))
    answer = json.loads(cli("sweep", recipe, "--out", out, "--plan", "--json").out)
    assert sorted(out.rglob("*")) == before
    assert [len(group["runs"]) for group in answer["groups"]] == [6]
    assert len(answer["finished"]) == 6
    work.run(quiet=True)
    assert not list((out / ".groups").iterdir())


def test_rows_say_what_their_numbers_are(tmp_path: Path, recipe: Path, cli: Cli) -> None:
    recipe.write_text(
        "scenario: digits-2\nepochs: 1\nmethod: md\naxes:\n  memory: [30, 40]\n  lr: [0.1]\n  set.lam: [0.5, 1]\n"
    )
    answer = cli("sweep", recipe, "--out", tmp_path / "runs")
    assert "lr 0.1, lam 0.5" in answer.out
    assert "lr 0.1, lam 1" in answer.out
    assert "in percent, one seed" in answer.out


def test_names_that_look_like_markup(tmp_path: Path, recipe: Path, cli: Cli) -> None:
    recipe.write_text("scenario: digits-2\nepochs: 1\naxes:\n  which:\n    '[/b]': {method: naive}\n")
    assert "[/b]" in cli("sweep", recipe, "--out", tmp_path / "runs").out
