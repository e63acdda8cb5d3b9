"""Cascaded gates against a head that holds one small module per gate, as the equation is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor, nn

import mdcg
from mdcg.errors import MdcgError
from mdcg.models import HEADS
from mdcg.models.heads import CascadedGates, Head, OpenGates, ScalarGates, Simplex, SingleGate, SingleOpenGate
from mdcg.train.optimizer import SGD

SHAPES = [([2, 2, 2, 2, 2], 64, 2), ([3, 2, 2], 5, 1), ([2, 3, 4, 2], 7, 3)]  # task sizes, features, members


def grown(kind: type[Head], sizes: list[int], features: int, members: int, **settings: float) -> Head:
    options = {name: [value] * members for name, value in settings.items()}
    head = kind(members, features, **options).double()
    head.total = 10
    for task, size in enumerate(sizes):
        seeds = range(members)
        head.grow(
            size,
            [np.random.default_rng([s, task]) for s in seeds],
            [np.random.default_rng([s, 9, task]) for s in seeds],
        )
    return head


def grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class ModulePerGate:
    """Eq. 5 of the paper for one member, to the letter: h^i and g^j_i are modules of their own."""

    def __init__(self, sizes: list[int], features: int, gamma: float, beta: float) -> None:
        self.sizes, self.gamma, self.beta = sizes, gamma, beta
        self.heads = [nn.Linear(features, size).double() for size in sizes]
        self.gates = {(j, i): nn.Linear(features, sizes[i]).double() for j in range(len(sizes)) for i in range(j)}

    def copy_from(self, head: CascadedGates, k: int) -> None:
        start = 0
        with torch.no_grad():
            for i, module in enumerate(self.heads):
                stop = start + self.sizes[i]
                module.weight.copy_(head.classifier.weight[k, :, start:stop].T)
                module.bias.copy_(head.classifier.bias[k, start:stop])
                start = stop
            column = 0
            for j in range(len(self.sizes)):
                for i in range(j):
                    own = slice(column, column + self.sizes[i])
                    self.gates[j, i].weight.copy_(head.gates.weight[k, :, own].T)
                    self.gates[j, i].bias.copy_(head.gates.bias[k, own])
                    column += self.sizes[i]

    def __call__(self, e: Tensor) -> Tensor:
        outputs = []
        for i in range(len(self.sizes)):
            f = self.heads[i](e)
            for j in range(i + 1, len(self.sizes)):
                f = f * torch.sigmoid(self.gamma * self.gates[j, i](e) + self.beta)
            outputs.append(f)
        return torch.cat(outputs, 1)


@pytest.mark.parametrize(("gamma", "beta"), [(1.0, 10.0), (0.5, 0.0), (3.0, -1.0)])
@pytest.mark.parametrize(("sizes", "features", "members"), SHAPES)
def test_fused_gates_equal_module_per_gate(
    sizes: list[int], features: int, members: int, gamma: float, beta: float
) -> None:
    head = grown(CascadedGates, sizes, features, members, gamma=gamma, beta=beta)
    assert isinstance(head, CascadedGates)
    e = torch.randn(members, 6, features, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(members, 6, sum(sizes), dtype=torch.float64)
    logits = head(e)
    named = dict(head.named_parameters())
    fused = dict(
        zip(named, torch.autograd.grad((weights * logits).sum(), list(named.values()), retain_graph=True), strict=True)
    )
    (to_features,) = torch.autograd.grad((weights * logits).sum(), e)
    for k in range(members):
        plain = ModulePerGate(sizes, features, gamma, beta)
        plain.copy_from(head, k)
        expected = plain(e[k])
        torch.testing.assert_close(logits[k], expected, rtol=1e-12, atol=1e-12)
        (own,) = torch.autograd.grad((weights[k] * expected).sum(), e, retain_graph=True)
        torch.testing.assert_close(to_features[k], own[k], rtol=1e-10, atol=1e-12)
        (weights[k] * plain(e[k].detach())).sum().backward()
        gates = [(j, i) for j in range(len(sizes)) for i in range(j)]
        by_column = torch.cat([grad(plain.gates[gate].weight).T for gate in gates], 1)
        torch.testing.assert_close(fused["gates.weight"][k], by_column, rtol=1e-10, atol=1e-12)
        of_bias = torch.cat([grad(plain.gates[gate].bias) for gate in gates])
        torch.testing.assert_close(fused["gates.bias"][k], of_bias, rtol=1e-10, atol=1e-12)
        of_heads = torch.cat([grad(module.weight).T for module in plain.heads], 1)
        torch.testing.assert_close(fused["classifier.weight"][k], of_heads, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "settings"), [(CascadedGates, {"gamma": 1.0, "beta": 0.5}), (OpenGates, {"gamma": 1.5, "cap": 2.0})]
)
def test_gradcheck(kind: type[Head], settings: dict[str, float]) -> None:
    head = grown(kind, [2, 3, 2], 4, 2, **settings)
    e = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(head, (e,))


def test_gate_count_of_the_paper() -> None:
    """Appendix "Memory overhead": I · Σ_i (i − 1)·|Y^i| gate weights; 10 gate heads and 1,280 weights for C10-5."""
    sizes = [2] * 5
    head = grown(CascadedGates, sizes, 64, 1, gamma=1.0, beta=10.0)
    assert isinstance(head, CascadedGates)
    assert head.gates.weight.numel() == 64 * sum(i * size for i, size in enumerate(sizes)) == 1280
    assert len([(i, j) for j in range(5) for i in range(j)]) == 10 == head.gates.outputs // 2


def test_gate_count_after_fifty_tasks() -> None:
    head = grown(CascadedGates, [4] * 50, 3, 1, gamma=1.0, beta=10.0)
    assert isinstance(head, CascadedGates)
    assert head.gates.outputs == 4 * 1225


def test_single_gate_is_applied_once() -> None:
    head = grown(SingleGate, [2, 3, 2], 4, 1, gamma=2.0, beta=1.0)
    assert isinstance(head, CascadedGates)
    assert head.gates.outputs == 5  # one per past class
    e = torch.randn(1, 3, 4, dtype=torch.float64)
    gate = torch.sigmoid(2.0 * (e @ head.gates.weight + head.gates.bias) + 1.0)
    plain = e @ head.classifier.weight + head.classifier.bias
    torch.testing.assert_close(head(e), torch.cat([plain[..., :5] * gate, plain[..., 5:]], -1))


@pytest.mark.parametrize("cap", [1.0, 1.3, 2.0])
def test_open_gates_begin_at_one_and_learn(cap: float) -> None:
    """At first they change nothing, to the bit, and have half the slope of their sigmoid as gradient."""
    head = grown(OpenGates, [2, 3, 2], 4, 2, gamma=3.0, cap=cap)
    e = torch.randn(2, 5, 4, dtype=torch.float64)
    plain = e @ head.classifier.weight + head.classifier.bias[:, None]
    assert isinstance(head, OpenGates)
    assert head.gates.outputs == 2 + 5
    torch.testing.assert_close(head(e), plain, rtol=0, atol=0)
    (found,) = torch.autograd.grad(head(e).sum(), head.gates.bias)
    by_class = 1.5 * plain.sum(1)  # of a gate z: d(2 sigmoid(3 z))/dz = 3/2, times the logit
    torch.testing.assert_close(found, torch.cat([by_class[:, :2], by_class[:, :5]], 1))


@pytest.mark.parametrize("cap", [1.0, 1.3, 2.0])
def test_open_gates_equal_a_product_over_later_tasks(cap: float) -> None:
    sizes = [2, 3, 2]
    head = grown(OpenGates, sizes, 4, 1, gamma=2.0, cap=cap)
    assert isinstance(head, OpenGates)
    with torch.no_grad():
        head.gates.weight.normal_()
        head.gates.bias.normal_()
    e = torch.randn(6, 4, dtype=torch.float64)
    z = e @ head.gates.weight[0] + head.gates.bias[0]
    openings = (2 * torch.sigmoid(2.0 * z)).clamp_max(cap)
    plain = e @ head.classifier.weight[0] + head.classifier.bias[0]
    first, second = openings[:, :2], openings[:, 2:]  # those of task 2 and of task 3
    expected = plain * torch.cat([first * second[:, :2], second[:, 2:], torch.ones(6, 2)], 1)
    torch.testing.assert_close(head(e[None])[0], expected)
    assert (openings == cap).any() == (cap < 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cap": -1}, "gates cannot open up to -1; give a cap above 0, and no more than 2"),
        ({"cap": 0}, "gates cannot open up to 0; give a cap above 0"),  # closed for good
        ({"cap": 2.5}, "gates cannot open up to 2.5"),  # 2σ never does
        ({"gamma": 0}, "gates cannot learn with γ = 0; give one above 0"),
    ],
)
def test_gates_that_could_never_open_are_refused(settings: dict[str, float], said: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"scenario": "digits-5", "method": "md", "memory": 20, "head": "open-gates"}
    with pytest.raises(MdcgError, match=said):
        mdcg.run(**asked, set=settings, out=tmp_path / "runs")
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_a_single_open_gate_costs_what_the_past_classes_do() -> None:
    for tasks in (2, 10, 50):
        head = grown(SingleOpenGate, [2] * tasks, 3, 1, gamma=1.0, cap=1.0)
        assert isinstance(head, SingleOpenGate)
        assert head.gates.outputs == 2 * (tasks - 1)
        assert sum(buffer.numel() for buffer in head.buffers()) == 2  # γ and the cap, whatever the number of tasks
        logarithms = torch.randn(1, 2 * (tasks - 1))
        assert head.add_up(logarithms).tolist() == [[*logarithms[0].tolist(), 0.0, 0.0]]


def test_scalar_gates_scale_a_whole_task() -> None:
    head = grown(ScalarGates, [2, 3, 2], 4, 1, gamma=1.0, beta=0.0)
    assert isinstance(head, CascadedGates)
    assert head.gates.outputs == 3  # (2,1), (3,1), (3,2)
    e = torch.randn(1, 3, 4, dtype=torch.float64)
    s = torch.sigmoid(e @ head.gates.weight + head.gates.bias)
    plain = e @ head.classifier.weight + head.classifier.bias
    first = plain[..., :2] * s[..., 0:1] * s[..., 1:2]
    second = plain[..., 2:5] * s[..., 2:3]
    torch.testing.assert_close(head(e), torch.cat([first, second, plain[..., 5:]], -1))


def test_closed_gates_do_not_underflow_to_nan() -> None:
    head = grown(CascadedGates, [2] * 8, 4, 1, gamma=1.0, beta=-500.0).float()
    e = torch.randn(1, 3, 4, requires_grad=True)
    out = head(e)
    assert torch.isfinite(out).all()
    assert torch.isfinite(torch.autograd.grad(out.sum(), e)[0]).all()


@pytest.mark.parametrize("name", HEADS.names())
def test_growing_keeps_weights_and_velocities(name: str) -> None:
    kind = HEADS[name]
    settings = {key: default for key, (default, _) in kind.settings.items()}
    head = grown(kind, [2, 2], 5, 3, **settings)
    optimizer = SGD(0.1, 0.8)
    optimizer.follow(head.named_parameters())
    optimizer.step([torch.randn_like(p) for p in optimizer.parameters])
    before = {key: value.detach().clone() for key, value in head.named_parameters()}
    velocity = {key: value.clone() for key, value in optimizer.velocity.items()}
    rngs = [np.random.default_rng(s) for s in range(3)]
    head.grow(3, rngs, rngs)
    optimizer.follow(head.named_parameters())
    for key, value in head.named_parameters():
        old = tuple(slice(length) for length in before[key].shape)
        assert torch.equal(value[old], before[key])
        assert torch.equal(optimizer.velocity[key][old], velocity[key])
        fresh = torch.ones_like(value, dtype=torch.bool)
        fresh[old] = False
        assert not optimizer.velocity[key][fresh].any()
        if key.startswith("classifier"):
            assert fresh.any() == kind.grows
    assert head.classes == 7


def test_a_fixed_head_has_all_classes_from_the_start() -> None:
    head = grown(HEADS["fixed"], [2, 3], 5, 2)
    assert head(torch.zeros(2, 4, 5, dtype=torch.float64)).shape == (2, 4, 10)
    assert head.classes == 5
    rngs = [np.random.default_rng(0)] * 2
    head.grow(5, rngs, rngs)
    with pytest.raises(MdcgError, match="made for 10 classes, too few for 12"):
        head.grow(2, rngs, rngs)


def test_new_columns_are_initialised_like_a_linear_layer() -> None:
    head = grown(Head, [200], 64, 1)
    weight = head.classifier.weight.detach()
    bound = 1 / 8
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(2 * bound / np.sqrt(12), rel=0.02)
    assert head.classifier.bias.abs().max() <= bound


@pytest.mark.parametrize("features", [16, 64, 100])
@pytest.mark.parametrize("kind", [Head, CascadedGates])
def test_new_columns_are_as_wide_as_pytorchs(kind: type[Head], features: int) -> None:
    """Weights and biases, of classes and gates, in the first task and later, have the distribution of nn.Linear's."""
    head = grown(kind, [500, 500], features, 1)
    torch.manual_seed(0)
    reference = torch.nn.Linear(features, 5000)
    layers = [head.classifier, head.gates] if isinstance(head, CascadedGates) else [head.classifier]
    for layer in layers:
        for own, theirs in ((layer.weight, reference.weight), (layer.bias, reference.bias)):
            for part in own.detach()[0].split(500, -1):
                assert ks_2samp(part.flatten().numpy(), theirs.detach().flatten().numpy()).pvalue > 1e-3
            assert own.abs().max() <= 1 / np.sqrt(features)
            assert own.abs().max() > 0.99 / np.sqrt(features)


def test_simplex_corners_are_unit_vectors_at_equal_angles() -> None:
    """The head's logits of the unit vectors are the corners' coordinates."""
    head = Simplex(1, 4).double()
    head.grow(3, [np.random.default_rng(0)], [np.random.default_rng(0)])
    n = head.dimensions
    with torch.no_grad():
        head.classifier.weight = torch.nn.Parameter(torch.eye(n, dtype=torch.float64)[None])
        head.classifier.bias.zero_()
        corners = head(torch.eye(n, dtype=torch.float64)[None])[0].T  # (n + 1, n)
    expected = torch.full((n + 1, n + 1), -1 / n, dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(corners @ corners.T, expected, rtol=0, atol=1e-12)


def test_simplex_learns_its_projection_once() -> None:
    head = Simplex(2, 4)
    rngs = [np.random.default_rng(seed) for seed in range(2)]
    head.grow(2, rngs, rngs)
    before = head.classifier.weight.clone()
    head.grow(3, rngs, rngs)
    assert torch.equal(head.classifier.weight, before)
    assert head.classes == 5
    assert head(torch.zeros(2, 3, 4)).shape == (2, 3, 1001)
    with pytest.raises(MdcgError, match="1,001 corners, too few for 1,005 classes"):
        head.grow(1000, rngs, rngs)


@pytest.mark.parametrize("name", HEADS.names())
@pytest.mark.parametrize("sizes", [[3], [2, 2, 2], [1, 4, 1, 3], [5, 1]])
def test_room_for_all_tasks_at_once_is_what_growing_makes(name: str, sizes: list[int]) -> None:
    kind = HEADS[name]
    settings = {key: default for key, (default, _) in kind.settings.items()}
    wanted = grown(kind, sizes, 7, 1, **settings)
    at_once = kind(1, 7, **{key: [value] for key, value in settings.items()}).double()
    at_once.total = wanted.total
    at_once.make_room(sizes)
    assert {key: value.shape for key, value in at_once.state_dict().items()} == {
        key: value.shape for key, value in wanted.state_dict().items()
    }
    assert kind.columns(sizes, wanted.total) == {
        key: getattr(wanted, key).outputs for key in ("classifier", "gates") if hasattr(wanted, key)
    }
    at_once.load_state_dict(wanted.state_dict())
    features = torch.randn(1, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(at_once(features), wanted(features))
    assert at_once.sizes == wanted.sizes


def test_a_cascade_that_no_memory_holds_is_refused_before_it_is_made() -> None:
    head = grown(CascadedGates, [2, 2], 3, 1)
    with pytest.raises(MdcgError, match="take too much memory; bring more classes with each task"):
        head.grow(300_000_000, [np.random.default_rng(0)], [np.random.default_rng(0)])
    with pytest.raises(MdcgError, match="4,999,950,000 gates for 100,000 classes in 100,000 tasks take too much"):
        head.make_room([1] * 100_000)


class LateGates(CascadedGates):
    """As somebody may write it: every second gate only, where ours would count them all."""

    def new_gates(self) -> list[range]:
        return super().new_gates()[::2]


def test_a_head_of_ones_own_made_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It grows in a way of its own: nothing that ours know is believed of it, and its files can be read."""
    monkeypatch.setitem(HEADS._known, "late-gates", LateGates)
    assert CascadedGates.grows_as_ours()
    assert SingleGate.grows_as_ours()
    assert not LateGates.grows_as_ours()
    images = np.random.default_rng(0).integers(0, 256, (48, 8, 8, 3), dtype=np.uint8)
    clf = mdcg.Learner("md-cg", head="late-gates", memory=20, backbone="smallconv", epochs=1, hold_out=0, quiet=True)
    for task in range(3):
        file = tmp_path / f"{task}.safetensors"
        clf.learn(images[16 * task : 16 * (task + 1)], [2 * task, 2 * task + 1] * 8, save_to=file)
        clf = mdcg.Learner.load(file).set_params(quiet=True)
    assert len(clf.classes_) == 6
    assert clf.predict(images).shape == (48,)
