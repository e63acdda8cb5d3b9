"""Killed at any moment and started again, a run ends with the same bits."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mdcg.files import locked
from mdcg.testing.forked import Server, killed_at
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.loop import Trainer
from mdcg.train.state import State
from tests.conftest import Cli

COMMAND = [
    *("run", "--scenario", "digits-3", "--method", "md-cg", "--memory", "40"),
    *("--seeds", "0-1", "--epochs", "2", "--batch-size", "10", "--set", "lam=0.5"),
]  # tasks of 20, 16 and 16 steps

Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(server: Server) -> Start:
    """`start(out)`; `start(out, "step", 5)` for a process that kills itself, see `killed_at`."""

    def run(out: Path, *kill: Any, words: Sequence[str] = COMMAND) -> subprocess.CompletedProcess[str]:
        return server.run(*words, "--out", out, before=killed_at(*kill) if kill else None)

    return run


def outcome(out: Path) -> dict[str, tuple[object, bytes]]:
    """R, history and the model's bytes of every finished run."""
    found: dict[str, tuple[object, bytes]] = {}
    for folder in sorted(path.parent for path in out.glob("*/result.json")):
        result = json.loads((folder / "result.json").read_text())
        kept = {key: result[key] for key in ("R", "correct", "history", "memory")}
        found[folder.name] = (kept, (folder / "model.safetensors").read_bytes())
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, bytes]]:
    """By a process of its own: those of the tests are forked, and must come to the same."""
    out = tmp_path_factory.mktemp("undisturbed")
    started = (
        "import runpy; from mdcg.testing.digits import *; take_some(); runpy.run_module('mdcg', run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", started, *COMMAND, "--out", str(out)], capture_output=True, check=True)
    done = outcome(out)
    assert len(done) == 2
    return done


def test_killed_again_and_again(start: Start, tmp_path: Path, undisturbed: dict[str, tuple[object, bytes]]) -> None:
    """One run, killed in different tasks, epochs and places, each time taken up where it was."""
    kills = [
        ("step", 3),  # task 1, epoch 1: nothing saved yet
        ("half", 2),  # inside the first checkpoint (the first file is the list of members)
        ("step", 12),  # task 1, epoch 2
        ("flush", 1),  # a checkpoint is written but not renamed
        ("step", 13),  # task 2
        ("unlink", 1),  # an old checkpoint is about to be removed
        ("step", 7),
        ("half", 2),  # inside a checkpoint of task 3
        ("rmtree", 1),  # everything done but the tidying
    ]
    places = []
    for kill in kills:
        killed = start(tmp_path, *kill)
        assert killed.returncode == -signal.SIGKILL, (kill, killed.stderr)
        places.append(sorted(file.name for file in tmp_path.glob(".groups/*/*.safetensors"))[-1:])
    assert len({name[0][:17] for name in places if name}) >= 4  # it did get on between the kills
    assert start(tmp_path).returncode == 0
    assert outcome(tmp_path) == undisturbed
    assert not list(tmp_path.rglob("*.partial"))
    assert not list((tmp_path / ".groups").iterdir())


@pytest.mark.slow  # `check_method` has every method stopped and resumed, in one process
def test_what_a_method_keeps_outlives_a_kill(start: Start, tmp_path: Path) -> None:
    """Kept logits, shares of the memory, a memory that is filled first, and a teacher, in tasks 2 and 3."""
    words = ["compare", "--scenario", "digits-3", "--methods", "der,gem,gdumb,ss-il", "--memory", "55"]
    words += ["--seeds", "0-1", "--epochs", "2", "--batch-size", "5"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(whole, words=words).returncode == 0
    # Tasks take 40, 30 and 30 steps, those of GDumb 22; a start goes on with the epoch that was killed.
    places = []
    for kill in (("step", 46), ("step", 40), ("step", 74), ("step", 86), ("step", 89), ("half", 3)):
        killed = start(broken, *kill, words=words)
        assert killed.returncode == -signal.SIGKILL, kill
        places += re.findall(r"going on with (\S+) on digits-3 \(2 runs\) in task (\d)", killed.stderr)
    assert places == [("der", "2"), ("der", "3"), ("gem", "2"), ("gdumb", "2"), ("ss-il", "2")]
    assert start(broken, words=words).returncode == 0
    assert outcome(broken) == outcome(whole)
    assert len(outcome(whole)) == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(
    number: signal.Signals, start: Start, tmp_path: Path, undisturbed: dict[str, tuple[object, bytes]]
) -> None:
    stopped = start(tmp_path, "step", 22, number)
    assert stopped.returncode == 128 + number
    assert "Traceback" not in stopped.stderr
    assert "give the same command again to go on" in stopped.stderr
    assert "stopped in task 2, epoch 1" in stopped.stderr
    assert start(tmp_path).returncode == 0
    assert outcome(tmp_path) == undisturbed


@pytest.mark.parametrize("damage", ["cut short", "altered"])
def test_damaged_checkpoint(
    damage: str, start: Start, tmp_path: Path, undisturbed: dict[str, tuple[object, bytes]]
) -> None:
    """The newest is refused with a sentence, the one before it is used."""
    assert start(tmp_path, "step", 22).returncode == -signal.SIGKILL
    newest, *older = sorted(tmp_path.glob(".groups/*/*.safetensors"), reverse=True)
    assert len(older) == 1
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-50] if damage == "cut short" else whole[:-50] + b"?" + whole[-49:])
    resumed = start(tmp_path)
    assert resumed.returncode == 0
    assert resumed.stderr.count("\n") == 2
    assert "going on with md-cg on digits-3 (2 runs) in task 1, epoch 2" in resumed.stderr
    assert f"{newest} cannot be used" in resumed.stderr
    assert "going back to the one before it" in resumed.stderr
    assert outcome(tmp_path) == undisturbed


def test_no_usable_checkpoint(start: Start, tmp_path: Path, undisturbed: dict[str, tuple[object, bytes]]) -> None:
    """Both are damaged: the run starts over, and what it then saves is kept although its names sort lower."""
    assert start(tmp_path, "step", 22).returncode == -signal.SIGKILL
    for file in tmp_path.glob(".groups/*/*.safetensors"):
        file.write_bytes(b"garbage")
    again = start(tmp_path, "step", 12)
    assert again.returncode == -signal.SIGKILL
    assert again.stderr.count("going back to the one before it") == 1
    assert again.stderr.count("starting from the beginning") == 1
    assert len(list(tmp_path.glob(".groups/*/*.safetensors"))) == 1
    assert start(tmp_path).returncode == 0
    assert outcome(tmp_path) == undisturbed


def test_a_leftover_group_is_not_trained_again(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--seeds", "0-1", "--out", runs]
    assert cli(*words).code == 0
    names = sorted(path.parent.name for path in runs.glob("*/result.json"))
    leftover = runs / ".groups" / "0123456789abcdef"
    leftover.mkdir(parents=True)
    (leftover / "members.json").write_text(json.dumps({"members": names, "probes": []}))
    monkeypatch.setattr(Trainer, "train", lambda self, state: pytest.fail("trained again"))
    assert cli(*words).code == 0
    assert not leftover.exists()
    leftover.mkdir()
    twice = {"members": [names[0], names[0]], "probes": []}
    for junk in ("{", "[]", '["a", "a"]', "3", '{"members": 3, "probes": []}', json.dumps(twice)):
        (leftover / "members.json").write_text(junk)
        assert cli(*words).code == 0


def test_part_of_a_begun_group_starts_anew_and_says_so(start: Start, tmp_path: Path) -> None:
    assert start(tmp_path, "step", 22).returncode == -signal.SIGKILL
    done = start(tmp_path, words=[*COMMAND, "--seeds", "1"])
    assert done.returncode == 0
    assert "2 runs were begun together and not finished" in done.stderr


def test_a_checkpoint_of_another_network(
    cli: Cli, start: Start, tmp_path: Path, undisturbed: dict[str, tuple[object, bytes]]
) -> None:
    assert start(tmp_path, "step", 22).returncode == -signal.SIGKILL
    (group,) = (tmp_path / ".groups").iterdir()
    checkpoints = Checkpoints(group)
    saved = checkpoints.newest()
    assert saved is not None
    file, tensors, values = saved
    tensors["model.backbone.convs.0.weight"] = tensors["model.backbone.convs.0.weight"][:, :3]
    file.unlink()
    checkpoints.save(tensors, values)
    resumed = start(tmp_path)
    assert resumed.returncode == 0
    assert "does not fit this network" in resumed.stderr
    assert outcome(tmp_path) == undisturbed


def test_second_process_leaves(cli: Cli, runs: Path) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--out", runs]
    assert cli(*words).code == 0
    (folder,) = [path for path in runs.iterdir() if path.name != ".groups"]
    with locked(folder):
        assert "another process is working on it; give the same command again" in cli(*words, "--fresh").sentence()
    assert (folder / "result.json").exists()
    assert cli(*words, "--fresh").code == 0


def test_finished_runs_are_not_repeated(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "replay", "--memory", 20, "--epochs", 1, "--out", runs]
    first = json.loads(cli(*words, "--seeds", "0-1", "--json").out)
    trained: list[int] = []
    train = Trainer.train

    def noting(self: Trainer, state: State, tasks: int | None = None) -> State:
        if tasks is None:  # all of them: not the founders' first
            trained.append(len(self.group.members))
        return train(self, state, tasks)

    monkeypatch.setattr(Trainer, "train", noting)
    again = json.loads(cli(*words, "--seeds", "0-1", "--json").out)
    assert again == first
    assert trained == []
    more = json.loads(cli(*words, "--seeds", "0-2", "--json").out)
    assert more["runs"][:2] == first["runs"]
    assert trained == [1]
    repeated = json.loads(cli(*words, "--seeds", "0-1", "--json", "--fresh").out)
    assert trained == [1, 2]
    assert [run["R"] for run in repeated["runs"]] == [run["R"] for run in first["runs"]]


def test_company_does_not_change_a_stored_result(cli: Cli, runs: Path) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "md-cg", "--memory", 20, "--epochs", 2, "--seeds", "0-2"]
    assert cli(*words, "--out", runs / "together").code == 0
    assert cli(*words, "--out", runs / "alone", "--members", 1).code == 0
    assert outcome(runs / "together") == outcome(runs / "alone")


def test_a_damaged_result_is_made_again(cli: Cli, runs: Path) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--out", runs, "--json"]
    first = json.loads(cli(*words).out)
    (result,) = runs.glob("*/result.json")
    result.write_bytes(result.read_bytes()[:100])
    assert "damaged" in cli("show", result.parent).sentence()
    again = json.loads(cli(*words).out)
    assert again["runs"][0]["R"] == first["runs"][0]["R"]
