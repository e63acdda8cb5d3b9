"""Too little memory, or a GPU that vanishes: groups become smaller and go on, or it is said in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mdcg.data import load
from mdcg.execute.context import Context
from mdcg.execute.group import _capacity
from mdcg.recipes.recipe import make_recipe
from mdcg.testing.forked import Server
from mdcg.train.device_errors import OutOfMemory, device_errors_explained
from mdcg.train.loop import Trainer
from mdcg.train.state import State
from tests.conftest import Cli, Copies

LIST = ["run", "--scenario", "digits-3", "--method", "md-cg", "--memory", "30,60", "--seeds", "0-1", "--epochs", "2"]
LIST += ["--batch-size", "10"]  # tasks of 20, 16 and 16 steps
QUICK = ["--scenario", "digits-2", "--epochs", "1", "--batch-size", "64"]


@pytest.mark.parametrize("said", ["CUDA out of memory. Tried to allocate", "Expected canUse32BitIndexMath(input)"])
def test_too_little_memory(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    def fail(self: Trainer, state: object, tasks: object = None) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(Trainer, "train", fail)
    words = ["run", *QUICK, "--method", "naive"]
    assert "try a smaller --batch-size" in cli(*words, "--out", runs / "a").sentence()
    many = cli(*words, "--out", runs / "b", "--seeds", "0-3")
    assert many.code == 2
    assert [line.split("; ")[1] for line in many.err.splitlines()] == [
        "going on with 2.",
        "going on with 1.",
        "try a smaller --batch-size.",
    ]


@pytest.fixture(scope="module")
def calm(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `LIST` comes to where nothing goes wrong."""
    done = server.run(*LIST, "--json", "--out", tmp_path_factory.mktemp("calm"))
    found: dict[str, Any] = json.loads(done.stdout)["methods"]
    return found


@pytest.mark.parametrize(
    "when", [5, 25, pytest.param(40, marks=pytest.mark.slow)]
)  # steps: in task 1, which founders train, in task 2, in task 3
def test_too_little_memory_for_so_many(
    cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch, calm: dict[str, Any], when: int
) -> None:
    """The halves go on where the whole was, and end with the same numbers."""
    monkeypatch.setattr("mdcg.train.loop.SAVING", 1)
    steps, original = [0], Trainer.train_step

    def fail(self: Trainer, *args: Any, **kwargs: Any) -> None:
        steps[0] += 1
        if steps[0] >= when and len(self.group.members) > (1 if when == 5 else 2):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        original(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train_step", fail)
    answer = cli(*LIST, "--json", "--out", runs)
    assert "too small for 4 runs together; going on with 2" in answer.err
    for label, result in json.loads(answer.out)["methods"].items():
        for ours, theirs in zip(result["runs"], calm[label]["runs"], strict=True):
            assert ours["R"] == theirs["R"]
    assert not list((runs / ".groups").iterdir())


def test_images_go_to_the_device_once(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch, copies: Copies) -> None:
    """For the founders, for the group that is too large, and for its halves; afterwards they are gone."""
    members, step = list[int](), Trainer.train_step

    def short(self: Trainer, *args: Any, **kwargs: Any) -> None:
        if members[-1:] != [len(self.group.members)]:
            members.append(len(self.group.members))
        if len(self.group.members) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        step(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train_step", short)
    answer = cli(*LIST, "--out", runs)
    assert (answer.code, members) == (0, [2, 4, 2]), answer.err
    assert copies.made == 2  # those to train on and those to test on
    assert copies.bytes() == 0


def test_too_little_memory_even_for_a_trial(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of members is measured on one of them; if that does not fit, its training says so."""

    def fail(*args: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    pretended = SimpleNamespace(device=SimpleNamespace(type="cuda"), fused=False)
    monkeypatch.setattr(Context, "compute", lambda self, spec: pretended)
    with pytest.raises(OutOfMemory), device_errors_explained():
        fail()
    monkeypatch.setattr("mdcg.execute.group.members_that_fit", fail)
    monkeypatch.setattr("mdcg.execute.group.release_memory", lambda machine: None)
    specs = make_recipe(scenario="digits-2", method="naive", seeds="0-3").resolve(load("digits"))
    assert _capacity(specs, Context(runs)) == 1
    monkeypatch.setattr("mdcg.execute.group.surely_fit", lambda *_: True)  # then nobody tries
    assert _capacity(specs, Context(runs)) == 4


def failing_once(monkeypatch: pytest.MonkeyPatch, when: int, error: Exception) -> list[int]:
    """Let one training step fail; the members of every group whose steps were made, in order."""
    steps, original = [], Trainer.train_step

    def step(self: Trainer, *args: Any, **kwargs: Any) -> None:
        steps.append(len(self.group.members))
        if len(steps) == when:
            raise error
        original(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train_step", step)
    monkeypatch.setattr("mdcg.train.loop.SAVING", 1)
    return steps


@pytest.mark.parametrize("options", [[], ["--fresh"]])
def test_fewer_members_go_on_where_all_were(
    cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """After a shortage in task 3 no half begins anew, and time is not counted twice; also for --fresh runs."""
    steps = failing_once(monkeypatch, 38, torch.OutOfMemoryError("CUDA out of memory."))
    answer = cli(*LIST, *options, "--out", runs)
    assert answer.code == 0
    assert answer.err.count("going on with md-cg on digits-3 (2 runs) in task 3") == 2
    assert steps[:37].count(4) > 15  # tasks 2 and 3, until the shortage
    assert set(steps[38:]) == {2}
    assert len(steps) < 37 + 2 * 18


def test_asking_for_fewer_members_later(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_once(monkeypatch, 25, RuntimeError("CUDA error: unspecified launch failure"))
    assert cli(*LIST, "--out", runs).code == 2
    answer = cli(*LIST, "--out", runs, "--members", "2")
    assert answer.code == 0
    assert answer.err.count("going on with md-cg on digits-3 (2 runs) in task 2") == 2
    assert not list((runs / ".groups").iterdir())


def test_a_gpu_that_vanishes(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", *QUICK[:2], "--method", "naive", "--epochs", "3", "--out", runs]
    calls, original = [0], Trainer._finish_epoch

    def fail(self: Trainer, state: State) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA")
        original(self, state)

    monkeypatch.setattr(Trainer, "_finish_epoch", fail)
    told = cli(*words).sentence()
    assert "the GPU stopped working (CUDA error: unspecified launch failure); what was saved is kept" in told
    assert len(list(runs.glob(".groups/*/*.safetensors"))) == 1
    again = cli(*words)
    assert again.code == 0
    assert "going on with naive" in again.err
