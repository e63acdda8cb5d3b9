"""Programs of our own beside this one: modules that a new Python runs, asked on their input, answering on their output.

They are not started by `multiprocessing`: a fork would be unsafe beside threads and a GPU, and what is spawned would
import a person's program again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START = (
    "import importlib, json, sys; module, sys.path[:], settings = json.loads(sys.argv[1]); "
    "importlib.import_module(module).main(settings)"
)
PIPE = 2**20  # bytes that lie between two programs until they are fetched


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def startable() -> bool:
    """Whether we know how to start Python: a program that has it within would start itself once more."""
    known = Path(sys.executable or "").name.startswith("python") and not hasattr(sys, "frozen")
    return os.name == "posix" and known


class Program:
    """A module whose `main(settings)` runs in a process of its own, with our modules' path; OSError if it cannot."""

    def __init__(self, module: str, settings: dict[str, Any], variables: Mapping[str, str]) -> None:
        path = [place for place in sys.path if isinstance(place, str)]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", START, json.dumps([module, path, settings])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what it cannot do is tried again here, and told here
            env=os.environ | variables,
            start_new_session=True,  # Ctrl-C is meant for us: we end it
        )
        assert isinstance(self.process.stdin, io.BufferedWriter)
        assert isinstance(self.process.stdout, io.BufferedReader)
        self.questions, self.answers = self.process.stdin, self.process.stdout
        if sys.platform == "linux":
            import fcntl  # which Windows does not have

            for pipe in (self.questions, self.answers):
                with contextlib.suppress(OSError):  # slower where we may not
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)

    def tell(self, line: object, *contents: bytes) -> None:
        """Send a line, and what follows it; where it has ended, its missing answer will show that."""
        with contextlib.suppress(OSError):
            self.questions.write(json.dumps(line).encode() + b"\n")
            self.questions.writelines(contents)
            self.questions.flush()

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.questions, self.answers):
            with contextlib.suppress(OSError):  # what it will not read
                pipe.close()


def answering() -> io.BufferedWriter:
    """The way for a program's answers; what a library prints no longer gets in between."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return answers
