"""The progress of runs that train: bars on a terminal, else a line for each group that is done."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mdcg.execute.cost import work
from mdcg.train.group import Group

if TYPE_CHECKING:
    from mdcg.execute.plan import Job, Plan, Undone

logger = logging.getLogger(__name__)


class Display(Protocol):
    """Shows somebody who waits how groups train."""

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        """Show that a group begins: so many steps, some of them done before."""

    def step(self, count: int) -> None:
        """Show that so many more steps are done."""

    def epoch(self, task: int, epoch: int, loss: float) -> None:
        """Show that an epoch is over."""

    def running(self, runs: int) -> None:
        """Show that so many runs train elsewhere."""

    def job_ends(self, job: Job, undone: Undone) -> None:
        """Show that all that could be done of a job is done."""


class Silent:
    """A display for where nobody looks."""

    def begin(self, title: str, group: Group, total: int, done: int) -> None: ...
    def step(self, count: int) -> None: ...
    def epoch(self, task: int, epoch: int, loss: float) -> None: ...
    def running(self, runs: int) -> None: ...
    def job_ends(self, job: Job, undone: Undone) -> None: ...


SILENT = Silent()


class ProgressBars:
    """One bar for the whole plan, one line for the group that trains; gone when the work is over.

    The remaining time is what was measured, of the work that was done here.
    """

    def __init__(self, plan: Plan, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs, self._jobs = sum(len(job.specs) for job in plan.jobs), len(plan.jobs)
        self._done, self._failed, self._left_out, self._running = 0, 0, 0, 0
        self._total = sum(job.work for job in plan.jobs)
        self._ended, self._here = 0.0, 0.0  # images of jobs that ended, and of those steps done by this process
        self._group, self._per_step = 0.0, 0.0  # of the group that trains
        self._guess = plan.seconds  # until something is measured
        self._clock, self._began = clock, clock()
        hidden = quiet or not sys.stderr.isatty()
        title, note = _text("{task.description}"), _text("{task.fields[note]}")
        self._bars = Progress(title, BarColumn(), note, console=Console(stderr=True), disable=hidden, transient=True)
        self._whole = self._bars.add_task(self._title(), total=self._total, note=self._left())
        self._current = self._bars.add_task("", total=1, visible=False, note="")

    def __enter__(self) -> Self:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        self._running = len(group.members)
        self._per_step = work(group) / total
        self._group = done * self._per_step
        self._bars.reset(self._current, description=title, total=total, completed=done, visible=True, note="")
        self._refresh()

    def step(self, count: int) -> None:
        self._group += count * self._per_step
        self._here += count * self._per_step
        self._bars.advance(self._current, count)
        self._refresh()

    def epoch(self, task: int, epoch: int, loss: float) -> None:
        self._bars.update(self._current, note=f"task {task + 1}, epoch {epoch + 1}, loss {loss:.3f}")

    def running(self, runs: int) -> None:
        self._running = runs
        self._refresh()

    def job_ends(self, job: Job, undone: Undone) -> None:
        self._failed += len(undone.failed)
        self._left_out += len(undone.left)
        self._done += len(job.specs) - len(undone)
        if not self._per_step and not undone.left:  # it was trained elsewhere
            self._here += job.work
        self._ended += job.work
        self._running, self._group, self._per_step = 0, 0.0, 0.0
        self._refresh()
        if self._jobs > 1 and not sys.stderr.isatty():  # of a single one the end says enough
            logger.info("%s%s%s", self._title(), "; " if self._left() else "", self._left())

    def seconds_left(self) -> float | None:
        """The time that the rest of the work takes, at the pace of what was done here."""
        left = self._total - self._ended - self._group
        if self._here > 0:
            return max(0.0, left) * (self._clock() - self._began) / self._here
        return self._guess

    def _refresh(self) -> None:
        done = self._ended + self._group
        self._bars.update(self._whole, description=self._title(), completed=done, note=self._left())

    def _title(self) -> str:
        left = self._runs - self._done - self._failed - self._left_out - self._running
        failed = f", {self._failed} failed" if self._failed else ""
        others = f", {self._left_out} not to be had" if self._left_out else ""
        return f"{self._done} of {self._runs} runs done{failed}{others}, {self._running} running, {left} left"

    def _left(self) -> str:
        seconds = self.seconds_left()
        return f"about {duration(seconds)} to go" if seconds else ""


def _text(what: str) -> TextColumn:
    """A column of names that come from data: brackets in them are no markup."""
    return TextColumn(what, markup=False)


def duration(seconds: float) -> str:
    """Format a time as people say it.

    >>> duration(75), duration(5000), duration(0.2)
    ('1 min 15 s', '1 h 23 min', '1 s')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 and rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


@contextlib.contextmanager
def messages(quiet: bool) -> Iterator[None]:
    """Let the library log as the application has set it; with `quiet`, errors only."""
    library = logging.getLogger("mdcg")
    before = library.level
    if quiet:
        library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(before)
