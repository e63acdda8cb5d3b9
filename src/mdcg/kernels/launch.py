"""Launching kernels, and compiling them ahead of time: all that a network needs at once, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

_Key = tuple[Any, ...]
_compiling: tuple[ThreadPoolExecutor, dict[_Key, Future[Any]]] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run a kernel; within `compile_ahead`, only have it compiled."""
    if _compiling is None:
        kernel[grid](*args, **constants)
        return
    pool, submitted = _compiling
    key = (kernel, *sorted(constants.items()), *map(_kind, args))
    if key not in submitted:
        submitted[key] = pool.submit(kernel.warmup, *args, grid=grid, **constants)


def compile_ahead(*passes: Callable[[], object]) -> None:
    """Compile what these passes launch; they see the shapes of their results, not the values."""
    global _compiling
    with ThreadPoolExecutor(os.cpu_count(), "compile") as pool:
        _compiling = (pool, {})
        try:
            for one in passes:
                one()
            for compiled in _compiling[1].values():
                compiled.result()
        finally:
            _compiling = None


def _kind(argument: Any) -> _Key:
    """That of an argument's properties for which Triton compiles a kernel of its own."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return int, argument == 1, argument % 16 == 0
    return (type(argument),)
