"""BatchNorm, residual addition and ReLU of K members, each in one pass over memory.

Maps are (K, rows, channels), a row for each pixel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mdcg.models.kernels.launch import begin
from mdcg.models.kernels.sums import AT_ONCE, finish_gradient, is_last, leave, relu


@triton.jit
def apply(
    x, residual, y, moments, rows, CHANNELS: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = relu(x·scale + shift + residual)."""
    k = tl.program_id(1)
    width = tl.num_programs(1) * CHANNELS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None]
    at = (k.to(tl.int64) * rows + row)[:, None] * CHANNELS + c[None, :]
    column = k * CHANNELS + c
    begin()
    value = tl.load(x + at, mask, other=0).to(tl.float32) * tl.load(moments + 2 * width + column)[None, :]
    value += tl.load(moments + 3 * width + column)[None, :]
    if RESIDUAL:
        value += tl.load(residual + at, mask, other=0).to(tl.float32)
    if RELU:
        value = relu(value)
    tl.store(y + at, value.to(y.dtype.element_ty), mask)


@triton.jit
def gradient_sums(
    dy, x, output, g_out, sums, moments, slopes, weight, tickets, rows, per_dy,
    CHANNELS: tl.constexpr, OUTPUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The slopes; with OUTPUT, g is dy / per_dy where `output` is positive, and is kept.

    A row of dy is that of `per_dy` rows of x: the gradient of their mean.
    """
    k = tl.program_id(1)
    width = tl.num_programs(1) * CHANNELS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None]
    at = (k.to(tl.int64) * rows + row)[:, None] * CHANNELS + c[None, :]
    from_dy = (k.to(tl.int64) * (rows // per_dy) + row // per_dy)[:, None] * CHANNELS + c[None, :]
    column = k * CHANNELS + c
    begin()
    g = tl.load(dy + from_dy, mask, other=0).to(tl.float32)
    if OUTPUT:
        g = tl.where(tl.load(output + at, mask, other=0).to(tl.float32) > 0, g / per_dy, 0.0)
        tl.store(g_out + at, g.to(g_out.dtype.element_ty), mask)
    normalised = tl.load(x + at, mask, other=0).to(tl.float32) - tl.load(moments + column)[None, :]
    normalised *= tl.load(moments + width + column)[None, :]
    parts = tl.num_programs(0)
    leave(sums, tl.program_id(0), parts, column, width, tl.sum(g, 0), tl.sum(g * normalised, 0))
    if is_last(tickets + k, parts):
        finish_gradient(sums, slopes, moments, weight, parts, rows, column, width, AT_ONCE // CHANNELS, CHANNELS)


@triton.jit
def gradient_apply(g, x, dx, slopes, rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr):
    """dx = a·g + b·x + c."""
    k = tl.program_id(1)
    width = tl.num_programs(1) * CHANNELS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None]
    at = (k.to(tl.int64) * rows + row)[:, None] * CHANNELS + c[None, :]
    column = k * CHANNELS + c
    begin()
    value = tl.load(slopes + 2 * width + column)[None, :] * tl.load(g + at, mask, other=0).to(tl.float32)
    value += tl.load(slopes + 3 * width + column)[None, :] * tl.load(x + at, mask, other=0).to(tl.float32)
    tl.store(dx + at, (value + tl.load(slopes + 4 * width + column)[None, :]).to(dx.dtype.element_ty), mask)
