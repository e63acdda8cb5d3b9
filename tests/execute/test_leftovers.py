"""Trouble of the machine, links and what kills leave behind: no run is blamed, and nothing of others is touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg.errors import MachineError, MdcgError
from mdcg.execute.unfinished import group_folder
from mdcg.files import locked
from mdcg.runs.failures import FAILED
from mdcg.testing.forked import Server, killed_at
from mdcg.train.checked import CheckpointHeader
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.loop import Trainer
from tests.conftest import Cli

QUICK = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--batch-size", 64]
HALF = ".drift.json.0123456789ab.partial"
HEADER = CheckpointHeader(
    task=0, epoch=1, step=0, seconds=1, forked=False, begun=True, within=[[]], sizes=[2], has_teacher=False,
    has_start=False, memories={}, history=[[]], measuring={},
).model_dump()  # fmt: skip


def trouble(number: int, wrapped: bool = False) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        error = OSError(number, os.strerror(number))
        if wrapped:
            raise MdcgError("cannot read something.") from error
        raise error

    return fail


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.ENOSPC, errno.EIO])
def test_trouble_of_the_machine_is_no_failure_of_a_run(
    number: int, wrapped: bool, cli: Cli, recipe: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with one sentence, and given again it does what was asked."""
    words = ["sweep", recipe, "--only", "method=replay", "--only", "memory=30", "--out", runs]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", trouble(number, wrapped))
        answer = cli(*words)
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith(f"mdcg: {os.strerror(number)}; ")
    assert not list(runs.rglob(FAILED))
    if number == errno.EMFILE and not wrapped:
        assert cli(*words).code == 0


def test_trouble_in_reading_does_not_undo_what_is_done(runs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that cannot be read for now is not made again."""
    assert cli(*QUICK, "--out", runs).code == 0
    (result,) = runs.glob("*/result.json")
    before, read = result.stat(), Path.read_bytes

    def fail(path: Path) -> bytes:
        return trouble(errno.EMFILE)() if path == result else read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        assert "Too many open files; allow more" in cli(*QUICK, "--out", runs).sentence()
    assert result.stat() == before


def test_a_checkpoint_that_cannot_be_read_for_now_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({}, HEADER)
    with monkeypatch.context() as patch:
        patch.setattr("mdcg.train.checkpoint.open_file", trouble(errno.EIO))
        with pytest.raises(MachineError, match="Input/output error; check the disk"):
            checkpoints.newest()
    assert checkpoints.newest() is not None


def test_a_disk_without_locks(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", trouble(errno.ENOLCK))
    monkeypatch.setattr("mdcg.files._said", [], raising=False)
    answer = cli(*QUICK, "--seeds", "0-1", "--out", runs)
    assert answer.code == 0, answer.err
    assert answer.err.count("has no locks") == 1
    assert len(list(runs.glob("*/result.json"))) == 2


def test_half_written_measurements_are_swept(cli: Cli, runs: Path) -> None:
    """By any command that is about the run, whether it measures or not."""
    assert cli(*QUICK, "--out", runs).code == 0
    (folder,) = (path.parent for path in runs.glob("*/result.json"))
    (folder / "measured").mkdir()
    half = [folder / "measured" / HALF, folder / HALF, runs / HALF]
    for file in half:
        file.touch()
    assert cli(*QUICK, "--out", runs).code == 0
    assert not [file for file in half if file.exists()]


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
def test_killed_while_a_group_is_removed(fresh: tuple[str, ...], server: Server, cli: Cli, runs: Path) -> None:
    """Twice, so that two such folders meet; the next command removes them, also one that begins anew."""
    for _ in range(2):
        killed = server.run(*map(str, QUICK), "--fresh", "--out", runs, before=killed_at("rmtree", 1))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    group = runs / ".groups" / "0123456789abcdef"
    for folder in (group, group.with_name(f"{group.name}.done")):
        folder.mkdir(exist_ok=True)
        (folder / "left").touch()
    answer = cli(*QUICK, *fresh, "--out", runs)
    assert answer.code == 0, answer.err
    assert [path.name for path in (runs / ".groups").iterdir()] == [group.name]  # which may be somebody's


def test_a_group_and_its_removed_one_do_not_meet(runs: Path) -> None:
    """`--fresh` failed: "Directory not empty"."""
    work = mdcg.Sweep.read("quick", only={"method": ["naive"]}, out=runs)
    folder = group_folder(work.context.store, work.specs)
    done = folder.with_name(f"{folder.name}.done")
    for one in (folder, done):
        one.mkdir(parents=True)
        (one / "left").touch()
    Checkpoints(folder).discard()
    assert not folder.exists()


def test_finished_groups_of_other_sweeps_are_swept(cli: Cli, runs: Path) -> None:
    """Those that a kill left when all was done; one that is not finished stays, one that never began does not."""
    assert cli(*QUICK, "--seeds", "0-1", "--out", runs).code == 0
    names = sorted(path.parent.name for path in runs.glob("*/result.json"))
    groups = {"a": (names, []), "b": (names, ["drift"]), "c": ([*names, "other"], []), "d": (["../" + names[0]], [])}
    for group, (members, probes) in groups.items():
        (runs / ".groups" / group).mkdir()
        content = json.dumps({"members": members, "probes": probes})
        (runs / ".groups" / group / "members.json").write_text(content)
    (runs / ".groups" / "e").mkdir()
    (runs / ".groups" / "e" / ".members.json.0123456789ab.partial").touch()
    assert cli(*QUICK, "--seeds", "5", "--out", runs).code == 0
    assert sorted(path.name for path in (runs / ".groups").iterdir()) == ["b", "c", "d"]


def test_measured_elsewhere(cli: Cli, runs: Path) -> None:
    """A link is removed, what it leads to is not."""
    assert cli(*QUICK, "--out", runs).code == 0
    (folder,) = (path.parent for path in runs.glob("*/result.json"))
    other = runs / "other"
    other.mkdir()
    (other / "drift.json").write_text("precious")
    (other / HALF).touch()
    (folder / "measured").symlink_to(other)
    assert cli(*QUICK, "--out", runs, "--fresh").code == 0
    assert sorted(path.name for path in other.iterdir()) == [HALF, "drift.json"]
    (folder / "measured").unlink(missing_ok=True)
    (folder / "measured").symlink_to(other)
    assert cli(*QUICK, "--out", runs, "--probe", "confusion").code == 0
    assert sorted(path.name for path in other.iterdir()) == [HALF, "drift.json"]
    assert [path.name for path in (folder / "measured").iterdir()] == ["confusion.json"]


def test_checkpoints_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    kept = [other / name for name in ("a.safetensors", "b.safetensors", "c.safetensors")]
    for file in kept:
        file.write_text("precious")
    checkpoints = Checkpoints(tmp_path / "link")
    checkpoints.folder.symlink_to(other)
    assert checkpoints.newest() is None
    checkpoints.save({}, HEADER)
    assert checkpoints.newest() is not None
    checkpoints.discard()
    checkpoints.folder.symlink_to(other)
    checkpoints.discard()
    assert not checkpoints.folder.is_symlink()
    assert sorted(other.iterdir()) == kept


def test_who_held_a_run_is_forgotten(cli: Cli, runs: Path) -> None:
    """The name that a killed process left; not that of one at work."""
    assert cli(*QUICK, "--seeds", "0-1", "--out", runs).code == 0
    first, second = (path.parent for path in sorted(runs.glob("*/result.json")))
    (first / ".owner").write_text("process 1")
    with locked(second):
        assert cli(*QUICK, "--seeds", "0-1", "--out", runs).code == 0
        assert (second / ".owner").exists()
    assert not (first / ".owner").exists()


def test_what_is_left_of_a_group_goes_on(server: Server, cli: Cli, runs: Path, tmp_path: Path) -> None:
    """Where one of its runs is finished, the other may be asked for by itself."""
    words, whole = [*QUICK, "--seeds", "0-1"], tmp_path / "whole"
    assert cli(*words, "--out", whole).code == 0
    killed = server.run(*words, "--out", runs, before=killed_at("step", 3))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    first, second = sorted(path.parent for path in whole.glob("*/result.json"))
    shutil.copy(first / "result.json", runs / first.name)
    answer = cli(*QUICK, "--seeds", "1", "--out", runs)
    assert answer.code == 0, answer.err
    assert "start anew" not in answer.err
    assert json.loads((runs / second.name / "result.json").read_text())["members"] == 2
    assert not list((runs / ".groups").iterdir())
