"""Shared by all tests: the command line in-process, a cache of their own, small groups of members."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is defined

from mdcg.cli import main
from mdcg.data import Dataset, Split
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.train.group import Group, Member, Training
from tests.forked import Server


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
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("MDCG_DATA", raising=False)


def toy_dataset(counts: Sequence[int], side: int = 8, channels: int = 1, seed: int = 0) -> Dataset:
    """Noisy images around one random pattern per class; as many of each class as asked for."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (len(counts), side, side, channels))

    def split(sizes: Sequence[int]) -> Split:
        labels = np.repeat(np.arange(len(sizes)), sizes)
        noisy = patterns[labels] + rng.normal(0, 60, (len(labels), side, side, channels))
        return Split(torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)), labels.astype(np.int64))

    return Dataset(
        name="toy",
        train=split(counts),
        test=split([5 + i % 3 for i in range(len(counts))]),
        class_names=tuple(f"class {i}" for i in range(len(counts))),
        mean=(0.5,) * channels,
        std=(0.3,) * channels,
        padding=1,
        flip=True,
        fingerprint="toy",
    )


def toy_group(
    dataset: Dataset,
    method: str,
    members: Sequence[tuple[int, int, dict[str, Any]]],
    tasks: int = 3,
    head: str | None = None,
    **training: Any,
) -> Group:
    """Members as (seed, memory, hyperparameters)."""
    kind = METHODS[method]
    chosen = head or kind.head
    settings = {name: default for name, (default, _) in HEADS[chosen].settings.items()}
    usual: dict[str, Any] = {"backbone": "smallconv", "epochs": 2, "batch_size": 16, "rate": 0.05, "momentum": 0.8}
    return Group(
        Training(tasks=tasks, head=chosen, **{**usual, **training}),
        tuple(Member(seed, memory, kind(**hyper), settings) for seed, memory, hyper in members),
        dataset,
    )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def published_settings(method: str) -> dict[str, Any]:
    """The fields that `--preset published` sets; passes and epochs belong to the run."""
    kind = METHODS[method]
    return {name: value for name, value in kind.published.items() if name in kind.model_fields}
