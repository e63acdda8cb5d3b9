"""The launch of kernels, or only the wish for them: within `compile_ahead` they are compiled, not run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from subprocess import CalledProcessError
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from mdcg import compiler
from mdcg.errors import MdcgError

PATIENCE = 60.0  # seconds to wait for what others compile; a kernel takes one
_Key = tuple[Any, ...]
_ahead: ContextVar[bool] = ContextVar("compiled ahead", default=False)
_asked: dict[_Key, Future[None] | None] = {}
_launchers: set[_Key] = set()  # kinds of arguments with which kernels were asked for: these share a launcher


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
    if _ahead.get():
        key = _key(kernel, args, constants)
        if key not in _asked:
            _asked[key] = _ask(kernel, grid, args, constants)
        return
    if compiler.is_busy() and (asked := _asked.get(_key(kernel, args, constants))):
        with contextlib.suppress(TimeoutError):
            asked.result(PATIENCE)
    try:
        kernel[grid](*args, **constants)
    except (TritonError, CalledProcessError, OSError, ImportError, AttributeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error):
            raise  # of the GPU itself, or of what it was doing
        # It cannot be compiled, by whatever Triton and C compiler are here, or is too large for this GPU.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise MdcgError(
            f"the fused kernels cannot be used here ({reason}); set MDCG_KERNELS=plain to do without them."
        ) from error


@contextlib.contextmanager
def compile_ahead() -> Iterator[None]:
    """Have compiled what is launched in this context; who launches it later waits until that is done."""
    token = _ahead.set(True)
    try:
        yield
    finally:
        _ahead.reset(token)


def _ask(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> Future[None] | None:
    """Have a kernel compiled for such arguments and the current GPU; None where nobody does it."""
    program = compiler.start()
    if program is None:
        return None
    major, minor = torch.cuda.get_device_capability()
    kinds = (kernel, *_kinds(kernel, args))
    first = kinds not in _launchers
    _launchers.add(kinds)
    return program.ask(
        {
            "launcher": first,
            "module": kernel.fn.__module__,
            "name": kernel.fn.__qualname__,
            "grid": list(grid),
            "args": [_described(own) for own in args],
            "constants": constants,
            "capability": 10 * major + minor,
        }
    )


def _described(argument: Any) -> Any:
    """An argument as JSON: of a tensor only what makes a difference to Triton."""
    if isinstance(argument, Tensor):
        return {"dtype": str(argument.dtype).removeprefix("torch."), "aligned": argument.data_ptr() % 16 == 0}
    return [_described(own) for own in argument] if isinstance(argument, tuple) else argument


def compiling() -> bool:
    """Whether kernels are only compiled, within `compile_ahead`."""
    return _ahead.get()


def _key(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> _Key:
    """A name for what Triton compiles by itself: the kernel, its constants, and the kinds of its arguments."""
    return (kernel, *sorted(constants.items()), *_kinds(kernel, args))


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
    if isinstance(argument, tuple):
        return tuple(_kind(own, special) for own in argument)
    if isinstance(argument, int):
        wide = not -(2**31) <= argument < 2**31
        return (int, wide, argument == 1, argument % 16 == 0) if special else (int, wide)
    return (type(argument),)
