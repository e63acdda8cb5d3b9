"""Convolutions of K members, with what follows them done while their results are still in registers.

Maps are (K, images, height, width, channels), contiguous: each member's map is a matrix with one row per pixel. A
weight is (K, taps, inputs, outputs). A convolution is the sum over its taps of a product of shifted rows with that
tap's matrix. Each kernel computes a tile of rows of one member and all its channels, then goes on with it:

    forward          the partial sums of BatchNorm's statistics, or, when these are fixed, BatchNorm itself
    input_gradient   adds the shortcut's gradient, applies ReLU's mask of the layer below, and takes the partial
                     sums that the layer's BatchNorm needs to go on backward

Partial sums are added up in a fixed order, so that results do not depend on how the GPU schedules its work.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
    x, w, y, sums, squares, pivot, scale, shift, residual, images, member,
    HIGH: tl.constexpr, WIDE: tl.constexpr, PIXEL: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, MOMENTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y = x * w and Σ (y − pivot), Σ (y − pivot)²; or y = relu((x * w)·scale + shift + residual).

    x has HIGH × WIDE pixels, PIXEL elements apart, and `member` elements for each member; BLOCK is the power of two
    that holds its INPUTS channels.
    """
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    k = tl.program_id(1)
    rows = images * TALL * BROAD
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    top = (row // BROAD) % TALL * STRIDE - PAD
    left = row % BROAD * STRIDE - PAD
    first = row // (TALL * BROAD) * (HIGH * WIDE)
    c = tl.arange(0, BLOCK)
    o = tl.arange(0, OUTPUTS)
    x += k.to(tl.int64) * member
    w += k.to(tl.int64) * (KERNEL * KERNEL * INPUTS * OUTPUTS)
    result = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for tap in tl.static_range(KERNEL * KERNEL):
        down = top + tap // KERNEL
        right = left + tap % KERNEL
        there = (row < rows) & (down >= 0) & (down < HIGH) & (right >= 0) & (right < WIDE)
        from_x = x + (first + down * WIDE + right)[:, None] * PIXEL + c[None, :]
        from_w = w + (tap * INPUTS + c)[:, None] * OUTPUTS + o[None, :]
        if BLOCK == INPUTS:
            a = tl.load(from_x, there[:, None], other=0)
            b = tl.load(from_w)
        else:
            a = tl.load(from_x, there[:, None] & (c < INPUTS)[None, :], other=0)
            b = tl.load(from_w, (c < INPUTS)[:, None], other=0)
        result = tl.dot(a, b, result, input_precision=PRECISION)
    at = (k.to(tl.int64) * rows + row)[:, None] * OUTPUTS + o[None, :]
    mask = (row < rows)[:, None]
    if MOMENTS:
        to = (tl.program_id(0) * tl.num_programs(1) + k) * OUTPUTS + o
        off = tl.where(mask, result - tl.load(pivot + k * OUTPUTS + o)[None, :], 0.0)
        tl.store(sums + to, tl.sum(off, 0))
        tl.store(squares + to, tl.sum(off * off, 0))
    else:
        factor = tl.load(scale + k * OUTPUTS + o)[None, :]
        result = result * factor + tl.load(shift + k * OUTPUTS + o)[None, :]
        if RESIDUAL:
            result += tl.load(residual + at, mask, other=0).to(tl.float32)
        if RELU:
            result = tl.maximum(result, 0.0)
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


@triton.jit
def _products_of_tap(
    dy, w, result, down, right, first, o, c,
    TAP: tl.constexpr, TALL: tl.constexpr, BROAD: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    there = (down >= 0) & (down < TALL) & (right >= 0) & (right < BROAD)
    a = tl.load(dy + (first + down * BROAD + right)[:, None] * OUTPUTS + o[None, :], there[:, None], other=0)
    b = tl.load(w + (TAP * INPUTS + c)[None, :] * OUTPUTS + o[:, None])
    return tl.dot(a, b, result, input_precision=PRECISION)


@triton.jit
def input_gradient(
    dy, w, dx, add, sums, products, below, mean, rstd, scale, shift, output, images,
    HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, ADD: tl.constexpr, SUMS: tl.constexpr, OUTPUT: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx, the gradient of a convolution's HIGH × WIDE input; plus `add`.

    With SUMS, that input was relu(x̂·weight + bias [+ residual]), x̂ the normalised map `below`: dx is masked where
    ReLU was closed, and partial Σ dx and Σ dx·x̂ are taken. ReLU was open where `output`, or without a residual
    x·scale + shift, is positive. With a stride, each program takes the pixels of one phase: they share their taps.
    """
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    k = tl.program_id(1)
    phase = tl.program_id(0) % (STRIDE * STRIDE)
    phase_y = phase // STRIDE
    phase_x = phase % STRIDE
    high = (HIGH - phase_y + STRIDE - 1) // STRIDE  # pixels of this phase
    wide = (WIDE - phase_x + STRIDE - 1) // STRIDE
    index = tl.program_id(0) // (STRIDE * STRIDE) * ROWS + tl.arange(0, ROWS)
    image = index // (high * wide)
    y = index // wide % high * STRIDE + phase_y
    x = index % wide * STRIDE + phase_x
    inside = image < images
    first = tl.where(inside, image, 0) * (TALL * BROAD)
    o = tl.arange(0, OUTPUTS)
    c = tl.arange(0, INPUTS)
    dy += k.to(tl.int64) * images * (TALL * BROAD * OUTPUTS)
    w += k.to(tl.int64) * (KERNEL * KERNEL * INPUTS * OUTPUTS)
    result = tl.zeros((ROWS, INPUTS), tl.float32)
    for tap in tl.static_range(KERNEL * KERNEL):
        if STRIDE == 1:
            result = _products_of_tap(
                dy, w, result, y + PAD - tap // KERNEL, x + PAD - tap % KERNEL, first, o, c,
                tap, TALL, BROAD, INPUTS, OUTPUTS, PRECISION,
            )  # fmt: skip
        else:
            off_y = phase_y + PAD - tap // KERNEL + STRIDE
            off_x = phase_x + PAD - tap % KERNEL + STRIDE
            if (off_y % STRIDE == 0) & (off_x % STRIDE == 0):
                down = (y - phase_y + off_y) // STRIDE - 1
                right = (x - phase_x + off_x) // STRIDE - 1
                result = _products_of_tap(
                    dy, w, result, down, right, first, o, c,
                    tap, TALL, BROAD, INPUTS, OUTPUTS, PRECISION,
                )  # fmt: skip
    pixel = (k.to(tl.int64) * images + image) * (HIGH * WIDE) + y * WIDE + x
    at = pixel[:, None] * INPUTS + c[None, :]
    mask = inside[:, None]
    if ADD:
        result += tl.load(add + at, mask, other=0).to(tl.float32)
    if SUMS:
        value = tl.load(below + at, mask, other=0).to(tl.float32)
        column = k * INPUTS + c
        if OUTPUT:
            is_open = tl.load(output + at, mask, other=0).to(tl.float32) > 0
        else:
            is_open = value * tl.load(scale + column)[None, :] + tl.load(shift + column)[None, :] > 0
        result = tl.where(mask & is_open, result, 0.0)
        normalised = (value - tl.load(mean + column)[None, :]) * tl.load(rstd + column)[None, :]
        to = tl.program_id(0) * tl.num_programs(1) * INPUTS + column
        tl.store(sums + to, tl.sum(result, 0))
        tl.store(products + to, tl.sum(result * normalised, 0))
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask)


@triton.jit
def _transposed_product(
    from_x, g, result, mask, c, INPUTS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    if BLOCK != INPUTS:
        mask = mask & (c < INPUTS)[None, :]
    return tl.dot(tl.trans(tl.load(from_x, mask, other=0)), g, result, input_precision=PRECISION)


@triton.jit
def weight_gradient(
    x, dy, dw, images, member, tiles,
    HIGH: tl.constexpr, WIDE: tl.constexpr, PIXEL: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dw (parts, K, taps, inputs, outputs), to be summed over parts: one row of taps per program."""
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    k = tl.program_id(1)
    tap = tl.program_id(2) * KERNEL
    rows = images * TALL * BROAD
    c = tl.arange(0, BLOCK)
    o = tl.arange(0, OUTPUTS)
    x += k.to(tl.int64) * member
    dy += k.to(tl.int64) * rows * OUTPUTS
    first = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    second = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    third = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    for tile in range(tiles):
        row = tl.program_id(0) * (tiles * ROWS) + tile * ROWS + tl.arange(0, ROWS)
        down = (row // BROAD) % TALL * STRIDE - PAD + tl.program_id(2)
        left = row % BROAD * STRIDE - PAD
        there = (row < rows) & (down >= 0) & (down < HIGH)
        from_x = x + ((row // (TALL * BROAD) * HIGH + down) * WIDE + left)[:, None] * PIXEL + c[None, :]
        g = tl.load(dy + row[:, None] * OUTPUTS + o[None, :], (row < rows)[:, None], other=0)
        mask = (there & (left >= 0) & (left < WIDE))[:, None]
        first = _transposed_product(from_x, g, first, mask, c, INPUTS, BLOCK, PRECISION)
        if KERNEL == 3:
            mask = (there & (left + 1 < WIDE))[:, None]
            second = _transposed_product(from_x + PIXEL, g, second, mask, c, INPUTS, BLOCK, PRECISION)
            mask = (there & (left + 2 < WIDE))[:, None]
            third = _transposed_product(from_x + 2 * PIXEL, g, third, mask, c, INPUTS, BLOCK, PRECISION)
    part = (tl.program_id(0) * tl.num_programs(1) + k).to(tl.int64) * (KERNEL * KERNEL) + tap
    to = dw + (part * INPUTS + c)[:, None] * OUTPUTS + o[None, :]
    within = (c < INPUTS)[:, None] & (o >= 0)[None, :]
    tl.store(to, first, within)
    if KERNEL == 3:
        tl.store(to + INPUTS * OUTPUTS, second, within)
        tl.store(to + 2 * INPUTS * OUTPUTS, third, within)
