"""Member networks against ordinary PyTorch networks with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdcg import errors
from mdcg.draws import Purpose, stream
from mdcg.errors import MdcgError
from mdcg.models import build_backbone, build_model, layers
from mdcg.models.backbones import BACKBONES, MEMBERED, backbone_names, register_backbone
from mdcg.models.features import FEATURES
from mdcg.models.layers import Conv2d
from mdcg.models.stacked import Stacked
from mdcg.train.optimizer import SGD


class PlainBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class PlainResNet(nn.Module):
    def __init__(self, channels: int, widths: Sequence[int], blocks: int, large: bool) -> None:
        super().__init__()
        self.large = large
        self.conv = nn.Conv2d(channels, widths[0], 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        layers, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                layers.append(PlainBlock(inputs, width, 2 if stage > 0 and block == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        return F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)


def rngs(seeds: Sequence[int]) -> list[np.random.Generator]:
    return [stream(seed, Purpose.BACKBONE) for seed in seeds]


PLAIN = {
    "resnet20": lambda: PlainResNet(3, (16, 32, 64), 3, large=False),
    "resnet32": lambda: PlainResNet(3, (16, 32, 64), 5, large=False),
    "resnet18": lambda: PlainResNet(3, (64, 128, 256, 512), 2, large=True),
}


@pytest.mark.parametrize("name", PLAIN)
def test_members_equal_plain_networks(name: str) -> None:
    """Features, gradients and running statistics of each member, in training and in evaluation."""
    side = 32 if name == "resnet18" else 16
    members = build_backbone(name, (3, side, side), rngs([0, 1])).double()
    x = torch.randn(2, 4, 3, side, side, dtype=torch.float64)
    plains = []
    for k in range(2):
        plain = PLAIN[name]().double()
        plain.load_state_dict({key: value[k] for key, value in members.state_dict().items()}, strict=False)
        plains.append(plain)
    out = members(x)
    named = dict(members.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(out.square().sum(), list(named.values())), strict=True))
    for k, plain in enumerate(plains):
        expected = plain(x[k])
        torch.testing.assert_close(out[k], expected, rtol=1e-9, atol=1e-9)
        expected.square().sum().backward()
        for key, parameter in plain.named_parameters():
            torch.testing.assert_close(gradients[key][k], parameter.grad, rtol=1e-7, atol=1e-9)
        for key, buffer in plain.named_buffers():
            if "num_batches" not in key:
                torch.testing.assert_close(members.state_dict()[key][k], buffer, rtol=1e-9, atol=1e-12)
    members.eval()
    for k, plain in enumerate(plains):
        torch.testing.assert_close(members(x)[k], plain.eval()(x[k]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "parameters", "features"),
    # Published sizes less the classifier: ResNet-20 272,474 − 650 (10 classes); ResNet-18 11,689,512 − 513,000.
    [("resnet20", 271_824, 64), ("resnet18", 11_176_512, 512)],
)
def test_sizes(name: str, parameters: int, features: int) -> None:
    backbone = build_backbone(name, (3, 32, 32), rngs([0]))
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    assert backbone.features == features


@pytest.mark.parametrize("name", sorted({*MEMBERED} - {FEATURES}))
def test_depth_and_member_axis(name: str) -> None:
    backbone = build_backbone(name, (3, 32, 32), rngs([3, 4, 5]))
    assert all(len(value) == 3 for value in backbone.state_dict().values())
    assert backbone(torch.zeros(3, 2, 3, 32, 32)).shape == (3, 2, backbone.features)
    if name.startswith("resnet"):
        convolutions = [key for key in backbone.state_dict() if "conv" in key]
        assert len(convolutions) + 1 == int(name.removeprefix("resnet").split("-")[0])  # and the classifier


def test_initial_weights_depend_on_the_seed_alone() -> None:
    together = build_model("resnet20", "cascaded-gates", (3, 32, 32), [7, 8])
    alone = build_model("resnet20", "cascaded-gates", (3, 32, 32), [8])
    for model in (together, alone):
        model.grow(2)
        model.grow(2)
    for key, value in alone.state_dict().items():
        assert torch.equal(together.state_dict()[key][1:], value)
    kernel = together.backbone.state_dict()["blocks.8.conv2.weight"]
    assert kernel.std().item() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.02)  # He et al., fan-in


@pytest.mark.parametrize("members", [1, 3])
def test_repeated_members(members: int) -> None:
    """All of them, one time after the other, in memory as they were; and on their own from then on."""
    model = build_model("resnet20", "cascaded-gates", (3, 32, 32), range(members))
    model.grow(2)
    model.grow(2)
    wide = model.repeated(2)
    assert wide.seeds == (*range(members), *range(members))
    for name, value in model.state_dict(keep_vars=True).items():
        again = wide.state_dict(keep_vars=True)[name]
        assert torch.equal(again, torch.cat([value, value])), name
        assert again.stride()[1:] == value.stride()[1:], name
        assert again.requires_grad == value.requires_grad
    convs = [module for module in wide.modules() if isinstance(module, Conv2d)]
    assert all(conv.taps().data_ptr() == conv.weight.data_ptr() for conv in convs)  # no copy is made
    with torch.no_grad():
        wide.head.classifier.weight.zero_()
    assert model.head.classifier.weight.any()
    x = torch.randn(2 * members, 2, 3, 32, 32)
    assert wide(x).shape == (2 * members, 2, 4)


def user_net(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    )


@pytest.fixture
def _forget_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_known", dict(BACKBONES._known))


@pytest.mark.usefixtures("_forget_registrations")
def test_any_module_can_be_a_backbone() -> None:
    register_backbone("mine", user_net)
    stacked = build_backbone("mine", (3, 8, 8), rngs([0, 1, 2]))
    alone = build_backbone("mine", (3, 8, 8), rngs([1]))
    assert stacked.features == 5
    x = torch.randn(3, 4, 3, 8, 8)
    plain = user_net(3)
    state = {key.replace("__", "."): value[1] for key, value in stacked.state_dict().items()}
    plain.load_state_dict(state)
    assert torch.equal(stacked.state_dict()["0__weight"][1], alone.state_dict()["0__weight"][0])
    torch.testing.assert_close(stacked(x)[1], plain(x[1]))
    for key, buffer in plain.named_buffers():  # running statistics, after one training pass of both
        torch.testing.assert_close(stacked.state_dict()[key.replace(".", "__")][1], buffer)
    torch.testing.assert_close(stacked.eval()(x)[1], plain.eval()(x[1]))


@pytest.mark.usefixtures("_forget_registrations")
@pytest.mark.parametrize(
    ("factory", "complaint"),
    [
        (lambda c: nn.Sequential(user_net(c), nn.Dropout()), "no dropout"),
        (lambda c: nn.Conv2d(c, 4, 3), r"must give \(2, features\)"),
        (lambda c: nn.Linear(7, 2), "failed on images of shape"),
        (lambda c: nn.BatchNorm1d(c), "failed on images of shape"),
        (lambda: user_net(3), "called with the number of channels"),
        (lambda c: None, "must return an nn.Module"),
    ],
)
def test_unfit_backbones_are_refused(factory: object, complaint: str) -> None:
    register_backbone("unfit", factory)  # type: ignore[arg-type]
    with pytest.raises(MdcgError, match=complaint):
        build_backbone("unfit", (3, 8, 8), rngs([0]))


@pytest.mark.usefixtures("_forget_registrations")
def test_frozen_parameters_stay() -> None:
    def half_frozen(channels: int) -> nn.Module:
        net = user_net(channels)
        net[0].requires_grad_(False)  # type: ignore[index]
        return net

    register_backbone("frozen", half_frozen)
    model = build_model("frozen", "incremental", (3, 8, 8), [0, 1])
    model.grow(2)
    optimizer = SGD(0.1, 0.8)
    optimizer.follow(model.named_parameters())
    assert "backbone.0__weight" not in optimizer.velocity
    assert "backbone.5__weight" in optimizer.velocity
    torch.autograd.grad(model.logits(torch.randn(2, 4, 3, 8, 8)).sum(), optimizer.parameters)


class Tied(nn.Module):
    """Two layers with the same weights."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64 * channels, 64 * channels), nn.Linear(64 * channels, 64 * channels)
        self.second.weight = self.first.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.second(self.first(images.flatten(1)))
        return features


@pytest.mark.usefixtures("_forget_registrations")
def test_tied_weights_stay_tied() -> None:
    register_backbone("tied", Tied)
    stacked = build_backbone("tied", (3, 8, 8), rngs([0, 1]))
    assert isinstance(stacked, Stacked)
    x, state = torch.randn(2, 4, 3, 8, 8), stacked.state_dict()
    for k in range(2):
        hidden = x[k].flatten(1) @ state["first__weight"][k].T + state["first__bias"][k]
        expected = hidden @ state["first__weight"][k].T + state["second__bias"][k]
        torch.testing.assert_close(stacked(x)[k], expected)
        alone = stacked.member(k)
        torch.testing.assert_close(alone(x[k]), expected)
        assert isinstance(alone, Tied)
        assert alone.first.weight is alone.second.weight


class Photographer(nn.Module):
    """A network as it is downloaded: features, and what tells 1,000 classes apart."""

    def __init__(self, name: str, classifier: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 16), nn.ReLU())
        self.add_module(name, classifier)
        self.last = name

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.get_submodule(self.last)(self.features(x))
        return answers


@pytest.mark.parametrize(
    ("name", "classifier", "layer"),
    [
        ("fc", lambda: nn.Linear(16, 1000), "'fc'"),
        ("classifier", lambda: nn.Sequential(nn.Dropout(0), nn.Linear(16, 1000)), "'classifier.1'"),
        ("fc", nn.Identity, ""),
        ("projection", lambda: nn.Linear(16, 1000), ""),
        ("head", lambda: nn.Sequential(nn.Linear(16, 8), nn.Flatten(), nn.ReLU(), nn.AdaptiveAvgPool1d(4)), ""),
    ],
)
def test_a_classifier_that_is_left_on(
    name: str,
    classifier: Callable[[], nn.Module],
    layer: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answers about other classes would be the features: whoever trains with it is told, once."""
    monkeypatch.setattr(errors, "_told", set())
    Stacked(lambda _: Photographer(name, classifier()), (3, 8, 8), [0], trained=False)  # as for a model that is read
    assert not caplog.records
    for seeds in ([0], [1, 2]):
        Stacked(lambda _: Photographer(name, classifier()), (3, 8, 8), seeds)
    told = [record.message for record in caplog.records]
    assert len(told) == bool(layer)
    if layer:
        assert f"its own classifier, {layer}, whose 1,000 outputs are taken for features" in told[0]
        assert f"network.{name} = torch.nn.Identity()" in told[0]


def test_built_in_names_are_taken() -> None:
    with pytest.raises(MdcgError, match="already a backbone named 'resnet20'"):
        register_backbone("resnet20", user_net)


def test_unknown_backbone() -> None:
    with pytest.raises(MdcgError, match="did you mean 'smallconv'"):
        build_backbone("smalconv", (3, 8, 8), rngs([0]))


def test_features_are_handed_on() -> None:
    backbone = build_backbone(FEATURES, (5, 1, 1), rngs([3, 4]))
    images = torch.randn(2, 7, 5, 1, 1)
    assert backbone.features == 5
    assert (backbone(images) == images[..., 0, 0]).all()
    assert not list(backbone.parameters())
    assert FEATURES not in backbone_names()


@pytest.mark.parametrize("many", [1, 10**9], ids=["side by side", "one after the other"])
def test_convolutions_are_initialised_as_he_et_al(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Normal with variance 2 / fan, by each member's own generator, however many weights there are."""
    monkeypatch.setattr(layers, "MANY", many)
    for fan, weights in (("in", 9 * 6), ("out", 9 * 10)):
        conv = Conv2d(3, 6, 10, 3, fan=fan)
        conv.initialise([np.random.default_rng(member) for member in range(3)])
        for member in range(3):
            drawn = np.random.default_rng(member).standard_normal((10, 6, 3, 3), np.float32)
            expected = torch.from_numpy(np.float32(np.sqrt(2 / weights)) * drawn)
            torch.testing.assert_close(conv.weight.detach()[member], expected, rtol=1e-6, atol=0)
