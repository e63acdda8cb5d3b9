"""`--check-probes`: whatever a probe changes is named, and a clean one passes with the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import mdcg
from mdcg.probes import PROBES, Measured, Probe, ProbeError, ProbeSet, Snapshot
from mdcg.runs.store import MEASURED, RESULT
from mdcg.scenario import Stream
from mdcg.train import state as states
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.state import State
from tests.conftest import Cli, toy_dataset, toy_group
from tests.probes.test_probes import ASKED, CPU, group_of, probes_for

Touch = Callable[[Any, Any], object]  # of a snapshot and its state
SAYS = "; a probe looks and never touches: copy what you change."


class Touching(Probe):
    """Changes something, of the snapshot or of what it holds on to."""

    needs_start: ClassVar[bool] = True

    def __init__(self, touch: Touch, state: State) -> None:
        self.touch, self.state = touch, state

    def look(self, snapshot: Snapshot) -> Measured:
        self.touch(snapshot, self.state)
        return {}


def in_task_2(method: str) -> tuple[Trainer, State]:
    """A group of two members as its second task begins, without training."""
    group = toy_group(toy_dataset([12, 11, 10, 9]), method, [(0, 8, {}), (1, 9, {})], tasks=2)
    state = states.fresh(group, CPU)
    trainer = Trainer(group, CPU, probes=ProbeSet({"own": Touching(lambda *_: None, state)}))
    states.begin_task(state, group)
    states.end_task(state, group)
    state.task = 1
    trainer.begin_task(state)
    return trainer, state


@torch.no_grad()
def one_bit(tensor: torch.Tensor) -> None:
    """The last bit of the last number of the last member."""
    last = (-1,) * tensor.ndim
    tensor[last] = torch.nextafter(tensor[last], tensor.new_tensor(torch.inf))


def replaced(snapshot: Snapshot) -> None:
    """The same values, of which the optimiser does not know."""
    snapshot.model.head.classifier.weight = nn.Parameter(snapshot.model.head.classifier.weight.detach().clone())


def rewritten(rows: list[dict[str, Any]]) -> None:
    rows.append({"task": 1, "epoch": 9, "loss": 0.0})


TOUCHES: dict[str, tuple[str, Touch, str]] = {
    "backbone": (
        "md-cg",
        lambda s, _: one_bit(next(s.model.backbone.parameters())),
        r"weights of the backbone \([\w.]+\)",
    ),
    "several weights": (
        "md-cg",
        lambda s, _: [one_bit(weight) for weight in s.model.head.parameters()],
        r"weights of the head \(classifier\.weight and \d more\)",
    ),
    "by gradients": (
        "md-cg",
        lambda s, _: s.model.logits(torch.ones(2, 3, 1, 8, 8)).sum().backward(),
        r"gradients of the backbone .* and gradients of the head .*",
    ),
    "by training mode": (
        "md-cg",
        lambda s, _: s.model.train().logits(torch.ones(2, 3, 1, 8, 8)),
        r"buffers of the backbone \(.*running_mean and \d+ more\)",
    ),
    "hidden buffer": ("md-cg", lambda s, _: s.model.head.incidence.mul_(2), r"buffers of the head \(incidence\)"),
    "a weight replaced": ("replay", lambda s, _: replaced(s), r"weights of the head \(classifier\.weight\)"),
    "what learns": ("replay", lambda s, _: s.model.backbone.requires_grad_(False), r"weights of the backbone .*"),
    "the mode": ("md-cg", lambda s, _: s.model.eval(), r"the mode \(train or eval\) of the model \(all of it and .*"),
    "a part's mode": ("md-cg", lambda s, _: s.model.head.eval(), r"the mode \(.*\) of the model \(head and .*"),
    "a hook": (
        "md-cg",
        lambda s, _: s.model.head.register_forward_hook(lambda *_: None),
        r"hooks of the model \(head\.1\)",
    ),
    "classes": ("md-cg", lambda s, _: s.model.head.sizes.append(3), r"the classes of the model"),
    "teacher": ("md-cg", lambda _, state: one_bit(state.teacher.head.classifier.weight), r"weights of the teacher .*"),
    "start": (
        "md-cg",
        lambda s, _: one_bit(s.start.head.classifier.weight),
        r"weights of the model as it was when the task began \(head\.classifier\.weight\)",
    ),
    "the start's mode": (
        "md-cg",
        lambda s, _: s.start.train(),
        r"the mode \(train or eval\) of the model as it was when the task began .*",
    ),
    "memory": ("replay", lambda s, _: s.memories[1].by_class[0].sort(), r"the memories \(memories\.1\.by_class\.0\)"),
    "a class in memory": (
        "replay",
        lambda s, _: s.memories[0].by_class.pop(1),
        r"the memories \(memories\.0\.by_class and 1 more\)",
    ),
    "stored logits": (
        "der",
        lambda s, _: one_bit(s.stored_logits.logits),
        r"the stored logits \(stored_logits\.logits\)",
    ),
    "optimiser": (
        "replay",
        lambda _, state: one_bit(state.optimizer.memory["velocity"]["head.classifier.weight"]),
        r"the optimiser's memory \(optimizer\.memory\.velocity\.head\.classifier\.weight\)",
    ),
    "learning rate": (
        "replay",
        lambda _, state: setattr(state.optimizer, "lr", 1.0),
        r"the optimiser's memory \(optimizer\.lr\)",
    ),
    "counts": ("replay", lambda _, state: state.correct.fill(1), r"the counts of correct answers \(correct\)"),
    "hits": ("replay", lambda _, state: state.hits.add_(1), r"the sums of the epoch \(hits\)"),
    "history": ("replay", lambda _, state: rewritten(state.history[1]), r"the history \(history\)"),
    "measured": ("replay", lambda _, state: rewritten(state.measured[1]), r"what probes have measured \(measured\)"),
    "task": ("replay", lambda _, state: setattr(state, "task", 0), r"where the training is \(task\)"),
    "pixels": ("replay", lambda s, _: s.train_pixels[-1, -1, -1].bitwise_xor_(1), r"the images \(0\)"),
    "order": ("replay", lambda s, _: s.group.views[1].train_positions.sort(), r"the group \(views\.1\.train_pos.*"),
    "torch": ("replay", lambda *_: torch.rand(1), r"torch's random numbers \(0\)"),
    "numpy": ("replay", lambda *_: np.random.rand(), r"NumPy's random numbers .*"),  # noqa: NPY002
    "random": ("replay", lambda *_: random.random(), r"Python's random numbers"),
    "threads": (
        "replay",
        lambda *_: torch.set_num_threads(torch.get_num_threads() + 1),
        r"torch's settings \(threads\)",
    ),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What the process shares."""
    was = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.get_num_threads()  # noqa: NPY002
    yield
    torch.set_rng_state(was[0])
    np.random.set_state(was[1])  # noqa: NPY002
    random.setstate(was[2])
    torch.set_num_threads(was[3])


@pytest.mark.parametrize("what", TOUCHES)
def test_what_a_probe_changes_is_named(what: str) -> None:
    method, touch, said = TOUCHES[what]
    trainer, state = in_task_2(method)
    ProbeSet({"own": Touching(touch, state)}).look(trainer, state, 0, 0)  # unnoticed
    trainer, state = in_task_2(method)
    with pytest.raises(ProbeError, match=f"^the probe own changed {said}{SAYS}$"):
        ProbeSet({"own": Touching(touch, state)}, check=True).look(trainer, state, 0, 0)
    assert state.measured[0] == [] or what == "measured"


def test_a_tensor_of_the_optimiser_that_gives_way_is_noticed() -> None:
    trainer, state = in_task_2("replay")

    def exchange(_: Snapshot, held: State) -> None:
        held.optimizer.parameters[0] = held.optimizer.parameters[0].detach().clone()

    with pytest.raises(ProbeError, match="the optimiser's memory"):
        ProbeSet({"own": Touching(exchange, state)}, check=True).look(trainer, state, 0, 0)


@pytest.mark.parametrize(("method", "online"), [("md-cg", False), ("der", True)])
def test_clean_probes_pass_and_nothing_differs(method: str, online: bool) -> None:
    group = toy_group(toy_dataset([20, 16, 18, 19]), method, [(0, 8, {}), (1, 11, {})], tasks=2, epochs=1)
    same_bits(replace(group, training=replace(group.training, stream=Stream(online=online))))


def same_bits(group: Group) -> None:
    plain, checked = (
        states.dump(Trainer(group, CPU, probes=ProbeSet(probes_for(group), check)).train(states.fresh(group, CPU)))
        for check in (False, True)
    )
    assert len(plain[0]["measured.0"]) > 1000
    assert plain[0].keys() == checked[0].keys()
    assert all(torch.equal(value, checked[0][name]) for name, value in plain[0].items())
    clocks = ("seconds", "measuring")
    assert {**plain[1], **dict.fromkeys(clocks)} == {**checked[1], **dict.fromkeys(clocks)}


def test_what_was_returned_does_not_change_later() -> None:
    """Live tensors, arrays and lists become numbers at once."""
    group, kept = group_of("replay", [(0, 12, {})]), list[Any]()

    class Live(Probe):
        """Views of what trains, and an array and a list that it goes on with."""

        def look(self, snapshot: Snapshot) -> Measured:
            weight = snapshot.model.head.classifier.weight
            array, numbers = np.zeros((1, 2)), [[0.0]]
            kept.append((weight.detach().flatten(1)[:, :3].tolist(), array, numbers))
            for _, earlier, own in kept[:-1]:
                earlier += 1
                own[0].append(1.0)
            return {"weight": weight.detach().flatten(1)[:, :3], "array": array, "numbers": numbers}  # type: ignore[dict-item]

    state = Trainer(group, CPU, probes=ProbeSet({"live": Live()}, check=True)).train(states.fresh(group, CPU))
    assert len(kept) == 9
    for row, (weight, _, _) in zip(state.measured[0], kept, strict=True):
        assert row["weight"] == pytest.approx(weight[0], rel=1e-6)
        assert row["array"] == [0.0, 0.0]
        assert row["numbers"] == [0.0]
    assert state.measured[0][0]["weight"] != state.measured[0][-1]["weight"]


class Nudge(Probe):
    """Moves a weight of the classifier, when task 2 begins."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task == 1

    def look(self, snapshot: Snapshot) -> Measured:
        with torch.no_grad():
            snapshot.model.head.classifier.weight[0, 0, 0] += 1
        return {}


@pytest.fixture
def nudge() -> Iterator[str]:
    PROBES.register("nudge")(Nudge)
    yield "nudge"
    del PROBES._known["nudge"]


def test_commands_have_the_option(cli: Cli, runs: Path, nudge: str, tmp_path: Path) -> None:
    words: list[object] = ["--memory", 20, "--epochs", 1, "--scenario", "digits-2"]
    recipe = tmp_path / "one.yaml"
    recipe.write_text("{scenario: digits-2, epochs: 1, memory: 20, axes: {method: [replay]}}")
    check = ["--probe", nudge, "--check-probes"]
    for command in (
        ["run", "--method", "replay", *words],
        ["compare", "--methods", "naive,replay", *words],
        ["sweep", recipe],
    ):
        own = runs / str(command[0])
        sentence = cli(*command, "--out", own, *check).sentence()
        assert sentence == f"mdcg: the probe nudge changed weights of the head (classifier.weight){SAYS}"
        assert not list(own.glob(f"*/{RESULT}"))
        assert "there is no probe to check" in cli(*command, "--check-probes").sentence()
    with pytest.raises(mdcg.MdcgError, match="the probe nudge changed weights of the head"):
        mdcg.run(**ASKED, out=runs, probes=[nudge], check_probes=True)
    assert mdcg.run(**ASKED, out=runs, probes=["margin"], check_probes=True).measured("margin")


def test_figures_have_the_option(
    cli: Cli, runs: Path, nudge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[object] = ["figure", "confusion", "--scenario", "digits-2", "--memory", 20, "--epochs", 1]
    words += ["--runs", runs, "--out", tmp_path / "drawn"]
    monkeypatch.setitem(PROBES._known, "confusion", Nudge)
    assert "the probe confusion changed weights of the head" in cli(*words, "--check-probes").sentence()
    assert not list(runs.glob(f"*/{MEASURED}/*"))
