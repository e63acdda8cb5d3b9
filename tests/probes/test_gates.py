"""The probe `gates` against plain loops over images and gates, one member at a time."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mdcg
from mdcg.errors import MdcgError
from mdcg.methods import METHODS
from mdcg.models import HEADS, Model, build_model
from mdcg.probes import PROBES, Measured, Probe, Snapshot, probes_for
from mdcg.train.group import Group
from mdcg.train.state import MeasuredRow
from tests.conftest import Cli, toy_dataset, toy_group
from tests.probes.test_by_hand import COUNTS, MEMBERS, Moment, Spy, trained

OPEN = ["open-gates", "single-open-gate", "fitted-gates"]
GATED = ["cascaded-gates", "cascaded-gates-with-own", "single-gate", "scalar-gates", *OPEN]
#: Settings with which gates hardly do anything, and some with which they do much.
SETTINGS = {"as in the paper": {"gamma": 1.0, "beta": 10.0}, "low": {"gamma": 4.0, "beta": -1.0}}
OPEN_SETTINGS = {"as in the paper": {"gamma": 1e-4, "cap": 1.0}, "low": {"gamma": 20.0, "cap": 1.2}}


def scaled(head: str, tasks: int) -> list[list[int]]:
    """The classes that each gate scales, in order, with two classes per task."""
    found = []
    for newest in range(1, tasks):
        past, own = list(range(2 * newest)), [2 * newest, 2 * newest + 1]
        found += {
            "cascaded-gates": [[c] for c in past],
            "cascaded-gates-with-own": [[c] for c in past + own],
            "single-gate": [[c] for c in past[-2:]],
            "scalar-gates": [past[i : i + 2] for i in range(0, len(past), 2)],
            "open-gates": [[c] for c in past],
            "single-open-gate": [[c] for c in past[-2:]],
            "fitted-gates": [[c] for c in past[-2:]],
        }[head]
    return found


def group_of(head: str, settings: dict[str, float]) -> Group:
    group = toy_group(toy_dataset(COUNTS), "md-cg", MEMBERS, epochs=1, head=head)
    return replace(group, members=tuple(replace(member, head_settings=settings) for member in group.members))


def numbers(model: Model, layer: str) -> list[float]:
    """All weights and biases of a layer of the head."""
    named = dict(model.head.named_parameters())
    return [*named[f"{layer}.weight"].detach().flatten().tolist(), *named[f"{layer}.bias"].detach().flatten().tolist()]


def first_of(group: Group, k: int, tasks: int) -> Model:
    """The member's model before any training, grown task by task."""
    settings = {name: [value] for name, value in group.members[k].head_settings.items()}
    head, seed = group.training.head, group.members[k].seed
    model = build_model("smallconv", head, group.dataset.shape, [seed], settings, torch.float64)
    for _ in range(tasks):
        model.grow(2)
    return model


def product(features: list[float], weights: list[float], bias: float) -> float:
    return sum(f * w for f, w in zip(features, weights, strict=True)) + bias


def by_hand(group: Group, k: int, moment: Moment, tasks: int) -> MeasuredRow:
    model, first, dataset = moment.learner.model.eval(), first_of(group, k, tasks), group.dataset
    settings = group.members[k].head_settings
    held = {name: value.detach()[0].t().tolist() for name, value in model.head.named_parameters()}
    closed, products, changed, right, right_without = [], [], 0, 0, 0
    images = [i for i, label in enumerate(dataset.test.labels.tolist()) if moment.position[label] < moment.seen]
    for i in images:
        x = ((dataset.test.images[i].double() / 255 - 0.5) / 0.3).permute(2, 0, 1)
        with torch.no_grad():
            features = model.backbone(x[None, None])[0, 0].tolist()
        plain = [
            product(features, held["classifier.weight"][c], held["classifier.bias"][c]) for c in range(moment.seen)
        ]
        factors, with_gates = [1.0] * moment.seen, set[int]()
        for gate, classes in enumerate(scaled(group.training.head, tasks)):
            g = product(features, held["gates.weight"][gate], held["gates.bias"][gate])
            opening = 1 / (1 + math.exp(-(settings["gamma"] * g + settings.get("beta", 0))))
            if "cap" in settings:
                opening = min(2 * opening, settings["cap"])
            closed.append(1 - opening)
            with_gates.update(classes)
            for c in classes:
                factors[c] *= opening
        gated = [logit * factor for logit, factor in zip(plain, factors, strict=True)]
        assert gated == pytest.approx(moment.logits(dataset.test.images[i]))
        products += [factors[c] for c in with_gates]
        truth = moment.position[int(dataset.test.labels[i])]
        changed += gated.index(max(gated)) != plain.index(max(plain))
        right += gated.index(max(gated)) == truth
        right_without += plain.index(max(plain)) == truth
    found: MeasuredRow = {
        "closed_mean": sum(closed) / len(closed),
        "closed_largest": max(closed),
        "closed_product": 1 - min(products),
        "changed": changed,
        "images": len(images),
        "accuracy": 100 * right / len(images),
        "accuracy_without": 100 * right_without / len(images),
    }
    for layer in ("gates", "classifier"):
        moved = [abs(a - b) for a, b in zip(numbers(model, layer), numbers(first, layer), strict=True)]
        found[f"{layer}_moved_largest"] = max(moved)
        found[f"{layer}_moved_rms"] = math.sqrt(sum(change**2 for change in moved) / len(moved))
    return found


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("head", GATED)
def test_gates_equal_a_loop_over_images_and_gates(head: str, settings: str) -> None:
    chosen = (OPEN_SETTINGS if head in OPEN else SETTINGS)[settings]
    group, spy = group_of(head, chosen | ({"penalty": 0.1} if head == "fitted-gates" else {})), Spy()
    state = trained(group, {"spy": spy, "gates": PROBES["gates"]()})
    rows = [[row for row in own if row["probe"] == "gates"] for own in state.measured]
    for k, own in enumerate(rows):
        ends = [members[k] for members in spy.seen[1::2]]
        assert [(row["task"], row["epoch"]) for row in own] == [(2, 1), (3, 1)]  # task 1 has no gates
        for row, moment in zip(own, ends, strict=True):
            expected = by_hand(group, k, moment, row["task"])
            assert row.keys() == expected.keys() | {"probe", "task", "epoch", "step"}
            for key, value in expected.items():
                assert row[key] == pytest.approx(value, rel=1e-6, abs=1e-12), key
            assert 0 < row["gates_moved_rms"] <= row["gates_moved_largest"]
    every = [row for own in rows for row in own]
    if settings == "low":
        assert any(row["changed"] for row in every)
        assert any(row["accuracy"] != row["accuracy_without"] for row in every)
    else:
        assert all(row["closed_largest"] < 1e-3 for row in every)


class Pushed(Probe):
    """The probe of a copy in which these biases alone decide how far gates open, and what the classifier says."""

    def __init__(self, gates: list[float], classifier: list[float]) -> None:
        self.biases = {"gates": gates, "classifier": classifier}

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return (task, epoch) == (1, epochs)

    def look(self, snapshot: Snapshot) -> Measured:
        model = copy.deepcopy(snapshot.model)
        with torch.no_grad():
            for layer, biases in self.biases.items():
                model.head.get_parameter(f"{layer}.weight").zero_()
                model.head.get_parameter(f"{layer}.bias").copy_(torch.tensor(biases))
        return PROBES["gates"]().look(replace(snapshot, model=model))


def test_classes_without_gates_do_not_count_as_closed() -> None:
    group = group_of("single-open-gate", {"gamma": 1.0, "cap": 2.0})
    pushed = Pushed([math.log(3), math.log(4)], [0.0] * 4)  # 2 sigmoid(b) is 1.5 and 1.6
    for (row,) in trained(group, {"pushed": pushed}).measured:
        assert row["closed_largest"] == pytest.approx(-0.5)
        assert row["closed_product"] == pytest.approx(-0.5)


def test_gates_that_decide_everything() -> None:
    group = toy_group(toy_dataset(COUNTS), "md-cg", MEMBERS, epochs=1)
    # sigmoid(b + 10) is 1/2 and 1/4; the classifier's answers times the gates are 1.1, 0.75, 1 and 0.5.
    pushed = Pushed([-10, -math.log(3) - 10], [2.2, 3.0, 1.0, 0.5])
    for k, (row,) in enumerate(trained(group, {"pushed": pushed}).measured):
        assert row["closed_mean"] == pytest.approx(0.625)
        assert row["closed_largest"] == row["closed_product"] == pytest.approx(0.75)
        position = group.views[k].eval_positions
        counts = [int((position == c).sum()) for c in range(4)]
        assert row["changed"] == row["images"] == sum(counts)  # from the second class to the first
        assert row["accuracy"] == pytest.approx(100 * counts[0] / sum(counts))
        assert row["accuracy_without"] == pytest.approx(100 * counts[1] / sum(counts))
        biases = first_of(group, k, 2).head.get_parameter("gates.bias")[0].tolist()
        assert row["gates_moved_largest"] == pytest.approx(max(biases[0] + 10, biases[1] + 10 + math.log(3)))


@pytest.mark.parametrize("method", ["md-cg", "gdumb"])  # gdumb begins every task with new weights
def test_weights_that_are_not_trained_have_not_moved(method: str) -> None:
    group = toy_group(toy_dataset(COUNTS), method, MEMBERS, epochs=1, head="cascaded-gates", lr=0.0)
    for rows in trained(group, {"gates": PROBES["gates"]()}).measured:
        assert len(rows) == 2
        for row in rows:
            assert [row[key] for key in row if "moved" in key] == [0, 0, 0, 0]


def test_heads_without_gates_are_refused(cli: Cli, runs: Path) -> None:
    for head in HEADS.names():
        built = {("replay", head): METHODS["replay"]()}
        if head in GATED:
            assert list(probes_for(["gates"], built).probes) == ["gates"]
        else:
            with pytest.raises(MdcgError, match="the probe gates cannot look at replay: its head has no gates; leave"):
                probes_for(["gates"], built)
    words = ("run", "--scenario", "digits-2", "--method", "md-cg", "--memory", "20", "--head", "incremental")
    said = cli(*words, "--probe", "gates", "--out", runs).sentence()
    assert "the probe gates cannot look at md-cg: its head has no gates" in said
    assert not runs.exists()


def test_one_task_has_no_gates(runs: Path) -> None:
    result = mdcg.run(
        scenario="digits-1", method="md-cg", memory=20, epochs=1, batch_size=128, probes=["gates"], out=runs, quiet=True
    )
    assert result.measured("gates") == []
