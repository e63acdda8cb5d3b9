"""`python -m mdcg` without its seconds of imports: a server that has imported everything forks a process per command.

Each command is a process of its own, with its own arguments, variables, folder and output, that can be sent signals.
What it shares with the others is what the server did before: imports, and what it was asked to prepare. What it does
not show is how Python itself starts and ends, and how it writes text: for that, start `python -m mdcg`.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NoReturn


@dataclass
class Command:
    """What a forked process is to be."""

    words: list[str]
    variables: dict[str, str]
    cwd: str
    output: str  # the files that standard output and standard error go to
    errors: str
    threads: int  # of torch: results depend on their number
    before: Callable[[], object] | None  # called first, in the process itself

    def become(self) -> NoReturn:
        """Run it in this process, and end."""
        code = 1
        try:
            self._run()
            code = 0
        except SystemExit as leave:
            code = int(leave.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is over
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # taking apart all that was imported would copy it first

    def _run(self) -> None:
        import torch

        from mdcg import cli
        from mdcg.train import display

        display.PAUSE = math.inf  # what is said must not depend on how fast the machine is
        for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, self.output, WRITE), (2, self.errors, WRITE)):
            opened = os.open(name, flags)
            os.dup2(opened, number)
            os.close(opened)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(self.variables)
        os.chdir(self.cwd)
        sys.argv = ["mdcg", *self.words]
        torch.set_num_threads(self.threads)
        if self.before:
            self.before()
        cli.main()


WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def serve(connection: Connection) -> None:
    """Fork a process for each command, and say how each pid that is asked about has ended."""
    import mdcg.api
    import mdcg.cli
    import mdcg.report.terminal  # noqa: F401

    prepare: Callable[[], object] | None = connection.recv()
    if prepare:
        prepare()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close the connection
    gc.freeze()  # or every child's first collection would copy all that was imported
    while True:
        try:
            asked: Command | int = connection.recv()
        except EOFError:
            return
        if isinstance(asked, int):
            pid, status = os.waitpid(asked, os.WNOHANG)
            connection.send(os.waitstatus_to_exitcode(status) if pid else None)
        elif pid := os.fork():
            connection.send(pid)
        else:
            connection.close()
            asked.become()


class Server:
    """Starts commands; to be closed at the end."""

    def __init__(self, prepare: Callable[[], object] | None = None) -> None:
        """`prepare` is called once, in the process that all commands are forked from."""
        ours, theirs = socket.socketpair()
        code = "import sys; from mdcg.testing.forked import *; serve(Connection(int(sys.argv[1])))"
        # Several threads would not survive a fork; those of torch are set in each process.
        variables = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), *sys.path], env=variables, pass_fds=[theirs.fileno()]
            )
        self._connection = Connection(ours.detach())
        self._connection.send(prepare)
        self._files = Path(tempfile.mkdtemp(prefix="forked-"))
        self._commands = 0

    def close(self) -> None:
        self._connection.close()
        self._process.wait()
        shutil.rmtree(self._files)

    def ask(self, request: Command | int) -> Any:
        self._connection.send(request)
        return self._connection.recv()

    def start(self, *words: object, before: Callable[[], object] | None = None, **changed: str) -> Process:
        """`mdcg` with these words, here and now; `cwd` and variables of the environment may be given."""
        import torch

        self._commands += 1
        output, errors = (self._files / f"{self._commands}.{name}" for name in ("out", "err"))
        for file in (output, errors):
            file.touch()  # it may be killed before it opens them
        cwd = changed.pop("cwd", None) or str(Path.cwd())
        texts = [str(word) for word in words]
        command = Command(texts, os.environ | changed, cwd, str(output), str(errors), torch.get_num_threads(), before)
        return Process(self, texts, self.ask(command), output, errors)

    def run(
        self, *words: object, before: Callable[[], object] | None = None, **changed: str
    ) -> subprocess.CompletedProcess[str]:
        """Like `subprocess.run`, with the output as text."""
        process = self.start(*words, before=before, **changed)
        output, errors = process.communicate(timeout=300)
        assert process.returncode is not None
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@dataclass
class Process:
    """Like `subprocess.Popen`."""

    server: Server
    args: list[str]
    pid: int
    output: Path
    errors: Path
    returncode: int | None = field(default=None, init=False)  # -n: ended by signal n

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.ask(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        give_up = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > give_up:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.005)
        return code

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.wait(timeout)
        return self.output.read_text("utf-8"), self.errors.read_text("utf-8")


def killed_at(where: str, count: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Make what is called before a command: it then sends itself a signal at the n-th call of one function."""
    return partial(_arm, where, count, number)


def _arm(where: str, count: int, number: int) -> None:
    from mdcg import files
    from mdcg.data import images
    from mdcg.train import loop

    loop.SAVING = 1  # after every epoch, however long it takes

    def write_half(file: BinaryIO, content: bytes) -> None:
        file.write(content[: len(content) // 2])
        file.flush()

    owner, name, just_before = {
        "step": (loop.Trainer, "train_step", None),  # between two steps
        "half": (files, "_write", write_half),  # half of a file is written
        "flush": (files, "_flush", None),  # written, not yet flushed or renamed
        "unlink": (Path, "unlink", None),  # renamed, the older checkpoint not yet removed
        "rmtree": (shutil, "rmtree", None),  # all results written, checkpoints not yet removed
        "read": (images.ImageReader, "read", None),  # nothing begun
    }[where]
    original, calls = getattr(owner, name), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            if just_before:
                just_before(*args)
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def as_nobody() -> None:
    """Become, before a command, a user who may read what everybody may."""
    import mdcg.report.files
    import mdcg.report.page.page  # noqa: F401
    from mdcg.data import load

    load("digits")  # what it needs is read while it may still be read
    os.setuid(65534)
