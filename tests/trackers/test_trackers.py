"""Trackers: told of everything once, never in the way. Event files are read back byte by byte."""

from __future__ import annotations

import json
import math
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mdcg
from mdcg import extras
from mdcg.runs.record import Record
from mdcg.runs.store import Measurements, Store, read_record
from mdcg.saved import SavedModel
from mdcg.trackers import TRACKERS, Epoch, Outcome, TrackedRun, Tracker, TrackerSet
from mdcg.train.loop import Trainer
from mdcg.train.signals import Stopped, StopSignals
from tests.conftest import Cli
from tests.execute.test_resume import outcome

EPOCHS, TASKS = 3, 2
ASKED: dict[str, Any] = {
    "scenario": "digits-2",
    "method": "md-cg",
    "epochs": EPOCHS,
    "batch_size": 64,
    "evaluate_every": 2,
}
ASKED |= {"batch_size": 64}
WORDS = ["run", "--scenario", "digits-2", "--method", "md-cg", "--memory", 20, "--epochs", EPOCHS, "--batch-size", 64]
WORDS += ["--evaluate-every", 2, "--batch-size", 64, "--seeds", "0-1"]


class Diary(Tracker):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, TrackedRun, Any]] = []

    def begin(self, run: TrackedRun) -> None:
        self.told.append(("begin", run, run.done))

    def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
        self.told.append(("epoch", run, epoch))

    def end(self, run: TrackedRun, outcome: Outcome) -> None:
        self.told.append(("end", run, outcome))

    def leave(self, run: TrackedRun) -> None:
        self.told.append(("leave", run, None))

    def of(self, name: str) -> list[tuple[str, Any]]:
        return [(what, content) for what, run, content in self.told if run.name == name]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of WORDS, without a tracker."""
    out = tmp_path_factory.mktemp("plain")
    mdcg.run(**ASKED, memory=20, seeds=range(2), out=out)
    return out


@pytest.fixture
def own_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRACKERS, "_known", dict(TRACKERS._known))


def stop_after(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ctrl-C had come in the epoch after so many."""
    finish, done = Trainer._finish_epoch, [0]

    def counting(self: Trainer, state: Any) -> None:
        finish(self, state)
        done[0] += 1

    monkeypatch.setattr(Trainer, "_finish_epoch", counting)
    monkeypatch.setattr(StopSignals, "requested", lambda self: done[0] >= epochs)


def test_each_run_is_told_of(runs: Path) -> None:
    """Also of those that share a first task, and each with its own rows."""
    diary = Diary()
    results = mdcg.compare(**ASKED, memory=[20, 40], set={"lam": [0.2, 0.9]}, seeds=[0, 1], out=runs, log=[diary])
    records = [record for result in results.values() for record in result.records]
    assert len(records) == 8
    for record in records:
        told = diary.of(record.spec.name)
        assert [what for what, _ in told] == ["begin", *["epoch"] * EPOCHS * TASKS, "end", "leave"]
        assert told[0][1] == 0
        for (_, epoch), row in zip(told[1:-2], record.history, strict=True):
            assert (epoch.task, epoch.epoch) == (row["task"], row["epoch"])
            assert epoch.number == (row["task"] - 1) * EPOCHS + row["epoch"]
            assert (epoch.loss, epoch.train_accuracy) == (row["loss"], row["train_accuracy"])
            assert epoch.accuracy == tuple(row.get("accuracy", ()))
        final = told[-2][1]
        assert record.as_json()["R"] == final.R
        assert final.metrics["ACC"] == pytest.approx(record.metrics["ACC"])
        run = next(run for _, run, _ in diary.told if run.name == record.spec.name)
        assert run.folder == Store(runs).folder(record.spec)
        assert run.settings["set.lam"] == record.spec.hyperparameters["lam"]
        assert run.settings["memory"] == record.spec.memory
        assert run.epochs == EPOCHS * TASKS
    first = {record.spec.memory: diary.of(record.spec.name)[1][1] for record in records if record.spec.seed == 0}
    assert first[20] == first[40]  # the same founder


def test_tracked_runs_have_the_same_bits(cli: Cli, runs: Path, plain: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert cli(*WORDS, "--out", runs / "tracked", "--log", "tensorboard", "--log", "tensorboard").code == 0
    assert outcome(plain) == outcome(runs / "tracked")
    assert len(list(runs.glob("tracked/*/tensorboard/*"))) == 2


def test_stopped_and_gone_on_with(runs: Path) -> None:
    asked = {**ASKED, "memory": 20, "out": runs}
    diary = Diary()
    with pytest.MonkeyPatch.context() as patch:
        stop_after(4, patch)
        with pytest.raises(Stopped):
            mdcg.run(**asked, log=[diary])
    assert [what for what, _, _ in diary.told] == ["begin", *["epoch"] * 4, "leave"]
    later = Diary()
    mdcg.run(**asked, log=[later])
    assert [what for what, _, _ in later.told] == ["begin", "epoch", "epoch", "end", "leave"]
    assert later.told[0][2] == 4
    assert [epoch.number for what, _, epoch in later.told if what == "epoch"] == [5, 6]
    nothing = Diary()
    mdcg.run(**asked, log=[nothing])
    assert nothing.told == []  # it was finished before


@pytest.mark.usefixtures("own_trackers")
def test_a_tracker_of_ones_own(cli: Cli, runs: Path) -> None:
    diaries: list[Diary] = []

    @TRACKERS.register("diary")
    def diary() -> Tracker:
        print("dear diary")
        diaries.append(Diary())
        return diaries[-1]

    answer = cli(*WORDS, "--out", runs, "--log", "diary", "--members", 1, "--json")
    assert len(json.loads(answer.out)["runs"]) == 2  # what a tracker prints is not in the way
    assert answer.err.startswith("dear diary\n")
    assert answer.err.count("dear diary") == 1
    (told,) = diaries  # one for all groups
    assert [what for what, _, _ in told.told].count("end") == 2


@pytest.mark.usefixtures("own_trackers")
@pytest.mark.parametrize("where", ["begin", "epoch", "end", "leave"])
def test_a_tracker_that_fails(cli: Cli, runs: Path, plain: Path, where: str) -> None:
    """It is reported once; others go on, and so does training."""
    calls: list[str] = []

    def fail(self: Tracker, *told: object) -> None:
        calls.append(where)
        raise OSError(28, "No space left on device")

    TRACKERS.register("failing")(type("Failing", (Tracker,), {where: fail}))
    diary = Diary()
    TRACKERS.register("diary")(lambda: diary)
    answer = cli(*WORDS, "--out", runs / "tracked", "--log", "failing", "--log", "diary")
    assert answer.code == 0
    assert answer.err.splitlines() == [
        "mdcg: the tracker Failing failed ([Errno 28] No space left on device); training goes on without it."
    ]
    assert calls == [where]
    assert [what for what, _, _ in diary.told].count("end") == 2
    assert outcome(plain) == outcome(runs / "tracked")


@pytest.mark.usefixtures("own_trackers")
def test_trackers_that_cannot_be_used(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TRACKERS.register("broken")(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert "did you mean 'tensorboard'" in cli(*WORDS, "--out", runs, "--log", "tensorbord").sentence()
    assert "the tracker broken cannot be used (division by zero)" in cli(*WORDS, "--log", "broken").sentence()

    def missing(name: str, *more: Any) -> Any:
        package = name.partition(".")[0]
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    told = cli(*WORDS, "--out", runs, "--log", "tensorboard").sentence()
    assert (
        "the tracker tensorboard needs tensorboardX, which is not installed: pip install 'mdcg[tensorboard]'." in told
    )
    assert "pip install 'mdcg[mlflow]'." in cli(*WORDS, "--out", runs, "--log", "mlflow").sentence()

    def unfit(name: str, *more: Any) -> Any:
        raise TypeError("Descriptors cannot be created directly.\nDo something.")

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=unfit))
    told = cli(*WORDS, "--out", runs, "--log", "tensorboard").sentence()
    assert "cannot be loaded (Descriptors cannot be created directly): pip install --upgrade" in told
    assert not runs.exists()
    diary = Diary()
    assert [listener.tracker for listener in TrackerSet([diary])._live] == [diary]
    with pytest.raises(mdcg.MdcgError, match="tracker broken"):
        TrackerSet("broken")


class Leaver(Tracker):
    def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
        raise SystemExit(0)


class Sleeper(Tracker):
    def __init__(self) -> None:
        self.woken = threading.Event()

    def begin(self, run: TrackedRun) -> None:
        self.woken.wait()


def test_trackers_that_would_end_or_stop_the_training(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mdcg.trackers.tracker_set.PATIENCE", 0.05)
    diary, sleeper = Diary(), Sleeper()
    with caplog.at_level("WARNING", "mdcg"):
        result = mdcg.run(scenario="digits-5", method="naive", epochs=1, out=runs, log=[Leaver(), sleeper, diary])
    sleeper.woken.set()
    assert len(result.records) == 1
    assert [message for message in caplog.messages if "tracker" in message] == [
        "the tracker Sleeper failed (it did not answer for 0.05 seconds); training goes on without it.",
        "the tracker Leaver failed (it called sys.exit); training goes on without it.",
    ]
    assert [what for what, _, _ in diary.told][-2:] == ["end", "leave"]


# TensorBoard


def checksum(data: bytes) -> int:
    """CRC-32C bit by bit, masked as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(file: Path) -> Iterator[Any]:
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    content = file.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        assert struct.unpack("<I", content[8:12])[0] == checksum(content[:8])
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == checksum(data)
        yield proto.Event.FromString(data)
        content = content[16 + length :]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """As TensorBoard shows them: files by name; where a session starts, what has its step or a later one is dropped."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((folder / "tensorboard").iterdir()):
        first, *rest = events(file)
        assert first.file_version == "brain.Event:2"
        for event in rest:
            if event.HasField("session_log"):
                found = {tag: [kept for kept in rows if kept[0] < event.step] for tag, rows in found.items()}
            for value in event.summary.value:
                shown = value.simple_value if value.HasField("simple_value") else math.nan
                found.setdefault(value.tag, []).append((event.step, shown))
    return found


def check_events(folder: Path) -> None:
    shown, record = scalars(folder), read_record(folder)
    steps = list(range(1, EPOCHS * TASKS + 1))
    single = pytest.approx  # events hold single precision
    assert [step for step, _ in shown["loss"]] == steps
    assert [value for _, value in shown["loss"]] == single([row["loss"] for row in record.history], rel=1e-6)
    trained = [row["train_accuracy"] for row in record.history]
    assert [value for _, value in shown["accuracy/train"]] == single(trained, rel=1e-6)
    for task in range(TASKS):
        rows = [(at, row["accuracy"]) for at, row in enumerate(record.history, 1) if "accuracy" in row]
        wanted = {at: known[task] for at, known in rows if len(known) > task}
        assert dict(shown[f"accuracy/task_{task + 1}"]) == single(wanted, rel=1e-6)
        assert len(shown[f"accuracy/task_{task + 1}"]) == len(wanted)
    assert len(shown["final/ACC"]) == 1
    assert shown["final/ACC"][0] == single((steps[-1] + 1, record.metrics["ACC"]), rel=1e-6)
    assert len(shown["settings/text_summary"]) == 1


def test_event_files(cli: Cli, runs: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert cli(*WORDS, "--out", runs, "--log", "tensorboard").code == 0
    folders = [path.parent for path in runs.glob("*/result.json")]
    assert len(folders) == 2
    for folder in folders:
        check_events(folder)
    assert cli(*WORDS, "--out", runs, "--log", "tensorboard", "--fresh").code == 0
    for folder in folders:
        assert len(list((folder / "tensorboard").iterdir())) == 2
        check_events(folder)  # the second file takes the place of the first
    assert cli("runs", "--out", runs).code == 0


def test_event_files_of_runs_that_were_finished(cli: Cli, runs: Path, plain: Path) -> None:
    """From their results, and from an archive: as if they had been told of as they trained; and once."""
    pytest.importorskip("tensorboardX")
    shutil.copytree(plain, runs)
    for new in (2, 0):
        answer = cli(*WORDS, "--out", runs, "--log", "tensorboard")
        assert answer.code == 0
        assert ("mdcg: new in the log, of the finished runs: 2." in answer.err) == bool(new)
        for path in runs.glob("*/result.json"):
            assert len(list((path.parent / "tensorboard").iterdir())) == 1
            check_events(path.parent)
    elsewhere = runs.with_name("archived")
    assert cli("runs", "--out", plain, "--export", elsewhere / "all.jsonl").code == 0
    assert cli(*WORDS, "--out", elsewhere, "--log", "tensorboard").code == 0
    for path in plain.glob("*/result.json"):
        told, kept = scalars(elsewhere / path.parent.name), read_record(path.parent)
        assert [value for _, value in told["loss"]] == pytest.approx([row["loss"] for row in kept.history], rel=1e-5)
        ((step, acc),) = told["final/ACC"]
        assert (step, acc) == pytest.approx((EPOCHS * TASKS + 1, kept.metrics["ACC"]), rel=1e-6)


def test_finished_runs_are_told_of_to_those_who_lack_them(runs: Path, plain: Path) -> None:
    class Late(Diary):
        def has(self, run: TrackedRun) -> bool:
            return any(what == "end" for what, _ in self.of(run.name))

    class Broken(Late):
        def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
            raise OSError("no disk")

    shutil.copytree(plain, runs)
    late, others, broken = Late(), Diary(), Broken()
    for _ in range(2):
        results = mdcg.run(**ASKED, memory=20, seeds=range(2), out=runs, log=[late, others, broken])
    assert others.told == []  # as it says nothing of what it has
    assert [what for what, *_ in broken.told[:3]] == ["begin", "leave", "begin"]
    for record in results.records:
        told = late.of(record.spec.name)
        assert [what for what, _ in told] == ["begin", *["epoch"] * EPOCHS * TASKS, "end", "leave"]
        assert [epoch.loss for _, epoch in told[1:-2]] == [row["loss"] for row in record.history]
        assert record.as_json()["R"] == told[-2][1].R


def test_event_files_of_a_run_that_was_stopped(runs: Path) -> None:
    """Saved after epoch 2, gone on with to epoch 5 without being saved: epochs 3 to 5 are written again."""
    pytest.importorskip("tensorboardX")
    asked = {**ASKED, "memory": 20, "out": runs, "log": "tensorboard"}
    for more, saved in ((2, True), (3, False)):
        with pytest.MonkeyPatch.context() as patch:
            stop_after(more, patch)
            if not saved:
                patch.setattr(Trainer, "_save", lambda self, state: None)
            with pytest.raises(Stopped):
                mdcg.run(**asked)
    (folder,) = (path.parent for path in runs.glob("*/tensorboard"))
    assert [step for step, _ in scalars(folder)["loss"]] == [1, 2, 3, 4, 5]
    mdcg.run(**asked)
    files = sorted((folder / "tensorboard").iterdir())
    assert len(files) == 3
    told = [event for file in files for event in events(file)]
    written = [event.step for event in told for value in event.summary.value if value.tag == "loss"]
    assert written == [1, 2, 3, 4, 5, 3, 4, 5, 6]
    check_events(folder)


def test_event_files_when_only_some_runs_were_stored(runs: Path) -> None:
    """The first run's end was told of, the second could not be stored: both are told of again."""
    pytest.importorskip("tensorboardX")
    asked = {**ASKED, "memory": 20, "seeds": range(2), "out": runs, "log": "tensorboard"}
    write = Store.write

    def once(self: Store, record: Record, model: SavedModel, measured: dict[str, Measurements]) -> None:
        if record.spec.seed:
            raise mdcg.MdcgError("no room")
        write(self, record, model, measured)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mdcg.train.loop.SAVING", 1)  # after every epoch
        patch.setattr(Store, "write", once)
        with pytest.raises(mdcg.MdcgError, match="no room"):
            mdcg.run(**asked)
    mdcg.run(**asked)
    folders = [path.parent for path in runs.glob("*/result.json")]
    assert len(folders) == 2
    for folder in folders:
        assert len(list((folder / "tensorboard").iterdir())) == 2
        check_events(folder)


def test_a_disk_that_is_full(cli: Cli, runs: Path) -> None:
    """Where its folder cannot be made, TensorBoard is left out."""
    pytest.importorskip("tensorboardX")
    assert cli(*WORDS, "--out", runs).code == 0
    folders = [path.parent for path in runs.glob("*/result.json")]
    for folder in folders:
        (folder / "tensorboard").write_text("in the way")
    answer = cli(*WORDS, "--out", runs, "--log", "tensorboard", "--fresh")
    assert answer.code == 0
    assert answer.err.count("the tracker TensorBoard failed") == 1
    assert len(answer.err.splitlines()) == 1
