"""Fused kernels for GPUs, written in Triton: the same functions as the plain modules, in far fewer passes over memory.

`conv`, `walk`, `patch`, `norm`, `pool` and `images` are the kernels, `sums` what they share, `tiles` says how much a
program does at a time. `layer` launches them, with weights from `copies`; `launch` runs them, or has the `compiler`
make them ahead; `resnet` strings them together, forward and backward; `beside` lets some run next to others. `losses`
are those of methods, `update` is SGD's, `pivot` is GEM's, `recolour` RandAugment's. Nothing here that needs Triton is
imported before it is used: without it the plain modules do all the work.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from mdcg.switches import switched_off

WIDEST = 128  # pixels: a program holds whole rows of an image
MOST = 4096  # classes: a program holds all logits of an image

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
    """Whether the fused kernels are in use."""
    return _in_use.get()


def available() -> bool:
    """Whether Triton is there, with the C compiler that it needs, and MDCG_KERNELS=plain does not forbid it."""
    if switched_off("MDCG_KERNELS", "plain") or importlib.util.find_spec("triton") is None:
        return False
    return bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))


def fit(maps: int, wide: int) -> bool:
    """Whether a member's largest map, of so many elements, and its rows are within the kernels' reach."""
    return maps < 2**31 and wide <= WIDEST


def take(*logits: Tensor, labels: Tensor | None = None) -> bool:
    """Whether the fused kernels are in use, and those for losses take such logits (K, images, classes) and labels."""
    shape = logits[0].shape
    if not in_use() or len(shape) != 3 or shape[-1] > MOST or (labels is not None and labels.shape != shape[:2]):
        return False
    return all(own.shape == shape and own.dtype == torch.float32 and own.stride(-1) == 1 for own in logits)
