"""The fit of a head to the memory, as a task ends: against loops, scipy's optimum, and what must not change."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize

from mdcg.errors import MdcgError
from mdcg.memory import Memory
from mdcg.models import HEADS, Head
from mdcg.models.heads import FittedClassifier, FittedGates
from mdcg.models.layers import Linear
from mdcg.probes import PROBES, ProbeSet
from mdcg.recipes.settings import check_head
from mdcg.testing.groups import CPU, check_company, check_resumed, trained
from mdcg.testing.methods import check_fork
from mdcg.train import fitting
from mdcg.train import state as states
from mdcg.train.fitting import fit_head, fitted
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from tests.conftest import toy_dataset, toy_group

HEADS_FITTED = ["fitted-gates", "fitted-classifier"]
WHOLE = slice(None)


def toys(head: str, method: str = "md-cg") -> Group:
    """Members whose memories differ in size, one of them not to be shared evenly among classes."""
    members: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (0, 25, {}), (1, 25, {})]
    return toy_group(toy_dataset([20] * 6), method, members, head=head)


def grown(name: str, sizes: list[int], features: int, members: int = 1, **settings: float) -> Head:
    kind = HEADS[name]
    chosen = {key: [settings.get(key, default)] * members for key, (default, _) in kind.settings.items()}
    head = kind(members, features, **chosen).double()
    rngs = [np.random.default_rng(seed) for seed in range(members)]
    for size in sizes:
        head.grow(size, rngs, rngs)
    return head


def layer_of(head: Head) -> Linear:
    layer = head.get_submodule(head.fitted)
    assert isinstance(layer, Linear)
    return layer


def answers(head: Head, x: list[float]) -> list[float]:
    """The logits of one image's features by one member, with plain loops; past classes have a gate of their own."""
    weights: dict[str, Any] = {name: value[0].tolist() for name, value in head.state_dict().items()}

    def product(layer: str, output: int) -> float:
        column = [row[output] for row in weights[f"{layer}.weight"]]
        return float(sum(a * b for a, b in zip(x, column, strict=True)) + weights[f"{layer}.bias"][output])

    found = [product("classifier", c) for c in range(head.classes)]
    if isinstance(head, FittedGates):
        for c in range(sum(head.sizes[:-1])):
            found[c] *= min(2 / (1 + math.exp(-weights["gamma"] * product("gates", c))), weights["cap"])
    return found


def objective(head: Head, before: Head, features: torch.Tensor, labels: torch.Tensor) -> float:
    """What the fit brings down, with plain loops: one member, features (n, F)."""
    classes = sorted(set(labels.tolist()))
    images = {c: [x for x, y in zip(features.tolist(), labels.tolist(), strict=True) if y == c] for c in classes}
    weight = {c: 1 / len(classes) / len(own) for c, own in images.items()}
    loss = 0.0
    for c, own in images.items():
        for x in own:
            logits = answers(head, x)
            loss += weight[c] * (math.log(sum(map(math.exp, logits))) - logits[c])
    means, spreads = [], []
    for j in range(features.shape[1]):
        means.append(sum(weight[c] * x[j] for c, own in images.items() for x in own))
        variance = sum(weight[c] * (x[j] - means[-1]) ** 2 for c, own in images.items() for x in own)
        spreads.append(math.sqrt(variance))
    name = f"{head.fitted}.weight"
    change: list[list[float]] = (head.state_dict()[name] - before.state_dict()[name])[0].tolist()
    turned = sum((s * one) ** 2 for s, row in zip(spreads, change, strict=True) for one in row)
    return loss + float(head.state_dict()["penalty"]) * turned / len(change[0])


def fit_alone(head: Head, features: torch.Tensor, labels: torch.Tensor) -> Head:
    """A copy of a head of one member, fitted."""
    counts = torch.bincount(labels).double()
    share = 1 / counts[labels] / (counts > 0).sum()
    after = copy.deepcopy(head)
    layer = layer_of(after)
    weight, bias = fitted(head, WHOLE, features[None], labels[None], share[None])
    layer.weight.data, layer.bias.data = weight.detach(), bias.detach()
    return after


@pytest.mark.parametrize("penalty", [0.01, 0.1])
@pytest.mark.parametrize("name", HEADS_FITTED)
def test_the_fit_comes_near_the_best_layer(name: str, penalty: float) -> None:
    """By scipy, which knows only the objective. Past classes are answered too seldom at first."""
    rng = np.random.default_rng(1)
    labels = torch.tensor([0] * 9 + [1] * 5 + [2] * 7 + [3] * 6)
    features = torch.from_numpy(rng.normal(0, 1, (27, 3)) + 1.2 * rng.normal(0, 1, (4, 3))[labels] + 2)
    before = grown(name, [2, 2], 3, penalty=penalty)
    before.classifier.bias.data[0, 2:] += 2
    after = fit_alone(before, features, labels)
    trial, layer = copy.deepcopy(before), layer_of(before)
    shapes = layer.weight.shape, layer.bias.shape

    def tried(numbers: npt.NDArray[np.float64]) -> float:
        own = layer_of(trial)
        parts = np.split(numbers, [math.prod(shapes[0])])
        own.weight.data, own.bias.data = (
            torch.from_numpy(part.copy()).view(shape) for part, shape in zip(parts, shapes, strict=True)
        )
        return objective(trial, before, features, labels)

    start = np.concatenate([layer.weight.detach().flatten(), layer.bias.detach().flatten()])
    best = minimize(tried, start, method="L-BFGS-B", options={"maxiter": 40}).fun
    first, found = objective(before, before, features, labels), objective(after, before, features, labels)
    assert best < 0.95 * first
    assert found <= best + 0.1 * (first - best)


def test_steps_are_those_of_torchs_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a penalty, and with a feature that is standardised already."""
    monkeypatch.setattr(fitting, "STEPS", 7)
    labels = torch.arange(8) % 4
    features = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(4, 1)
    before = grown("fitted-classifier", [2, 2], 1, penalty=0.0)
    found = layer_of(fit_alone(before, features, labels))
    weight, bias = (own.detach().clone().requires_grad_() for own in before.classifier.parameters())
    adam = torch.optim.Adam([weight, bias], lr=fitting.RATE)
    for _ in range(7):
        adam.zero_grad()
        torch.nn.functional.cross_entropy(features @ weight[0] + bias, labels).backward()
        adam.step()
    torch.testing.assert_close(found.weight, weight, rtol=1e-5, atol=1e-6, check_stride=False)
    torch.testing.assert_close(found.bias, bias, rtol=1e-5, atol=1e-6)


def test_a_large_penalty_leaves_the_weights_and_moves_biases_alone() -> None:
    torch.manual_seed(0)
    labels, features = torch.arange(12) % 4, torch.randn(12, 3, dtype=torch.float64)
    before = grown("fitted-classifier", [2, 2], 3, penalty=1e6)
    after = fit_alone(before, features, labels)
    turned = (after.classifier.weight - before.classifier.weight).abs().max()
    assert turned < 1e-3 < (after.classifier.bias - before.classifier.bias).abs().max()


def test_images_share_as_their_classes_do() -> None:
    memories = [
        Memory(9, {0: np.array([4, 5, 6]), 2: np.array([7]), 1: np.empty(0, np.int64)}),
        Memory(9, {0: np.array([1, 2]), 1: np.array([3, 8, 9, 0])}),
    ]
    index, labels, share = fitting._laid_out(memories)
    assert index.tolist() == [[4, 5, 6, 7, 4, 5], [1, 2, 3, 8, 9, 0]]
    assert labels[0, :4].tolist() == [0, 0, 0, 2]
    assert labels[1].tolist() == [0, 0, 1, 1, 1, 1]
    assert share.tolist() == [[1 / 6] * 3 + [1 / 2, 0, 0], [1 / 4] * 2 + [1 / 8] * 4]


@pytest.mark.parametrize("head", HEADS_FITTED)
def test_one_layer_is_fitted_and_nothing_else(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To what will be in memory: images of the task itself, too."""
    group = toys(head)
    seen: list[list[int]] = []

    def watched(head: Head, own: slice, features: torch.Tensor, labels: torch.Tensor, share: torch.Tensor) -> Any:
        seen.append(labels[share > 0].tolist())
        return fitted(head, own, features, labels, share)

    monkeypatch.setattr(fitting, "fitted", watched)
    trainer, state = Trainer(group, CPU), states.fresh(group, CPU)
    for task in range(3):
        state.task = task
        states.begin_task(state, group)
        coming = [memory.by_class for memory in states.memories_after(state, group)]
        before = {name: value.clone() for name, value in state.model.state_dict().items()}
        fit_head(state, group, trainer.images, trainer.pixels, CPU)
        after = state.model.state_dict()
        changed = {name for name, value in before.items() if not torch.equal(after[name], value)}
        layer = f"head.{state.model.head.fitted}"
        assert changed == ({f"{layer}.weight", f"{layer}.bias"} if task else set())
        states.end_task(state, group)
        if task:
            held = [{c: len(kept) for c, kept in memory.by_class.items()} for memory in state.memories]
            assert [Counter(labels) for labels in seen[-len(held) :]] == held
        for wanted, memory in zip(coming, state.memories, strict=True):
            assert {c: kept.tolist() for c, kept in memory.by_class.items()} == {
                c: kept.tolist() for c, kept in wanted.items()
            }
            assert len(wanted) == 2 * (task + 1)


@pytest.mark.parametrize(("head", "method"), [("fitted-gates", "md-cg"), ("fitted-classifier", "er-ace")])
def test_a_member_is_the_same_in_company_resumed_and_forked(head: str, method: str) -> None:
    group = toys(head, method)
    state = trained(group)
    check_company(group, state)
    check_resumed(group, state)
    check_fork(group, state)


def test_all_members_at_once_come_to_the_same() -> None:
    """As on a GPU: those with fewer images than others are not disturbed by the places that they do not fill."""
    group = toys("fitted-gates")
    state = trained(replace(group, training=replace(group.training, epochs=1)))
    head = state.model.head.double()
    torch.manual_seed(0)
    features, labels = torch.randn(3, 24, head.classifier.weight.shape[1], dtype=torch.float64), torch.arange(24) % 6
    share = torch.zeros(3, 24, dtype=torch.float64)
    counts = (12, 24, 18)
    for own, count in zip(share, counts, strict=True):
        own[:count] = 1 / count
    together = fitted(head, WHOLE, features, labels.expand(3, -1).contiguous(), share)
    for k, count in enumerate(counts):
        own = slice(k, k + 1)
        alone = fitted(head, own, features[own, :count], labels[None, :count], share[own, :count])
        for some, one in zip(together, alone, strict=True):
            torch.testing.assert_close(some[own], one)


def test_probes_and_evaluation_see_the_fitted_gates() -> None:
    group = toys("fitted-gates")
    state = states.fresh(group, CPU)
    Trainer(group, CPU, probes=ProbeSet({"gates": PROBES["gates"]()})).train(state)
    for k, rows in enumerate(state.measured):
        last = rows[-1]
        right = float(state.correct[k, -1].sum()) / last["images"]
        assert last["accuracy"] == pytest.approx(100 * right)
        # Its images are all classes' so far: what it measured is of the weights that the run ended with.
        weight = state.model.head.state_dict()["gates.weight"][k]
        assert last["gates_moved_largest"] >= float(weight.abs().max()) > 0


@pytest.mark.parametrize("head", HEADS_FITTED)
def test_what_cannot_be_fitted_is_refused(head: str) -> None:
    with pytest.raises(MdcgError, match="is fitted to the memory, and naive has none; take another one"):
        check_head("naive", head, asked=True)
    check_head("replay", head, asked=True)
    kind = HEADS[head]
    assert kind in (FittedGates, FittedClassifier)
    usual = {name: default for name, (default, _) in kind.settings.items()}
    with pytest.raises(MdcgError, match="the penalty of a fit cannot be -1; give 0 or more"):
        kind.check({**usual, "penalty": -1.0})
