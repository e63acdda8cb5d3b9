"""Many images decoded by several processes: of small images, most of the work is Python's, which threads do not share.

Whatever a process cannot decode is decoded here, which says what is wrong: with and without processes there are the
same pixels and the same sentences.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image

from mdcg.errors import MachineError
from mdcg.files import shown
from mdcg.pixels.decode import LARGE, Decoded, Encoded, ImageFormat, ahead, attempt
from mdcg.pixels.worker import READY
from mdcg.programs import PIPE, Program, cores, startable

EACH = 2000  # images, for which it is worth to start a process
MOST = 17  # processes: more would hardly be fed from here
CHUNK = 64  # images that a process is asked for at once, or fewer, so that their pixels lie in the pipe


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


@contextlib.contextmanager
def _workers(format: ImageFormat, hashed: bool, files: int) -> Iterator[list[_Worker]]:
    """Processes for all cores; none where they are not worth it, or cannot be started."""
    count = min(cores() + 1, MOST, files // EACH)  # one waits for what it has made to be fetched
    if count < 2 or cores() < 2 or not startable():
        count = 0
    pixels = min(Image.MAX_IMAGE_PIXELS or LARGE, LARGE)  # no two larger ones are decoded at once: they are for us
    settings = {**asdict(format), "hashed": hashed, "pixels": pixels}
    started: list[_Worker] = []
    try:
        with contextlib.suppress(OSError):  # where we may have no more processes, or open files
            started += (_Worker(format, settings) for _ in range(count))
        yield [worker for worker in started if worker.is_ready()]
    finally:
        for worker in started:
            worker.end()


class _Worker(Program):
    """A process that decodes images, see `worker`."""

    def __init__(self, format: ImageFormat, settings: dict[str, Any]) -> None:
        super().__init__("mdcg.pixels.worker", settings, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
        self.shape = (format.size, format.size, 3)

    def is_ready(self) -> bool:
        """Wait until it has started; False where it could not."""
        return self.answers.readline() == READY

    def ask(self, files: Sequence[Encoded]) -> list[Decoded | None]:
        """What becomes of each file; None if it must be decoded here."""
        contents = [file.content for file in files]
        self.tell(
            [len(one) if isinstance(one, bytes) else str(one) for one in contents],
            *(one for one in contents if isinstance(one, bytes)),
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
