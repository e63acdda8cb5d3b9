"""Processes that are killed, at any time and at every operation on a file, and given again."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.testing.abuse.work import COMMANDS, TIMEOUT, Disturbed, at_operation, often_saved

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOST = 3  # signals of one trial, one after the other
#: What Python itself prints of a signal that comes while it takes an object apart; it goes on as if there were none.
IN_A_DESTRUCTOR = re.compile(r"^Exception ignored in: .*?^KeyboardInterrupt:? *$", re.MULTILINE | re.DOTALL)


class _Killing(Part):
    """What both ways to kill have in common."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.work = Disturbed(self.server(), folder)

    def _after(self, name: str, place: Path, number: int, code: int | None, errors: str) -> str:
        """What is wrong just after a signal, in words."""
        if code not in (0, -number, 128 + number):
            return f"it ends with code {code}: {errors.strip()[-300:]}"
        if "Traceback" in IN_A_DESTRUCTOR.sub("", errors):
            return f"it says {errors.strip()[-300:]}"
        return self.work.halves(name, place)


class Kill(_Killing):
    """Commands killed at random moments, up to three times, and given again: the same bits, no half files."""

    name, usual = "kill", 300

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._seconds: dict[str, float] = {}

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        name = list(COMMANDS)[number % len(COMMANDS)]
        longest, place, told = self._duration(name), self.work.place(), []
        for _ in range(rng.randint(1, MOST)):
            kind, delay = rng.choice(SIGNALS), rng.uniform(0, longest)
            told.append(f"{kind.name} after {delay:.3f} s")
            process = self.work.start(name, place, often_saved)
            time.sleep(delay)
            process.send_signal(kind)
            _, errors = process.communicate(TIMEOUT)
            if wrong := self._after(name, place, kind, process.returncode, errors):
                return Failure(_told(name, told), wrong)
        wrong = self.work.finish(name, place)
        return Failure(_told(name, told), wrong) if wrong else None

    def _duration(self, name: str) -> float:
        """How long the command takes undisturbed, when it has been given before."""
        if name not in self._seconds:
            self.work.wanted(name)
            place, started = self.work.place(), time.perf_counter()
            self.work.finish(name, place)
            self._seconds[name] = time.perf_counter() - started
        return self._seconds[name]


class KillAt(_Killing):
    """Commands killed at every operation that changes a file, also when half of one is written."""

    name, usual = "kill-at", 600

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._operations: dict[str, list[int]] = {}

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        name = list(COMMANDS)[number % len(COMMANDS)]
        operations = self._operations.get(name) or self._count(name)
        operation = operations[number // len(COMMANDS) % len(operations)]
        place = self.work.place()
        process = self.work.start(name, place, partial(_killed_at, operation, place))
        _, errors = process.communicate(TIMEOUT)
        wrong = self._after(name, place, signal.SIGKILL, process.returncode, errors) or self.work.finish(name, place)
        return Failure(_told(name, [f"SIGKILL at operation {operation} on a file"]), wrong) if wrong else None

    def _count(self, name: str) -> list[int]:
        """The numbers of a command's operations, in an order of which few trials take some from everywhere."""
        place, note = self.work.place(), self.folder / f"{name}.count"
        self.work.start(name, place, partial(_counted, place, note)).communicate(TIMEOUT)
        found = [number + 1 for number in range(len(note.read_bytes()))]
        random.Random(0).shuffle(found)
        self._operations[name] = found
        return found


def _told(name: str, told: list[str]) -> str:
    return f"mdcg {shlex.join(COMMANDS[name])}, {', then '.join(told)}"


def _counted(folder: Path, note: Path) -> None:
    """Write a letter for each operation."""
    file = os.open(note, os.O_WRONLY | os.O_CREAT)
    _at_each(folder, lambda number: os.write(file, b"."))


def _killed_at(operation: int, folder: Path) -> None:
    def act(number: int) -> None:
        if number == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    _at_each(folder, act)


def _at_each(folder: Path, act: Callable[[int], object]) -> None:
    """Act before each operation that changes a file of this folder, and when half of a file is written."""
    from mdcg import files

    often_saved()
    count = at_operation(folder, lambda number, _: act(number))
    write = files._write

    def in_halves(file: BinaryIO, content: Any) -> None:
        half = len(content) // 2
        file.write(content[:half])
        file.flush()
        act(next(count))
        write(file, content[half:])

    files._write = in_halves
