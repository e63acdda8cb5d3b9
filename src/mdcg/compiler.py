"""Kernels compiled ahead of time, on all cores, by a program of our own: threads of one process would hardly share it.

The program has the same Triton and the same cache as this process, which finds there what it launches next. It ends by
itself when it has had nothing to do for a while. What it cannot compile is compiled by whoever launches it, who also
says what is wrong: with and without it the same happens, only later. Nothing here needs torch: to import that takes
the program as long as it takes this process.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from mdcg.programs import Program, cores, startable
from mdcg.switches import switched_off

MOST = 16  # processes that compile at a time
NVIDIA = Path("/dev/nvidiactl")  # is there where GPUs are


class Compiler(Program):
    """The program that compiles kernels, see `compile_worker`."""

    def __init__(self) -> None:
        # It must not take a place on the GPU, and its own processes have a core each.
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        super().__init__("mdcg.models.kernels.compile_worker", {"processes": min(cores(), MOST)}, variables)
        self.ended = False
        self._numbers = itertools.count()
        self._open: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="compiler", daemon=True).start()

    def ask(self, question: Mapping[str, Any]) -> Future[None]:
        """Have a kernel compiled; the result is there when it has been tried."""
        done: Future[None] = Future()
        with self._lock:
            if self.ended:
                done.set_result(None)
                return done
            number = next(self._numbers)
            self._open[number] = done
            self.tell({**question, "number": number})
        return done

    def is_busy(self) -> bool:
        """Whether it has not yet answered all that it was asked."""
        return bool(self._open)

    def _listen(self) -> None:
        with contextlib.suppress(ValueError, KeyError):  # what is no answer: then nobody waits for more
            for line in self.answers:
                self._open.pop(int(line)).set_result(None)
        with self._lock:
            self.ended = True
        for done in self._open.values():
            done.set_result(None)
        self._open.clear()
        with contextlib.suppress(OSError):
            self.questions.close()  # it ends now, if it has not
        self.process.wait()
        self.end()


_running: Compiler | None = None


def start() -> Compiler | None:
    """The program, started unless it is there already; None where it cannot be."""
    global _running
    if (_running is None or _running.ended) and startable():
        with contextlib.suppress(OSError):  # where we may have no more processes, or open files
            _running = Compiler()
    return _running


def start_early(device: str | None, precision: str | None) -> None:
    """Start the program if a training with these options may want it: it is ready once this process has torch."""
    may_fuse = device in (None, "auto", "cuda") and precision in (None, "auto", "tf32", "bf16")
    wanted = may_fuse and not switched_off("MDCG_KERNELS", "plain")
    if wanted and NVIDIA.exists():
        start()


def is_started() -> bool:
    """Whether the program is there: this process has trained, or is about to."""
    return _running is not None and not _running.ended


def is_busy() -> bool:
    """Whether something that was asked for is not compiled yet."""
    return _running is not None and _running.is_busy()
