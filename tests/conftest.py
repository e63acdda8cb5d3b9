"""Shared by all tests: the command line in-process, a cache of their own, a recipe, small groups of members."""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import sklearn.datasets
import torch
import typer.main
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is defined
    if importlib.util.find_spec("triton"):
        from tests import interpreter

        interpreter.prepare()

from mdcg.cli import main
from mdcg.methods import METHODS
from mdcg.testing import digits
from mdcg.testing import toy_dataset as toy_dataset
from mdcg.testing import toy_group as toy_group
from mdcg.testing.forked import Server
from mdcg.train import display

FROZEN = [0]  # modules


def pytest_collection_finish() -> None:
    """What was imported stays: collecting garbage, as every group of runs does first, need not look through it."""
    gc.freeze()
    FROZEN[0] = len(sys.modules)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """So does what a test was the first to import, as an export does with a quarter of a million objects."""
    if len(sys.modules) > FROZEN[0] + 50:
        gc.collect()
        pytest_collection_finish()


# How long something takes is no matter of tests: the machine may be busy.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def _made_once() -> Iterator[None]:
    """What every command makes anew and comes to the same: a parser of all its options, and the digits, if not all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        patch.setattr(sklearn.datasets, "load_digits", digits.some)
        yield


@pytest.fixture
def all_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how well something is learned, and of the digits themselves."""
    monkeypatch.setattr(sklearn.datasets, "load_digits", digits.all_of_them)


@dataclass
class Answer:
    code: int
    out: str
    err: str

    def sentence(self) -> str:
        """What a person is told who made a mistake: one line, no traceback, exit code 2."""
        assert self.code == 2, (self.code, self.err)
        assert "Traceback" not in self.err
        assert self.err.startswith("mdcg: ")
        assert len(self.err.strip().splitlines()) == 1, self.err
        return self.err.strip()


Cli = Callable[..., Answer]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("run", "--scenario", …)` as a shell would call it."""
    # However pytest was started: click makes the name of the command, in help and advice, from this.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)

    def call(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["mdcg", *map(str, words)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as leave:
            code = int(leave.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """For commands that must be processes of their own: `server.run("run", "--scenario", …)`."""
    made = Server(prepare=digits.take_some)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("MDCG_DATA", raising=False)


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says must not depend on how fast the machine is."""
    monkeypatch.setattr(display, "PAUSE", math.inf)


class Copies:
    """The copies of images that went to a device."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Tensor]] = []

    def add(self, copy: Tensor) -> Tensor:
        self._made.append(weakref.ref(copy))
        return copy

    @property
    def made(self) -> int:
        return len(self._made)

    def bytes(self) -> int:
        """Of those that are still there."""
        return sum(copy.numel() for one in self._made if (copy := one()) is not None)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Let the CPU be another device for images: they are copied where they would be used as they are."""
    found, to = Copies(), Tensor.to

    def copied(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        is_images = self.dtype == torch.uint8 and self.ndim == 4
        return found.add(self.clone()) if is_images else to(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", copied)
    return found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def published_settings(method: str) -> dict[str, Any]:
    """The fields that `--preset published` sets; passes and epochs belong to the run."""
    kind = METHODS[method]
    return {name: value for name, value in kind.published.items() if name in kind.model_fields}


RECIPE = """
scenario: digits-2
epochs: 1
batch_size: 21
seeds: 0-2
axes:
  method: [replay, md-cg]
  memory: [30, 60]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(RECIPE)
    return path
