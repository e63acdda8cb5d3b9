"""Telling trackers of runs, so that no tracker can stop or change one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType

from mdcg.errors import MdcgError
from mdcg.execute.progress import Display
from mdcg.trackers.base import TRACKERS, Epoch, Outcome, Run, Tracker
from mdcg.train.group import Group
from mdcg.train.state import Row


def opened(trackers: Sequence[str | Tracker]) -> list[Tracker]:
    """Trackers by name or as they are; what one lacks is said here, before anything trains."""
    asked = [trackers] if isinstance(trackers, str) else trackers
    named = dict.fromkeys(tracker for tracker in asked if isinstance(tracker, str))
    return [*map(_open, named), *(tracker for tracker in asked if not isinstance(tracker, str))]


def _open(name: str) -> Tracker:
    kind = TRACKERS[name]
    try:
        with _quiet():
            return kind()
    except MdcgError:
        raise
    except Exception as error:
        raise MdcgError(f"the tracker {name} cannot be used ({_reason(error)}); mend it, or leave it out.") from error


def _quiet() -> AbstractContextManager[object]:
    """Standard output is for results, perhaps as JSON: what a tracker prints goes to standard error."""
    return contextlib.redirect_stdout(sys.stderr)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


class Telling:
    """All trackers of a call. One that fails is reported and left out from then on."""

    def __init__(self, trackers: Sequence[Tracker], warn: Callable[[str], None]) -> None:
        self._live = list(trackers)
        self._warn = warn

    def begin(self, run: Run) -> None:
        self._tell(lambda tracker: tracker.begin(run))

    def epoch(self, run: Run, epoch: Epoch) -> None:
        self._tell(lambda tracker: tracker.epoch(run, epoch))

    def end(self, run: Run, outcome: Outcome) -> None:
        self._tell(lambda tracker: tracker.end(run, outcome))

    def leave(self, run: Run) -> None:
        self._tell(lambda tracker: tracker.leave(run))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._live):
            try:
                with _quiet():
                    what(tracker)
            except Exception as error:  # it may be anything: a full disk, a server that is away, a mistake
                self._live.remove(tracker)
                who = f"the tracker {type(tracker).__name__}"
                self._warn(f"{who} failed ({_reason(error)}); training goes on without it.")


class Followed:
    """Watches a group: passes on to a display what it is told, and to trackers what becomes of each run."""

    def __init__(self, display: Display, telling: Telling, runs: Sequence[Run], epochs: int) -> None:
        self._display, self._telling, self._runs, self._epochs = display, telling, list(runs), epochs
        self._rows: Sequence[int] = range(len(runs))  # for each run, which of the rows told is its own
        self._begun = False

    def __enter__(self) -> Followed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs if self._begun else ():
            self._telling.leave(run)

    def begin(self, title: str, group: Group, total: int, done: int, epochs: int) -> None:
        """So many steps in all and done, so many epochs done."""
        self._display.begin(title, group, total, done)
        self._runs = [replace(run, done=epochs) for run in self._runs]
        self._begun = True
        for run in self._runs:
            self._telling.begin(run)

    def of(self, rows: Sequence[int]) -> Followed:
        """The same, when run k is told of by row rows[k]: members may share who trains for them."""
        self._rows = rows
        return self

    def step(self, count: int) -> None:
        self._display.step(count)

    def epoch(self, task: int, epoch: int, loss: float, rows: Sequence[Row]) -> None:
        self._display.epoch(task, epoch, loss)
        for run, place in zip(self._runs, self._rows, strict=True):
            row = rows[place]
            told = Epoch(
                task=task + 1,
                epoch=epoch + 1,
                number=task * self._epochs + epoch + 1,
                loss=row["loss"],
                train_accuracy=row["train_accuracy"],
                accuracy=tuple(row.get("accuracy", ())),
            )
            self._telling.epoch(run, told)

    def end(self, place: int, outcome: Outcome) -> None:
        self._telling.end(self._runs[place], outcome)
