"""BatchNorm, residual addition and ReLU of K members, in as few passes over memory as they need.

Maps are (K, rows, channels), a row for each pixel. The convolutions leave partial sums behind (see `conv`): the
`finish_` kernels add these up, column by column, and the `apply` kernels make one pass over a map.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _column_sums(partial, column, parts, columns, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    total = tl.zeros((PARTS, COLUMNS), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        mask = (part < parts)[:, None] & (column < columns)[None, :]
        total += tl.load(partial + part[:, None] * columns + column[None, :], mask, other=0)
    return tl.sum(total, 0)


@triton.jit
def finish_moments(
    sums, squares, weight, bias, running_mean, running_var, mean_out, rstd_out, scale_out, shift_out,
    parts, rows, columns, eps, momentum, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and variance from partial sums around the running mean; then the running statistics move on."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    off = _column_sums(sums, column, parts, columns, PARTS, COLUMNS) / rows
    variance = tl.maximum(_column_sums(squares, column, parts, columns, PARTS, COLUMNS) / rows - off * off, 0.0)
    old_mean = tl.load(running_mean + column, inside, other=0)
    old_var = tl.load(running_var + column, inside, other=0)
    mean = old_mean + off
    rstd = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight + column, inside, other=0) * rstd
    tl.store(mean_out + column, mean, inside)
    tl.store(rstd_out + column, rstd, inside)
    tl.store(scale_out + column, scale, inside)
    tl.store(shift_out + column, tl.load(bias + column, inside, other=0) - mean * scale, inside)
    unbiased = variance * (rows / (rows - 1.0))
    tl.store(running_mean + column, old_mean + momentum * off, inside)
    tl.store(running_var + column, old_var + momentum * (unbiased - old_var), inside)


@triton.jit
def apply(
    x, residual, y, scale, shift, rows, CHANNELS: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = relu(x·scale + shift + residual)."""
    k = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None]
    at = (k.to(tl.int64) * rows + row)[:, None] * CHANNELS + c[None, :]
    column = k * CHANNELS + c
    value = tl.load(x + at, mask, other=0).to(tl.float32) * tl.load(scale + column)[None, :]
    value += tl.load(shift + column)[None, :]
    if RESIDUAL:
        value += tl.load(residual + at, mask, other=0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask)


@triton.jit
def gradient_sums(
    dy, x, output, g_out, sums, products, mean, rstd, rows, per_dy,
    CHANNELS: tl.constexpr, OUTPUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Partial Σ g and Σ g·x̂; with OUTPUT, g is dy / per_dy where `output` is positive, and is kept.

    A row of dy is that of `per_dy` rows of x: the gradient of their mean.
    """
    k = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None]
    at = (k.to(tl.int64) * rows + row)[:, None] * CHANNELS + c[None, :]
    from_dy = (k.to(tl.int64) * (rows // per_dy) + row // per_dy)[:, None] * CHANNELS + c[None, :]
    column = k * CHANNELS + c
    g = tl.load(dy + from_dy, mask, other=0).to(tl.float32)
    if OUTPUT:
        g = tl.where(tl.load(output + at, mask, other=0).to(tl.float32) > 0, g / per_dy, 0.0)
        tl.store(g_out + at, g.to(g_out.dtype.element_ty), mask)
    normalised = tl.load(x + at, mask, other=0).to(tl.float32) - tl.load(mean + column)[None, :]
    normalised *= tl.load(rstd + column)[None, :]
    to = tl.program_id(0) * tl.num_programs(1) * CHANNELS + column
    tl.store(sums + to, tl.sum(g, 0))
    tl.store(products + to, tl.sum(g * normalised, 0))


@triton.jit
def finish_gradient_sums(
    sums, products, mean, rstd, weight, dweight, dbias, of_g, of_x, constant, parts, rows, columns,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dx = w·rstd·(g − mean(g) − x̂·mean(g·x̂)) is linear in g and x: its coefficients, and w's and b's gradients."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total = _column_sums(sums, column, parts, columns, PARTS, COLUMNS)
    product = _column_sums(products, column, parts, columns, PARTS, COLUMNS)
    inverse = tl.load(rstd + column, inside, other=0)
    a = tl.load(weight + column, inside, other=0) * inverse
    b = -a * inverse * product / rows
    tl.store(dbias + column, total, inside)
    tl.store(dweight + column, product, inside)
    tl.store(of_g + column, a, inside)
    tl.store(of_x + column, b, inside)
    tl.store(constant + column, -a * total / rows - b * tl.load(mean + column, inside, other=0), inside)


@triton.jit
def gradient_apply(g, x, dx, of_g, of_x, constant, rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr):
    """dx = of_g·g + of_x·x + constant."""
    k = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    mask = (row < rows)[:, None]
    at = (k.to(tl.int64) * rows + row)[:, None] * CHANNELS + c[None, :]
    column = k * CHANNELS + c
    value = tl.load(of_g + column)[None, :] * tl.load(g + at, mask, other=0).to(tl.float32)
    value += tl.load(of_x + column)[None, :] * tl.load(x + at, mask, other=0).to(tl.float32)
    tl.store(dx + at, (value + tl.load(constant + column)[None, :]).to(dx.dtype.element_ty), mask)
