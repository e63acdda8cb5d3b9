"""`mdcg learn` killed at any moment and given again ends with the same file, which is that of `mdcg run`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mdcg.files import locked
from mdcg.saved import SavedModel
from mdcg.scenario import Scenario
from mdcg.testing import toy_dataset
from mdcg.testing.forked import Server, killed_at
from tests.conftest import Cli
from tests.learner.streams import COUNTS, TASKS, assert_same, timeless, write_images
from tests.learner.test_stream import OURS

Start = Callable[..., subprocess.CompletedProcess[str]]
TRAINING = ["--epochs", 2, "--lr", 0.05, "--momentum", 0.8, "--batch-size", 16]
NETWORK = ["--image-size", 8, "--backbone", "smallconv", "--normalise", "imagenet"]
QUICK = [*TRAINING, *NETWORK, "--resize", "squash", "--hold-out", 0]
# `learn` numbers the new classes as they are sorted: so a seed under which those of each task ascend.
ASCENDING = next(
    seed
    for seed in range(1000)
    for order in [Scenario.build(len(COUNTS), TASKS, seed).order]
    if all(order[2 * task] < order[2 * task + 1] for task in range(TASKS)) and order != tuple(range(len(COUNTS)))
)
KILLS = [  # of each task; the first one is that of its second checkpoint, so that the others go on
    [("flush", 2), ("step", 2)],
    [("flush", 2), ("half", 1), ("flush", 2)],
    [("flush", 2), ("step", 1), ("rmtree", 1)],
]
ALWAYS = ("md-cg",)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colour images without any loss: all of them as a dataset, and the two classes of each task apart."""
    path, toys = tmp_path_factory.mktemp("images"), toy_dataset(COUNTS, channels=3)
    for split in ("train", "test"):
        write_images(path / "all" / split, toys, range(len(COUNTS)), split)
    scenario = Scenario.build(len(COUNTS), TASKS, ASCENDING)
    for task in range(TASKS):
        write_images(path / f"task{task}", toys, [scenario.order[place] for place in scenario.positions(task)])
    return path


@pytest.fixture
def start(server: Server) -> Start:
    """`start(*words)`; with `kill=("step", 6)` a process that kills itself, see `killed_at`."""

    def run(*words: object, kill: tuple[Any, ...] | None = None) -> subprocess.CompletedProcess[str]:
        return server.run("learn", *words, before=killed_at(*kill) if kill else None)

    return run


def steps_before(said: str) -> int | None:
    """The steps after which a command said that it goes on."""
    found = re.findall(r"mdcg: going on after (\d+) of \d+ steps\.\n", said)
    return int(found[0]) if found else None


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in OURS]
)
def test_killed_in_every_task_it_is_a_run(method: str, cli: Cli, start: Start, root: Path, tmp_path: Path) -> None:
    """Three tasks, each killed in a step, in a checkpoint, in its file and in the tidying: the bits of `mdcg run`."""
    memory = 80 if method == "md-replay" else 20  # what suits fewer depends on classes that `learn` does not know yet
    words = ["--method", method, "--memory", memory, *TRAINING, *NETWORK]
    runs = tmp_path / "runs"
    ran = cli("run", "--scenario", f"folder:{root / 'all'}-{TASKS}", "--seeds", ASCENDING, *words, "--out", runs)
    assert ran.code == 0, ran.err
    (folder,) = (path.parent for path in runs.glob("*/result.json"))
    spec = json.loads((folder / "result.json").read_text())["spec"]
    for key, value in {**spec["hyperparameters"], **spec["head_settings"]}.items():
        words += ["--set", f"{key}={value}"]
    words += ["--seed", ASCENDING, "--resize", "squash", "--hold-out", 0, "--most-classes", len(COUNTS)]
    words += ["--tasks", TASKS]
    made = tmp_path / "made"
    for task in range(TASKS):
        old, new = made / f"{task}.safetensors", made / f"{task + 1}.safetensors"
        command = [root / f"task{task}", "--out", new, *(words if task == 0 else ["--from", old])]
        before = old.read_bytes() if task else b""
        for number, kill in enumerate(KILLS[task]):
            killed = start(*command, kill=kill)
            assert killed.returncode == -signal.SIGKILL, (kill, killed.stderr)
            assert new.exists() == (kill[0] == "rmtree")
            assert (steps_before(killed.stderr) is not None) == (number > 0), killed.stderr
        done = start(*command)
        assert done.returncode == 0, done.stderr
        assert steps_before(done.stderr) is not None
        if task:
            assert old.read_bytes() == before
    assert_same(SavedModel.load(folder / "model.safetensors"), SavedModel.load(new))
    assert sorted(path.name for path in made.iterdir()) == [f"{number + 1}.safetensors" for number in range(TASKS)]


@pytest.fixture(scope="module")
def first(server: Server, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the classes of the first task."""
    file = tmp_path_factory.mktemp("first") / "model.safetensors"
    done = server.run("learn", root / "task0", "--out", file, "--memory", 20, *QUICK)
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="module")
def second(server: Server, root: Path, first: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What it holds once it has learned the second task undisturbed."""
    file = tmp_path_factory.mktemp("second") / "model.safetensors"
    done = server.run("learn", root / "task1", "--from", first, "--out", file)
    assert done.returncode == 0, done.stderr
    assert list(file.parent.iterdir()) == [file]
    return timeless(file)


@pytest.mark.parametrize(
    ("kill", "saved"),
    [
        (("read", 1), False),  # nothing is known of it
        (("step", 1), False),
        (("half", 1), False),  # in the first checkpoint
        (("flush", 1), False),  # it is written, not renamed
        (("step", 6), True),  # in the second epoch
        (("half", 2), True),
        (("half", 3), True),  # in the file itself
        (("flush", 3), True),
        (("rmtree", 1), True),
    ],
)
def test_killed_anywhere(
    kill: tuple[str, int], saved: bool, start: Start, root: Path, first: Path, second: bytes, tmp_path: Path
) -> None:
    out, before = tmp_path / "model.safetensors", first.read_bytes()
    words = [root / "task1", "--from", first, "--out", out]
    killed = start(*words, kill=kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert out.exists() == (kill[0] == "rmtree")
    assert bool(list(tmp_path.rglob("*.safetensors")) != []) == saved
    done = start(*words)
    assert done.returncode == 0, done.stderr
    assert (steps_before(done.stderr) is not None) == saved, done.stderr
    assert timeless(out) == second
    assert first.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_killed_in_place(start: Start, root: Path, first: Path, second: bytes, tmp_path: Path) -> None:
    """A file that is to be its own successor is the old one until it is the new one."""
    file, before = tmp_path / "model.safetensors", first.read_bytes()
    file.write_bytes(before)
    words = [root / "task1", "--from", file, "--out", file]
    for kill in (("step", 6), ("half", 1), ("flush", 2)):
        assert start(*words, kill=kill).returncode == -signal.SIGKILL
        assert file.read_bytes() == before
    done = start(*words)
    assert done.returncode == 0
    assert steps_before(done.stderr) is not None
    assert timeless(file) == second
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("count", [2, 6])
def test_asked_to_stop(
    number: int, count: int, start: Start, root: Path, first: Path, second: bytes, tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM: the step is finished and saved, one sentence says so, and it goes on from there."""
    out = tmp_path / "model.safetensors"
    words = [root / "task1", "--from", first, "--out", out]
    stopped = start(*words, kill=("step", count, number))
    assert stopped.returncode == 128 + number
    assert "Traceback" not in stopped.stderr
    epoch = 1 if count == 2 else 2
    said = f"mdcg: stopped in task 2, epoch {epoch}; give the same command again to go on."
    assert stopped.stderr.splitlines()[-1] == said
    assert not out.exists()
    done = start(*words)
    assert done.returncode == 0
    assert steps_before(done.stderr) == count
    assert timeless(out) == second
    assert list(tmp_path.iterdir()) == [out]


def test_ctrl_c_before_training(start: Start, root: Path, first: Path, tmp_path: Path) -> None:
    words = [root / "task1", "--from", first, "--out", tmp_path / "model.safetensors"]
    stopped = start(*words, kill=("read", 1, signal.SIGINT))
    assert stopped.returncode == 130
    assert stopped.stderr == "mdcg: stopped; give the same command again to go on.\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changed", [["--no-flip"], ["--epochs", 3], ["--lr", 0.04], ["--set", "lam=0.3"], ["--memory", 19]]
)
def test_another_command_does_not_go_on(
    changed: list[object], start: Start, root: Path, first: Path, tmp_path: Path
) -> None:
    """What comes is what comes of these settings; what was begun with others is gone once that is there."""
    words = [root / "task1", "--from", first, "--out"]
    expected = start(*words, tmp_path / "expected", *changed)
    assert expected.returncode == 0, expected.stderr
    assert start(*words, tmp_path / "found", kill=("step", 6)).returncode == -signal.SIGKILL
    done = start(*words, tmp_path / "found", *changed)
    assert done.returncode == 0, done.stderr
    assert steps_before(done.stderr) is None
    assert "another training for this file was stopped" in done.stderr
    assert timeless(tmp_path / "found") == timeless(tmp_path / "expected")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "found"]


def test_a_wrong_command_costs_nothing(start: Start, root: Path, first: Path, second: bytes, tmp_path: Path) -> None:
    """What was begun before is gone on with once the wrong command is stopped, too."""
    out = tmp_path / "model.safetensors"
    words = [root / "task1", "--from", first, "--out", out]
    assert start(*words, kill=("step", 6)).returncode == -signal.SIGKILL
    wrong = start(*words, "--lr", 0.04, kill=("step", 3, signal.SIGINT))
    assert wrong.returncode == 130
    assert "another training for this file was stopped" in wrong.stderr
    done = start(*words)
    assert done.returncode == 0, done.stderr
    assert steps_before(done.stderr) is not None
    assert "another training for this file was stopped" in done.stderr
    assert timeless(out) == second
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("damage", ["cut short", "altered"])
def test_damaged_checkpoint(damage: str, start: Start, root: Path, first: Path, second: bytes, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    words = [root / "task1", "--from", first, "--out", out]
    assert start(*words, kill=("flush", 3)).returncode == -signal.SIGKILL
    newest, older = sorted(tmp_path.glob(".*/*/*.safetensors"), reverse=True)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-50] if damage == "cut short" else whole[:-50] + b"?" + whole[-49:])
    done = start(*words)
    assert done.returncode == 0, done.stderr
    assert f"{newest} cannot be used" in done.stderr
    assert "going back to the one before it" in done.stderr
    assert steps_before(done.stderr) == 4
    assert timeless(out) == second
    assert not older.exists()


def test_two_at_once(cli: Cli, start: Start, root: Path, first: Path, second: bytes, tmp_path: Path) -> None:
    """The second of two commands for one file leaves; a command that was killed holds nothing any more."""
    out = tmp_path / "model.safetensors"
    words = [root / "task1", "--from", first, "--out", out]
    assert start(*words, kill=("step", 6)).returncode == -signal.SIGKILL
    with locked(tmp_path / ".model.safetensors.learning"):
        answer = cli("learn", *words)
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("mdcg: ")
    assert "is in use by process" in answer.err.splitlines()[-1]
    assert not out.exists()
    done = start(*words)
    assert steps_before(done.stderr) is not None
    assert timeless(out) == second


def test_a_folder_of_checkpoints_elsewhere(cli: Cli, root: Path, first: Path, second: bytes, tmp_path: Path) -> None:
    """A link at its name is removed; what it leads to stays as it is."""
    other, out = tmp_path / "other", tmp_path / "out" / "model.safetensors"
    (other / "precious").mkdir(parents=True)
    (other / "precious" / "file").touch()
    out.parent.mkdir()
    out.with_name(f".{out.name}.learning").symlink_to(other)
    assert cli("learn", root / "task1", "--from", first, "--out", out).code == 0
    assert timeless(out) == second
    assert sorted(path.name for path in other.rglob("*")) == ["file", "precious"]
    assert [path.name for path in out.parent.iterdir()] == [out.name]
