"""Sweeps: that nothing is lost or done twice, what a plan says, and what is said of commands that make no sense."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

import mdcg
from mdcg.execute import plan
from mdcg.execute.cost import cost_per_image
from mdcg.execute.plan import Undone
from mdcg.execute.progress import PlanDisplay
from mdcg.execute.unfinished import begun, group_folder
from mdcg.files import locked
from mdcg.methods.base import METHODS, cross_entropy
from mdcg.runs import store
from mdcg.runs.failures import failure
from mdcg.testing.forked import Server, killed_at
from mdcg.testing.made import write_made
from tests.conftest import RECIPE, Cli


def outcome(work: mdcg.Sweep) -> dict[str, tuple[object, ...]]:
    """All that a run's result says and that company or interruptions must not change."""
    return {name: (record.correct, record.history, record.memory) for name, record in work.records().items()}


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
    """SIGKILL at random steps: nothing is lost, nothing done twice, the same bits in the end."""
    undisturbed = mdcg.Sweep.read(recipe, out=tmp_path / "undisturbed")
    undisturbed.run(quiet=True)
    out, rng = tmp_path / "killed", random.Random(4)
    command = ["sweep", recipe, "--out", out, "--members", 3]
    written: dict[Path, tuple[int, int]] = {}
    for _ in range(5):
        at = rng.randrange(7, 11)  # an epoch has 6, and each of the four groups two epochs
        killed = server.run(*command, before=killed_at("step", at))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        for file in out.glob("*/result.json"):
            state = (file.stat().st_ino, file.stat().st_mtime_ns)
            assert written.setdefault(file, state) == state
    assert 0 < len(written) < 12
    done = server.run(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["settings"]) == 4
    for file, state in written.items():
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == state
    again = mdcg.Sweep.read(recipe, out=out)
    assert outcome(again) == outcome(undisturbed)
    assert not begun(again.context.store)


def test_stopped_and_told_how_to_go_on(server: Server, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    stop = killed_at("step", 30, signal.SIGINT)
    stopped = server.run("sweep", recipe, "--out", out, "--members", 3, before=stop)
    assert stopped.returncode == 128 + signal.SIGINT
    assert "Traceback" not in stopped.stderr
    assert stopped.stderr.strip().endswith("give the same command again to go on.")
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


def test_what_a_plan_asks_does_not_grow_with_its_groups(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run is read once, and what a method's images cost is asked once, not for every group."""
    calls: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            calls[name] += 1
            return function(*given)

        return call

    write_made(mdcg.Sweep.read(recipe, out=tmp_path, only={"seed": ["0"]}))
    monkeypatch.setattr(store, "read_record", counted("read", store.read_record))
    monkeypatch.setattr(plan, "cost_per_image", counted("asked", cost_per_image))
    planned = mdcg.Sweep.read(recipe, out=tmp_path, only={"seed": ["0"]}).plan()
    assert (len(planned.finished), planned.jobs, calls) == (4, [], {"read": 4})
    planned = mdcg.Sweep.read(recipe, out=tmp_path, members=1).plan()
    assert (len(planned.finished), len(planned.jobs), calls["asked"]) == (4, 8, 2)
    assert planned.measured
    assert len({job.seconds for job in planned.jobs}) > 1  # by what each of them has to do


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
    display = PlanDisplay(planned, quiet=True, clock=lambda: now[0])
    assert display.seconds_left() == planned.seconds  # a guess, from other machines
    assert not planned.measured
    from mdcg.execute.cost import group_of
    from mdcg.train.loop import total_steps

    first = planned.jobs[0]
    group = group_of(first.specs, work.context.dataset(first.specs[0]))
    display.begin("replay", group, total_steps(group), 0)
    display.step(0)  # the pace is counted from here
    display.step(total_steps(group))
    now[0] = 10.0
    share = first.work / sum(job.work for job in planned.jobs)
    assert display.seconds_left() == pytest.approx(10 * (1 - share) / share)
    display.job_ends(first, Undone())
    assert display.seconds_left() == pytest.approx(10 * (1 - share) / share)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("/no/such.yaml", "cannot read recipe"),
        ("RECIPE --only md-cg", "says not what to keep"),
        ("RECIPE --only method=", "says not what to keep"),
        ("RECIPE --only seed=7", "unknown value of seed"),
        ("RECIPE --only method=memory=30", "unknown value of method in this recipe 'memory=30'"),
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


@pytest.mark.parametrize(
    ("only", "kept"),
    [
        (["way=open"], {0.1}),
        (["way=open, wide"], {0.2}),
        (["way=open,open, wide"], {0.1, 0.2}),
        (["way=open", "way=open, wide"], {0.1, 0.2}),
        (["way=open, lam = 0.4,memory=30"], {0.4}),
        (["memory=30,way=plain ,open, lam = 0.4"], {0.3, 0.4}),
        (["memory=30", "seed=0"], {0.1, 0.2, 0.3, 0.4}),
    ],
)
def test_names_with_commas_are_chosen_too(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: list[str], kept: set[float]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"open": 0.1, "open, wide": 0.2, "plain": 0.3, "open, lam = 0.4": 0.4}
    ways = "".join(f"    '{name}': {{set: {{lam: {lam}}}}}\n" for name, lam in names.items())
    Path("named.yaml").write_text(f"scenario: digits-2\nmethod: md\nmemory: 30\naxes:\n  way:\n{ways}")
    options = [word for one in only for word in ("--only", one)]
    planned = json.loads(cli("sweep", "named.yaml", *options, "--plan", "--json").out)
    wanted = mdcg.Sweep.read("named.yaml", only={"set.lam": [str(lam) for lam in kept]})
    assert {name for group in planned["groups"] for name in group["runs"]} == {spec.name for spec in wanted.specs}
    assert (
        "unknown value of way in this recipe 'opne'; did you mean 'open'"
        in cli("sweep", "named.yaml", "--only", "way=open, wide,opne").sentence()
    )


def test_some_of_a_recipe_from_a_pipe(cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read once only."""
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()
    os.write(writing, recipe.read_bytes())
    os.close(writing)
    answer = cli("sweep", f"/dev/fd/{reading}", "--only", "method=md-cg,memory=30", "--plan", "--json")
    os.close(reading)
    assert sum(len(group["runs"]) for group in json.loads(answer.out)["groups"]) == 3


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
    assert "1 of 1 runs not finished: another process is working on it" in answer.err
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
