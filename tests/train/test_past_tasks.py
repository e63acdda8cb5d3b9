"""Gradients of past tasks' memories, many tasks in one pass, against a pass for each."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mdcg
from mdcg.methods.base import METHODS, TeacherSees, cross_entropy, kl_divergence
from mdcg.models import Model
from mdcg.models.backbones import BACKBONES
from mdcg.models.heads import HEADS
from mdcg.tensors import pack, unpack
from mdcg.train import past_tasks
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Batch, Trainer
from mdcg.train.precision import compute
from mdcg.train.signals import Stopped
from mdcg.train.state import State
from tests.conftest import toy_dataset, toy_group

CPU64 = compute("cpu", "fp64")
COUNTS = [20, 26, 31, 24, 22, 28, 30, 25]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks share a pass, as on a GPU, where it is known how the model's statistics move."""
    monkeypatch.setattr(past_tasks, "together", lambda model, compute: None not in model.retained())


def at_last_task(group: Group) -> tuple[Trainer, State, Batch]:
    """After a few steps in each task, at a step of the last."""
    trainer, state = Trainer(group, CPU64), states.fresh(group, CPU64)
    for task in range(group.training.tasks):
        state.task = task
        trainer.begin_task(state)
        state.model.train()
        draws = draw_epoch(group, state.memories, task, 0)
        for step in range(2):
            batch = trainer.batch(draws, step)
            state.optimizer.step(trainer._gradient(state, batch.part(0, batch.current))[2])
        if task + 1 < group.training.tasks:
            states.end_task(state, group)
    return trainer, state, batch


def separately(trainer: Trainer, state: State, batch: Batch) -> Tensor:
    """A forward and a backward pass of the model itself for each past task: (K, tasks, P)."""
    found, end = [], batch.current
    for draw in trainer.group.memory_draws(state.task):
        start, end = end, end + draw.size
        gradient = trainer._gradient(state, batch.part(start, end))[2]
        found.append(torch.cat([part.flatten(1) for part in gradient], 1))
    assert end == batch.images.shape[1]
    return torch.stack(found, 1)


def agree(group: Group, passes: list[tuple[int, int]] | None = None, exactly: bool = False) -> None:
    """With the plain way, in gradients and in what becomes of the statistics."""
    trainer, state, batch = at_last_task(group)
    twin = states.restore(*unpack(pack(*states.dump(state))), group, CPU64)
    twin.model.train()
    wanted = separately(trainer, twin, batch)
    before = [buffer.clone() for buffer in state.model.statistics()]
    memory = batch.part(batch.current, batch.images.shape[1])
    found = trainer.past(state).gradients(memory.images, memory.labels, state.teacher)
    if passes is not None:
        assert trainer.past(state).passes == passes
    close = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(found, wanted, **close)
    for ours, theirs in zip(state.model.statistics(), twin.model.statistics(), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    moved = [not torch.equal(ours, was) for ours, was in zip(state.model.statistics(), before, strict=True)]
    settings = len(state.model.head.settings)
    assert sum(moved) == len(moved) - settings  # of all that there are
    for name, value in twin.model.named_parameters():
        assert torch.equal(value, dict(state.model.named_parameters())[name])


def some(members: int, memory: int, **training: Any) -> Group:
    who: list[tuple[int, int, dict[str, Any]]] = [(seed, memory, {}) for seed in range(members)]
    return toy_group(toy_dataset(COUNTS), "gem", who, **{"tasks": 4, **training})


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(
    ("memory", "hold_out", "passes"),
    [
        (40, 0.0, [(3, 10)]),
        (42, 0.0, [(2, 11), (1, 10)]),
        (42, 0.3, [(2, 11), (1, 10)]),
        (10**6, 0.3, [(3, 61)]),
    ],
)
def test_the_gradients_of_separate_passes(
    members: int, memory: int, hold_out: float, passes: list[tuple[int, int]], wide: None
) -> None:
    """Of equal shares, unequal ones, and all images, some twice where a member's classes have fewer."""
    agree(some(members, memory, hold_out=hold_out), passes)


def test_on_a_cpu_to_the_bit() -> None:
    """Where tasks have passes of their own."""
    agree(some(2, 42), [(1, 11), (1, 11), (1, 10)], exactly=True)


def test_all_members_in_one_kernel(wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(Model, "logits", Model.forward)
    agree(some(3, 42))


def test_no_more_images_at_once_than_are_of_use(wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_tasks, "AT_ONCE", 20)
    agree(some(2, 40), [(1, 10), (2, 10)])


@pytest.mark.parametrize("head", HEADS.names())
def test_every_head(head: str, wide: None) -> None:
    agree(some(2, 40, head=head), [(3, 10)])


def test_gates_of_different_settings(wide: None) -> None:
    group = some(2, 40, head="cascaded-gates")
    first, second = group.members
    steep = replace(second, head_settings={"gamma": 2.0, "beta": 1.0})
    agree(replace(group, members=(first, steep)), [(3, 10)])


def net(*middle: nn.Module) -> Callable[[int], nn.Module]:
    def made(channels: int) -> nn.Module:
        own = copy.deepcopy(nn.Sequential(*middle))
        return nn.Sequential(nn.Conv2d(channels, 6, 3), own, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    return made


class Following(nn.Module):
    """Has a mean of its own that batches move, and that moves its result."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.detach().mean().square())
        return x - self.mean


class Twice(nn.Module):
    """One BatchNorm in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        twice: Tensor = self.norm(self.conv(self.norm(x)))
        return twice


TOGETHER, APART = [(3, 10)], [(1, 10)] * 3


@pytest.mark.parametrize(
    ("factory", "passes"),
    [
        (net(nn.BatchNorm2d(6)), TOGETHER),
        (net(nn.BatchNorm2d(6, momentum=0.3), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)), TOGETHER),
        (net(nn.GroupNorm(2, 6)), TOGETHER),
        (net(Twice()), APART),
        (net(Following()), APART),
    ],
    ids=["norm", "two momenta", "no statistics", "norm used twice", "statistics of its own"],
)
def test_backbones_of_users(
    factory: Callable[[int], nn.Module],
    passes: list[tuple[int, int]],
    wide: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks are kept apart where it is not known how statistics move."""
    monkeypatch.setattr(BACKBONES, "_known", dict(BACKBONES._known))
    BACKBONES.register("net")(factory)
    agree(some(2, 40, backbone="net"), passes, exactly=passes == APART)


def test_frozen_weights_have_no_gradient(wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_known", dict(BACKBONES._known))
    BACKBONES.register("net")(net(nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1).requires_grad_(False)))
    agree(some(2, 40, backbone="net"), TOGETHER)


class Held(mdcg.Method):
    """Gradients per task of a loss with a weight of each member's own, and a teacher."""

    uses_memory: ClassVar[bool] = True
    uses_teacher: ClassVar[bool] = True
    gradient_per_task: ClassVar[bool] = True
    weight: float = 0.5

    def teacher_sees(self) -> TeacherSees:
        return "all"

    def loss(self, step: mdcg.Step) -> Tensor:
        loss = cross_entropy(step.logits, step.labels)
        return loss + self.weight * kl_divergence(step.teacher_current, step.logits) if step.old else loss

    def combine(self, gradient: Tensor, past: Tensor) -> Tensor:
        return gradient + past.mean(1)


def test_a_method_with_a_teacher_and_weights(wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))
    METHODS.register("held")(Held)
    agree(toy_group(toy_dataset(COUNTS), "held", [(0, 40, {"weight": 0.1}), (1, 40, {"weight": 2.0})], tasks=4))


@pytest.mark.parametrize("memory", [40, 42])
def test_a_run_of_steps(memory: int, wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With members that rest, and from a checkpoint in the middle of a task: as with tasks apart."""
    group = some(2, memory, epochs=1)
    dumped: list[tuple[dict[str, Tensor], states.PlainValues]] = []
    whole = Trainer(group, CPU64).train(states.fresh(group, CPU64))
    left = itertools.chain([False] * 13, itertools.repeat(True))
    stopping = Trainer(group, CPU64, lambda *state: dumped.append(state), left.__next__)
    with pytest.raises(Stopped, match="task 4"):
        stopping.train(states.fresh(group, CPU64))
    assert not [name for name in dumped[-1][0] if "wide" in name or "past" in name]
    gone_on = Trainer(group, CPU64).train(states.restore(*unpack(pack(*dumped[-1])), group, CPU64))
    monkeypatch.undo()
    apart = Trainer(group, CPU64).train(states.fresh(group, CPU64))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(gone_on.model.state_dict()[name], value), name
        torch.testing.assert_close(apart.model.state_dict()[name], value, rtol=1e-9, atol=1e-11)
    assert (whole.correct == apart.correct).all()


def test_a_trainer_that_turns_to_another_state(wide: None) -> None:
    trainer, state, _ = at_last_task(some(1, 40))
    first = trainer.past(state)
    assert trainer.past(state) is first
    other = states.restore(*states.dump(state), trainer.group, CPU64)
    assert trainer.past(other).is_of(other)
    trainer.forget_task()
    assert trainer._past is None


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.booleans())
def test_passes(sizes: list[int], together: bool) -> None:
    """Every task once, in its place, none with tasks of another size, none that is larger than need be."""
    found = list(past_tasks.passes(sizes, together))
    assert [size for tasks, size in found for _ in range(tasks)] == sizes
    for tasks, size in found:
        assert tasks >= 1
        assert tasks == 1 or (together and tasks * size <= past_tasks.AT_ONCE)
