"""Many images decoded by several processes: of small images, most of the work is Python's, which threads do not share.

The processes are started as programs of their own, not by `multiprocessing`: a fork would be unsafe beside threads and
a GPU, and what is spawned would import a person's program again. Whatever a process cannot decode is decoded here,
which says what is wrong: with and without processes there are the same pixels and the same sentences.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from mdcg.errors import MachineError
from mdcg.files import shown
from mdcg.pixels.decode import LARGE, Decoded, Encoded, ImageFormat, ahead, attempt
from mdcg.pixels.worker import READY

EACH = 2000  # images, for which it is worth to start a process
MOST = 17  # processes: more would hardly be fed from here
CHUNK = 64  # images that a process is asked for at once, or fewer:
PIPE = 2**20  # bytes of pixels at most, which lie in a pipe until they are fetched
START = (
    "import json, sys; settings = json.loads(sys.stdin.buffer.readline()); sys.path[:] = settings.pop('path'); "
    "from mdcg.pixels.worker import main; main(settings)"
)


@contextlib.contextmanager
def decode_all(files: Sequence[Encoded], format: ImageFormat, hashed: bool = False) -> Iterator[Iterator[Decoded]]:
    """Decode all files: what becomes of each is given in order; `hashed` asks for its sha1 too.

    Where there are many files and several cores, processes decode them, else threads do.
    """
    with _workers(format, hashed, len(files)) as workers:
        if workers:
            decoded = _by_processes(workers, files, format, hashed)
        else:
            decoded = ahead(lambda file: attempt(file, format, hashed), files)
        try:
            yield decoded
        finally:  # where not all were wanted, nothing is waited for
            for worker in workers:
                worker.process.kill()
            decoded.close()


def _by_processes(
    workers: Sequence[_Worker], files: Sequence[Encoded], format: ImageFormat, hashed: bool
) -> Generator[Decoded, None, None]:
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def ask(chunk: Sequence[Encoded]) -> list[Decoded | None]:
        worker = idle.get()
        try:
            return worker.ask(chunk)
        finally:
            idle.put(worker)

    rows = max(1, min(CHUNK, PIPE // (3 * format.size**2)))
    chunks = [files[start : start + rows] for start in range(0, len(files), rows)]
    for chunk, found in zip(chunks, ahead(ask, chunks, len(workers)), strict=True):
        for file, decoded in zip(chunk, found, strict=True):
            yield decoded or attempt(file, format, hashed)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextlib.contextmanager
def _workers(format: ImageFormat, hashed: bool, files: int) -> Iterator[list[_Worker]]:
    """Processes for all cores; none where they are not worth it, or cannot be started."""
    count = min(cores() + 1, MOST, files // EACH)  # one waits for what it has made to be fetched
    if count < 2 or cores() < 2 or os.name != "posix" or not _is_python():
        count = 0
    pixels = min(Image.MAX_IMAGE_PIXELS or LARGE, LARGE)  # no two larger ones are decoded at once: they are for us
    path = [place for place in sys.path if isinstance(place, str)]
    settings = {**asdict(format), "hashed": hashed, "pixels": pixels, "path": path}
    started: list[_Worker] = []
    try:
        with contextlib.suppress(OSError):  # where we may have no more processes, or open files
            started += (_Worker(format) for _ in range(count))
        for worker in started:
            worker.tell(settings)
        yield [worker for worker in started if worker.is_ready()]
    finally:
        for worker in started:
            worker.end()


def _is_python() -> bool:
    """Whether we know how to start Python: a program that has it within would start itself once more."""
    return Path(sys.executable or "").name.startswith("python") and not hasattr(sys, "frozen")


class _Worker:
    """A process that decodes images, see `worker`."""

    def __init__(self, format: ImageFormat) -> None:
        self.shape = (format.size, format.size, 3)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what it cannot do is tried again here, and told here
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is meant for us: we end it
        )
        assert isinstance(self.process.stdin, io.BufferedWriter)
        assert isinstance(self.process.stdout, io.BufferedReader)
        self.questions, self.answers = self.process.stdin, self.process.stdout
        if sys.platform == "linux":
            import fcntl  # which Windows does not have

            with contextlib.suppress(OSError):  # slower where we may not
                fcntl.fcntl(self.answers, fcntl.F_SETPIPE_SZ, PIPE)

    def tell(self, line: object, contents: Sequence[bytes] = ()) -> None:
        """Send a line, and what follows it; where it has ended, its missing answer will show that."""
        with contextlib.suppress(OSError):
            self.questions.write(json.dumps(line).encode() + b"\n")
            self.questions.writelines(contents)
            self.questions.flush()

    def is_ready(self) -> bool:
        """Wait until it has started; False where it could not."""
        return self.answers.readline() == READY

    def ask(self, files: Sequence[Encoded]) -> list[Decoded | None]:
        """What becomes of each file; None if it must be decoded here."""
        contents = [file.content for file in files]
        self.tell(
            [len(one) if isinstance(one, bytes) else str(one) for one in contents],
            [one for one in contents if isinstance(one, bytes)],
        )
        line = self.answers.readline()
        images = np.empty((len(files), *self.shape), np.uint8)
        if not line.endswith(b"\n") or self.answers.readinto(images.data.cast("B")) < images.nbytes:
            raise MachineError(
                f"a process that decodes images has ended ({self._end()}) between {shown(files[0].name)} and "
                f"{shown(files[-1].name)}; if memory has run out, close other programs; then give the command again."
            )
        return [None if sha1 is None else Decoded(images[row], sha1) for row, sha1 in enumerate(json.loads(line))]

    def _end(self) -> str:
        code = self.process.wait()
        return signal.strsignal(-code) or f"signal {-code}" if code < 0 else f"code {code}"

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.questions, self.answers):
            with contextlib.suppress(OSError):  # what it will not read
                pipe.close()
