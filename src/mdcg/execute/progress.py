"""The progress of the runs of a plan: bars where they can be drawn, else lines."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from mdcg.execute.cost import work
from mdcg.train.display import TrainingDisplay, joined
from mdcg.train.group import Group
from mdcg.train.loop import Watcher
from mdcg.train.state import HistoryRow

if TYPE_CHECKING:
    from mdcg.execute.plan import Job, Plan, Undone


class Display(Watcher, Protocol):
    """Shows somebody who waits how groups train."""

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        """Show that a group begins: so many steps, some of them done before."""

    def running(self, runs: int) -> None:
        """Show that so many runs train elsewhere."""

    def job_ends(self, job: Job, undone: Undone) -> None:
        """Show that all that could be done of a job is done."""


class Silent:
    """A display for where nobody looks."""

    def begin(self, title: str, group: Group, total: int, done: int) -> None: ...
    def step(self, count: int) -> None: ...
    def epoch(self, task: int, epoch: int, loss: float, rows: Sequence[HistoryRow]) -> None: ...
    def running(self, runs: int) -> None: ...
    def job_ends(self, job: Job, undone: Undone) -> None: ...


SILENT = Silent()


class PlanDisplay(TrainingDisplay):
    """A bar for the whole plan above that of the group that trains; in a log, a line too for each group that ends."""

    def __init__(self, plan: Plan, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(quiet, clock)
        self._runs, self._jobs = sum(len(job.specs) for job in plan.jobs), len(plan.jobs)
        self._done, self._failed, self._left_out, self._running = 0, 0, 0, 0
        self._total = sum(job.work for job in plan.jobs)
        self._left = self._not_ended = float(self._total)  # work is counted in images
        self._trained_here = False  # whether this process trained the job that ends next
        self._guess = plan.seconds
        self._whole = self._bars.add_task(self._count(), total=self._total, note=self._to_go())

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        super().begin(title, group, total, done)
        self._running, self._trained_here = len(group.members), True
        self._per_step = work(group) / total
        self._left = self._not_ended - done * self._per_step
        self._refresh()

    def running(self, runs: int) -> None:
        self._running = runs
        self._refresh()

    def job_ends(self, job: Job, undone: Undone) -> None:
        self._failed += len(undone.failed)
        self._left_out += len(undone.left)
        self._done += len(job.specs) - len(undone)
        if not self._trained_here and not undone.left:
            self._here += job.work
        self._not_ended -= job.work
        self._left, self._running, self._trained_here = self._not_ended, 0, False
        self._refresh()
        if self._jobs > 1:  # of a single one the end says enough
            self._say(self._status())

    def _status(self) -> str:
        return joined(self._count(), self._to_go())

    def _refresh(self) -> None:
        self._bars.update(self._bar, note=self._epoch)
        done = self._total - self._left
        self._bars.update(self._whole, description=self._count(), completed=done, note=self._to_go())

    def _count(self) -> str:
        left = self._runs - self._done - self._failed - self._left_out - self._running
        failed = f", {self._failed} failed" if self._failed else ""
        others = f", {self._left_out} not to be had" if self._left_out else ""
        return f"{self._done} of {self._runs} runs done{failed}{others}, {self._running} running, {left} left"


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
