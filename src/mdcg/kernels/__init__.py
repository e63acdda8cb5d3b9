"""Fused kernels for GPUs, written in Triton: the same functions as the plain modules, in far fewer passes over memory.

`conv` and `norm` are the kernels, `layer` launches them, `resnet` strings them together, forward and backward.
Nothing here is imported before it is used: without Triton the plain modules do all the work.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from contextvars import ContextVar

_in_use: ContextVar[bool] = ContextVar("fused kernels in use", default=False)


@contextlib.contextmanager
def use(fused: bool) -> Iterator[None]:
    """Let backbones that can use the fused kernels do so, or not."""
    token = _in_use.set(fused)
    try:
        yield
    finally:
        _in_use.reset(token)


def in_use() -> bool:
    return _in_use.get()


def available() -> bool:
    """Whether Triton is there and MDCG_KERNELS=plain does not forbid it."""
    return os.environ.get("MDCG_KERNELS") != "plain" and importlib.util.find_spec("triton") is not None
