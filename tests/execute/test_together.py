"""Commands at the same time: what another process does in between is done here at the worst moment, in this one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

import mdcg
from mdcg.data import cache
from mdcg.data.content import arrays, digest_of
from mdcg.execute import local, unfinished
from mdcg.execute.unfinished import begun, note_group
from mdcg.figures import make
from mdcg.files import LOCK, OWNER, is_locked, locked
from mdcg.learner import training
from mdcg.learner.training import checkpoint_folder
from mdcg.runs import failures, store
from mdcg.runs.failures import failure, note_failure
from mdcg.runs.store import RESULT
from mdcg.stored import read_as
from mdcg.testing import toy_dataset
from mdcg.testing.made import write_made
from tests.conftest import Cli


@pytest.fixture
def made(recipe: Path, runs: Path) -> mdcg.Sweep:
    """Three runs, finished."""
    sweep = mdcg.Sweep.read(recipe, out=runs, only={"method": ["replay"], "memory": ["30"]})
    write_made(sweep)
    return sweep


def first(before: Callable[..., object], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which when it is first called does something else before."""
    waiting = [before]

    def call(*given: Any, **named: Any) -> Any:
        if waiting:
            waiting.pop()(*given)
        return function(*given, **named)

    return call


def test_a_run_that_is_begun_anew_is_no_damaged_one(
    made: mdcg.Sweep, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when a folder is looked through, and gone when it is read."""
    gone = made.context.store.folder(made.specs[1]) / RESULT
    monkeypatch.setattr(store, "read_record", first(lambda _: gone.unlink(), store.read_record))
    answer = cli("runs", "--out", made.context.out, "--export", made.context.out / "all.csv")
    assert (answer.code, answer.err) == (0, "")
    assert "2 of 2 runs" in answer.out


@pytest.mark.parametrize("held", [True, False])
def test_a_result_that_was_there_when_the_plan_was_made(
    held: bool, made: mdcg.Sweep, recipe: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has begun the run anew since: this one says so, and does not pass for finished."""
    gone = made.context.store.folder(made.specs[0])
    words = ["--out", made.context.out, "--seeds", 0]
    of_one = ["run", "--scenario", "digits-2", "--method", "replay", "--memory", 30, "--epochs", 1, "--batch-size", 21]
    chosen = ["--only", "method=replay", "--only", "memory=30"]
    for command in ([*of_one, *words], ["sweep", recipe, *chosen, *words]):
        content = (gone / RESULT).read_bytes()
        with monkeypatch.context() as patch:
            forget = first(lambda *_: (gone / RESULT).unlink(), unfinished.tidy)
            patch.setattr("mdcg.execute.sweep.tidy", forget)
            if held:
                with locked(gone):
                    answer = cli(*command)
            else:
                answer = cli(*command)
        why = "another process is working on it" if held else "its result has been removed meanwhile"
        assert f"not finished: {why}" in answer.err
        assert answer.code == (1 if command[0] == "sweep" else 2)
        (gone / RESULT).write_bytes(content)


def test_others_of_a_group_do_not_wait_for_one(
    recipe: Path, runs: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody holds it when they are looked at, and somebody when they are to begin."""
    sweep = mdcg.Sweep.read(recipe, out=runs, only={"method": ["replay"], "memory": ["30"]})
    one = sweep.context.store.folder(sweep.specs[1])
    answers = iter([False] * len(sweep.specs))
    monkeypatch.setattr(local, "is_locked", lambda folder: next(answers, folder == one and is_locked(folder)))
    with locked(one):
        undone = sweep.run(quiet=True)
    assert undone.left == {sweep.specs[1].name: "another process is working on it"}
    assert sorted(sweep.records()) == sorted(spec.name for spec in sweep.specs if spec != sweep.specs[1])


def test_what_another_process_trains_does_not_start_anew(
    recipe: Path, runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So nothing is said of it; of a group that nobody is at, something is."""
    both = mdcg.Sweep.read(recipe, out=runs, only={"method": ["replay"], "memory": ["30"], "seed": ["0", "1"]})
    note_group(both.context.store, both.specs)
    caplog.set_level(logging.WARNING, "mdcg")
    one = mdcg.Sweep.read(recipe, out=runs, only={"method": ["replay"], "memory": ["30"], "seed": ["0"]})
    with locked(both.context.store.folder(both.specs[1])):
        one.plan()
    assert caplog.text == ""
    one.plan()
    assert "begun together and not finished" in caplog.text


def test_notes_that_vanish_are_not_damaged(
    made: mdcg.Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, spec = made.context.store, made.specs[0]
    note_group(here, [spec])
    note_failure(here, spec, "it failed")

    def removed(_: object, path: Path) -> None:
        path.unlink()

    monkeypatch.setattr(unfinished, "read_as", first(removed, read_as))
    assert begun(here) == []
    monkeypatch.setattr(failures, "read_as", first(removed, read_as))
    assert failure(here, spec) is None
    assert caplog.text == ""


def test_the_name_of_who_was_killed_is_removed(made: mdcg.Sweep) -> None:
    """All was written when it was killed; a name of somebody who is there stays."""
    killed, holding = (made.context.store.folder(spec) for spec in made.specs[:2])
    (killed / LOCK).touch()
    (killed / OWNER).write_text("process 1\nhere")
    with locked(holding):
        made.run(quiet=True)
        assert (holding / OWNER).exists()
    assert not (killed / OWNER).exists()


def test_the_cache_is_emptied_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("MDCG_CACHE", str(tmp_path))
    toys = toy_dataset([6, 5, 4])
    whole = arrays((toys.train.images.numpy(), toys.train.labels), (toys.test.images.numpy(), toys.test.labels), "abc")
    written = []

    def write(file: Path) -> None:
        written.append(file)
        cache.write_cache(file, whole)
        if len(written) == 1:
            assert cli("cache", "--clear").code == 0

    def read() -> bool:
        return cache.cached("toy", tmp_path, "stamp", write).digest == digest_of(whole)

    assert read()
    assert len(written) == 2  # once more, since it was gone
    read_cache = cache.read_cache

    def read_and_lose(path: Path) -> Any:
        content = read_cache(path)
        path.unlink(missing_ok=True)
        return content

    monkeypatch.setattr(cache, "read_cache", first(read_and_lose, read_cache))
    assert read()
    assert len(written) == 3
    monkeypatch.setattr(sys.modules["mdcg.data.load"], "read_cache", read_and_lose)
    answer = cli("cache")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("0 files")


def test_two_commands_try_the_folder_of_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other has made it and, since nothing is drawn yet, removes it again."""
    out = tmp_path / "figures"
    monkeypatch.setattr(make, "TemporaryFile", first(lambda: out.rmdir(), TemporaryFile))
    make._writable(out)
    assert not out.exists()


def test_a_folder_of_checkpoints_is_removed_by_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards it may be that of the next command for the same file."""
    held = []
    monkeypatch.setattr(training, "remove_folder", first(lambda folder: held.append(is_locked(folder)), lambda _: None))
    with checkpoint_folder(tmp_path / "model.safetensors"):
        pass
    assert held == [True]


def test_a_result_that_appears_is_no_damaged_one(
    made: mdcg.Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not there when it is to be read, and is when that failed."""
    here, spec = made.context.store, made.specs[0]
    file = here.folder(spec) / RESULT
    content = file.read_bytes()
    file.unlink()
    exists = Path.exists

    def appear(path: Path) -> bool:
        file.write_bytes(content)
        return exists(path)

    monkeypatch.setattr(Path, "exists", appear)
    assert here.finished(spec) is None
    assert caplog.text == ""
