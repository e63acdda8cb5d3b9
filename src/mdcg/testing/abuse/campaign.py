"""The parts of a campaign: what they share, and how their trials are done.

A trial is drawn from the seed, its part and its number alone: `--trial` does one of them again.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import random
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from mdcg.registry import first_line
from mdcg.testing import digits
from mdcg.testing.forked import Server


class CannotTry(Exception):
    """The reason why a part cannot be tried on this machine."""


@dataclass(frozen=True)
class Failure:
    """A trial that went wrong: what was done, as shortly as it can be told to be done again, and what came of it."""

    how: str
    error: str
    trial: int = 0

    def __str__(self) -> str:
        return f"trial {self.trial}: {self.how}: {self.error}"


class Part(ABC):
    """A part of the campaign; a subclass defines `trial`, and makes ready in its constructor what all trials need."""

    name: ClassVar[str]
    usual: ClassVar[int]  # trials, where no number is asked for

    def __init__(self, folder: Path) -> None:
        """`folder` is empty, and removed when all is done."""
        self.folder = folder
        self._closing = contextlib.ExitStack()

    @abstractmethod
    def trial(self, number: int, rng: random.Random) -> Failure | None:
        """Do one trial; its failure, if it is one."""

    def server(self, prepare: Callable[[], object] = digits.take_some) -> Server:
        """What starts commands as processes of their own, on a sixth of the digits."""
        made = Server(prepare)
        self._closing.callback(made.close)
        return made

    def close(self) -> None:
        """Let go of what the trials needed."""
        self._closing.close()

    @classmethod
    def summary(cls) -> str:
        return first_line(cls)


@dataclass
class Outcome:
    """What came of a part: how many trials, how long they took, which failed; or why there were none."""

    part: str
    trials: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    not_tried: str = ""


def attempt(part: type[Part], numbers: Sequence[int], seed: int = 0, jobs: int = 1) -> Outcome:
    """Do these trials of a part, in so many processes."""
    started = time.perf_counter()
    if jobs < 2:
        done = [_attempt(part, numbers, seed)]
    else:
        shares = [numbers[first::jobs] for first in range(jobs)]
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            done = list(pool.map(_attempt, jobs * [part], shares, jobs * [seed]))
    failures = sorted((failure for one in done for failure in one.failures), key=lambda failure: failure.trial)
    return Outcome(
        part.name, sum(one.trials for one in done), time.perf_counter() - started, failures, done[0].not_tried
    )


def _attempt(kind: type[Part], numbers: Sequence[int], seed: int) -> Outcome:
    outcome = Outcome(kind.name)
    with tempfile.TemporaryDirectory(prefix="mdcg-abuse-") as folder, _undisturbed(Path(folder)):
        try:
            part = kind(Path(folder) / "work")
        except CannotTry as reason:
            return replace(outcome, not_tried=str(reason))
        try:
            for number in numbers:
                found = part.trial(number, random.Random(f"{seed} {kind.name} {number}"))
                outcome.trials += 1
                if found is not None:
                    outcome.failures.append(replace(found, trial=number))
        finally:
            part.close()
    return outcome


@contextlib.contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    """A cache of its own, and nothing logged."""
    (folder / "work").mkdir()
    before = {name: os.environ.pop(name, None) for name in ("MDCG_CACHE", "MDCG_DATA")}
    os.environ["MDCG_CACHE"] = str(folder / "cache")
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.environ.pop("MDCG_CACHE")
        os.environ.update({name: value for name, value in before.items() if value is not None})
