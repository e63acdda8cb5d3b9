"""Label smoothing and augmentations in a whole step, and members that differ in their numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from mdcg.memory import Memory
from mdcg.methods import METHODS, cross_entropy
from mdcg.testing.groups import check_company, check_resumed, same_member, trained
from mdcg.testing.methods import check_fork
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.recolour import jitter, operate
from mdcg.train.stepwise import stepwise
from tests.conftest import published_settings, toy_dataset, toy_group

CPU64 = compute("cpu", "fp64")
COUNTS = [20, 33, 25, 28, 22, 31]
DIFFERENT: list[dict[str, Any]] = [
    {"label_smoothing": 0.0, "mix_alpha": 0.3, "jitter_strength": 0.2, "randaugment_m": 4.0},
    {"label_smoothing": 0.1, "mix_alpha": 1.0, "warmup": 0.2, "weight_decay": 0.01},
    {"label_smoothing": 0.4, "mix_alpha": 2.0, "lr": 0.01, "clip": 2.0},
]


def three(method: str, settings: dict[str, Any] | None = None, **training: Any) -> Group:
    sizes = (20, 20, 20) if METHODS[method].gradient_per_task else (12, 20, 47)
    members = [(seed, size, settings or {}) for seed, size in zip((0, 1, 1), sizes, strict=True)]
    return toy_group(toy_dataset(COUNTS, channels=3), method, members, numbers=DIFFERENT, **training)


@given(st.integers(0, 2**20), st.lists(st.floats(0, 0.99), min_size=2, max_size=2))
def test_label_smoothing_is_torchs(seed: int, shares: list[float]) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(2, 6, 4, dtype=torch.float64, generator=rng)
    labels = torch.randint(0, 4, (2, 6), generator=rng)
    found = cross_entropy(logits, labels, torch.tensor(shares, dtype=torch.float64))
    hidden = torch.cat([logits, torch.full((2, 6, 1), -torch.inf)], 2)  # a class that is none
    among = cross_entropy(hidden, labels, torch.tensor(shares, dtype=torch.float64))
    for k, share in enumerate(shares):
        wanted = F.cross_entropy(logits[k], labels[k], label_smoothing=share)
        torch.testing.assert_close(found[k], wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(among[k], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_smooths(method: str) -> None:
    """In task 1 and later."""
    group = three(method, epochs=1, tasks=2)
    together = trained(group)
    sharp = dataclasses.replace(group.members[1].numbers, label_smoothing=0.0)
    other = trained(dataclasses.replace(group, members=(dataclasses.replace(group.members[1], numbers=sharp),)))
    for mine, theirs in zip(together.history[1], other.history[0], strict=True):
        assert mine["loss"] != theirs["loss"]


@pytest.mark.parametrize(
    ("method", "augment", "more"),
    [
        ("md-cg", ("mixup",), {"optimizer": "adamw", "schedule": "cosine"}),
        ("der", ("jitter", "randaugment", "cutmix"), {"schedule": "step"}),
        pytest.param("er-ace", ("randaugment", "mixup"), {"randaugment_n": 1}, marks=pytest.mark.slow),
        # As published: with a second memory.
        pytest.param("ld", ("cutmix",), {"passes": "separate"}, marks=pytest.mark.slow),
        pytest.param("gem", ("jitter", "randaugment"), {}, marks=pytest.mark.slow),
        pytest.param("gdumb", ("mixup",), {}, marks=pytest.mark.slow),
    ],
)
def test_alone_in_company_and_resumed(method: str, augment: tuple[str, ...], more: dict[str, Any]) -> None:
    group = three(method, published_settings(method) if method == "ld" else {}, augment=augment, **more)
    together = trained(group)
    check_company(group, together)
    check_resumed(group, together)
    check_fork(group, together)


@pytest.mark.slow
def test_the_path_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdcg.train.graph.capture", lambda work, pool: work)
    members: list[tuple[int, int, dict[str, Any]]] = [(0, 60, {}), (1, 60, {}), (1, 60, {})]
    dataset = toy_dataset([70, 95, 60, 90, 80, 75], channels=3)
    group = toy_group(dataset, "der", members, tasks=2, numbers=DIFFERENT, augment=("jitter", "randaugment", "mixup"))
    plain, graphed = Trainer(group, CPU64), Trainer(group, CPU64)
    plain.graphs, graphed.graphs = False, True
    wanted, found = plain.train(states.fresh(group, CPU64)), graphed.train(states.fresh(group, CPU64))
    assert all(same_member(wanted, k, found, k) for k in range(3))


def some_draws(group: Group, task: int = 1) -> tuple[Trainer, states.State, Any]:
    trainer, state = Trainer(group, CPU64), states.fresh(group, CPU64)
    for number in range(task + 1):
        state.task = number
        trainer.begin_task(state)
        if number < task:
            states.end_task(state, group)
    state.model.train()
    return trainer, state, draw_epoch(group, state.memories, task, 0)


def test_images_of_a_step_against_one_after_the_other() -> None:
    """Crop, flip, jitter, RandAugment twice, normalisation: each image by itself, with what was drawn for it."""
    group = three("replay", augment=("jitter", "randaugment"))
    trainer, _, draws = some_draws(group)
    batch, plain = trainer.batch(draws, 1), draws.at(1)
    more = draws.more_at(1)
    for k in range(3):
        for place in (0, 7, 15, 16, 31):
            index, _, corner, flipped = (part[k, place] for part in plain)
            image = F.pad(group.dataset.train.images[index], (0, 0, 1, 1, 1, 1))
            crop = image[corner[0] : corner[0] + 8, corner[1] : corner[1] + 8].permute(2, 0, 1)[None].float()
            x = jitter(crop.flip(3) if flipped else crop, more["jitter"][k, place][None])
            for number in range(2):
                x = operate(x, *(more[name][k, place, number][None] for name in ("operation", "amount", "place")))
            wanted = (x[0].double() / 255 - 0.5) / 0.3
            torch.testing.assert_close(batch.images[k, place], wanted, rtol=1e-12, atol=1e-12)


def test_the_loss_of_mixed_images() -> None:
    """DER++ written out: λ of the loss with an image's own label and logits, 1 − λ of that with its partner's."""
    group = toy_group(
        toy_dataset(COUNTS, channels=3), "der", [(0, 20, {"alpha": 0.3, "beta": 0.6})], augment=("mixup",)
    )
    trainer, state, draws = some_draws(group)
    unmixed = Trainer(dataclasses.replace(group, training=dataclasses.replace(group.training, augment=())), CPU64)
    own = unmixed.batch(draws_without_mix(draws), 0)
    batch = trainer.batch(draws, 0)
    assert batch.mix is not None
    share, partner = batch.mix.weight[0].item(), batch.mix.partner[0]
    x = share * own.images[0] + (1 - share) * own.images[0][partner]
    torch.testing.assert_close(batch.images[0], x, rtol=1e-12, atol=1e-12)
    loss, _ = trainer.forward(state, batch)
    logits = state.model(x[None])[0]
    assert state.stored_logits is not None
    stored = state.stored_logits.at(own.index[:, 16:])[0]
    wanted = torch.zeros(())
    for weight, of in ((share, torch.arange(32)), (1 - share, partner)):
        labels, kept = own.labels[0][of], stored[of[16:] - 16]
        current = F.cross_entropy(logits[:16], labels[:16])
        memory = 0.3 * F.mse_loss(logits[16:], kept) + 0.6 * F.cross_entropy(logits[16:], labels[16:])
        wanted = wanted + weight * (current + memory)
    torch.testing.assert_close(loss[0], wanted, rtol=1e-9, atol=1e-9)


def draws_without_mix(draws: Any) -> Any:
    return dataclasses.replace(draws, more={})


def test_methods_see_the_same_current_images() -> None:
    """With a memory or without one, of any size."""
    words: dict[str, Any] = {"augment": ("jitter", "randaugment", "cutmix"), "schedule": "cosine"}
    dataset, steps = toy_dataset(COUNTS, channels=3), np.array([3])
    replay, naive = (toy_group(dataset, name, [(0, 20, {})], **words) for name in ("replay", "naive"))
    one, other = stepwise(replay, 1, 2, steps, [16, 32]), stepwise(naive, 1, 2, steps, [16])
    assert one.keys() == other.keys()
    for name, part in one.items():
        current = part[:, :, :16] if part.ndim > 2 and name != "box" else part
        assert torch.equal(current, other[name]), name
    again = stepwise(replay, 1, 3, steps, [16, 32])
    assert not any(torch.equal(part, again[name]) for name, part in one.items())


def test_nothing_is_drawn_without_need() -> None:
    group = toy_group(toy_dataset(COUNTS), "naive", [(0, 0, {})], numbers=[{"label_smoothing": 0.1, "clip": 1.0}])
    assert draw_epoch(group, [Memory(0)], 0, 0).more == {}
