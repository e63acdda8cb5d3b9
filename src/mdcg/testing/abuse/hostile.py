"""The frame of trials with hostile files: one command on what a trial has made, and all that may not come of it.

Each command is a process of its own that may take so much memory and so much time. It ends with code 0 or 2, says
sentences and no traceback, starts no program, and touches nothing outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from mdcg.data import DATASETS, DatasetRecord, Published, PublishedFiles
from mdcg.testing.abuse.campaign import CannotTry, Failure, Part

SECONDS = 60.0  # after which a command counts as one that does not end
PROGRAMS = ("gs", "gswin64c", "convert", "magick", "inkscape", "rsvg-convert", "djpeg", "unzip", "tar")
NAMES = (
    b"\xff\xfe\xe9", b"two\nlines", b"\x1b[31mred\x1b]0;x\x07", b"-rf", b" ", b"'; touch x; '", "‮gnp".encode(),
    b"x" * 240, b"%s%n{0}", b"[bold]", b"..", "é" .encode() * 60,
)  # fmt: skip
Made = TypeVar("Made")


@dataclass(frozen=True)
class Harm(Generic[Made]):
    """One thing that is done, in words, and how it is done."""

    words: str
    do: Callable[[Made], object]


def limited(memory: int, records: Sequence[DatasetRecord] = (), before: Callable[[], object] | None = None) -> None:
    """Prepare a process for a command: it then has little memory, and takes archives of these records unhashed."""
    import resource

    if before:
        before()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for record in records:
        DATASETS._known[record.name] = record
    if records:
        for kind in (Published, PublishedFiles):
            kind.check = lambda *_: None  # type: ignore[method-assign]


class Hostile(Part):
    """The frame of both parts: one command on what a trial has made, and all that may not come of it."""

    memory: ClassVar[int]  # bytes that a command may take; Python and torch have 2^30 of them already

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if sys.platform != "linux":
            raise CannotTry("memory is limited, and pipes and devices are made, as Linux does it")
        self.commands = self.server()
        self.outside, self.started = folder / "outside", folder / "started"
        (folder / "bin").mkdir()
        for name in PROGRAMS:
            (folder / "bin" / name).write_text(f"#!/bin/sh\necho {name} > '{self.started}'\n")
            (folder / "bin" / name).chmod(0o755)

    def wrong(
        self,
        *words: object,
        records: Sequence[DatasetRecord] = (),
        before: Callable[[], object] | None = None,
        **variables: str,
    ) -> tuple[str | None, int, str, str]:
        """Give a command: what is wrong with how it ended, its code, and what it said."""
        for folder in (self.outside, Path(os.environ["MDCG_CACHE"])):
            shutil.rmtree(folder, ignore_errors=True)
        self.outside.mkdir()
        (self.outside / "kept.png").write_bytes(b"kept")
        self.started.unlink(missing_ok=True)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        process = self.commands.start(
            *words,
            before=partial(limited, self.memory, records, before),
            **{"cwd": str(self.folder), "PATH": path, **variables},
        )
        try:
            out, said = process.communicate(SECONDS)
        except subprocess.TimeoutExpired:
            return f"it does not end within {SECONDS:g} s", -1, "", ""
        code = process.returncode
        assert code is not None
        lines = said.strip().splitlines()
        strange = [line for line in lines if not line.startswith("mdcg: ")]
        trouble = None
        if code not in (0, 2) or "Traceback" in said + out:
            trouble = f"code {code}: {lines[-1] if lines else ''}"
        elif strange:
            trouble = f"it said {strange[0]!r}"
        elif code == 2 and not (lines and lines[-1].endswith(".")):
            trouble = f"it said no sentence: {lines}"
        elif self.started.exists():
            trouble = f"it started {self.started.read_text().strip()}"
        elif {file.name: file.read_bytes() for file in self.outside.iterdir()} != {"kept.png": b"kept"}:
            trouble = f"outside there is {sorted(file.name for file in self.outside.iterdir())}"
        return trouble, code, out, said


def fewest(harms: Sequence[Harm[Made]], wrong: Callable[[Sequence[Harm[Made]]], str | None]) -> Failure | None:
    """What goes wrong after these, told by as few of them as it takes."""
    error = wrong(harms)
    if error is None:
        return None
    for one in list(harms):
        fewer = [other for other in harms if other is not one]
        if fewer and (found := wrong(fewer)) is not None:
            harms, error = fewer, found
    return Failure("; ".join(one.words for one in harms), error)
