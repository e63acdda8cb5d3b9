"""DER's two gradients against a plain calculation, member by member and channel by channel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdcg.errors import MdcgError
from mdcg.methods import METHODS
from mdcg.models import register_backbone
from mdcg.probes import Measured, Probe, ProbeSet, Snapshot, gradients, probes_for
from mdcg.probes.gradients import Gradients, channel_cosine
from mdcg.train import state as states
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from tests.conftest import toy_dataset, toy_group

DATASET = toy_dataset([70] * 6)
MEMBERS: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (1, 300, {"alpha": 0.5}), (2, 12, {}), (3, 41, {})]
CPU = compute("cpu", "fp64")


def small(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """`smallconv` and its head, of one member, in train mode."""
    for i in range(3):
        x = F.conv2d(x, state[f"backbone.convs.{i}.weight"], stride=2 if i else 1, padding=1)
        scale, shift = state[f"backbone.norms.{i}.weight"], state[f"backbone.norms.{i}.bias"]
        x = F.relu(F.batch_norm(x, None, None, scale, shift, training=True))
    return x.mean((2, 3)) @ state["head.classifier.weight"] + state["head.classifier.bias"]


def own(channels: int) -> nn.Module:
    """A user's backbone."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    )


def users(state: dict[str, Tensor], x: Tensor) -> Tensor:
    x = F.conv2d(x, state["backbone.0__weight"], state["backbone.0__bias"])
    x = F.batch_norm(x, None, None, state["backbone.1__weight"], state["backbone.1__bias"], training=True)
    x = F.adaptive_avg_pool2d(F.relu(x), 2).flatten(1)
    x = F.linear(x, state["backbone.5__weight"], state["backbone.5__bias"])
    return x @ state["head.classifier.weight"] + state["head.classifier.bias"]


def memory_of(snapshot: Snapshot, k: int) -> list[int]:
    """At most 128 images that lie evenly in the member's memory, class by class."""
    held = [int(i) for c in sorted(snapshot.memories[k].by_class) for i in snapshot.memories[k].by_class[c]]
    if len(held) <= 128:
        return held
    return [held[math.floor(i * len(held) / 128)] for i in range(128)]


def by_hand(snapshot: Snapshot, k: int, forward: Callable[[dict[str, Tensor], Tensor], Tensor]) -> dict[str, float]:
    """The cosines of one member, each loss with a forward pass of its own."""
    images = memory_of(snapshot, k)
    pixels = DATASET.train.images[images].double() / 255
    x = ((pixels - 0.5) / 0.3).permute(0, 3, 1, 2)
    position = snapshot.group.views[k].scenario.position_of_label(10)
    labels = torch.tensor([int(position[DATASET.train.labels[i]]) for i in images])
    assert snapshot.stored_logits is not None
    places = snapshot.stored_logits.index[k].tolist()
    kept = torch.stack([snapshot.stored_logits.logits[k, places.index(i)] for i in images]).double()
    found = []
    for loss in (lambda z: F.cross_entropy(z, labels), lambda z: ((z - kept) ** 2).mean()):
        state = {name: value[k].detach().double() for name, value in snapshot.model.state_dict().items()}
        weights = {name: value.requires_grad_() for name, value in state.items() if value.is_floating_point()}
        loss(forward(state, x)).backward()
        found.append({name: value.grad for name, value in weights.items() if name.endswith("weight")})
    cosines = {}
    for name, one in found[0].items():
        other = found[1][name]
        if one is None or other is None or one.ndim < 2:
            continue
        a, b = one.numpy(), other.numpy()
        if name == "head.classifier.weight":
            a, b = a.T, b.T
        channels = [
            float(p @ q / np.sqrt((p @ p) * (q @ q)))
            for p, q in ((a[c].ravel(), b[c].ravel()) for c in range(len(a)))
            if (p != 0).any() and (q != 0).any()
        ]
        cosines[name] = sum(channels) / len(channels)
    return cosines


class Checked(Probe):
    """The probe, and the same by hand."""

    def __init__(self, forward: Callable[[dict[str, Tensor], Tensor], Tensor]) -> None:
        self.forward, self.pairs = forward, list[tuple[list[float], list[float]]]()

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return Gradients().wants(task, epoch, epochs)

    def look(self, snapshot: Snapshot) -> Measured:
        assert {len(memory_of(snapshot, k)) for k in range(snapshot.members)} == {12, 41, 128}
        found = Gradients().look(snapshot)
        cosines = found["cosine"]
        assert isinstance(cosines, Tensor)
        for k in range(snapshot.members):
            self.pairs.append((cosines[k].tolist(), list(by_hand(snapshot, k, self.forward).values())))
        return found


@pytest.mark.parametrize(
    ("backbone", "forward", "layers", "apart"),
    [
        ("smallconv", small, ["convs.0", "convs.1", "convs.2", "classifier"], True),
        ("smallconv", small, ["convs.0", "convs.1", "convs.2", "classifier"], False),  # as on a GPU
        ("a-users-own", users, ["0", "5", "classifier"], False),
    ],
)
def test_cosines_are_those_of_a_plain_loop(
    backbone: str,
    forward: Callable[[dict[str, Tensor], Tensor], Tensor],
    layers: list[str],
    apart: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = gradients._together
    monkeypatch.setattr(gradients, "_together", lambda counts, **on_cpu: usual(counts, apart))
    if backbone != "smallconv":
        register_backbone(backbone, own)
    probe = Checked(forward)
    group = toy_group(DATASET, "der", MEMBERS, backbone=backbone, epochs=1)
    state = Trainer(group, CPU, probes=ProbeSet({"gradients": probe})).train(states.fresh(group, CPU))
    assert len(probe.pairs) == len(MEMBERS) * 2 * 2  # tasks 2 and 3, at the beginning and the end
    for found, expected in probe.pairs:
        np.testing.assert_allclose(found, expected, atol=1e-9)
    assert any(min(found) < 0 for found, _ in probe.pairs)
    row = state.measured[1][0]
    assert (row["task"], row["epoch"], row["layers"]) == (2, 0, layers)


def test_channels_without_a_gradient_are_left_out() -> None:
    a = torch.tensor([[[3.0, 0, 1], [0, 0, 2]], [[0, 0, 0], [0, 0, 0]]])  # two members, two channels of three
    b = torch.tensor([[[-3.0, 0, -1], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]]])
    first, second = channel_cosine(a, b, 1).tolist()
    assert first == pytest.approx(-1)
    assert np.isnan(second)
    of_outputs = channel_cosine(a, b, 2)[0]  # the last axis: (3,0)·(-3,0), 0, (1,2)·(-1,0)
    assert float(of_outputs) == pytest.approx((-1 - 1 / np.sqrt(5)) / 2)


def test_methods_that_keep_no_logits_are_refused() -> None:
    with pytest.raises(MdcgError, match="the probe gradients cannot look at replay: it keeps no logits"):
        probes_for(["gradients"], {("replay", "incremental"): METHODS["replay"]()})
