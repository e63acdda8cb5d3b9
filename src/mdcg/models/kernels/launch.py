"""The launch of kernels, and their compilation ahead of time: all that a network needs at once, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from triton.runtime.errors import OutOfResources

from mdcg.errors import MdcgError

_Key = tuple[Any, ...]
_compiling: ContextVar[tuple[ThreadPoolExecutor, dict[_Key, Future[Any]]] | None] = ContextVar(
    "compiling", default=None
)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run a kernel; within `compile_ahead`, only have it compiled."""
    ahead = _compiling.get()
    if ahead is None:
        try:
            kernel[grid](*args, **constants)
        except OutOfResources as error:
            raise _unusable(error) from error
        return
    pool, submitted = ahead
    key = (kernel, *sorted(constants.items()), *map(_kind, args))
    if key not in submitted:
        submitted[key] = pool.submit(kernel.warmup, *args, grid=grid, **constants)


def compile_ahead(*passes: Callable[[], object]) -> None:
    """Compile what these passes launch; they see the shapes of their results, not the values."""
    submitted: dict[_Key, Future[Any]] = {}
    with ThreadPoolExecutor(os.cpu_count(), "compile") as pool:
        token = _compiling.set((pool, submitted))
        try:
            for one in passes:
                one()
        finally:
            _compiling.reset(token)
        try:
            for compiled in submitted.values():
                compiled.result()
        except Exception as error:
            raise _unusable(error) from error


def _unusable(error: Exception) -> MdcgError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return MdcgError(f"the fused kernels cannot be used here ({reason}); set MDCG_KERNELS=plain to do without them.")


def _kind(argument: Any) -> _Key:
    """The properties of an argument for which Triton compiles a kernel of its own."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return int, argument == 1, argument % 16 == 0
    return (type(argument),)
