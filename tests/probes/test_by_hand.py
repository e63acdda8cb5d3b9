"""The probes `memory`, `margin` and `drift` against plain loops over images, one member at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mdcg.probes import PROBES, Measured, Probe, ProbeSet, Snapshot
from mdcg.probes import margin as margin_probe
from mdcg.saved import SavedModel
from mdcg.train import state as states
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.state import MeasuredRow, State
from tests.conftest import toy_dataset, toy_group

COUNTS = [16, 24, 31, 20, 28, 18]
MEMBERS: list[tuple[int, int, dict[str, Any]]] = [(0, 4, {}), (1, 20, {}), (2, 47, {})]  # 4: single images in task 3


@dataclass(frozen=True)
class Moment:
    """One member at one moment, evaluated apart from the others."""

    learner: SavedModel
    held: dict[int, list[int]]  # training images in memory, by class position
    position: dict[int, int]  # of each label
    old: int  # classes of past tasks
    seen: int

    def logits(self, image: torch.Tensor) -> list[float]:
        """A plain forward pass of a single image."""
        x = ((image.double() / 255 - 0.5) / 0.3).permute(2, 0, 1)
        self.learner.model.eval()
        with torch.no_grad():
            found: list[float] = self.learner.model(x[None, None])[0, 0, : self.seen].tolist()
        return found


class Spy(Probe):
    """Takes every member aside, to be looked at later."""

    def __init__(self) -> None:
        self.seen: list[list[Moment]] = []

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task > 0

    def look(self, snapshot: Snapshot) -> Measured:
        state = states.fresh(snapshot.group, snapshot.compute)
        state.model = snapshot.model
        self.seen.append(
            [
                Moment(
                    learner=SavedModel.of(snapshot.group, state, k),
                    held={c: list(map(int, own)) for c, own in memory.by_class.items()},
                    position={label: c for c, label in enumerate(snapshot.group.views[k].scenario.order)},
                    old=sum(snapshot.group.sizes[: snapshot.task]),
                    seen=sum(snapshot.group.sizes[: snapshot.task + 1]),
                )
                for k, memory in enumerate(snapshot.memories)
            ]
        )
        return {}


def trained(group: Group, probes: dict[str, Probe]) -> State:
    machine = compute("cpu", "fp64")
    return Trainer(group, machine, probes=ProbeSet(probes)).train(states.fresh(group, machine))


def looked(method: str, probe: str) -> tuple[Group, list[tuple[Moment, MeasuredRow]]]:
    """Of three members with different memories: each one at each moment, and what the probe measured then."""
    group, spy = toy_group(toy_dataset(COUNTS), method, MEMBERS, epochs=1), Spy()
    state = trained(group, {"spy": spy, probe: PROBES[probe]()})
    rows = [[row for row in own if row["probe"] == probe] for own in state.measured]
    for own in rows:
        assert [(row["task"], row["epoch"]) for row in own] == [(task, epoch) for task in (2, 3) for epoch in range(2)]
    return group, [(m, row) for k, own in enumerate(rows) for m, row in zip([s[k] for s in spy.seen], own, strict=True)]


def test_memory_equals_a_loop_over_images() -> None:
    group, found = looked("replay", "memory")
    dataset = group.dataset
    assert {len(own) for moment, _ in found for own in moment.held.values()} >= {1, 2, 10}
    for moment, row in found:
        for past in range(row["task"] - 1):
            truth, right, right_on_test = [], [], []
            for c in (2 * past, 2 * past + 1):
                for i in moment.held[c]:
                    assert moment.position[int(dataset.train.labels[i])] == c
                    logits = moment.logits(dataset.train.images[i])
                    truth.append(logits[c])
                    right.append(logits.index(max(logits)) == c)
            for i, label in enumerate(dataset.test.labels.tolist()):
                if moment.position[label] in (2 * past, 2 * past + 1):
                    logits = moment.logits(dataset.test.images[i])
                    right_on_test.append(logits.index(max(logits)) == moment.position[label])
            assert row["logit"][past] == pytest.approx(sum(truth) / len(truth), rel=1e-5)
            assert row["memory_accuracy"][past] == pytest.approx(100 * sum(right) / len(right))
            assert row["test_accuracy"][past] == pytest.approx(100 * sum(right_on_test) / len(right_on_test))
        assert len(row["logit"]) == len(row["memory_accuracy"]) == len(row["test_accuracy"]) == row["task"] - 1


@pytest.mark.parametrize(("method", "most"), [("md-cg", 2000), ("naive", 10)])
def test_margin_equals_a_loop_over_images(method: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margin_probe, "MOST", most)
    group, found = looked(method, "margin")
    dataset = group.dataset
    for moment, row in found:
        place = [moment.position[int(label)] for label in dataset.train.labels]
        images = [i for c in range(moment.old, moment.seen) for i in range(len(place)) if place[i] == c]
        if len(images) > most:
            images = [images[math.floor(n * len(images) / most)] for n in range(most)]
        truth, past, loss = [], [], []
        for i in images:
            powers = [math.exp(logit) for logit in moment.logits(dataset.train.images[i])]
            p = [power / sum(powers) for power in powers]
            truth.append(p[place[i]])
            past.append(max(p[: moment.old]))
            loss.append(max(0.0, past[-1] - truth[-1] + 1 / (moment.seen - 1)))
        for key, values in (("truth", truth), ("past", past), ("loss", loss), ("above_zero", [x > 0 for x in loss])):
            assert row[key] == pytest.approx(sum(values) / len(values), rel=1e-5, abs=1e-9), key


@pytest.mark.parametrize("method", ["md-cg", "der"])  # a head that grows, and one that is cut to the classes seen
def test_drift_equals_a_loop_over_images(method: str) -> None:
    group, found = looked(method, "drift")
    dataset = group.dataset
    for (begin, first), (end, last) in zip(found[::2], found[1::2], strict=True):
        assert (first["epoch"], last["epoch"]) == (0, 1)
        assert first["kl"] == [0.0] * (first["task"] - 1)
        assert len(last["kl"]) == last["task"] - 1
        for past, kl in enumerate(last["kl"]):
            each = []
            for i, label in enumerate(dataset.test.labels.tolist()):
                if end.position[label] in (2 * past, 2 * past + 1):
                    then, now = (_softmax(moment.logits(dataset.test.images[i])) for moment in (begin, end))
                    assert len(now) == len(then) == 2 * last["task"]
                    each.append(sum(p * math.log(p / q) for p, q in zip(now, then, strict=True)))
            assert kl == pytest.approx(sum(each) / len(each), rel=1e-5)
            assert kl > 1e-4


def _softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(logit) for logit in logits]
    return [power / sum(powers) for power in powers]
