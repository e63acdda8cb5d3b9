"""Progress bars on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from mdcg.train.group import Group


class Display(Protocol):
    """What somebody who waits is shown of a group that trains."""

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        """Of so many steps, some done before."""

    def step(self, count: int) -> None: ...
    def epoch(self, task: int, epoch: int, loss: float) -> None: ...


class Bars:
    """Bars that are gone when the work is over."""

    def __init__(self, *columns: ProgressColumn, quiet: bool) -> None:
        hidden = quiet or not sys.stderr.isatty()
        self._bar = Bar(*columns, console=Console(stderr=True), disable=hidden, transient=True)

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)


def text(what: str) -> TextColumn:
    """A column of names that come from data: brackets in them are no markup."""
    return TextColumn(what, markup=False)


class Progress(Bars):
    """Of one group: steps done and left, the last epoch's loss, the remaining time."""

    def __init__(self, quiet: bool) -> None:
        title, note = text("{task.description}"), text("{task.fields[note]}")
        super().__init__(title, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn(), quiet=quiet)
        self._task = self._bar.add_task("", visible=False, note="")

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        self._bar.reset(self._task, description=title, total=total, completed=done, visible=True, note="")

    def step(self, count: int) -> None:
        self._bar.advance(self._task, count)

    def epoch(self, task: int, epoch: int, loss: float) -> None:
        self._bar.update(self._task, note=f"task {task + 1}, epoch {epoch + 1}, loss {loss:.3f}")
