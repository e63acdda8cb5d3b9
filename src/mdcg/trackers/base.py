"""The base class of trackers, which are told of runs as they train, so that another program can show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mdcg.registry import Registry

SettingValue = bool | int | float | str | None


@dataclass(frozen=True)
class TrackedRun:
    """A run that begins, or goes on after `done` epochs."""

    name: str
    folder: Path  # its own, where a tracker may write
    settings: Mapping[str, SettingValue]  # those of method and head as set.NAME
    epochs: int  # of all tasks together
    done: int = 0  # of them, when it begins


@dataclass(frozen=True)
class Epoch:
    """The numbers known after an epoch; accuracies in percent."""

    task: int  # from 1
    epoch: int  # of the task, from 1
    number: int  # of the run, from 1
    loss: float
    train_accuracy: float
    accuracy: tuple[float, ...] = ()  # on each task so far, where it was evaluated


@dataclass(frozen=True)
class Outcome:
    """The metrics and R of a finished run; what was not evaluated is None."""

    metrics: Mapping[str, float | None]
    R: Sequence[Sequence[float | None]]


class Tracker:
    """A tracker; a subclass defines what it wants to hear of. It is told of all runs, of several in turn if they train
    together.

    An epoch may be told of again when a run goes on from a checkpoint: `begin` says how many are done. It is told of
    everything in one thread, not the main one. Whatever it raises is said once, and it is not told of anything more;
    nor if training has waited half a minute for it.
    """

    def has(self, run: TrackedRun) -> bool:
        """Say whether a run that was finished before need not be told of: then nothing follows. One that is told of
        begins, has all its epochs and ends at once, when a command comes upon its result."""
        return True

    def begin(self, run: TrackedRun) -> None:
        """Hear that a run begins or goes on."""

    def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
        """Hear that one of the run's epochs is over."""

    def end(self, run: TrackedRun, outcome: Outcome) -> None:
        """Hear that a run is finished and stored."""

    def leave(self, run: TrackedRun) -> None:
        """Close files: nothing more comes for now, whether the run is finished or was stopped."""


TRACKERS: Registry[Callable[[], Tracker]] = Registry("tracker", "mdcg.trackers")
