"""The tracker for TensorBoard, which writes event files below each run's own folder."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO

from mdcg.extras import extra
from mdcg.trackers.base import TRACKERS, Epoch, Outcome, TrackedRun, Tracker

FOLDER = "tensorboard"
PREFIX = "events.out.tfevents."
FINAL = "final/"  # what the names of the metrics at the end begin with
ENDED = FINAL.encode()


@TRACKERS.register("tensorboard")
class TensorBoard(Tracker):
    """Writes loss and accuracies by epoch, settings as text, the metrics at the end."""

    def __init__(self) -> None:
        self._events = extra("tensorboardX.proto.event_pb2", "tensorboard", "the tracker tensorboard")
        self._summary = extra("tensorboardX.summary", "tensorboard", "the tracker tensorboard")
        self._checksum = extra("tensorboardX.record_writer", "tensorboard", "the tracker tensorboard").masked_crc32c
        self._files: dict[str, BinaryIO] = {}

    def has(self, run: TrackedRun) -> bool:
        """Whether a file tells how the run ended."""
        return any(ENDED in file.read_bytes() for file in (run.folder / FOLDER).glob(f"{PREFIX}*") if file.is_file())

    def begin(self, run: TrackedRun) -> None:
        """Create a new file; where others are there, its first step says from where on they no longer count."""
        folder = run.folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        new = not run.done or not any(folder.glob(f"{PREFIX}*"))
        first = run.done + 1 if run.done else 0
        self._files[run.name] = _create(folder)
        started = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(run, first, file_version="brain.Event:2")
        self._write(run, first, session_log=started)
        if new:
            lines = [
                "| setting | value |",
                "|---|---|",
                *(f"| {key} | {value} |" for key, value in run.settings.items()),
            ]
            self._write(run, 0, summary=self._summary.text("settings", "\n".join(lines)))
        self._files[run.name].flush()

    def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
        values = {"loss": epoch.loss, "accuracy/train": epoch.train_accuracy}
        values |= {f"accuracy/task_{task}": value for task, value in enumerate(epoch.accuracy, 1)}
        self._scalars(run, epoch.number, values)

    def end(self, run: TrackedRun, outcome: Outcome) -> None:
        known = {f"{FINAL}{name}": value for name, value in outcome.metrics.items() if value is not None}
        self._scalars(run, run.epochs + 1, known)  # a step of its own, so that it is replaced when it is told again

    def leave(self, run: TrackedRun) -> None:
        if run.name in self._files:
            self._files.pop(run.name).close()

    def _scalars(self, run: TrackedRun, step: int, values: dict[str, float]) -> None:
        for tag, value in values.items():
            self._write(run, step, summary=self._summary.scalar(tag, value))
        self._files[run.name].flush()  # to be seen while the run goes on

    def _write(self, run: TrackedRun, step: int, **content: Any) -> None:
        """Write a TFRecord: length and data, each with its checksum.

        Written here and now: the writers of tensorboardX do so in a thread, where an error would go unnoticed.
        """
        data = self._events.Event(wall_time=time.time(), step=step, **content).SerializeToString()
        length = struct.pack("<Q", len(data))
        parts = [length, struct.pack("<I", self._checksum(length)), data, struct.pack("<I", self._checksum(data))]
        self._files[run.name].write(b"".join(parts))


def _create(folder: Path) -> BinaryIO:
    """Create a file that sorts after all earlier ones: TensorBoard reads them by name."""
    now = time.time_ns()
    return (folder / f"{PREFIX}{now // 10**9}.{now % 10**9:09d}.{os.getpid()}").open("xb")
