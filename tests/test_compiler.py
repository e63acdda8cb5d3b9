"""Kernels compiled ahead by a program of our own, for a GPU that need not be here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from mdcg import compiler, programs
from mdcg.compiler import Compiler
from mdcg.models.kernels import launch, losses

FOREVER = 120.0  # seconds


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """One that compiles for real, into a cache of its own."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = Compiler()
    yield made
    made.end()


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A GPU, as far as asking goes: what it was asked."""
    asked: list[dict[str, Any]] = []

    class Told(Compiler):
        def __init__(self) -> None:
            self.ended = False

        def ask(self, question: Any) -> Any:
            asked.append(question)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(compiler, "_running", Told())
    monkeypatch.setattr(launch, "_asked", {})
    monkeypatch.setattr(launch, "_launchers", set())
    return asked


def cross_entropy(classes: int) -> None:
    logits, labels = torch.zeros(1, 4, classes), torch.zeros(1, 4, dtype=torch.int64)
    losses.cross_entropies(logits, labels)


def test_kernels_come_into_the_cache(program: Compiler, tmp_path: Path, hopper: list[dict[str, Any]]) -> None:
    """The first one, that it compiles itself, others, and in between one that there is not: all are answered.

    Another process with the same Triton compiles nothing any more.
    """
    with launch.compile_ahead():
        for classes in (10, 90, 150, 10):
            cross_entropy(classes)
    questions = [question["constants"]["SIZE"] for question in hopper]
    assert questions == [64, 128, 256]
    assert [question["launcher"] for question in hopper] == [True, False, False]
    missing = {**hopper[0], "name": "not_here"}
    done = [program.ask(question) for question in (hopper[0], missing, *hopper[1:])]
    for one in done:
        one.result(FOREVER)
    assert not program.is_busy()
    assert len(list(tmp_path.rglob("_cross_entropy.cubin"))) == 3
    written = {kernel: kernel.stat().st_mtime_ns for kernel in tmp_path.rglob("*.cubin")}
    assert len(written) == 3
    code = f"from mdcg.models.kernels.compile_worker import build; build({hopper[0]!r})"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, check=True)
    assert {kernel: kernel.stat().st_mtime_ns for kernel in tmp_path.rglob("*.cubin")} == written


def test_nobody_waits_for_a_program_that_is_gone(program: Compiler, hopper: list[dict[str, Any]]) -> None:
    with launch.compile_ahead():
        cross_entropy(10)
    done = program.ask(hopper[0])
    os.kill(program.process.pid, signal.SIGKILL)
    done.result(FOREVER)
    program.process.wait()
    program.ask(hopper[0]).result(FOREVER)
    assert not program.is_busy()


def test_nobody_waits_after_what_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is no number, nor the number of no question, leaves somebody waiting."""
    for said in ("nonsense", "99"):
        code = f"import sys; sys.stdin.readline(); print({said!r}, flush=True); sys.stdin.read()"
        monkeypatch.setattr(programs, "START", code)
        odd = Compiler()
        odd.ask({}).result(FOREVER)
        assert not odd.is_busy()
        odd.end()


def test_it_ends_with_the_one_that_asks(program: Compiler) -> None:
    program.questions.close()
    assert program.process.wait(FOREVER) == 0


@pytest.mark.parametrize("hindrance", ["limit", "frozen"])
def test_where_it_cannot_be_started_nothing_is_asked(
    hopper: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    monkeypatch.setattr(compiler, "_running", None)
    if hindrance == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:

        def refuse(*args: object, **options: object) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(subprocess, "Popen", refuse)
    with launch.compile_ahead():
        cross_entropy(10)
    assert compiler.start() is None
    assert not compiler.is_busy()
    assert list(launch._asked.values()) == [None]


@pytest.mark.parametrize(
    ("device", "precision", "kernels", "there", "starts"),
    [
        ("auto", "auto", "", True, True),
        ("cuda", "bf16", "", True, True),
        ("cuda", "bf16", "", False, False),
        ("cpu", "auto", "", True, False),
        ("auto", "fp32", "", True, False),
        ("auto", "bf16", "plain", True, False),
    ],
)
def test_it_is_started_early_where_it_may_be_wanted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    precision: str,
    kernels: str,
    there: bool,
    starts: bool,
) -> None:
    started = []
    monkeypatch.setattr(compiler, "start", lambda: started.append(True))
    monkeypatch.setattr(compiler, "NVIDIA", tmp_path if there else tmp_path / "none")
    monkeypatch.setenv("MDCG_KERNELS", kernels)
    compiler.start_early(device, precision)
    assert bool(started) == starts
