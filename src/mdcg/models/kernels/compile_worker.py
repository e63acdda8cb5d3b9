"""The program that compiles kernels: it forks a process for each but the first, as many at a time as there are cores.

It is started by `mdcg.compiler`. A question is a line of JSON that names a kernel and what it is compiled for; the
answer is a line with the question's number, when that process has ended in whatever way. It never touches a GPU, knows
the one that is meant by its compute capability, and has no threads: so it may fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import mdcg.models.kernels.copies
import mdcg.models.kernels.images
import mdcg.models.kernels.layer
import mdcg.models.kernels.losses
import mdcg.models.kernels.pivot
import mdcg.models.kernels.recolour
import mdcg.models.kernels.update  # noqa: F401
from mdcg.models.kernels import launch
from mdcg.programs import answering

IDLE = 60.0  # seconds without work, after which it ends
PAUSE = 0.01  # seconds between looks at its processes


class Absent:
    """What Triton takes for the driver of a GPU that is not here."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object = None) -> int:
        return 0


def main(settings: dict[str, Any]) -> None:
    """Compile what is asked for until nobody is left who asks, or there is nothing to do."""
    answers = answering()
    with contextlib.suppress(
        ImportError
    ):  # where later versions have it; it looks at all of Triton, and keeps it in mind
        from triton.runtime.cache import triton_key

        triton_key()
    waiting: list[dict[str, Any]] = []
    running: dict[int, int | None] = {_forked(_build_driver): None}  # the number of the question, by process
    line, warm, idle_since = b"", False, time.monotonic()
    while time.monotonic() < idle_since + IDLE:
        if select.select([sys.stdin], [], [], PAUSE if waiting or running else IDLE)[0]:
            read = os.read(sys.stdin.fileno(), 2**16)
            if not read:
                return
            *whole, line = (line + read).split(b"\n")
            waiting += map(json.loads, whole)
        done = []
        if waiting and not warm:  # here: what Triton loads and finds out for it need not be done again
            with contextlib.suppress(Exception):
                build(waiting[0])
            done.append(waiting.pop(0)["number"])
            warm = True
            gc.freeze()  # or collecting garbage would copy what the processes share
        while waiting and len(running) < settings["processes"]:
            question = waiting.pop(0)
            running[_forked(partial(build, question))] = question["number"]
        while running and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            if (number := running.pop(ended)) is not None:
                done.append(number)
        if done:
            answers.write(b"".join(b"%d\n" % number for number in done))
            answers.flush()
        if done or waiting or running:
            idle_since = time.monotonic()


def _forked(work: Callable[[], object]) -> int:
    """The process that does it."""
    if pid := os.fork():
        return pid
    try:
        work()
    finally:
        os._exit(0)


def _build_driver() -> None:
    """Let a C compiler make what Triton needs to speak to a GPU."""
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()


def build(question: dict[str, Any]) -> Any:
    """Compile a kernel, and what launches it, into Triton's cache."""
    driver.set_active(Absent(question["capability"]))
    launch.OVERLAPS = tl.constexpr(question["constants"].get("launch_pdl", False))
    kernel = getattr(importlib.import_module(question["module"]), question["name"])
    args = [_made(own) for own in question["args"]]
    compiled = kernel.warmup(*args, grid=tuple(question["grid"]), **question["constants"])
    if not question["launcher"]:
        return compiled
    # Before 3.7 Triton has a C compiler make a launcher for every kind of arguments: half a second for each.
    with contextlib.suppress(Exception):  # which later versions, and other backends, do in other ways
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)
    return compiled


def _made(argument: Any) -> Any:
    """An argument as it was described."""
    if isinstance(argument, dict):
        room = torch.empty(2, dtype=getattr(torch, argument["dtype"]))
        return room if argument["aligned"] else room[1:]
    return tuple(map(_made, argument)) if isinstance(argument, list) else argument
