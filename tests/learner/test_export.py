"""Exported files compute what the learner does, for any number of images, and say what their outputs are."""

from __future__ import annotations

import errno
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import mdcg
from mdcg import MdcgError, export
from mdcg.export import Classifier, export_onnx, export_torch
from mdcg.header import Setup
from mdcg.models import BACKBONES, HEADS, Model, build_model, register_backbone
from mdcg.saved import SavedModel

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.2, 0.3)
SIDES = {"smallconv": 8, "resnet20": 8, "resnet18": 32, "mine": 8, "flat": 8}
EXPORTS = {"onnx": export_onnx, "pt2": export_torch}
ALWAYS = {  # every head once, on small networks; exporting takes a second or two, and the rest is slow
    ("smallconv", "cascaded-gates"),
    ("mine", "cascaded-gates-with-own"),
    ("flat", "simplex"),
    ("flat", "fixed"),
    ("flat", "incremental"),
    ("flat", "single-gate"),
    ("flat", "scalar-gates"),
    ("flat", "open-gates"),
    ("flat", "single-open-gate"),
    ("flat", "fitted-gates"),
    ("flat", "fitted-classifier"),
}


class UserNet(nn.Module):
    """With BatchNorm, a buffer that is not saved, a frozen layer and a size that depends on the batch."""

    mask: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3).requires_grad_(False)
        self.norm = nn.BatchNorm2d(6)
        self.linear = nn.Linear(6, 5)
        self.register_buffer("mask", torch.tensor([1.0, 0, 1, 1, 1]), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        found = torch.relu(self.norm(self.conv(images))).flatten(2).mean(2)
        features: Tensor = self.linear(found) * self.mask
        return features.view(len(images), 5)


class Flat(nn.Module):
    """One layer: soon exported."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64 * channels, 4)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.linear(images.flatten(1))
        return features


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_known", dict(BACKBONES._known))
    register_backbone("mine", UserNet)
    register_backbone("flat", Flat)


def trained(backbone: str, head: str, side: int = 8) -> Model:
    """Seven of nine classes learned in three tasks, in effect: nothing is left as it was made."""
    model = build_model(backbone, head, (3, side, side), [0], classes=9)
    for classes in (3, 2, 2):
        model.grow(classes)
    rng = torch.Generator().manual_seed(1)
    for name, value in model.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            value.copy_(torch.rand(value.shape, generator=rng) + 0.5)
        if "head.gates" in name:
            value.mul_(30)  # some gates are open, some closed
    return model


def small(backbone: str = "flat", head: str = "incremental") -> Classifier:
    return Classifier(trained(backbone, head), MEAN, STD, 7)


def pictures(count: int, side: int = 8) -> Tensor:
    rng = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=rng)


def probabilities(model: Model, images: Tensor) -> Tensor:
    """What `Learner.predict_proba` does, in plain words."""
    pixels = (images.double() / 255 - torch.tensor(MEAN).double()) / torch.tensor(STD).double()
    model.eval()
    with torch.no_grad():
        logits: Tensor = model(pixels.float().permute(0, 3, 1, 2)[None])
    return logits[0, :, :7].double().softmax(-1)


def runner(path: Path) -> Callable[[Tensor], Tensor]:
    if path.suffix == ".pt2":
        module: Callable[[Tensor], Tensor] = torch.export.load(path).module()
        return module
    session = onnxruntime.InferenceSession(path)
    return lambda images: torch.from_numpy(session.run(["probabilities"], {"images": images.numpy()})[0])


def metadata(path: Path) -> dict[str, str]:
    if path.suffix == ".pt2":
        found = {"classes": ""}  # an empty one is not filled
        torch.export.load(path, extra_files=found)
        return found
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def combinations() -> Iterator[Any]:
    for kind in EXPORTS:
        for backbone in SIDES:
            for head in HEADS.names():
                quick = (backbone, head) in ALWAYS and (kind == "onnx" or backbone == "smallconv")
                yield pytest.param(backbone, head, kind, marks=() if quick else pytest.mark.slow)


def test_every_head_is_always_tested() -> None:
    assert {head for _, head in ALWAYS} == set(HEADS.names())


@pytest.mark.parametrize(("backbone", "head", "kind"), list(combinations()))
def test_a_file_computes_what_the_learner_does(backbone: str, head: str, kind: str, tmp_path: Path) -> None:
    side, path = SIDES[backbone], tmp_path / f"model.{kind}"
    model = trained(backbone, head, side)
    EXPORTS[kind](Classifier(model, MEAN, STD, 7), path, (3, side, side), [f"class {n}" for n in range(7)])
    run = runner(path)
    for count in (1, 5, 256):
        images = pictures(count, side)
        found, expected = run(images), probabilities(model, images)
        assert found.dtype == torch.float32
        assert found.shape == (count, 7)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    assert run(pictures(0, side)).shape == (0, 7)
    assert sorted(tmp_path.iterdir()) == [path]
    content = path.read_bytes()
    assert str(Path(mdcg.__file__).parent).encode() not in content  # nor anything else of this machine
    assert b"test_export.py" not in content


def test_the_classifier_is_the_learner() -> None:
    model = trained("smallconv", "cascaded-gates").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    classifier = Classifier(model, MEAN, STD, 7)
    names = tuple("abcdefghi")
    setup = Setup("smallconv", "cascaded-gates", {}, 0, (3, 8, 8), MEAN, STD, seed=0)
    saved = SavedModel(setup, names[:7], model)
    images = pictures(20)
    found = classifier(images)
    assert not found.requires_grad
    np.testing.assert_allclose(found.numpy(), saved.probabilities(images), rtol=0, atol=1e-5)
    classifier.head.classifier.weight.zero_()  # a copy of its own
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("backbone", ["smallconv", "mine"])
def test_a_model_of_another_precision(backbone: str) -> None:
    model = trained(backbone, "cascaded-gates")
    images = pictures(5)
    expected = probabilities(model, images)
    found = Classifier(model.double(), MEAN, STD, 7)(images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_a_user_s_module_is_exported_as_it_is() -> None:
    model = trained("mine", "incremental")
    own = Classifier(model, MEAN, STD, 7).backbone
    assert isinstance(own, UserNet)
    assert all(value.device.type == "cpu" for value in (*own.parameters(), *own.buffers()))
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(own(x), model.eval().backbone(x[None])[0])


def test_closed_gates(tmp_path: Path) -> None:
    """Where a gate is shut, log(sigmoid(x)) would be minus infinity and the probabilities no numbers."""
    model = trained("flat", "cascaded-gates")
    with torch.no_grad():
        model.head.get_submodule("gates").get_parameter("bias")[:, ::2] = -1000
    export_onnx(Classifier(model, MEAN, STD, 7), tmp_path / "a.onnx", (3, 8, 8), "abcdefg")
    found = runner(tmp_path / "a.onnx")(pictures(5))
    torch.testing.assert_close(found.double(), probabilities(model, pictures(5)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", EXPORTS)
def test_a_file_says_what_it_is(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, names = tmp_path / f"new/model.{kind}", ["kauz", "eule", "möwe", "梟", '"', "", "a b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EXPORTS[kind](small(), str(path), (3, 8, 8), names)
    assert capfd.readouterr() == ("", "")
    found = metadata(path)
    assert json.loads(found["classes"]) == names
    assert json.loads(found["shape"]) == [8, 8, 3]
    assert "(n, 8, 8, 3)" in found["description"]
    EXPORTS[kind](small(), path, (3, 8, 8), names)  # it may be written again
    other = next(one for one in EXPORTS if one != kind)
    edited = path.read_bytes() + b"mine"
    for content, written in ((path.read_bytes(), other), (edited, kind), (edited[: len(edited) // 2], kind)):
        path.write_bytes(content)
        with pytest.raises(MdcgError, match="is there already, and is not a"):
            EXPORTS[written](small(), path, (3, 8, 8), names)
        assert path.read_bytes() == content


def test_wrong_number_of_names(tmp_path: Path) -> None:
    for written in EXPORTS.values():
        with pytest.raises(MdcgError, match="knows 7 classes, but 2 names are given"):
            written(small(), tmp_path / "a", (3, 8, 8), ["a", "b"])


def test_one_member_only() -> None:
    with pytest.raises(MdcgError, match="made of one member, not of 2"):
        Classifier(build_model("flat", "incremental", (3, 8, 8), [0, 1]), MEAN, STD, 7)


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_missing_package(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = small()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MdcgError, match=rf"needs {package}, which is not installed: pip install 'mdcg\[export\]'"):
        export_onnx(classifier, tmp_path / "a.onnx", (3, 8, 8), "abcdefg")


def test_without_onnxruntime_a_file_is_written_unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = small()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    export_onnx(classifier, tmp_path / "a.onnx", (3, 8, 8), "abcdefg")
    monkeypatch.undo()
    torch.testing.assert_close(runner(tmp_path / "a.onnx")(pictures(5)), classifier(pictures(5)))


@pytest.mark.parametrize("kind", EXPORTS)
def test_a_wrong_file_is_not_left_behind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, classifier = tmp_path / f"a.{kind}", small()
    path.write_bytes(b"what was there before")
    traced = export._traced

    def another(classifier: Classifier, shape: tuple[int, int, int]) -> Any:
        return traced(Classifier(trained("flat", "simplex"), MEAN, STD, 7), shape)

    monkeypatch.setattr(export, "_traced", another)
    with pytest.raises(MdcgError, match=r"differ by up to 0\.\d+\. Nothing was written"):
        EXPORTS[kind](classifier, path, (3, 8, 8), "abcdefg", force=True)
    assert path.read_bytes() == b"what was there before"
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", EXPORTS)
def test_full_disk(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: BinaryIO, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    classifier = small()
    monkeypatch.setattr("mdcg.files._write", full)
    with pytest.raises(MdcgError, match="No space left on device; make room"):
        EXPORTS[kind](classifier, tmp_path / f"a.{kind}", (3, 8, 8), "abcdefg")
    assert not list(tmp_path.iterdir())


def test_unwritable_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MdcgError, match=r"cannot write .*; make room or choose a writable folder"):
        export_torch(small(), tmp_path / "file/a.pt2", (3, 8, 8), "abcdefg")


class Undecided(Flat):
    """Another network for one number of images."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (2 if len(images) == 256 else 1)


class Singular(Flat):
    """An operation that ONNX does not know."""

    def forward(self, images: Tensor) -> Tensor:
        values: Tensor = torch.linalg.svdvals(super().forward(images).view(-1, 2, 2))
        return values


@pytest.mark.parametrize(("kind", "network"), [("onnx", Undecided), ("pt2", Undecided), ("onnx", Singular)])
def test_a_network_that_cannot_be_exported(
    kind: str, network: type[nn.Module], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    register_backbone("hopeless", network)
    with pytest.raises(
        MdcgError, match=r"cannot be exported to .*: .*must not decide anything by the pixels"
    ) as raised:
        EXPORTS[kind](small("hopeless"), tmp_path / "a", (3, 8, 8), "abcdefg")
    assert len(str(raised.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_a_network_that_cannot_be_copied() -> None:
    class Locked(Flat):
        def __deepcopy__(self, memo: object) -> Locked:
            raise RuntimeError("no copies")

    register_backbone("locked", Locked)
    with pytest.raises(MdcgError, match="cannot be copied: no copies"):
        small("locked")
