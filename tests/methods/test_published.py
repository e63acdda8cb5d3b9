"""The preset `published`, method by method, against restatements of what the paper's published code computes.

Losses and gradients on random logits, in float64; whole runs of the methods whose memory images have a forward pass of
their own, against a plain PyTorch loop with two forwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from mdcg.draws import Purpose, stream
from mdcg.memory import Draw, Memory
from mdcg.methods import METHODS, Step, stack
from mdcg.methods.base import Method
from mdcg.methods.gem import RIDGE, Gem
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.fork import founders
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from tests.conftest import published_settings, toy_dataset, toy_group
from tests.methods.test_stateful import COUNTS, CPU64, SEED, PlainLoop, trained

SHAPES = [(4, 2, 2), (5, 4, 2), (3, 6, 5), (6, 3, 8)]  # batch, old classes, new classes
Parts = dict[str, Tensor]  # of one member: logits and labels of current and memory images, the teacher's, those kept


def built(name: str, **settings: Any) -> Method:
    return METHODS[name](**{**published_settings(name), **settings})


def parts(batch: int, memory: int, old: int, new: int, newest: bool) -> Parts:
    """Random inputs of one member; with `newest`, memory has new classes too. The last past task has one class."""
    generator = torch.Generator().manual_seed(1000 * batch + 100 * memory + 10 * old + new)

    def logits(images: int) -> Tensor:
        return 2 * torch.randn(images, old + new, generator=generator, dtype=torch.float64)

    return {
        "current": logits(batch),
        "labels": torch.randint(old, old + new, (batch,), generator=generator),
        "memory": logits(memory),
        "memory_labels": torch.randint(0, old + new if newest else old, (memory,), generator=generator),
        "teacher": logits(memory),
        "teacher_current": logits(batch),
        "kept": logits(memory),
    }


def agrees(
    method: Method, restated: Callable[[Parts, int], Tensor], of_member: Callable[[int, int, int], Parts]
) -> None:
    """Loss and both gradients, of two members at once against one after the other."""
    for batch, old, new in SHAPES:
        one = of_member(batch, old, new)
        other = {key: value.flip(0) * (0.7 if value.is_floating_point() else 1) for key, value in one.items()}
        members = [one, other]
        both = {key: torch.stack([member[key] for member in members]) for key in members[0]}
        both["current"].requires_grad_()
        both["memory"].requires_grad_()
        step = Step(
            logits=both["current"],
            labels=both["labels"],
            old=old,
            memory_logits=both["memory"],
            memory_labels=both["memory_labels"],
            teacher_logits=both["teacher"],
            teacher_current_logits=both["teacher_current"],
            past=(old - 1, 1),
            stored_logits=both["kept"],
        )
        loss = stack([method, method], torch.device("cpu"), torch.float64).loss(step)
        found = torch.autograd.grad(loss.sum(), [both["current"], both["memory"]], materialize_grads=True)
        for k, member in enumerate(members):
            member["current"].requires_grad_()
            member["memory"].requires_grad_()
            expected = restated(member, old)
            wanted = torch.autograd.grad(expected, [member["current"], member["memory"]], materialize_grads=True)
            torch.testing.assert_close(loss[k], expected, rtol=1e-12, atol=1e-12)
            for ours, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours[k], theirs, rtol=1e-10, atol=1e-12)


def as_many(batch: int, old: int, new: int) -> Parts:
    return parts(batch, batch, old, new, newest=False)


@pytest.mark.parametrize("name", ["naive", "cumulative", "gdumb", "gem"])
def test_current_images_alone(name: str) -> None:
    """These classify the current images among all classes; what differs is which images are current."""
    agrees(built(name), lambda x, old: F.cross_entropy(x["current"], x["labels"]), as_many)


def test_gem_follows_the_solution_of_its_programme() -> None:
    """The gradient g + Gᵀv with the least ½ vᵀ(GGᵀ + 1e-3) v + (Gg)ᵀv over v ≥ ½, by a general solver."""
    for number in range(20):
        rng = np.random.default_rng(number)
        g, G = rng.normal(size=30), rng.normal(size=(1 + number % 4, 30)) - 0.1
        ours = Gem().combine(torch.from_numpy(g)[None], torch.from_numpy(G)[None])[0]
        wanted = g
        if (G @ g).min() < 0:
            Q = G @ G.T + RIDGE * np.eye(len(G))
            best = minimize(
                lambda v, Q=Q, q=G @ g: 0.5 * v @ Q @ v + q @ v,
                np.full(len(G), 0.5),
                jac=lambda v, Q=Q, q=G @ g: Q @ v + q,
                bounds=[(0.5, None)] * len(G),
                tol=1e-14,
            )
            wanted = g + best.x @ G
        np.testing.assert_allclose(ours.numpy(), wanted, atol=1e-4)


@pytest.mark.parametrize("name", ["replay", "rpc"])
def test_replay(name: str) -> None:
    """One mean over the images of both, among all outputs of the head."""

    def restated(x: Parts, old: int) -> Tensor:
        return F.cross_entropy(torch.cat([x["current"], x["memory"]]), torch.cat([x["labels"], x["memory_labels"]]))

    agrees(built(name), restated, as_many)


def test_der() -> None:
    def restated(x: Parts, old: int) -> Tensor:
        replayed = 0.3 * F.mse_loss(x["memory"], x["kept"]) + 0.8 * F.cross_entropy(x["memory"], x["memory_labels"])
        return F.cross_entropy(x["current"], x["labels"]) + replayed

    agrees(built("der", alpha=0.3, beta=0.8), restated, as_many)


@pytest.mark.parametrize("name", ["md", "md-cg"])
def test_margin_dampening(name: str) -> None:
    """Hinge between the largest past probability and the true one, new classes apart, KL(teacher ‖ student)."""

    def restated(x: Parts, old: int) -> Tensor:
        p = F.softmax(x["current"], 1)
        rival = p[:, :old].max(1).values
        truth = (p * F.one_hot(x["labels"], p.shape[1])).sum(1)
        hinge = F.relu(rival - truth + 1 / (p.shape[1] - 1)).mean()
        own = F.cross_entropy(x["current"][:, old:], x["labels"] - old)
        target = F.softmax(x["teacher"], 1)
        return 0.4 * hinge + own + F.kl_div(F.log_softmax(x["memory"], 1), target, reduction="batchmean")

    agrees(built(name, lam=0.4), restated, lambda batch, old, new: parts(batch, batch + old, old, new, newest=False))


def test_er_ace() -> None:
    """The mean of two: current images among the classes of their batch, ten of memory among all."""

    def restated(x: Parts, old: int) -> Tensor:
        present, own = x["labels"].unique(return_inverse=True)
        current = F.cross_entropy(x["current"][:, present], own)
        return (current + F.cross_entropy(x["memory"], x["memory_labels"])) / 2

    agrees(built("er-ace"), restated, lambda batch, old, new: parts(batch, 10, old, new, newest=True))


def test_er_lode() -> None:
    """Half of: among new classes, ρ/(t − 1) times new against old, and replay; with tasks of equal size."""
    tasks = 3  # the current one is the fourth

    def restated(x: Parts, old: int) -> Tensor:
        sides = torch.stack([x["current"][:, :old].logsumexp(1), x["current"][:, old:].logsumexp(1)], 1)
        between = F.cross_entropy(sides, torch.ones(len(sides), dtype=torch.int64))
        hidden = x["current"].index_fill(1, torch.arange(old), -1e9)
        within = F.cross_entropy(hidden, x["labels"])
        return (0.6 / tasks * between + within + F.cross_entropy(x["memory"], x["memory_labels"])) / 2

    def equal_tasks(batch: int, old: int, new: int) -> Parts:
        return parts(batch, batch, old, new, newest=False)

    method = built("er-lode", rho=0.6)
    for batch, size in ((4, 1), (5, 2), (3, 4)):
        x = equal_tasks(batch, tasks * size, size)
        x["current"].requires_grad_()
        x["memory"].requires_grad_()
        step = Step(x["current"][None], x["labels"][None], tasks * size, x["memory"][None], x["memory_labels"][None])
        ours, theirs = method.loss(step)[0], restated(x, tasks * size)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        for mine, its in zip(
            torch.autograd.grad(ours, [x["current"], x["memory"]]),
            torch.autograd.grad(theirs, [x["current"], x["memory"]]),
            strict=True,
        ):
            torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-12)


def test_ss_il() -> None:
    """Two means over 2B, the second over all classes, and memory's divergence of each past task times T²."""

    def restated(x: Parts, old: int) -> Tensor:
        current = F.cross_entropy(x["current"][:, old:], x["labels"] - old)
        past = F.cross_entropy(x["memory"], x["memory_labels"])
        total = (current + past) / (len(x["labels"]) + len(x["memory_labels"]))
        for task in (slice(0, old - 1), slice(old - 1, old)):
            target = F.softmax(x["teacher"][:, task] / 2, 1)
            total = total + 4 * F.kl_div(F.log_softmax(x["memory"][:, task] / 2, 1), target, reduction="batchmean")
        return total

    agrees(built("ss-il"), restated, lambda batch, old, new: parts(batch, batch, old, new, newest=True))
    # The first task is plain cross-entropy.
    x = parts(5, 5, 2, 3, newest=True)
    first = Step(x["current"][None], x["labels"][None], 0)
    torch.testing.assert_close(built("ss-il").loss(first)[0], F.cross_entropy(x["current"], x["labels"]))


def test_ld() -> None:
    """Replay from a memory of its own, and α times KL(teacher ‖ student) on twice as many images of the other."""

    def restated(x: Parts, old: int) -> Tensor:
        batch = len(x["labels"])
        replayed = torch.cat([x["current"], x["memory"][:batch]])
        trained_on = F.cross_entropy(replayed, torch.cat([x["labels"], x["memory_labels"][:batch]]))
        target = F.softmax(x["teacher"][batch:], 1)
        held = F.kl_div(F.log_softmax(x["memory"][batch:], 1), target, reduction="batchmean")
        return trained_on + 0.7 * held

    agrees(built("ld", alpha=0.7), restated, lambda batch, old, new: parts(batch, 3 * batch, old, new, newest=False))


def test_every_method_is_restated_here() -> None:
    restated = {"naive", "cumulative", "gdumb", "gem", "replay", "rpc", "der", "md", "md-cg"}
    beyond = {"md-replay"}  # of which nothing is published
    assert restated | {"er-ace", "er-lode", "ss-il", "ld"} == set(METHODS.names()) - beyond


def test_what_a_step_takes_from_memory() -> None:
    """On C10-5 and C100-10, in the last task."""
    assert built("er-ace").memory_draws(32, [2] * 4) == [Draw(10)]
    assert built("er-ace").memory_draws(32, []) == []
    assert built("er-lode").memory_draws(16, [10] * 9) == [Draw(16)]
    assert built("ss-il").memory_draws(32, [2] * 4) == [Draw(32, once=True)]
    assert built("ld").memory_draws(32, [2] * 4) == [Draw(32, second=True, joins=True), Draw(64)]
    assert built("ld").memory_draws(32, []) == built("ss-il").memory_draws(32, []) == []
    assert built("ld").second_memory_size() == 200


class TwoPasses:
    """One of the four methods as a plain loop: what is in memory, which images share a pass, and the loss."""

    def __init__(self, method: str, memory: int, **settings: Any) -> None:
        own = {**published_settings(method), **settings}
        self.group = toy_group(toy_dataset(COUNTS), method, [(SEED, memory, own)], passes="separate")
        self.plain, self.second = PlainLoop(self.group), Memory(settings.get("second_memory", 0))
        self.plain.memory.second = self.second if self.second.size else None
        self.teacher: Any = None

    def run(self, joint: int, loss: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor], fill_first: bool) -> None:
        """`joint` images share the first pass; `loss` sees logits and labels of both passes, and the old classes."""
        model = self.plain.model
        for task in range(3):
            model.grow(2)
            if fill_first:
                self._remember(task)
            self.teacher = states.frozen_copy(model)
            old = 2 * task

            def learn(x: Tensor, labels: Tensor, index: Tensor, old: int = old) -> None:
                first = model(x[:, :joint])[0] if len(labels) > 16 else model(x)[0]
                if len(labels) == 16:
                    F.cross_entropy(first, labels).backward()
                    return
                second = model(x[:, joint:])[0]
                with torch.no_grad():
                    self.taught = self.teacher(x[:, joint:])[0]
                loss(first, labels[:joint], second, labels[joint:], old).backward()

            self.plain.task(task, learn)
            if not fill_first:
                self._remember(task)
        self.plain.equals(trained(self.group))

    def _remember(self, task: int) -> None:
        self.plain.remember(task)
        if self.second.size:
            view = self.group.views[0]
            arrived = view.arrivals(task)
            self.second.add(arrived, stream(SEED, Purpose.KEEP_SECOND, task))


def test_two_passes_of_er_ace() -> None:
    def loss(first: Tensor, labels: Tensor, second: Tensor, memory_labels: Tensor, old: int) -> Tensor:
        present, own = labels.unique(return_inverse=True)
        return (F.cross_entropy(first[:, present], own) + F.cross_entropy(second, memory_labels)) / 2

    TwoPasses("er-ace", 14).run(16, loss, fill_first=True)


def test_two_passes_of_er_lode() -> None:
    def loss(first: Tensor, labels: Tensor, second: Tensor, memory_labels: Tensor, old: int) -> Tensor:
        between = (first.logsumexp(1) - first[:, old:].logsumexp(1)).mean()
        within = F.cross_entropy(first[:, old:], labels - old)
        return (within + 0.5 / (old // 2) * between + F.cross_entropy(second, memory_labels)) / 2

    TwoPasses("er-lode", 14, rho=0.5).run(16, loss, fill_first=False)


def test_two_passes_of_ss_il() -> None:
    def loss(first: Tensor, labels: Tensor, second: Tensor, memory_labels: Tensor, old: int) -> Tensor:
        total = (F.cross_entropy(first[:, old:], labels - old) + F.cross_entropy(second, memory_labels)) / 32
        for start in range(0, old, 2):
            target = F.softmax(loop.taught[:, start : start + 2] / 2, 1)
            answer = F.log_softmax(second[:, start : start + 2] / 2, 1)
            total = total + 4 * F.kl_div(answer, target, reduction="batchmean")
        return total

    loop = TwoPasses("ss-il", 40)
    loop.run(16, loss, fill_first=True)


def test_two_passes_of_ld() -> None:
    """The replayed images share the current ones' pass, the distilled ones have their own."""

    def loss(first: Tensor, labels: Tensor, second: Tensor, memory_labels: Tensor, old: int) -> Tensor:
        target = F.softmax(loop.taught, 1)
        held = F.kl_div(F.log_softmax(second, 1), target, reduction="batchmean")
        return F.cross_entropy(first, labels) + 0.3 * held

    loop = TwoPasses("ld", 14, alpha=0.3, second_memory=9)
    loop.run(32, loss, fill_first=False)


def test_one_pass_is_not_two() -> None:
    """BatchNorm's statistics differ, so the weights do: else the tests above would show little."""
    settings = published_settings("er-lode")
    found = [
        trained(toy_group(toy_dataset(COUNTS), "er-lode", [(SEED, 14, settings)], passes=passes))
        for passes in ("joint", "separate")
    ]
    joint, separate = (state.model.state_dict()["head.classifier.weight"] for state in found)
    assert not torch.allclose(joint, separate, atol=1e-3)


def one_member(method: str, memory: int, batch_size: int = 16) -> Group:
    return toy_group(toy_dataset([40] * 6), method, [(SEED, memory, published_settings(method))], batch_size=batch_size)


def test_memory_batches_drawn_once() -> None:
    """One shuffled round in whole batches, over and over, on from epoch to epoch, each image with one view."""
    group = one_member("ss-il", 40)
    state = Trainer(group, CPU64).train(states.fresh(group, CPU64), tasks=1)
    states.begin_task(state, group)
    epochs = [draw_epoch(group, state.memories, 1, epoch) for epoch in range(3)]
    steps = int(epochs[0].steps[0])
    assert steps % 2  # so that a round does not end with an epoch
    index, corner, flipped = (
        torch.cat([getattr(draws, part)[0, :, 16:] for draws in epochs]) for part in ("index", "corner", "flipped")
    )
    assert len(index) == 3 * steps
    for part in (index, corner, flipped):
        assert torch.equal(part[2:], part[:-2])  # 40 images are two batches of 16
    round_ = index[:2].flatten().tolist()
    assert len(set(round_)) == 32
    assert set(round_) < set(state.memories[0].indices().tolist())
    assert {0, 1, 2, 3} == set(state.memories[0].by_class)  # the current task's classes among them
    current = [draws.index[0, :, :16] for draws in epochs]
    assert not torch.equal(current[0], current[1])  # those are drawn anew


def test_a_memory_smaller_than_a_batch() -> None:
    memory = Memory(6)
    memory.add({0: np.arange(10), 1: np.arange(10, 20)}, np.random.default_rng(0))
    found = memory.rounds(Draw(16, once=True), np.random.default_rng(1))
    assert found.shape == (1, 16)
    assert set(found.flatten().tolist()) == set(memory.indices().tolist())


def test_the_second_memory_is_beside_the_first() -> None:
    """LD's 200: as large whatever M, class-balanced, drawn apart from the first."""
    group = one_member("ld", 30)
    state = Trainer(group, CPU64).train(states.fresh(group, CPU64), tasks=2)
    (memory,) = state.memories
    assert memory.second is not None
    assert (len(memory), len(memory.second)) == (30, 160)  # all there are of four classes
    group = toy_group(toy_dataset([40] * 6), "ld", [(SEED, 30, {"second_memory": 12})])
    state = Trainer(group, CPU64).train(states.fresh(group, CPU64), tasks=2)
    second = state.memories[0].second
    assert second is not None
    assert [len(kept) for kept in second.by_class.values()] == [3, 3, 3, 3]
    first = state.memories[0].by_class
    assert any(set(kept.tolist()) - set(first[c].tolist()) for c, kept in second.by_class.items())
    draws = draw_epoch(group, state.memories, 2, 0)
    replayed = set(draws.index[0, :, 16:32].flatten().tolist())
    distilled = set(draws.index[0, :, 32:].flatten().tolist())
    assert replayed == set(second.indices().tolist())
    assert distilled == set(state.memories[0].indices().tolist())


def test_passes_of_a_step() -> None:
    for method, passes, expected in (
        ("replay", "joint", (32,)),
        ("replay", "separate", (16, 16)),
        ("er-ace", "separate", (16, 10)),
        ("ld", "joint", (64,)),
        ("ld", "separate", (32, 32)),
        ("naive", "separate", (16,)),
    ):
        settings = published_settings(method)
        group = toy_group(toy_dataset([40] * 6), method, [(SEED, 30, settings)], passes=passes)
        assert group.passes(1) == expected, (method, passes)
        assert group.passes(0) == (16,)


def test_er_ace_forks_where_task_1_is_not_replayed() -> None:
    both: list[tuple[int, int, dict[str, Any]]] = [(0, 24, {}), (0, 48, {})]
    replayed = toy_group(toy_dataset([40] * 6), "er-ace", both)
    assert founders(replayed)[0] is replayed
    plain = [(seed, memory, published_settings("er-ace")) for seed, memory, _ in both]
    first, parents = founders(toy_group(toy_dataset([40] * 6), "er-ace", plain))
    assert (len(first.members), parents) == (1, [0, 0])
