"""Whole runs of the methods that keep something of their own, against the same written once more as a plain loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F

import mdcg
from mdcg.draws import Purpose, stream
from mdcg.memory import Memory
from mdcg.methods.gem import RIDGE
from mdcg.models import Model
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.signals import Stopped, StopSignals
from mdcg.train.state import State
from tests.conftest import toy_dataset, toy_group

CPU64 = compute("cpu", "fp64")
COUNTS = [20, 26, 31, 24, 22, 28]
SEED = 3


class PlainLoop:
    """One member of a group, trained by hand; `learn` sets the gradients of one step."""

    def __init__(self, group: Group) -> None:
        self.group, self.trainer = group, Trainer(group, CPU64)
        self.model: Model = states.fresh(group, CPU64).model
        self.memory = Memory(group.members[0].memory)
        self.velocity: dict[str, Tensor] = {}

    def task(self, task: int, learn: Callable[[Tensor, Tensor, Tensor], None]) -> None:
        self.model.train()
        for epoch in range(self.group.training.epochs):
            draws = draw_epoch(self.group, [self.memory], task, epoch)
            for step in range(int(draws.steps[0])):
                batch = self.trainer.batch(draws, step)
                self.model.zero_grad()
                learn(batch.images, batch.labels[0], batch.index[0])
                with torch.no_grad():
                    for name, parameter in self.model.named_parameters():
                        assert parameter.grad is not None
                        velocity = torch.zeros_like(parameter)
                        if name in self.velocity:  # it may be smaller than the parameter that has grown
                            old = self.velocity[name]
                            velocity[tuple(slice(n) for n in old.shape)] = old
                        self.velocity[name] = 0.8 * velocity + parameter.grad
                        parameter.sub_(0.05 * self.velocity[name])

    def remember(self, task: int, share: int | None = None) -> None:
        view = self.group.views[0]
        self.memory.add(view.arrivals(task), stream(SEED, Purpose.KEEP, task), share)

    def equals(self, ours: State) -> None:
        for name, value in ours.model.state_dict().items():
            torch.testing.assert_close(value, self.model.state_dict()[name], rtol=1e-8, atol=1e-10)
        assert (ours.memories[0].indices() == self.memory.indices()).all()


def trained(group: Group) -> State:
    return Trainer(group, CPU64).train(states.fresh(group, CPU64))


def test_der() -> None:
    """The logits of an image are those at the end of its own task, through two shrinkings of the memory."""
    group = toy_group(toy_dataset(COUNTS), "der", [(SEED, 14, {"alpha": 0.3, "beta": 0.6})])
    plain = PlainLoop(group)
    kept: dict[int, Tensor] = {}

    def learn(x: Tensor, labels: Tensor, index: Tensor) -> None:
        logits = plain.model(x)[0]
        assert logits.shape[1] == 6  # all classes from the start
        loss = F.cross_entropy(logits[:16], labels[:16])
        if len(labels) > 16:
            wanted = torch.stack([kept[int(image)] for image in index[16:]])
            loss = loss + 0.3 * F.mse_loss(logits[16:], wanted) + 0.6 * F.cross_entropy(logits[16:], labels[16:])
        loss.backward()

    for task in range(3):
        plain.model.grow(2)
        plain.task(task, learn)
        plain.remember(task)
        plain.model.eval()
        with torch.no_grad():
            for image in plain.memory.indices():
                if int(image) not in kept:
                    pixels = plain.trainer.pixels.normalise(group.dataset.train.images[int(image)][None, None])
                    kept[int(image)] = plain.model(pixels)[0, 0]
        kept = {image: kept[image] for image in plain.memory.indices().tolist()}
    ours = trained(group)
    plain.equals(ours)
    assert ours.stored_logits is not None
    assert ours.stored_logits.index.shape == (1, 14)
    assert ours.stored_logits.logits.shape == (1, 14, 6)


def test_gdumb() -> None:
    """Every task a new model from the same seed, trained on nothing but the memory, the newest classes among it."""
    group = toy_group(toy_dataset(COUNTS), "gdumb", [(SEED, 40, {})])
    plain = PlainLoop(group)
    seen: set[int] = set()

    def learn(x: Tensor, labels: Tensor, index: Tensor) -> None:
        seen.update(index.tolist())
        F.cross_entropy(plain.model(x)[0], labels).backward()

    for task in range(3):
        plain.model, plain.velocity = states.fresh(group, CPU64).model, {}
        for _ in range(task + 1):
            plain.model.grow(2)
        plain.remember(task)
        seen.clear()
        plain.task(task, learn)
        assert seen == set(plain.memory.indices().tolist())
    assert len(plain.memory) == 40
    plain.equals(trained(group))


@pytest.mark.parametrize("together", [False, True])
def test_gem(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PastTasks tasks' gradients from forward passes of their own; the programme solved by scipy."""
    monkeypatch.setattr("mdcg.train.past_tasks.together", lambda model, compute: together)
    group = toy_group(toy_dataset(COUNTS), "gem", [(SEED, 14, {"strength": 0.3})])
    plain = PlainLoop(group)
    shares, turned = [5, 5, 4], 0

    def learn(x: Tensor, labels: Tensor, index: Tensor) -> None:
        nonlocal turned
        parameters = list(plain.model.parameters())
        ends = np.cumsum([16, *shares])
        rows, past = [], (len(labels) - 16 + 4) // 5
        for task in range(past):
            part = slice(ends[task], ends[task + 1])
            assert set(index[part].tolist()) == {
                int(i) for c in (2 * task, 2 * task + 1) for i in plain.memory.by_class[c]
            }
            loss = F.cross_entropy(plain.model(x[:, part])[0], labels[part])
            rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
        F.cross_entropy(plain.model(x[:, :16])[0], labels[:16]).backward()
        g = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
        if past and min(float(row @ g) for row in rows) < 0:
            turned += 1
            G = torch.stack(rows)
            Q = (G @ G.T).numpy() + RIDGE * np.eye(past)
            L = np.linalg.cholesky(Q)
            q = (G @ g).numpy() + Q @ np.full(past, 0.3)
            v = 0.3 + nnls(L.T, -np.linalg.solve(L, q))[0]
            g = g + torch.from_numpy(v) @ G
            for parameter, own in zip(parameters, g.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = own.view_as(parameter)

    for task in range(3):
        plain.model.grow(2)
        plain.task(task, learn)
        plain.remember(task, shares[task])
    assert turned > 3
    plain.equals(trained(group))


@pytest.mark.usefixtures("all_digits")
def test_runs_that_share_a_group_part_with_what_they_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DER stopped in task 3 and gone on with one run at a time: each takes its own logits along."""
    words: dict[str, Any] = {"scenario": "digits-3", "method": "der", "memory": [20, 60], "epochs": 1, "quiet": True}
    whole = mdcg.compare(**words, out=tmp_path / "whole")
    steps = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(StopSignals, "requested", lambda self: next(steps) > 40)
        with pytest.raises(Stopped, match="task 3"):
            mdcg.compare(**words, out=tmp_path / "parted")
    parted = mdcg.compare(**words, out=tmp_path / "parted", members=1)
    for label, result in whole.items():
        assert parted[label].records[0].history == result.records[0].history
        assert (parted[label].R[0] == result.R[0])[np.tril_indices(3)].all()


def test_a_fixed_head_is_saved_whole(tmp_path: Path) -> None:
    result = mdcg.run(scenario="digits-2", method="der", memory=40, epochs=2, out=tmp_path / "runs")
    images, labels = result.dataset.test.images, np.array(result.dataset.class_names)[result.dataset.test.labels]
    assert round(100 * result.learner.score(images, labels)) == round(float(result.ACC[0]))
    result.learner.save(tmp_path / "model.safetensors")
    again = mdcg.Learner.load(tmp_path / "model.safetensors")
    assert (again.predict(images) == result.learner.predict(images)).all()


def test_gem_with_more_memory_than_images() -> None:
    """A step brings every image once; a task of smaller classes repeats some, whoever else trains."""
    group = toy_group(toy_dataset(COUNTS), "gem", [(SEED, 10**12, {}), (1, 10**12, {})])
    assert [draw.size for draw in group.memory_draws(2)] == [31 + 28, 31 + 28]
    state = Trainer(group, CPU64).train(states.fresh(group, CPU64), tasks=2)
    draws = draw_epoch(group, state.memories, 2, 0)
    for k, view in enumerate(group.views):
        own = draws.index[k, 0, 16 : 16 + 59].tolist()
        assert set(own) == set(view.train_indices(view.scenario.positions(0)).tolist())


def test_gem_trains_memories_of_different_sizes_apart(tmp_path: Path) -> None:
    """Its steps bring the whole memory, so that members must have as much of it."""
    words: dict[str, Any] = {"scenario": "digits-2", "method": "gem", "epochs": 1, "quiet": True}
    both = mdcg.compare(**words, memory=[20, 50], set={"strength": [0.0, 0.5]}, out=tmp_path / "both")
    assert {result.records[0].members for result in both.values()} == {2}
    alone = mdcg.run(**words, memory=50, set={"strength": 0.5}, out=tmp_path / "alone")
    assert both["memory 50, strength 0.5"].records[0].history == alone.records[0].history
