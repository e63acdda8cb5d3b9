"""Backbones of one's own: by name, as objects, as package.module:function; and what their pixels are normalised by."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mdcg
from mdcg.data.normalise import IMAGENET, normalised, statistics
from mdcg.draws import Purpose, stream
from mdcg.errors import MdcgError
from mdcg.models import BACKBONES, backbone_name, build_backbone
from mdcg.runs.fingerprint import fingerprint
from tests.conftest import Cli, toy_dataset

CODE = """
from torch import nn

print("imported")


def tiny(channels):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def broken(channels):
    raise RuntimeError("it broke")


net, number = tiny(1), 3
"""
QUICK: dict[str, Any] = {"scenario": "digits-2", "method": "naive", "epochs": 1, "quiet": True}


@pytest.fixture(autouse=True)
def _forget_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_known", dict(BACKBONES._known))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's, in the folder of the command."""
    name = f"networks_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def tiny(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2), nn.Flatten())


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(64, 5), scale

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.linear(x.flatten(1)) * self.scale
        return features


def built(name: str, members: int = 2) -> nn.Module:
    return build_backbone(name, (1, 8, 8), [stream(seed, Purpose.BACKBONE) for seed in range(members)])


def test_a_module_with_its_weights() -> None:
    module = tiny(1)
    name = backbone_name(module, may_import=False)
    assert name.startswith("torch.nn.modules.container.Sequential-")
    assert backbone_name(module, may_import=False) == name
    first = module[0].weight.detach().clone()  # type: ignore[index]
    with torch.no_grad():
        module[0].weight.add_(1)  # type: ignore[index]
    for own in built(name).state_dict()["0__weight"]:  # of every seed, as it was when it was given
        assert torch.equal(own, first)
    assert backbone_name(module, may_import=False) != name  # it is another one now
    module.eval()
    assert backbone_name(module.double(), may_import=False) in BACKBONES.names()


def test_modules_that_differ_in_a_plain_value() -> None:
    one, other = Scaled(2.0), Scaled(3.0)
    other.load_state_dict(one.state_dict())
    names = [backbone_name(module, may_import=False) for module in (one, other)]
    x = torch.randn(1, 4, 1, 8, 8)
    two, three = (built(name, 1)(x) for name in names)
    torch.testing.assert_close(two / 2, three / 3)
    codes = {fingerprint("naive", "incremental", name, 1) for name in names}
    assert len(codes) == 2


def test_functions_by_the_name_that_one_would_import_them_by() -> None:
    assert backbone_name(tiny, may_import=False) == f"{__name__}:tiny"
    assert backbone_name(f"{__name__}:tiny", may_import=False) == f"{__name__}:tiny"
    assert BACKBONES[f"{__name__}:tiny"] is tiny
    made: list[Callable[[int], nn.Module]] = [lambda c: tiny(c), lambda c: nn.Flatten(), functools.partial(tiny)]
    names = [backbone_name(one, may_import=False) for one in made]
    assert names[1] == f"{names[0]}-2"  # two lambdas
    assert names[2] == f"{__name__}:tiny-2"
    assert [backbone_name(one, may_import=False) for one in made] == names
    mdcg.register_backbone("mine", Scaled)
    assert backbone_name(Scaled, may_import=False) == "mine"


def test_code_is_imported_only_for_those_who_may(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{package}:tiny"
    sys.path.append(".")
    for meant in (lambda: backbone_name(text, may_import=False), lambda: built(text)):
        with pytest.raises(MdcgError, match=rf"has not been given.* backbone= in Python or --backbone {text}"):
            meant()
    assert package not in sys.modules
    assert capsys.readouterr().out == ""
    assert backbone_name(text, may_import=True) == text
    assert backbone_name(text, may_import=False) == text
    assert built(text).features == 16
    assert built(backbone_name(f"{package}:net", may_import=True)).features == 16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smalconv", "did you mean 'smallconv'"),
        ("no.such:thing", r"cannot be imported \(No module named 'no'\); write package.module:function"),
        ("torch.nn:Nothing", "cannot be imported"),
        (":tiny", "cannot be imported"),
        ("math:pi", "is a float, not a function that makes an nn.Module"),
        ("of.a.module.Net-0123456789", "backbone= in Python or --backbone package.module:function"),
    ],
)
def test_names_that_mean_nothing(text: str, said: str) -> None:
    with pytest.raises(MdcgError, match=said):
        backbone_name(text, may_import=True)


def test_things_that_are_no_backbone() -> None:
    with pytest.raises(MdcgError, match=r"a name, an nn.Module, or a function that makes one, not int"):
        backbone_name(3, may_import=True)  # type: ignore[arg-type]
    with pytest.raises(MdcgError, match="LazyLinear given as backbone cannot be copied"):
        backbone_name(nn.LazyLinear(3), may_import=False)


def test_runs_with_a_module(runs: Path) -> None:
    """The same module is the same run; its class and digest are what a file says of it, which brings no code."""
    torch.manual_seed(0)
    module = tiny(1)
    first = mdcg.run(**QUICK, backbone=module, out=runs, seeds="0-1")
    (again,) = mdcg.run(**QUICK, backbone=module, out=runs).records
    assert again.spec.name == first.records[0].spec.name
    changed = tiny(1)
    assert mdcg.run(**QUICK, backbone=changed, out=runs).records[0].spec.name != again.spec.name
    file = runs / again.spec.name / "model.safetensors"
    images = first.dataset.test.images[:20]
    predicted = mdcg.Learner.load(file).predict_proba(images)
    assert np.array_equal(predicted, first.learner.predict_proba(images))
    del BACKBONES._known[again.spec.backbone]
    with pytest.raises(MdcgError, match=r"Sequential-\w+' is code that this process has not been given"):
        mdcg.Learner.load(file)


def test_runs_with_code_of_ones_own(package: str, cli: Cli, runs: Path) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--out", runs]
    assert cli(*words, "--backbone", f"{package}:tiny").code == 0
    (folder,) = runs.glob("digits-2*")
    assert mdcg.run(**QUICK, backbone=f"{package}:tiny", out=runs).records[0].spec.name == folder.name
    sys.modules.pop(package)
    BACKBONES._known.pop(f"{package}:tiny")
    recipe = folder / "recipe.yaml"
    said = cli("run", "--recipe", recipe, "--out", runs).sentence()
    assert f"recipe.yaml, line {1 + recipe.read_text().splitlines().index(f'backbone: {package}:tiny')}: " in said
    assert package not in sys.modules
    told = cli("run", "--recipe", recipe, "--out", runs, "--backbone", f"{package}:tiny")
    assert "1 of 1 runs were already finished" in told.err
    assert "it broke" in cli(*words, "--backbone", f"{package}:broken").sentence()
    assert "cannot be imported" in cli(*words, "--backbone", f"{package}:none").sentence()


def test_normalisation() -> None:
    own = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert statistics("data", own) == own
    assert statistics("imagenet", own) == IMAGENET == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert statistics("imagenet", ((0.1,), (0.2,))) == ((0.449,), (0.226,))
    assert statistics(([0, 0, 0], [1, 1, 2]), own) == ((0.0, 0.0, 0.0), (1.0, 1.0, 2.0))
    for wrong, said in (
        (((0.5,), (0.5,)), "have 3 channels and the normalisation 1"),
        (((0.5,) * 3, (0.0,) * 3), "cannot normalise pixels"),
        ("imagnet", "did you mean 'imagenet'"),
    ):
        with pytest.raises(MdcgError, match=said):
            statistics(wrong, own)  # type: ignore[arg-type]
    dataset = toy_dataset([4, 4], channels=3)
    assert normalised(dataset, "data") == dataset
    assert (normalised(dataset, "imagenet").mean, normalised(dataset, "imagenet").std) == IMAGENET


def test_runs_with_imagenets_normalisation(cli: Cli, runs: Path) -> None:
    result = mdcg.run(**QUICK, normalise="imagenet", out=runs)
    assert (result.learner.saved_.setup.mean, result.learner.saved_.setup.std) == ((0.449,), (0.226,))
    plain = mdcg.run(**QUICK, normalise="data", out=runs)
    assert plain.learner.saved_.setup.mean == plain.dataset.mean
    assert plain.records[0].spec.name == mdcg.run(**QUICK, out=runs).records[0].spec.name
    assert plain.records[0].spec.name != result.records[0].spec.name
    words = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--out", runs]
    assert "1 of 1 runs were already finished" in cli(*words, "--normalise", "imagenet").err
    assert "'normalise' is wrong" in cli(*words, "--normalise", "cifar").sentence()


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/backbones.md, run as printed, in one process."""
    text = (Path(__file__).parents[2] / "docs" / "backbones.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    script: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(block, script)
    assert 0 <= script["result"].mean["ACC"] <= 100


class Uncopied(nn.Flatten):
    """What raises several lines, as PyTorch often does, or none at all."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def __deepcopy__(self, memo: object) -> nn.Module:
        raise RuntimeError(self.words)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise RuntimeError(self.words)


@pytest.mark.parametrize(("words", "said"), [("first.\nsecond\n", "first"), ("  ", "RuntimeError")])
def test_why_a_module_cannot_be_copied_in_one_line(words: str, said: str) -> None:
    with pytest.raises(MdcgError) as told:
        backbone_name(Uncopied(words), may_import=False)
    assert str(told.value) == (
        f"the Uncopied given as backbone cannot be copied ({said}); give a function that makes it."
    )
