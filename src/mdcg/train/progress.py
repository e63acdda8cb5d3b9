"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from mdcg.train.state import Row


class Progress:
    """Steps done and left, the last epoch's loss, the remaining time."""

    def __init__(self, title: str, quiet: bool) -> None:
        self._title = title
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet or not sys.stderr.isatty(),
            transient=True,
        )

    def __enter__(self) -> Progress:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def begin(self, total: int, done: int) -> None:
        self._task = self._bar.add_task(self._title, total=total, completed=done, note="")

    def step(self, count: int) -> None:
        self._bar.advance(self._task, count)

    def epoch(self, task: int, epoch: int, loss: float, rows: Sequence[Row]) -> None:
        self._bar.update(self._task, note=f"task {task + 1}, epoch {epoch + 1}, loss {loss:.3f}")
