"""`check_backbone`: ours pass, and each check fails for a backbone that is wrong in just this."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mdcg.models.backbones import BACKBONES, MEMBERED
from mdcg.models.resnet import Projected, ResNet
from mdcg.testing import check_backbone

LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "resnet18-1000")]


@pytest.mark.parametrize("backbone", ["smallconv", "resnet20", *LARGE])  # the others: just deeper
def test_our_backbones(backbone: str) -> None:
    check_backbone(backbone)


def test_a_narrow_resnet18(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stem and the projection of the large ones, and fewer weights."""

    def narrow(members: int, channels: int) -> Projected:
        return Projected(ResNet(members, channels, (8, 16), 2, large_stem=True, fan="out"), 20)

    monkeypatch.setitem(MEMBERED, "narrow", narrow)
    check_backbone("narrow")


def net(channels: int, *more: nn.Module) -> nn.Sequential:
    layers = [nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *more)


def seedless(channels: int) -> nn.Module:
    made = net(channels)
    for parameter in made.parameters():
        nn.init.constant_(parameter, 0.1)
    return made


def frozen(channels: int) -> nn.Module:
    return seedless(channels).requires_grad_(False)


def drawn_by_numpy(channels: int) -> nn.Module:
    made = net(channels)
    nn.init.constant_(made[0].bias, np.random.rand())  # type: ignore[arg-type]  # noqa: NPY002
    return made


def with_map(channels: int) -> nn.Module:
    return nn.Conv2d(channels, 4, 3)


def with_dropout(channels: int) -> nn.Module:
    return net(channels, nn.Dropout())


class WithSpare(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net, self.spare = net(channels), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return features


class WithTensor(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net, self.scale = net(channels), torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x) * self.scale
        return features


class Infinity(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = net(channels)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return (0 * features).log()


class Forgetful(nn.Module):
    """Counts its calls, and does not save the count."""

    calls = 0

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = net(channels)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        features: Tensor = self.net(x)
        return features * (1 + 0.1 * self.calls)


def test_backbones_of_ones_own() -> None:
    check_backbone(net)
    check_backbone(net, shape=(3, 16, 16))
    check_backbone(seedless, pretrained=True)
    check_backbone(frozen)
    with BACKBONES.temporary("mine", net):
        check_backbone("mine")
    assert not any("checked" in name or name == "mine" for name in BACKBONES.names())


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        (seedless, "it ignores its seed"),
        (drawn_by_numpy, "differs between two networks of the same seed; draw weights from torch's generator"),
        (with_map, "it must give (2, features)"),
        (with_dropout, "no dropout"),
        (WithSpare, "no gradient reaches 'spare.weight'"),
        (WithTensor, "'scale' is a tensor that is neither saved nor moved; make it a buffer"),
        (Infinity, "its features are not finite"),
        (Forgetful, "a member comes to another result in company than alone"),
        ("nett", "there is no such backbone"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_backbones(backbone: Any, said: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_backbone(backbone)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
