"""Kernels compiled ahead of time, on all cores, by a program of our own: threads of one process would hardly share it.

The program has the same Triton and the same cache as this process, which finds there what it launches next. It ends by
itself when it has had nothing to do for a while. What it cannot compile is compiled by whoever launches it, who also
says what is wrong: with and without it the same happens, only later.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from mdcg.programs import Program, cores, startable


class Compiler(Program):
    """The program that compiles kernels, see `compile_worker`."""

    def __init__(self) -> None:
        # It must not take a place on the GPU, and its own processes are as many as there are cores.
        variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        super().__init__("mdcg.models.kernels.compile_worker", {"cores": cores()}, variables)
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
        for line in self.answers:
            self._open.pop(int(line)).set_result(None)
        with self._lock:
            self.ended = True
        for done in self._open.values():
            done.set_result(None)
        self._open.clear()
        self.process.wait()
        self.end()


_running: Compiler | None = None


def start() -> Compiler | None:
    """The program, started unless it is there already; None where it cannot be, or there is no GPU of NVIDIA's."""
    global _running
    wanted = torch.cuda.is_available() and torch.version.hip is None
    if (_running is None or _running.ended) and wanted and startable():
        with contextlib.suppress(OSError):  # where we may have no more processes, or open files
            _running = Compiler()
    return _running


def is_busy() -> bool:
    """Whether something that was asked for is not compiled yet."""
    return _running is not None and _running.is_busy()


def ask(kernel: Any, grid: Sequence[int], args: Sequence[Any], constants: Mapping[str, Any]) -> Future[None] | None:
    """Have a kernel compiled for such arguments and the current GPU; None where nobody does it."""
    program = start()
    if program is None:
        return None
    major, minor = torch.cuda.get_device_capability()
    return program.ask(
        {
            "module": kernel.fn.__module__,
            "name": kernel.fn.__qualname__,
            "grid": list(grid),
            "args": [_described(own) for own in args],
            "constants": dict(constants),
            "capability": 10 * major + minor,
        }
    )


def _described(argument: Any) -> Any:
    """An argument as JSON: of a tensor only what makes a difference to Triton."""
    if isinstance(argument, Tensor):
        return {"dtype": str(argument.dtype).removeprefix("torch."), "aligned": argument.data_ptr() % 16 == 0}
    return [_described(own) for own in argument] if isinstance(argument, tuple) else argument
