"""What a sweep shows while it goes: runs done, running and left, and the time that what was measured tells."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.progress import BarColumn

from mdcg.execute.cost import work
from mdcg.execute.progress import Bars, text
from mdcg.execute.sweep import Job, Planned, Undone
from mdcg.train.group import Group


class SweepDisplay(Bars):
    """One bar for the whole sweep, one line for the group that trains; where there is no terminal, a line per group."""

    def __init__(self, planned: Planned, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs = sum(len(job.specs) for job in planned.jobs)
        self._done, self._failed, self._left_out, self._running = 0, 0, 0, 0
        self._total = sum(job.work for job in planned.jobs)
        self._ended, self._here = 0.0, 0.0  # images of jobs that ended, and of those steps done by this process
        self._group, self._per_step = 0.0, 0.0  # of the group that trains
        self._guess = planned.seconds  # until something is measured
        self._clock, self._began = clock, clock()
        self._quiet = quiet
        super().__init__(text("{task.description}"), BarColumn(), text("{task.fields[note]}"), quiet=quiet)
        self._whole = self._bar.add_task(self._title(), total=self._total, note=self._left())
        self._current = self._bar.add_task("", total=1, visible=False, note="")

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        self._running = len(group.members)
        self._per_step = work(group) / total
        self._group = done * self._per_step
        self._bar.reset(self._current, description=title, total=total, completed=done, visible=True, note="")
        self._refresh()

    def step(self, count: int) -> None:
        self._group += count * self._per_step
        self._here += count * self._per_step
        self._bar.advance(self._current, count)
        self._refresh()

    def epoch(self, task: int, epoch: int, loss: float) -> None:
        self._bar.update(self._current, note=f"task {task + 1}, epoch {epoch + 1}, loss {loss:.3f}")

    def running(self, runs: int) -> None:
        """Elsewhere: what they do is not seen here step by step."""
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
        if not (self._quiet or sys.stderr.isatty()):
            print(f"mdcg: {self._title()}{'; ' if self._left() else ''}{self._left()}", file=sys.stderr)

    def seconds_left(self) -> float | None:
        """What is left of the work, at the pace of what was done here."""
        left = self._total - self._ended - self._group
        if self._here > 0:
            return max(0.0, left) * (self._clock() - self._began) / self._here
        return self._guess

    def _refresh(self) -> None:
        self._bar.update(self._whole, description=self._title(), completed=self._ended + self._group, note=self._left())

    def _title(self) -> str:
        left = self._runs - self._done - self._failed - self._left_out - self._running
        failed = f", {self._failed} failed" if self._failed else ""
        others = f", {self._left_out} not to be had" if self._left_out else ""
        return f"{self._done} of {self._runs} runs done{failed}{others}, {self._running} running, {left} left"

    def _left(self) -> str:
        seconds = self.seconds_left()
        return f"about {duration(seconds)} to go" if seconds else ""


def duration(seconds: float) -> str:
    """As people say it.

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
