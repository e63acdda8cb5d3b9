"""A member's result does not depend on its company."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mdcg.methods import METHODS
from mdcg.models import Model
from mdcg.train import state as states
from mdcg.train.fork import founders
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.state import State
from tests.conftest import toy_dataset, toy_group

COUNTS = [17, 24, 33, 20, 29, 18]  # unequal, so that members take different numbers of steps


def trained(group: Group, precision: str) -> State:
    machine = compute("cpu", precision)
    return Trainer(group, machine).train(states.fresh(group, machine))


def three_members(method: str) -> list[tuple[int, int, dict[str, Any]]]:
    """They differ in seed, memory size and, where there is one, λ."""
    tuned: list[dict[str, Any]] = [{"lam": 0.1}, {"lam": 0.5}, {"lam": 1.0}] if "md" in method else [{}] * 3
    if METHODS[method].gradient_per_task:  # members share the memory's size
        return [(0, 20, {}), (1, 20, {}), (1, 20, {"strength": 0.0})]
    return [(0, 6, tuned[0]), (1, 20, tuned[1]), (1, 47, tuned[2])]


@pytest.mark.parametrize("method", ["md-cg", "gem"])
def test_together_equals_alone_to_the_bit(method: str) -> None:
    """In float64; `check_method` has every method in float32."""
    members, dataset = three_members(method), toy_dataset(COUNTS)
    together = trained(toy_group(dataset, method, members), "fp64")
    for k, member in enumerate(members):
        alone = trained(toy_group(dataset, method, [member]), "fp64")
        assert (alone.correct[0] == together.correct[k]).all()
        for name, value in alone.model.state_dict().items():
            assert torch.equal(together.model.state_dict()[name][k], value[0]), name
        assert (alone.memories[0].indices() == together.memories[k].indices()).all()
        assert alone.history[0] == together.history[k]
    assert len(together.memories[1]) == 20
    weights = together.model.state_dict()["head.classifier.weight"]
    assert not torch.allclose(weights[1], weights[2])  # memory size and λ do matter


@pytest.mark.parametrize("method", METHODS.names())
def test_who_trains_the_first_task(method: str) -> None:
    """One member of each seed, where nothing else matters in task 1; `check_method` has what then comes of it."""
    group = toy_group(toy_dataset(COUNTS), method, three_members(method))
    first, parents = founders(group)
    if method not in (
        "naive",
        "cumulative",
        "gdumb",
        "er-ace",
        "ss-il",
    ):  # no memory, or it matters in task 1, or a weight
        assert [member.seed for member in first.members] == [0, 1]
        assert parents == [0, 1, 1]
    else:
        assert first is group


@pytest.mark.parametrize(
    "method",
    [
        name if name in ("md-cg", "der", "gem") else pytest.param(name, marks=pytest.mark.slow)
        for name in METHODS.names()
    ],
)
def test_grouped_kernels_agree_to_rounding(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members in one kernel, as on a GPU; in float64, where rounding has not grown much by the end of a run."""
    members, dataset = three_members(method), toy_dataset(COUNTS)
    alone = [trained(toy_group(dataset, method, [member], epochs=1), "fp64") for member in members]
    monkeypatch.setattr(Model, "logits", Model.forward)
    monkeypatch.setattr("mdcg.train.past_tasks.together", lambda model, compute: True)  # past tasks too
    together = trained(toy_group(dataset, method, members, epochs=1), "fp64")
    for k, single in enumerate(alone):
        assert (single.correct[0] == together.correct[k]).all()
        for name, value in single.model.state_dict().items():
            torch.testing.assert_close(together.model.state_dict()[name][k], value[0], rtol=0, atol=1e-10)


def test_members_take_different_numbers_of_steps() -> None:
    group = toy_group(toy_dataset(COUNTS), "naive", [(0, 0, {}), (1, 0, {})])
    from mdcg.train.epoch import steps_per_epoch

    assert any(len(set(steps_per_epoch(group, task))) > 1 for task in range(3))  # else the test above tests less


def test_gate_settings_may_differ() -> None:
    dataset = toy_dataset(COUNTS)
    both = toy_group(dataset, "md-cg", [(0, 12, {}), (0, 12, {})])
    steep = both.members[1].__class__(0, 12, both.members[1].method, {"gamma": 2.0, "beta": 1.0})
    together = trained(Group(both.training, (both.members[0], steep), dataset), "fp64")
    alone = trained(Group(both.training, (steep,), dataset), "fp64")
    for name, value in alone.model.state_dict().items():
        assert torch.equal(together.model.state_dict()[name][1], value[0]), name
