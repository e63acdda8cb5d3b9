"""What is shown of a training: a bar on a terminal or in a notebook, elsewhere a line from time to time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn

from mdcg.terminal import PlainConsole
from mdcg.train.group import Group
from mdcg.train.state import HistoryRow

logger = logging.getLogger(__name__)
PAUSE = 10.0  # seconds between two lines, at least


class TrainingDisplay:
    """A bar for the group that trains, gone when it is left; where no bar can be drawn, a log line after an epoch.

    The remaining time is what was measured, of the work that was done here. `Trainer` can have it for a watcher.
    """

    def __init__(self, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        console = PlainConsole(stderr=True)
        # The file is asked too: FORCE_COLOR, as job runners set it, makes no terminal of a log.
        drawn = console.is_jupyter or (console.is_interactive and console.file.isatty())
        self._lines = not drawn and not quiet
        title, note = _text("{task.description}"), _text("{task.fields[note]}")
        self._bars = Progress(title, BarColumn(), note, console=console, disable=quiet or not drawn, transient=True)
        self._bar = self._bars.add_task("", visible=False, note="")
        self._title, self._epoch = "", ""
        self._clock = clock
        self._began = self._said = clock()
        self._stepping = False  # before the first step data are read and kernels compiled: no pace to go by
        self._left, self._here = 0.0, 0.0  # work that is to be done, and that was done by this process
        self._per_step = 1.0  # work
        self._guess: float | None = None  # of the seconds that are left, until something is measured

    def __enter__(self) -> Self:
        self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.__exit__(kind, error, trace)

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        """Show that a group begins: so many steps, some of them done before."""
        self._title, self._epoch, self._left = title, "", total - done
        self._bars.remove_task(self._bar)
        self._bar = self._bars.add_task(title, total=total, completed=done, note="")  # below what is shown already

    def step(self, count: int) -> None:
        """Show that so many more steps are done."""
        self._left -= count * self._per_step
        if not self._stepping:
            self._stepping, self._began = True, self._clock()
        else:
            self._here += count * self._per_step
        self._bars.advance(self._bar, count)
        self._refresh()

    def epoch(self, task: int, epoch: int, loss: float, rows: Sequence[HistoryRow]) -> None:
        """Show that an epoch is over. What `rows` say of each member is for others."""
        self._epoch = f"task {task + 1}, epoch {epoch + 1}, loss {loss:.3f}"
        self._refresh()
        if self._clock() - self._said >= PAUSE:
            self._say(f"{self._title}: {self._epoch}", self._status())

    def seconds_left(self) -> float | None:
        """What is left of the work, at the pace of what was done here."""
        if self._here > 0:
            return max(0.0, self._left) * (self._clock() - self._began) / self._here
        return self._guess

    def _status(self) -> str:
        """How far the work is, for the end of a line."""
        return self._to_go()

    def _to_go(self) -> str:
        seconds = self.seconds_left()
        return f"about {duration(seconds)} to go" if seconds else ""

    def _refresh(self) -> None:
        self._bars.update(self._bar, note=joined(self._epoch, self._to_go()))

    def _say(self, *parts: str) -> None:
        """Log a line, where there are no bars."""
        if self._lines:
            self._said = self._clock()
            logger.info("%s", joined(*parts))


def joined(*parts: str) -> str:
    """One text of all parts that say anything."""
    return "; ".join(filter(None, parts))


def _text(what: str) -> TextColumn:
    """A column of names that come from data: brackets in them are no markup."""
    return TextColumn(what, markup=False)


def duration(seconds: float) -> str:
    """A time as people say it.

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
