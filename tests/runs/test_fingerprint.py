"""Code of a user's own that is edited: its runs are others then, and the older ones are found when it is undone."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.models.backbones import BACKBONES, MEMBERED
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.fingerprint import changed, fingerprint
from mdcg.runs.spec import RunSpec
from mdcg.testing.forked import Server
from tests.conftest import toy_dataset

METHOD = '''
from typing import ClassVar
from mdcg.methods import Method, cross_entropy
from own_parts import losses

class Base(Method):
    """Something to build on."""

    def loss(self, step):
        return SCALE * losses.current(step)

class Mine(Base):
    """Scaled cross-entropy."""

SCALE = 0.5
'''
LOSSES = """
from mdcg.methods import cross_entropy

def current(step):
    return cross_entropy(step.logits, step.labels)
"""
BACKBONE = """
from own_layers import hidden
from torch import nn

def net(channels):
    return nn.Sequential(nn.Flatten(), hidden(64 * channels), nn.ReLU())
"""
LAYERS = """
from torch import nn

def hidden(inputs):
    return nn.Linear(inputs, 16)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """As `pip install` leaves it: a method and a backbone, which the entry points name."""
    folder = tmp_path / "installed"
    files = {
        "own_parts/__init__.py": "",
        "own_parts/method.py": METHOD,
        "own_parts/losses.py": LOSSES,
        "own_net.py": BACKBONE,
        "own_layers.py": LAYERS,
        "own-1.dist-info/METADATA": "Name: own\nVersion: 1\n",
        "own-1.dist-info/entry_points.txt": "[mdcg.methods]\nmine = own_parts.method:Mine\n"
        "[mdcg.backbones]\nnet = own_net:net\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def with_packages_of(folder: Path) -> None:
    """To be called before a command."""
    sys.path.insert(0, str(folder))
    METHODS._entry_points_read = False  # the server has read them, before it forked
    sys.dont_write_bytecode = True  # which would be taken for that of a file edited within the same second


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def asked(server: Server, package: Path, runs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """In a new process."""
    words = [
        "run",
        "--scenario",
        "digits-2",
        "--epochs",
        "1",
        "--batch-size",
        "128",
        "--seeds",
        "0-1",
        "--out",
        runs,
        "--json",
        *more,
    ]
    done = server.run(*words, before=functools.partial(with_packages_of, package))
    assert done.returncode == 0, done.stderr
    return done


def losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    """Of every run, in its first epoch."""
    told = [Path(run["folder"], "result.json") for run in json.loads(done.stdout)["runs"]]
    return [json.loads(file.read_text())["history"][0]["loss"] for file in told]


def results(runs: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in runs.glob("*/result.json")}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("own_parts/method.py", "SCALE * losses", "SCALE * 0.1 * losses"),  # in a base class
        ("own_parts/method.py", "SCALE = 0.5", "SCALE = 0.1"),
        ("own_parts/losses.py", "return cross", "return 0.1 * cross"),  # in another file of the package
    ],
)
def test_an_edited_method(server: Server, package: Path, runs: Path, file: str, old: str, new: str) -> None:
    first = asked(server, package, runs, "--method", "mine")
    assert "has changed" not in first.stderr
    before = results(runs)
    edit(package / file, old, new)
    second = asked(server, package, runs, "--method", "mine")
    told = "the code of method 'mine' has changed since 2 finished runs were made; what is there is left as it is"
    assert second.stderr.count(told) == 1
    # Of losses, for after so few steps accuracies may be the same: its own is a tenth or a fifth of what it was.
    assert all(now < 0.5 * was for now, was in zip(losses(second), losses(first), strict=True))
    assert len(results(runs)) == 4
    assert before.items() <= results(runs).items()
    again = asked(server, package, runs, "--method", "mine")
    assert "2 of 2 runs were already finished" in again.stderr
    assert "has changed" not in again.stderr
    edit(package / file, new, old)
    undone = asked(server, package, runs, "--method", "mine")
    assert "2 of 2 runs were already finished" in undone.stderr
    assert json.loads(undone.stdout) == json.loads(first.stdout)
    assert len(results(runs)) == 4


def test_a_backbone_whose_helper_changed(server: Server, package: Path, runs: Path) -> None:
    """In another package: the weights that come of it tell."""
    words = ("--method", "naive", "--backbone", "net")
    first = asked(server, package, runs, *words)
    before = results(runs)
    edit(package / "own_layers.py", "16", "24")
    second = asked(server, package, runs, *words)
    assert "the code of backbone 'net' has changed since 2 finished runs were made" in second.stderr
    assert len(results(runs)) == 4
    edit(package / "own_layers.py", "24", "16")
    assert json.loads(asked(server, package, runs, *words).stdout) == json.loads(first.stdout)
    assert before.items() <= results(runs).items()
    edit(package / "own_net.py", "nn.ReLU()", "nn.Tanh()")  # the same weights
    assert "backbone 'net' has changed since 4 finished runs" in asked(server, package, runs, *words).stderr
    assert len(results(runs)) == 6


@pytest.mark.parametrize("method", METHODS.names())
def test_our_own_code_has_none(method: str) -> None:
    assert {fingerprint(method, head, backbone, 3) for head in HEADS.names() for backbone in MEMBERED} == {""}


def spec_of(**words: Any) -> RunSpec:
    (spec,) = make_recipe(**{"scenario": "digits-2", "memory": 20, **words}).resolve(toy_dataset([30] * 10))
    return spec


def typed(text: str, name: str = "Typed") -> Any:
    """As in a shell, where there is no source."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(text, scope)
    return scope[name]


TYPED = '''
from typing import ClassVar
from mdcg.methods import METHODS, cross_entropy

class Typed(METHODS["replay"]):
    """Typed."""

    share: float = 0.5
    kinds: ClassVar[tuple] = ("a", {"b", "c"})

    def loss(self, step):
        if step.old in {"some", "words", "in", "no", "order"}:
            return 0
        return sum([helped(self.share) for _ in range(2)]) * super().loss(step)

def helped(share):
    return 2 * share
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.5", "0.6"), ("2 * share", "3 * share"), ('"a"', '"x"'), ("range(2)", "range(3)"), ("super().loss", "abs")],
)
def test_code_without_a_file(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = []
    for text in (TYPED, TYPED + "\n# said\n", TYPED.replace(old, new)):
        monkeypatch.setitem(METHODS._known, "typed", typed(text))
        specs.append(spec_of(method="typed", set={"share": 0.5}))
    spec, same, other = specs
    assert spec == same
    assert changed(spec.code, other.code) == {"method"}
    assert len({spec.name, other.name}) == len({spec.group_key(), other.group_key()}) == 2
    assert other.model_copy(update={"code": spec.code}) == spec


def cells_of_a_notebook() -> None:
    """To be called before a command: prints the fingerprint after each cell."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    for text in (TYPED, TYPED, TYPED.replace("2 * share", "3 * share"), TYPED):
        shell.run_cell(text + "\n_ = METHODS.register('typed')(Typed)").raise_error()
        print(spec_of(method="typed").code)


def test_code_of_a_notebook(server: Server) -> None:
    """A cell that is run again is the same code, in this process and the next; one that was edited is not."""
    runs = [server.run("--version", before=cells_of_a_notebook) for _ in range(2)]
    first, again, edited, back = runs[0].stdout.splitlines()[:4]
    assert first == again == back != edited
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stderr.count("the method 'typed' is defined anew: its name now means the new one.") == 3


@pytest.mark.slow
def test_the_same_in_every_process() -> None:
    """Sets of words have another order in each."""
    code = "from tests.runs.test_fingerprint import *; METHODS.register('typed')(typed(TYPED)); "
    command = [sys.executable, "-c", code + "print(spec_of(method='typed').code)"]
    with METHODS.temporary("typed", typed(TYPED)):
        here = spec_of(method="typed").code
    there = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, check=True).stdout
    assert there.decode().strip() == str(here)


@dataclass
class Built:
    """A factory that is an object, and cannot be hashed."""

    width: int

    def __call__(self, channels: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, self.width))

    def method(self, channels: int) -> nn.Module:
        return self(channels)


@dataclass
class Sloped:
    """A factory whose settings change what is computed, and none of the first weights."""

    slope: float

    def __call__(self, channels: int) -> nn.Module:
        return Net(channels, self.slope)

    def method(self, channels: int) -> nn.Module:
        return self(channels)


class Slotted:
    """One without a dictionary."""

    __slots__ = ()

    def __call__(self, channels: int) -> nn.Module:
        return Net(channels)


class Net(nn.Sequential):
    def __init__(self, channels: int, slope: float = 0.1) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64 * channels, 8), nn.LeakyReLU(slope))


def enclosing(slope: float) -> Any:
    return lambda channels: nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 8), nn.LeakyReLU(slope))


def drawn_elsewhere(channels: int) -> nn.Module:
    net = Net(channels)
    with torch.no_grad():
        net[1].weight.copy_(torch.rand(net[1].weight.shape, generator=ELSEWHERE))  # type: ignore[operator, arg-type]
    return net


ELSEWHERE = torch.Generator()


def failing(channels: int) -> nn.Module:
    raise RuntimeError("no such file")


def backbone_code(monkeypatch: pytest.MonkeyPatch, factory: Any) -> str:
    with monkeypatch.context() as patch:
        patch.setitem(BACKBONES._known, "own", factory)
        return spec_of(method="naive", backbone="own").code


def test_every_kind_of_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    partials = [functools.partial(Net, slope=slope) for slope in (0.2, 0.3)]
    sloped = [Sloped(0.2), Sloped(0.3), Sloped(0.2).method, Sloped(0.3).method, Slotted()]
    others = [Built(5), Built(4).method, Net, *sloped, *partials, enclosing(0.2), drawn_elsewhere, failing]
    factories = [Built(4), enclosing(0.1), *others]
    codes = [backbone_code(monkeypatch, factory) for factory in factories]
    assert all(code.startswith("backbone:") for code in codes)
    assert len(set(codes)) == len(factories)
    assert codes == [backbone_code(monkeypatch, factory) for factory in factories]
    assert backbone_code(monkeypatch, Built(4)) == codes[0]
    assert backbone_code(monkeypatch, enclosing(0.1)) == codes[1]


def test_a_recipe_repeats_a_run_whatever_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES._known, "own", Net)
    spec = spec_of(method="naive", backbone="own")
    assert "code" not in spec.as_recipe()
    assert make_recipe(**spec.as_recipe()).resolve(toy_dataset([30] * 10)) == [spec]
