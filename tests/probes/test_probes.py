"""Probes look and never touch: a watched run is the same to the bit, and what they measure outlives interruptions."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import mdcg
from mdcg.models import HEADS
from mdcg.probes import PROBES, Measured, Probe, ProbeSet, Snapshot
from mdcg.runs.store import MEASURED, RESULT
from mdcg.train import state as states
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.signals import Stopped
from mdcg.train.state import State
from tests.conftest import Cli, toy_dataset, toy_group

CPU = compute("cpu", "fp32")
MEMBERS: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (1, 20, {}), (0, 15, {})]
SMALL: dict[str, Any] = {"memory": 30, "epochs": 1, "batch_size": 64, "quiet": True}
ASKED: dict[str, Any] = {"scenario": "digits-2", "method": "replay", **SMALL}


class Norm(Probe):
    """Norm of the classifier, also every two steps."""

    every: ClassVar[int] = 2

    def look(self, snapshot: Snapshot) -> Measured:
        return {"norm": snapshot.model.head.classifier.weight.detach().flatten(1).norm(dim=1)}


@pytest.fixture
def named(request: pytest.FixtureRequest) -> Iterator[str]:
    """A probe of a user's own, registered for the length of a test."""
    PROBES.register("own")(request.param)
    yield "own"
    del PROBES._known["own"]


def group_of(method: str, members: list[tuple[int, int, dict[str, Any]]] = MEMBERS) -> Group:
    return toy_group(toy_dataset([30, 26, 34, 31, 22, 35]), method, members)


def probes_for(group: Group) -> dict[str, Probe]:
    """All that can look at the group's method and head, and one that looks between epochs too."""
    known, head = {name: PROBES[name]() for name in PROBES.names()}, HEADS[group.training.head]
    suited = {name: probe for name, probe in known.items() if probe.unsuited(group.method, head) is None}
    return suited | {"norm": Norm()}


def trained(group: Group, probes: dict[str, Probe]) -> State:
    return Trainer(group, CPU, probes=ProbeSet(probes)).train(states.fresh(group, CPU))


@cache
def watched_by_all(method: str) -> State:
    """Trained once for several tests, which leave it as it is."""
    return trained(group_of(method), probes_for(group_of(method)))


@pytest.mark.parametrize("method", ["md-cg", "der", "naive"])
def test_a_watched_run_is_the_same_to_the_bit(method: str) -> None:
    tensors, values = states.dump(trained(group_of(method), {}))
    state = watched_by_all(method)
    assert all(state.measured)
    watched, noted = states.dump(state)
    assert tensors.keys() == watched.keys()
    assert all(torch.equal(tensors[name], watched[name]) for name in tensors if not name.startswith("measured."))
    assert [values[name] for name in ("history", "memories")] == [noted[name] for name in ("history", "memories")]


@pytest.mark.parametrize("method", ["md-cg", "der"])
def test_a_member_is_measured_in_company_as_alone(method: str) -> None:
    for member, rows in zip(MEMBERS[:2], watched_by_all(method).measured[:2], strict=True):
        alone = group_of(method, [member])
        # What looks between epochs knows the longest member's steps only.
        (expected,) = trained(alone, probes_for(alone)).measured
        assert [row for row in rows if not row["step"]] == [row for row in expected if not row["step"]]


def test_when_a_probe_looks() -> None:
    group = group_of("replay", [(0, 12, {})])
    looks = [(row["task"], row["epoch"], row["step"]) for row in trained(group, {"norm": Norm()}).measured[0]]
    order = group.views[0].scenario.order
    counts = [[30, 26, 34, 31, 22, 35][label] for label in order]
    steps = {task + 1: math.ceil(sum(counts[2 * task : 2 * task + 2]) / 16) for task in range(3)}
    assert len(set(steps.values())) > 1
    expected = [
        look
        for task, count in steps.items()
        for look in [
            (task, 0, 0),
            *((task, 0, step) for step in range(2, count, 2)),
            (task, 1, 0),
            *((task, 1, step) for step in range(2, count, 2)),
            (task, 2, 0),
        ]
    ]
    assert looks == expected


@pytest.mark.parametrize(("method", "after"), [("md-cg", 9), ("md-cg", 21), ("der", 1), ("der", 14)])
def test_interrupted_measurements_go_on(method: str, after: int) -> None:
    group = group_of(method)
    probes = probes_for(group)
    left, saved = after, []

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    trainer = Trainer(
        group, CPU, lambda tensors, values: saved.append((tensors, values)), stop, probes=ProbeSet(probes)
    )
    with pytest.raises(Stopped):
        trainer.train(states.fresh(group, CPU))
    tensors, values = saved[-1]
    copied = {name: value.clone() for name, value in tensors.items()}
    again = states.restore(copied, json.loads(json.dumps(values)), group, CPU)
    Trainer(group, CPU, probes=ProbeSet(probes)).train(again)
    assert again.measured == watched_by_all(method).measured
    assert again.start is None


def test_the_model_at_the_beginning_of_the_task() -> None:
    seen: list[tuple[int, int, bool]] = []

    class Starts(Probe):
        """Whether `start` is the model of the task's beginning."""

        needs_start: ClassVar[bool] = True
        first: dict[str, torch.Tensor]

        def look(self, snapshot: Snapshot) -> Measured:
            if snapshot.start is None:
                seen.append((snapshot.task, snapshot.epoch, False))
            else:
                now = {name: value.clone() for name, value in snapshot.model.state_dict().items()}
                if snapshot.epoch == 0:
                    self.first = now
                held = snapshot.start.state_dict()
                seen.append(
                    (snapshot.task, snapshot.epoch, all(torch.equal(self.first[name], held[name]) for name in held))
                )
                assert not snapshot.start.training
            return {}

    trained(group_of("replay"), {"starts": Starts()})
    assert seen == [(0, e, False) for e in range(3)] + [(t, e, True) for t in (1, 2) for e in range(3)]


def test_a_finished_run_is_repeated_for_a_probe_and_stays_as_it_was(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mdcg")
    mdcg.run(**ASKED, seeds=range(2), out=runs)
    results = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in runs.glob(f"*/{RESULT}")}
    watched = mdcg.run(**{**ASKED, "quiet": False}, seeds=range(2), out=runs, probes=["drift"])
    assert "2 finished runs are trained again, so that drift can look at them" in caplog.text
    assert results == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in runs.glob(f"*/{RESULT}")}
    rows = watched.measured("drift")
    assert [(row["seed"], row["task"], row["epoch"]) for row in rows] == [(s, 2, e) for s in (0, 1) for e in range(2)]
    assert [row["kl"] for row in rows if row["epoch"] == 0] == [[0.0], [0.0]]
    assert all(row["kl"][0] > 0 for row in rows if row["epoch"])
    before = {path: path.stat().st_mtime_ns for path in runs.glob(f"*/{MEASURED}/*")}
    assert mdcg.run(**ASKED, seeds=range(2), out=runs, probes=["drift"]).measured("drift") == rows
    assert before == {path: path.stat().st_mtime_ns for path in runs.glob(f"*/{MEASURED}/*")}
    assert not list(runs.glob(".groups/*"))


def test_a_repetition_that_differs_takes_the_place_of_the_result(runs: Path) -> None:
    """On another machine, say: result and measurements must be of one training."""
    mdcg.run(**ASKED, out=runs, probes=["drift"])
    (result,) = runs.glob(f"*/{RESULT}")
    content = json.loads(result.read_text())
    true = content["correct"]
    content["correct"] = [[max(0, count - 1) for count in row] for row in true]
    result.write_text(json.dumps(content))
    PROBES.register("own")(Norm)
    try:
        mdcg.run(**ASKED, out=runs, probes=["own"])
    finally:
        del PROBES._known["own"]
    assert json.loads(result.read_text())["correct"] == true
    assert [path.name for path in result.parent.glob(f"{MEASURED}/*")] == ["own.json"]


def test_fresh_measures_anew(runs: Path) -> None:
    mdcg.run(**ASKED, out=runs, probes=["drift"])
    mdcg.run(**ASKED, out=runs, fresh=True)
    assert not list(runs.glob(f"*/{MEASURED}/*"))


def test_unknown_and_unsuited_probes(cli: Cli, runs: Path) -> None:
    words = ("run", "--scenario", "digits-2", "--method", "naive", "--epochs", "1", "--out", runs)
    assert "unknown probe 'drfit'; did you mean 'drift'?" in cli(*words, "--probe", "drfit").sentence()
    sentence = cli(*words, "--probe", "gradients").sentence()
    assert "the probe gradients cannot look at naive" in sentence
    assert not runs.exists()
    assert "drift" in cli("list", "probes").out


def test_the_share_of_the_probes_is_printed(cli: Cli, runs: Path) -> None:
    words = ["compare", "--scenario", "digits-2", "--methods", "naive,replay", "--memory", "20", "--epochs", "1"]
    assert "probes took" not in cli(*words, "--out", runs).out
    last = cli(*words, "--out", runs, "--probe", "confusion", "--probe", "margin").out.splitlines()[-1]
    assert re.fullmatch(r"probes took .* beside .* of training, \d+% of all \(confusion .* s, margin .* s\)", last)
    json.loads(cli(*words, "--out", runs, "--probe", "margin", "--json").out)


class Broken(Probe):
    """Fails at the second look."""

    def look(self, snapshot: Snapshot) -> Measured:
        if snapshot.epoch:
            raise IndexError("no such layer")
        return {}


class Greedy(Probe):
    """Has no room for two members at once, as a GPU may have none."""

    def look(self, snapshot: Snapshot) -> Measured:
        if snapshot.members > 1:
            raise torch.OutOfMemoryError("out of memory")
        return {"members": [snapshot.members]}


class Scalar(Probe):
    """One number for all."""

    def look(self, snapshot: Snapshot) -> Measured:
        return {"norm": 1.0}  # type: ignore[dict-item]


class Named(Probe):
    """A name that rows have."""

    def look(self, snapshot: Snapshot) -> Measured:
        return {"task": [1] * snapshot.members}


class NoData(Probe):
    """Nothing that a file could hold."""

    def look(self, snapshot: Snapshot) -> Measured:
        return {"where": [Path("x")] * snapshot.members}


class Careless(Probe):  # and undocumented
    every: ClassVar[int] = 2

    def look(self, snapshot: Snapshot) -> Measured:
        snapshot.model.eval()
        return {}


class Short(Probe):
    """Forgets a member."""

    def look(self, snapshot: Snapshot) -> Measured:
        return {"norm": [1.0] * (snapshot.members - 1)}


class Ending(Probe):
    """Ends the program."""

    def look(self, snapshot: Snapshot) -> Measured:
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (Ending, r"the probe own failed \(SystemExit: it called sys.exit\); fix it, or leave it out"),
        (Broken, r"the probe own failed \(IndexError: no such layer\); fix it, or leave it out"),
        (Short, "gave 1 values of 'norm' for 2 runs; it must give one for each"),
        (Scalar, "gave no list of values of 'norm' for 2 runs"),
        (Named, "calls a quantity 'task', which every row has"),
        (NoData, r"the probe own failed \(TypeError: a \w*Path is no number"),
    ],
    indirect=["named"],
)
def test_a_probe_that_fails_is_named(named: str, said: str, runs: Path) -> None:
    with pytest.raises(mdcg.MdcgError, match=said):
        mdcg.run(**ASKED, seeds=range(2), out=runs, probes=[named])
    assert not list(runs.glob(f"*/{RESULT}"))


@pytest.mark.parametrize("named", [Greedy], indirect=True)
def test_too_little_memory_for_a_probe_parts_the_group(named: str, runs: Path) -> None:
    result = mdcg.run(**ASKED, seeds=range(2), out=runs, probes=[named])
    assert {row["members"] for row in result.measured(named)} == {1}


def test_a_careless_probe_changes_nothing_either() -> None:
    group = group_of("replay", [(0, 12, {})])
    assert trained(group, {"careless": Careless()}).history == trained(group, {}).history
    assert Careless.summary() == ""


def test_a_group_goes_on_only_with_its_own_probes(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mdcg")
    asked = {**ASKED, "epochs": 2, "seeds": range(2), "out": runs, "quiet": False}

    def interrupted(**how: Any) -> set[str]:
        """The begun groups, after an epoch or two more."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mdcg.train.loop.SAVING", 1)
            epoch = Trainer._finish_epoch

            def stop(self: Trainer, state: State) -> None:
                epoch(self, state)
                if state.epoch == 1:
                    self.should_stop = lambda: True

            patch.setattr(Trainer, "_finish_epoch", stop)
            with pytest.raises(Stopped):
                mdcg.run(**asked, **how)
        return {path.name for path in runs.glob(".groups/*")}

    watched = interrupted(probes=["drift", "drift"])
    assert len(watched) == 1
    assert interrupted(probes=["drift"]) == watched
    assert "going on with replay on digits-2 (2 runs) in task 1, epoch 2" in caplog.text
    both = interrupted()
    assert len(both) == 2
    assert "2 runs were begun with other probes, among them some asked for now; these start anew" in caplog.text
    mdcg.run(**asked)
    mdcg.run(**asked)  # which tidies up
    assert {path.name for path in runs.glob(".groups/*")} == watched
    caplog.clear()
    assert mdcg.run(**asked, probes=["drift"]).measured("drift")
    assert "going on with replay" in caplog.text
    assert not list(runs.glob(".groups/*"))


def test_parts_of_a_group_take_their_measurements_along() -> None:
    group = group_of("replay", [(seed, 12, {}) for seed in range(4)])
    state = trained(group, {"norm": Norm()})
    tensors, values = states.dump(state)
    half, noted = states.select_members(tensors, values, [1, 3])
    part = states.restore(half, noted, group_of("replay", [(seed, 12, {}) for seed in (1, 3)]), CPU)
    assert part.measured == [state.measured[1], state.measured[3]]


@pytest.mark.parametrize("named", [Norm], indirect=True)
def test_a_probe_of_ones_own(named: str, runs: Path) -> None:
    result = mdcg.run(**ASKED, out=runs, probes=[named])
    weights = dict(result.learner.saved_.model.named_parameters())["head.classifier.weight"].detach()
    assert result.measured(named)[-1]["norm"] == pytest.approx(float(weights.norm()), rel=1e-6)


def test_measurements_that_are_gone_or_damaged(runs: Path) -> None:
    result = mdcg.run(**ASKED, out=runs, probes=["drift"])
    (file,) = runs.glob(f"*/{MEASURED}/drift.json")
    file.write_text("{")
    with pytest.raises(mdcg.MdcgError, match=r"drift.json is damaged; remove it"):
        result.measured("drift")
    file.unlink()
    with pytest.raises(mdcg.MdcgError, match=r"cannot read .*drift.json"):
        result.measured("drift")


def test_the_probe_of_the_guide(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text("utf-8")
    probe, use = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.setattr(PROBES, "_known", dict(PROBES._known))
    monkeypatch.chdir(runs.parent)
    exec(probe, {})
    exec(use.replace("range(5)", "range(2), epochs=1"), {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:3] for row in rows] == [
        [str(s), str(t), str(e)] for s in range(2) for t in range(1, 6) for e in (0, 1)
    ]
    result = mdcg.run(scenario="digits-5", method="md-cg", memory=100, epochs=1)
    largest = result.learner.predict_proba(result.dataset.test.images).max(1)
    assert float(rows[9][3]) == pytest.approx(largest.mean(), rel=1e-5)
