"""The fit of a head to the memory, as a task ends: against loops, scipy's optimum, and what must not change."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize

import mdcg
from mdcg.errors import MdcgError
from mdcg.memory import Memory
from mdcg.models import HEADS, Head
from mdcg.models.heads import FittedClassifier, FittedGates
from mdcg.models.layers import Linear
from mdcg.probes import PROBES, ProbeSet
from mdcg.recipes.settings import check_head
from mdcg.scenario import Stream
from mdcg.testing.groups import CPU, check_company, check_resumed, trained
from mdcg.testing.methods import check_fork
from mdcg.train import fitting
from mdcg.train import state as states
from mdcg.train.fitting import LEAST, fit_head, fit_layer
from mdcg.train.fork import founders
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.state import State
from tests.conftest import toy_dataset, toy_group

FITTED = ["fitted-gates", "fitted-classifier"]
WHOLE = slice(None)


def toys(head: str, method: str = "md-cg", **training: Any) -> Group:
    """Members whose memories differ in size, one of them not to be shared evenly among classes."""
    members: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (0, 25, {}), (1, 25, {})]
    return toy_group(toy_dataset([20] * 6), method, members, head=head, **training)


def grown(name: str, sizes: list[int], features: int, **settings: float) -> Head:
    kind = HEADS[name]
    chosen = {key: [settings.get(key, default)] for key, (default, _) in kind.settings.items()}
    head, rngs = kind(1, features, **chosen).double(), [np.random.default_rng(0)]
    for size in sizes:
        head.grow(size, rngs, rngs)
    return head


def layer_of(head: Head) -> Linear:
    layer = head.get_submodule(head.fitted_layer)
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
    spreads = [spread + LEAST * sum(spreads) / len(spreads) for spread in spreads]
    name = f"{head.fitted_layer}.weight"
    change: list[list[float]] = (head.state_dict()[name] - before.state_dict()[name])[0].tolist()
    turned = sum((s * one) ** 2 for s, row in zip(spreads, change, strict=True) for one in row)
    return loss + float(head.state_dict()["penalty"]) * turned / len(change[0])


def fit_alone(head: Head, features: torch.Tensor, labels: torch.Tensor) -> Head:
    """A copy of a head of one member, fitted."""
    counts = torch.bincount(labels).double()
    share = 1 / counts[labels] / (counts > 0).sum()
    after = copy.deepcopy(head)
    layer = layer_of(after)
    weight, bias = fit_layer(head, WHOLE, features[None], labels[None], share[None])
    layer.weight.data, layer.bias.data = weight.detach(), bias.detach()
    return after


@pytest.mark.parametrize("penalty", [0.01, 0.1])
@pytest.mark.parametrize("name", FITTED)
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


@pytest.mark.parametrize("odd", ["constant", "nearly dead"])
@pytest.mark.parametrize("name", FITTED)
def test_features_that_hardly_vary_get_no_large_weights(name: str, odd: str) -> None:
    torch.manual_seed(0)
    labels, features = torch.arange(60) % 4, torch.randn(60, 5)
    features[:, 0] = 3.7 if odd == "constant" else 0.0
    features[:3, 0] += 0.0 if odd == "constant" else 1e-4
    before = grown(name, [2, 2], 5).float()
    after = fit_alone(before, features, labels)
    change = (layer_of(after).weight - layer_of(before).weight).abs()[0]
    assert change[0].max() < change[1:].max()
    assert torch.isfinite(layer_of(after).bias).all()


def test_features_of_a_dead_network_give_numbers() -> None:
    after = fit_alone(grown("fitted-gates", [2, 2], 3), torch.zeros(8, 3, dtype=torch.float64), torch.arange(8) % 4)
    assert all(torch.isfinite(own).all() for own in after.state_dict().values())


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


@pytest.mark.parametrize("head", FITTED)
def test_one_layer_is_fitted_and_nothing_else(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To what will be in memory: images of the task itself, too."""
    group = toys(head)
    seen: list[list[int]] = []

    def watched(head: Head, own: slice, features: torch.Tensor, labels: torch.Tensor, share: torch.Tensor) -> Any:
        seen.append(labels[share > 0].tolist())
        return fit_layer(head, own, features, labels, share)

    monkeypatch.setattr(fitting, "fit_layer", watched)
    trainer, state = Trainer(group, CPU), states.fresh(group, CPU)
    for task in range(3):
        state.task = task
        states.begin_task(state, group)
        coming = [memory.by_class for memory in states.memories_after(state, group)]
        before = {name: value.clone() for name, value in state.model.state_dict().items()}
        fit_head(state, group, trainer.images, trainer.pixels, CPU, together=False)
        after = state.model.state_dict()
        changed = {name for name, value in before.items() if not torch.equal(after[name], value)}
        layer = f"head.{state.model.head.fitted_layer}"
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


@pytest.mark.parametrize("stream", [Stream(), Stream(blurry=0.3)], ids=["clear", "blurry"])
@pytest.mark.parametrize(("head", "method"), [("fitted-gates", "md-cg"), ("fitted-classifier", "replay")])
def test_a_member_is_the_same_in_company_resumed_and_forked(head: str, method: str, stream: Stream) -> None:
    """Where borders are blurry, the head has the classes of task 2 in task 1 already."""
    group = toys(head, method, stream=stream)
    state = trained(group)
    check_company(group, state)
    check_resumed(group, state)
    assert founders(group)[0] is not group
    check_fork(group, state)


@pytest.mark.parametrize("epochs", [1, 2])
def test_it_is_fitted_as_tasks_end_and_the_first_is_left_out(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[tuple[int, int]] = []
    group, layers = toys("fitted-classifier", epochs=epochs), []

    def watched(state: State, *rest: Any) -> None:
        before = state.model.head.classifier.weight.detach().clone()
        fit_head(state, *rest)
        moments.append((state.task, state.epoch))
        layers.append(torch.equal(before, state.model.head.classifier.weight))

    monkeypatch.setattr("mdcg.train.loop.fit_head", watched)
    trained(group)
    assert moments == [(task, epochs - 1) for task in range(3)]
    assert layers == [True, False, False]  # unchanged


@pytest.mark.parametrize("head", FITTED)
def test_all_members_at_once_come_to_the_same(head: str) -> None:
    """As on a GPU: those with fewer images than others are not disturbed by the places that they do not fill."""
    group, exact = toys(head), compute("cpu", "fp64")
    trainer = Trainer(group, exact)
    found = []
    for together in (True, False):
        state = Trainer(group, exact).train(states.fresh(group, exact), tasks=1)
        states.begin_task(state, group)
        fit_head(state, group, trainer.images, trainer.pixels, exact, together)
        found.append(state.model.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name])


def test_probes_and_evaluation_see_the_fitted_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    group, found = toys("fitted-gates"), []
    for is_fitted in (True, False):
        if not is_fitted:
            monkeypatch.setattr("mdcg.train.loop.fit_head", lambda *given: None)
        state = states.fresh(group, CPU)
        Trainer(group, CPU, probes=ProbeSet({"gates": PROBES["gates"]()})).train(state)
        found.append(state)
    fitted, plain = found
    for k, rows in enumerate(fitted.measured):
        last, weight = rows[-1], fitted.model.head.state_dict()["gates.weight"][k]
        assert last["accuracy"] == pytest.approx(100 * float(fitted.correct[k, -1].sum()) / last["images"])
        assert last["gates_moved_largest"] >= float(weight.abs().max())  # of the gates that the run ended with
        assert last["gates_moved_largest"] > 2 * plain.measured[k][-1]["gates_moved_largest"] > 0


@pytest.mark.parametrize("head", FITTED)
def test_what_cannot_be_fitted_is_refused(head: str, tmp_path: Path) -> None:
    with pytest.raises(MdcgError, match="is fitted to the memory, and naive has none; take another one"):
        check_head("naive", head, asked=True)
    check_head("replay", head, asked=True)
    kind = HEADS[head]
    assert kind in (FittedGates, FittedClassifier)
    usual = {name: default for name, (default, _) in kind.settings.items()}
    for penalty in (-1.0, 1e22):
        with pytest.raises(MdcgError, match=re.escape(f"the penalty of a fit cannot be {penalty:g}; give 0 to 1e+06")):
            kind.check({**usual, "penalty": penalty})
    online = {"dataset": "digits", "sizes": [5, 5], "online": True}
    with pytest.raises(
        MdcgError, match=f"the head '{head}' is fitted as each task ends, and an online stream does not"
    ):
        mdcg.run(scenario=online, method="md", memory=20, head=head, out=tmp_path / "runs")
