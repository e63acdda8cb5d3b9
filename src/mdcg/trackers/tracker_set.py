"""The set of trackers that are told of runs; none of them can stop or change a run."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from mdcg.errors import FOREIGN, InputError, MdcgError, reason_of, said
from mdcg.trackers.base import TRACKERS, Epoch, Outcome, TrackedRun, Tracker

logger = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds that training waits for a tracker


def _open(name: str) -> Tracker:
    kind = TRACKERS[name]
    try:
        with _quiet():
            return kind()
    except MdcgError:
        raise
    except FOREIGN as error:
        raise MdcgError(f"the tracker {name} cannot be used ({reason_of(error)}); fix it, or leave it out.") from error


def _quiet() -> AbstractContextManager[object]:
    """Send what a tracker prints to standard error: standard output is for results, perhaps as JSON."""
    return contextlib.redirect_stdout(sys.stderr)


class _Listener:
    """A tracker in a thread of its own, which hears one thing after the other; it is waited for, up to a point."""

    def __init__(self, tracker: Tracker) -> None:
        self.name = type(tracker).__name__
        self.tracker = tracker
        self._told: queue.SimpleQueue[tuple[Callable[[Tracker], None], Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name=f"tracker {self.name}", daemon=True).start()

    def tell(self, what: Callable[[Tracker], None]) -> None:
        """Tell it something, and wait until it has heard; raise what it raises."""
        heard: Future[None] = Future()
        self._told.put((what, heard))
        with _quiet():
            heard.result(PATIENCE)

    def _listen(self) -> None:
        while True:
            what, heard = self._told.get()
            try:
                what(self.tracker)
            except BaseException as error:  # is raised where it was told
                heard.set_exception(error)
            else:
                heard.set_result(None)


class TrackerSet:
    """Trackers that are told of runs together. One that fails is reported, and left out from then on."""

    def __init__(self, trackers: Sequence[str | Tracker] = ()) -> None:
        """Open trackers by name, or take them as they are; what one lacks is said here, before anything trains."""
        if isinstance(trackers, str | Tracker):
            trackers = (trackers,)
        if not isinstance(trackers, list | tuple) or not all(isinstance(one, str | Tracker) for one in trackers):
            known = ", ".join(TRACKERS.names())
            raise InputError(f"log must be a list of trackers ({known}, or your own), not {said(trackers)}.")
        self._asked = tuple(trackers)
        named = dict.fromkeys(tracker for tracker in self._asked if isinstance(tracker, str))
        given = [tracker for tracker in self._asked if not isinstance(tracker, str)]
        self._live = [_Listener(tracker) for tracker in (*map(_open, named), *given)]

    def __reduce__(self) -> tuple[type[TrackerSet], tuple[tuple[str | Tracker, ...]]]:
        """Let another process open the trackers anew."""
        return TrackerSet, (self._asked,)

    def __bool__(self) -> bool:
        """Whether anybody listens."""
        return bool(self._live)

    def finished(self, run: TrackedRun, epochs: Sequence[Epoch], outcome: Outcome) -> bool:
        """Tell all of a run that was finished before to those that do not have it; return whether it was news."""
        news = False

        def tell(tracker: Tracker) -> None:
            nonlocal news
            if tracker.has(run):
                return
            tracker.begin(run)
            try:
                for epoch in epochs:
                    tracker.epoch(run, epoch)
                tracker.end(run, outcome)
                news = True
            finally:
                tracker.leave(run)

        self._tell(tell)
        return news

    def begin(self, run: TrackedRun) -> None:
        self._tell(lambda tracker: tracker.begin(run))

    def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
        self._tell(lambda tracker: tracker.epoch(run, epoch))

    def end(self, run: TrackedRun, outcome: Outcome) -> None:
        self._tell(lambda tracker: tracker.end(run, outcome))

    def leave(self, run: TrackedRun) -> None:
        self._tell(lambda tracker: tracker.leave(run))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for listener in list(self._live):
            try:
                listener.tell(what)
            except FOREIGN as error:  # it may be anything: a full disk, a server that is away, a mistake
                self._live.remove(listener)
                late = isinstance(error, TimeoutError) and not str(error)
                reason = f"it did not answer for {PATIENCE:g} seconds" if late else reason_of(error)
                logger.warning("the tracker %s failed (%s); training goes on without it.", listener.name, reason)
