"""The launch of kernels, and their compilation ahead of time: all that a network needs at once, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from mdcg.errors import MdcgError

_Key = tuple[Any, ...]
_compiling: ContextVar[list[Future[Any]] | None] = ContextVar("compiling", default=None)
_compiled: dict[_Key, Future[Any]] = {}  # or about to be
_pool = ThreadPoolExecutor(os.cpu_count(), "compile")


def _overlapping() -> bool:
    """Whether Triton and all GPUs here, NVIDIA's, know of programmatic dependent launch."""
    gpus = range(torch.cuda.device_count() if torch.version.hip is None else 0)
    return (
        bool(gpus) and hasattr(tl.extra.cuda, "gdc_wait") and min(map(torch.cuda.get_device_capability, gpus)) >= (9,)
    )


OVERLAPS = tl.constexpr(_overlapping())


@triton.jit  # type: ignore[untyped-decorator]
def begin() -> None:
    """Wait for the kernel before this one, then let the next one be set up; comes before all that touches memory.

    A kernel of ours takes 10 to 20 µs, and one to two more until the next has begun, unless that waits ready.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run a kernel, which calls `begin`; within `compile_ahead`, only have it compiled."""
    if OVERLAPS.value:
        constants["launch_pdl"] = True
    ahead = _compiling.get()
    if ahead is None:
        try:
            kernel[grid](*args, **constants)
        except OutOfResources as error:
            raise _unusable(error) from error
        return
    key = (kernel, *sorted(constants.items()), *_kinds(kernel, args))
    if key not in _compiled or _compiled[key].cancelled():
        _compiled[key] = _pool.submit(kernel.warmup, *args, grid=grid, **constants)
    ahead.append(_compiled[key])


def compile_ahead(*passes: Callable[[], object], wait: bool = True) -> None:
    """Compile what these passes launch; they see the shapes of their results, not the values.

    Without waiting, it is done while other work goes on; whoever launches such a kernel too early compiles it again.
    """
    wanted: list[Future[Any]] = []
    token = _compiling.set(wanted)
    try:
        for one in passes:
            one()
    finally:
        _compiling.reset(token)
    if not wait:
        return
    try:
        for compiled in wanted:
            compiled.result()
    except Exception as error:
        raise _unusable(error) from error


def compiling() -> bool:
    """Whether kernels are only compiled, within `compile_ahead`."""
    return _compiling.get() is not None


def cancel_ahead() -> None:
    """Forget what has not been begun to be compiled: nobody will need it."""
    for compiled in _compiled.values():
        compiled.cancel()


def _unusable(error: Exception) -> MdcgError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return MdcgError(f"the fused kernels cannot be used here ({reason}); set MDCG_KERNELS=plain to do without them.")


def _kinds(kernel: Any, args: tuple[Any, ...]) -> list[_Key]:
    """The properties of each argument for which Triton compiles a kernel of its own."""
    parameters = getattr(kernel, "params", [None] * len(args))
    return [
        _kind(own, not getattr(parameter, "do_not_specialize", False))
        for parameter, own in zip(parameters, args, strict=False)  # constants come later
    ]


def _kind(argument: Any, special: bool) -> _Key:
    if isinstance(argument, Tensor):
        return argument.dtype, special and argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return (int, argument == 1, argument % 16 == 0) if special else (int,)
    return (type(argument),)
