"""Copies of weights as the kernels want them: rounded to bf16; or in float32, with outputs before inputs.

The second is for convolutions in TF32, whose instructions take only matrices that lie in memory as rows of terms.

A copy knows of which values it was made. In bf16 it moves along with its weight, see `update`, without a pass of its
own. After any other step `follow` copies what has moved: no forward pass has to, and none of a frozen network ever does
it again. Whatever else changes a weight (a checkpoint, a new start) is noticed in the next pass, and `follow` sees to
it before a graph of steps, which notices nothing, is replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdcg.models.kernels.launch import begin, compiling, launch
from mdcg.models.layers import Conv2d


def copied(convs: Iterable[Conv2d], half: bool) -> list[Tensor]:
    """The weights in bf16, (K, taps, inputs, outputs), or in float32, (K, taps, outputs, inputs)."""
    convs = list(convs)
    if compiling():  # where a kernel that fills a copy would not run
        blank = [_blank(conv, half) for conv in convs]
        _fill(blank, convs, half)
        return blank
    _copy([conv for conv in convs if conv.copy is None or conv.copy[0] != _values(conv, half)], half)
    return [conv.copy[1] for conv in convs if conv.copy is not None]


def follow(convs: Iterable[Conv2d]) -> None:
    """Let the copies that there are follow their weights."""
    stale: dict[bool, list[Conv2d]] = {True: [], False: []}
    for conv in convs:
        if conv.copy is not None:
            half = conv.copy[1].dtype == torch.bfloat16
            if conv.copy[0] != _values(conv, half):
                stale[half].append(conv)
    for half, own in stale.items():
        _copy(own, half)


def current(conv: Conv2d) -> Tensor | None:
    """The copy in bf16, if there is one of the present values, in the same order in memory: it can move along."""
    if conv.copy is None or conv.copy[0] != _values(conv, True):
        return None
    return conv.copy[1] if conv.weight.permute(0, 3, 4, 2, 1).is_contiguous() else None


def moved_along(conv: Conv2d, copy: Tensor) -> None:
    """Note that a copy has just been given the present values."""
    conv.copy = (_values(conv, True), copy)


def _values(conv: Conv2d, half: bool) -> tuple[object, ...]:
    """What a copy is made of: the values in some memory, in the version that PyTorch counts."""
    return half, conv.weight.data_ptr(), conv.weight.shape, conv.weight._version


def _copy(convs: list[Conv2d], half: bool) -> None:
    for conv in convs:
        wanted, old = _blank(conv, half, "meta"), conv.copy and conv.copy[1]
        fits = old is not None and (old.shape, old.dtype, old.device) == (
            wanted.shape,
            wanted.dtype,
            conv.weight.device,
        )
        conv.copy = (_values(conv, half), old if fits and old is not None else _blank(conv, half))
    _fill([conv.copy[1] for conv in convs if conv.copy is not None], convs, half)


def _blank(conv: Conv2d, half: bool, device: str | None = None) -> Tensor:
    """Room for a copy."""
    members, outputs, inputs, *_ = conv.weight.shape
    shape = (members, conv.kernel**2, *((inputs, outputs) if half else (outputs, inputs)))
    return torch.empty(shape, dtype=torch.bfloat16 if half else torch.float32, device=device or conv.weight.device)


@torch.no_grad()
def _fill(copies: list[Tensor], convs: list[Conv2d], half: bool) -> None:
    taps = [conv.taps() for conv in convs]
    if half and copies:
        torch._foreach_copy_(copies, taps)
    elif not half:
        for copy, own in zip(copies, taps, strict=True):
            _turn(copy, own)


def _turn(copy: Tensor, taps: Tensor) -> None:
    """Turn matrices, whose sides are powers of two."""
    *many, high, wide = copy.shape
    side = min(64, high, wide)
    launch(_turn_tile, (high // side * (wide // side), math.prod(many)), taps, copy, high, wide, SIDE=side)


@triton.jit
def _turn_tile(taps, copy, high, wide, SIDE: tl.constexpr):
    i = tl.arange(0, SIDE)
    y = tl.program_id(0) // (wide // SIDE) * SIDE + i
    x = tl.program_id(0) % (wide // SIDE) * SIDE + i
    first = tl.program_id(1).to(tl.int64) * high * wide
    begin()
    tile = tl.load(taps + first + x[:, None] * high + y[None, :])
    tl.store(copy + first + y[:, None] * wide + x[None, :], tl.trans(tile))
