"""The set of trackers that are told of runs; none of them can stop or change a run."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from mdcg.errors import MdcgError
from mdcg.trackers.base import TRACKERS, Epoch, Outcome, TrackedRun, Tracker

logger = logging.getLogger(__name__)


def _open(name: str) -> Tracker:
    kind = TRACKERS[name]
    try:
        with _quiet():
            return kind()
    except MdcgError:
        raise
    except Exception as error:
        raise MdcgError(f"the tracker {name} cannot be used ({_reason(error)}); fix it, or leave it out.") from error


def _quiet() -> AbstractContextManager[object]:
    """Send what a tracker prints to standard error: standard output is for results, perhaps as JSON."""
    return contextlib.redirect_stdout(sys.stderr)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


class TrackerSet:
    """Trackers that are told of runs together. One that fails is reported, and left out from then on."""

    def __init__(self, trackers: Sequence[str | Tracker] = ()) -> None:
        """Open trackers by name, or take them as they are; what one lacks is said here, before anything trains."""
        self._asked = (trackers,) if isinstance(trackers, str) else tuple(trackers)
        named = dict.fromkeys(tracker for tracker in self._asked if isinstance(tracker, str))
        self._live = [*map(_open, named), *(tracker for tracker in self._asked if not isinstance(tracker, str))]

    def __reduce__(self) -> tuple[type[TrackerSet], tuple[tuple[str | Tracker, ...]]]:
        """Let another process open the trackers anew."""
        return TrackerSet, (self._asked,)

    def begin(self, run: TrackedRun) -> None:
        self._tell(lambda tracker: tracker.begin(run))

    def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
        self._tell(lambda tracker: tracker.epoch(run, epoch))

    def end(self, run: TrackedRun, outcome: Outcome) -> None:
        self._tell(lambda tracker: tracker.end(run, outcome))

    def leave(self, run: TrackedRun) -> None:
        self._tell(lambda tracker: tracker.leave(run))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._live):
            try:
                with _quiet():
                    what(tracker)
            except Exception as error:  # it may be anything: a full disk, a server that is away, a mistake
                self._live.remove(tracker)
                who = f"the tracker {type(tracker).__name__}"
                logger.warning("%s failed (%s); training goes on without it.", who, _reason(error))
