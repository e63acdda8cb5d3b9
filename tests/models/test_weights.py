"""Initial weights from files, against a ResNet-18 written once more with torchvision's names."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import mdcg
from mdcg.draws import Purpose, stream
from mdcg.errors import MachineError, MdcgError
from mdcg.models import build_backbone
from mdcg.models.backbones import BACKBONES
from mdcg.models.weights import WeightsFile, digest_of
from tests.conftest import Cli


class Block(nn.Module):
    """He et al., Figure 2, with torchvision's names."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        beside = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + beside)


class ResNet(nn.Module):
    """Table 1 of the paper, from 18 layers on."""

    def __init__(self, channels: int = 3, blocks: tuple[int, ...] = (2, 2, 2, 2)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            parts = [Block(inputs if not n else width, width, 2 if stage and not n else 1) for n in range(count)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*parts))
            inputs = width
        self.fc = nn.Linear(512, 1000)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(x))
        return logits


def pretrained(**words: Any) -> ResNet:
    """With random weights and statistics, none of them what a fresh network has."""
    torch.manual_seed(0)
    net = ResNet(**words).eval()
    for name, value in net.state_dict().items():
        if "bn" in name or "downsample.1" in name:
            if value.dtype == torch.int64:
                value.fill_(7)
            elif "var" in name or "weight" in name:
                value.copy_(torch.rand_like(value) + 0.5)
            else:
                value.copy_(torch.randn_like(value) / 5)
    return net


def loaded(
    path: Path, name: str = "resnet18", shape: tuple[int, int, int] = (3, 64, 64), members: int = 2
) -> nn.Module:
    backbone = build_backbone(name, shape, [stream(seed, Purpose.BACKBONE) for seed in range(members)])
    WeightsFile.of(path).into(backbone)
    return backbone.eval()


IMAGES = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [("", "torch"), ("module.", "nested"), ("backbone.", "legacy"), ("model.encoder.", "safetensors")],
)
def test_a_resnet18_with_torchvisions_names(prefix: str, kind: str, tmp_path: Path) -> None:
    net, path = pretrained(), tmp_path / "resnet18"
    state = {f"{prefix}{name}": value for name, value in net.state_dict().items()}
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "nested":
        torch.save({"epoch": 3, "optimizer": {"state": {0: {"m": torch.ones(2)}}}, "state_dict": state}, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "torch")
    with torch.no_grad():
        found, wanted = loaded(path)(torch.stack([IMAGES, IMAGES + 1])), net.features(IMAGES)
    torch.testing.assert_close(found[0], wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], net.features(IMAGES + 1).detach(), rtol=1e-5, atol=1e-5)


def test_its_layer_of_1000_classes(tmp_path: Path) -> None:
    net = pretrained()
    torch.save(net.state_dict(), tmp_path / "net.pth")
    with torch.no_grad():
        found = loaded(tmp_path / "net.pth", "resnet18-1000", members=1)(IMAGES[None])[0]
        torch.testing.assert_close(found, net(IMAGES), rtol=1e-5, atol=1e-5)


def test_grey_images_are_seen_as_three_equal_channels(tmp_path: Path) -> None:
    net, grey = pretrained(), IMAGES[:, :1]
    torch.save(net.state_dict(), tmp_path / "net.pth")
    with torch.no_grad():
        found = loaded(tmp_path / "net.pth", shape=(1, 64, 64), members=1)(grey[None])[0]
        torch.testing.assert_close(found, net.features(grey.expand(-1, 3, -1, -1)), rtol=1e-5, atol=1e-5)


def test_what_mdcg_saved_can_be_begun_with(tmp_path: Path) -> None:
    result = mdcg.run(scenario="digits-2", method="naive", epochs=1, out=tmp_path / "runs", quiet=True)
    result.learner.save(tmp_path / "model.safetensors")
    backbone = loaded(tmp_path / "model.safetensors", "smallconv", (1, 8, 8), members=3)
    for key, value in result.learner.saved_.model.backbone.state_dict().items():
        assert all(torch.equal(own, value[0]) for own in backbone.state_dict()[key])


def test_weights_of_a_users_network(tmp_path: Path) -> None:
    def net(channels: int) -> nn.Module:
        parts = [nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6)]
        return nn.Sequential(*parts)

    trained = net(3).train()
    trained(torch.randn(9, 3, 8, 8))
    torch.save({f"module.{name}": value for name, value in trained.state_dict().items()}, tmp_path / "net.pth")
    x = torch.randn(5, 3, 8, 8)
    with BACKBONES.temporary("users", net), torch.no_grad():
        backbone = loaded(tmp_path / "net.pth", "users", (3, 8, 8))
        torch.testing.assert_close(backbone(torch.stack([x, x]))[1], trained.eval()(x))


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    state = pretrained().state_dict()
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "b.safetensors")
    first = WeightsFile.of(tmp_path / "a.pth")
    assert first.digest == WeightsFile.of(tmp_path / "b.safetensors").digest
    state["conv1.weight"][0, 0, 0, 0] += 1
    torch.save(state, tmp_path / "a.pth")
    assert WeightsFile.of(tmp_path / "a.pth").digest != first.digest
    with pytest.raises(MdcgError, match="have changed since they were named"):
        first.into(build_backbone("resnet18", (3, 64, 64), [stream(0, Purpose.BACKBONE)]))


def without(*names: str) -> dict[str, Tensor]:
    return {key: value for key, value in pretrained().state_dict().items() if not key.startswith(names)}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (lambda: without("bn1", "layer4.1.conv2"), "lack 'bn1.weight', 'bn1.bias', 'bn1.running_mean' and 2 more"),
        (
            lambda: {"a": torch.ones(1)},
            "lack 'conv1.weight', 'bn1.weight', 'bn1.bias' and 97 more of the backbone; they",
        ),
        (lambda: pretrained(blocks=(3, 4, 6, 3)).state_dict(), "are of another network: the backbone has no 'layer1.2"),
        (
            lambda: without("conv1") | {"conv1.weight": torch.ones(64, 4, 7, 7)},
            r"do not fit the backbone: 'conv.weight' is \(64, 4, 7, 7\) and should be \(64, 3, 7, 7\)",
        ),
    ],
)
def test_weights_that_do_not_fit(state: Any, said: str, tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "net.pth")
    with pytest.raises(MdcgError, match=said):
        loaded(tmp_path / "net.pth")


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('this was run')",))


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04 and no archive", b"\x80\x02\x8a\x0a"])
def test_files_that_are_no_weights(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(MdcgError, match="is no file of weights"):
        WeightsFile.of(tmp_path / "file")


def test_weights_that_unpack_to_more_than_the_file(tmp_path: Path) -> None:
    """PyTorch itself compresses nothing, but unpacks what somebody else has compressed."""
    torch.save({"conv.weight": torch.zeros(10**6)}, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain,
        zipfile.ZipFile(tmp_path / "packed.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert (tmp_path / "packed.pth").stat().st_size < 10_000
    assert torch.load(tmp_path / "packed.pth")["conv.weight"].numel() == 10**6
    with pytest.raises(MdcgError, match="is no file of weights"):
        WeightsFile.of(tmp_path / "packed.pth")
    assert WeightsFile.of(tmp_path / "plain.pth").digest


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_weights_that_do_not_fit_into_memory(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    torch.save({"conv.weight": torch.zeros(3)}, tmp_path / "a.pth")
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(MachineError, match=r"not enough memory for the weights .*a.pth"):
        WeightsFile.of(tmp_path / "a.pth")


def test_nothing_else_is_read_or_run(tmp_path: Path) -> None:
    torch.save({"state_dict": pretrained().state_dict(), "more": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(MdcgError, match="holds more than tensors, which is not read"):
        WeightsFile.of(tmp_path / "evil.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(MdcgError, match="holds no weights by name"):
        WeightsFile.of(tmp_path / "list.pth")
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(MdcgError, match=r"cannot read the weights .*; give the path"):
            WeightsFile.of(place)
    with pytest.raises(MdcgError, match="'~nobody-here/x' cannot be a path"):
        WeightsFile.of("~nobody-here/x")


def test_runs_that_begin_with_weights(cli: Cli, runs: Path, tmp_path: Path) -> None:
    """They are part of a run's identity by their content, wherever the file lies."""
    backbone = build_backbone("smallconv", (1, 8, 8), [stream(9, Purpose.BACKBONE)])
    state = {key: value[0].contiguous() for key, value in backbone.state_dict().items()}
    save_file(state, tmp_path / "one.safetensors")
    torch.save(state, tmp_path / "same.pth")
    asked: dict[str, Any] = {
        "scenario": "digits-2",
        "method": "gdumb",
        "memory": 40,
        "epochs": 1,
        "out": runs,
        "quiet": True,
    }
    begun = mdcg.run(**asked, seeds="0-1", weights=tmp_path / "one.safetensors", backbone_lr=0)
    names = [record.spec.name for record in begun.records]
    for learner in begun.learners:  # GDumb starts anew with every task: with these weights each time
        for key, value in state.items():
            assert torch.equal(learner.saved_.model.backbone.state_dict()[key][0], value)
    again = mdcg.run(**asked, seeds="0-1", weights=tmp_path / "same.pth", backbone_lr=0)
    assert [record.spec.name for record in again.records] == names
    assert begun.records[0].spec.weights == WeightsFile.of(tmp_path / "same.pth").digest
    plain = mdcg.run(**asked)
    assert plain.records[0].spec.weights is None
    assert plain.records[0].spec.name not in names
    words = ["run", "--scenario", "digits-2", "--method", "gdumb", "--memory", 40, "--epochs", 1, "--out", runs]
    told = cli(*words, "--seeds", "0-1", "--weights", tmp_path / "same.pth", "--backbone-lr", 0)
    assert told.code == 0
    assert "2 of 2 runs were already finished" in told.err
    recipe = runs / names[0] / "recipe.yaml"
    assert "cannot read the weights" in cli("run", "--recipe", recipe, "--out", runs).sentence()
    assert cli("run", "--recipe", recipe, "--out", runs, "--weights", tmp_path / "same.pth").code == 0
    state["convs.0.weight"] = torch.ones(2, 2)
    save_file(state, tmp_path / "one.safetensors")
    assert "do not fit the backbone" in cli(*words, "--weights", tmp_path / "one.safetensors").sentence()


def test_a_digest_is_of_values_and_not_of_how_they_lie_in_memory() -> None:
    weight = torch.arange(12.0).view(3, 4)
    plain = digest_of({"a": weight, "b": torch.ones(2)})
    assert digest_of({"b": torch.ones(2), "a": weight.t().contiguous().t()}) == plain
    others = [
        {"a": weight + 1, "b": torch.ones(2)}, {"c": weight, "b": torch.ones(2)}, {"a": weight},
        {"a": weight.view(4, 3), "b": torch.ones(2)}, {"a": weight.double(), "b": torch.ones(2)},
    ]  # fmt: skip
    assert len({plain, *map(digest_of, others)}) == 6
