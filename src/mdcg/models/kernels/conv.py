"""Convolutions of K members, with what follows them done while their results are still in registers.

Maps are (K, images, height, width, channels), contiguous: each member's map is a matrix with one row per pixel. A
weight is (K, taps, inputs, outputs). A convolution is the sum over its taps of a product of shifted rows with that
tap's matrix. A program computes a tile for one member, PIXELS neighbouring pixels of each of IMAGES images and COLUMNS
channels, in steps of one tap and DEEP channels; then it goes on with it:

    forward          the partial sums of BatchNorm's statistics, or, when these are fixed, BatchNorm itself
    input_gradient   adds the shortcut's gradient, applies ReLU's mask of the layer below, and takes the partial
                     sums that the layer's BatchNorm needs to go on backward

Taps that meet nothing but the padding are left out: on a map of 2 × 2 pixels, taken one by one of many images, that is
five of nine.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mdcg.models.kernels.launch import begin
from mdcg.models.kernels.sums import (
    AT_ONCE,
    finish_gradient,
    finish_moments,
    finish_weight,
    is_last,
    leave,
    relu,
    running_affine,
)


@triton.jit
def _tile(number, images, PLACES: tl.constexpr, PIXELS: tl.constexpr, IMAGES: tl.constexpr):
    """The pixel and image of each row of a tile, whether there is one, and the first and last pixel."""
    TILES: tl.constexpr = (PLACES + PIXELS - 1) // PIXELS
    row = tl.arange(0, PIXELS * IMAGES)
    start = number % TILES * PIXELS
    pixel = start + row // IMAGES
    image = number // TILES * IMAGES + row % IMAGES
    return pixel, image, (pixel < PLACES) & (image < images), start, tl.minimum(start + PIXELS, PLACES) - 1


@triton.jit
def _span(first, last, WIDE: tl.constexpr):
    """The first and last row, and the first and last column, of neighbouring pixels."""
    top = first // WIDE
    bottom = last // WIDE
    return top, bottom, tl.where(top == bottom, first % WIDE, 0), tl.where(top == bottom, last % WIDE, WIDE - 1)


@triton.jit
def forward(
    x, w, y, sums, moments, weight, bias, running_mean, running_var, tickets, residual, images, eps, momentum,
    HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, MOMENTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    TURNED: tl.constexpr, PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, IMAGES: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y = x * w and its moments; or, with the running statistics, y = relu((x * w)·scale + shift + residual).

    With TURNED, w is (K, taps, outputs, inputs).
    """
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    SIDE: tl.constexpr = OUTPUTS // COLUMNS
    DEPTH: tl.constexpr = INPUTS // DEEP
    k = tl.program_id(1)
    number = tl.program_id(0) // SIDE
    pixel, image, inside, first, last = _tile(number, images, TALL * BROAD, PIXELS, IMAGES)
    o = tl.program_id(0) % SIDE * COLUMNS + tl.arange(0, COLUMNS)
    c = tl.arange(0, DEEP)
    top = pixel // BROAD * STRIDE - PAD
    left = pixel % BROAD * STRIDE - PAD
    x += k.to(tl.int64) * images * (HIGH * WIDE * INPUTS)
    w += k.to(tl.int64) * (KERNEL * KERNEL * INPUTS * OUTPUTS)
    from_x = x + ((image * HIGH + top) * WIDE + left)[:, None] * INPUTS + c[None, :]
    if TURNED:
        from_w = w + o[None, :] * INPUTS + c[:, None]
    else:
        from_w = w + c[:, None] * OUTPUTS + o[None, :]
    above, below, before, behind = _span(first, last, BROAD)
    up = tl.maximum(PAD - below * STRIDE, 0)
    tall = tl.minimum(HIGH + PAD - above * STRIDE, KERNEL) - up
    start = tl.maximum(PAD - behind * STRIDE, 0)
    broad = tl.minimum(WIDE + PAD - before * STRIDE, KERNEL) - start
    result = tl.zeros((PIXELS * IMAGES, COLUMNS), tl.float32)
    begin()
    for step in range(tall * broad * DEPTH):
        down = up + step // DEPTH // broad
        right = start + step // DEPTH % broad
        depth = step % DEPTH * DEEP
        there = inside & (top + down >= 0) & (top + down < HIGH) & (left + right >= 0) & (left + right < WIDE)
        a = tl.load(from_x + ((down * WIDE + right) * INPUTS + depth), there[:, None], other=0)
        tap = (down * KERNEL + right) * (INPUTS * OUTPUTS)
        b = tl.load(from_w + (tap + (depth if TURNED else depth * OUTPUTS)))
        result = tl.dot(a, b, result, input_precision=PRECISION)
    rows = images * (TALL * BROAD)
    at = (k.to(tl.int64) * rows + image * (TALL * BROAD) + pixel)[:, None] * OUTPUTS + o[None, :]
    mask = inside[:, None]
    column = k * OUTPUTS + o
    width = tl.num_programs(1) * OUTPUTS
    if MOMENTS:
        tl.store(y + at, result.to(y.dtype.element_ty), mask)
        off = tl.where(mask, result - tl.load(running_mean + column)[None, :], 0.0)
        parts = tl.num_programs(0) // SIDE
        leave(sums, number, parts, column, width, tl.sum(off, 0), tl.sum(off * off, 0))
        if is_last(tickets + k * SIDE + tl.program_id(0) % SIDE, parts):
            finish_moments(
                sums, moments, weight, bias, running_mean, running_var, parts, rows, column, width, eps, momentum,
                AT_ONCE // COLUMNS, COLUMNS,
            )  # fmt: skip
    else:
        scale, shift = running_affine(weight, bias, running_mean, running_var, column, eps)
        result = result * scale + shift
        if RESIDUAL:
            result += tl.load(residual + at, mask, other=0).to(tl.float32)
        if RELU:
            result = relu(result)
        tl.store(y + at, result.to(y.dtype.element_ty), mask)


@triton.jit
def input_gradient(
    dy, w, dx, add, sums, below, output, moments, slopes, weight, tickets, images,
    HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, ADD: tl.constexpr, SUMS: tl.constexpr, OUTPUT: tl.constexpr,
    PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, IMAGES: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dx, the gradient of a convolution's HIGH × WIDE input; plus `add`, a gradient of every ADD-th row and column.

    With SUMS, that input was relu(x̂·weight + bias [+ residual]), x̂ the normalised map `below`: dx is masked where
    ReLU was closed, and the slopes of that BatchNorm are found. ReLU was open where `output`, or without a residual
    x·scale + shift, is positive. With a stride, a program takes pixels of one phase, which share their taps.
    """
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    FAR: tl.constexpr = (HIGH + STRIDE - 1) // STRIDE  # rows of a phase, and columns
    ACROSS: tl.constexpr = (WIDE + STRIDE - 1) // STRIDE
    SIDE: tl.constexpr = INPUTS // COLUMNS
    DEPTH: tl.constexpr = OUTPUTS // DEEP
    k = tl.program_id(1)
    number = tl.program_id(0) // SIDE
    phase_y = number % (STRIDE * STRIDE) // STRIDE
    phase_x = number % STRIDE
    place, image, inside, first, last = _tile(number // (STRIDE * STRIDE), images, FAR * ACROSS, PIXELS, IMAGES)
    row = place // ACROSS
    col = place % ACROSS
    y = row * STRIDE + phase_y
    x = col * STRIDE + phase_x
    inside = inside & (y < HIGH) & (x < WIDE)
    c = tl.program_id(0) % SIDE * COLUMNS + tl.arange(0, COLUMNS)
    o = tl.arange(0, DEEP)
    # Tap number j of the phase, (phase + PAD) % STRIDE + j·STRIDE, meets row `row + reach − j` of dy.
    tap_y = (phase_y + PAD) % STRIDE
    tap_x = (phase_x + PAD) % STRIDE
    reach_y = (phase_y + PAD) // STRIDE
    reach_x = (phase_x + PAD) // STRIDE
    above, under, before, behind = _span(first, last, ACROSS)
    up = tl.maximum(above + reach_y - TALL + 1, 0)
    tall = tl.maximum(tl.minimum((KERNEL - tap_y + STRIDE - 1) // STRIDE, under + reach_y + 1) - up, 0)
    start = tl.maximum(before + reach_x - BROAD + 1, 0)
    broad = tl.maximum(tl.minimum((KERNEL - tap_x + STRIDE - 1) // STRIDE, behind + reach_x + 1) - start, 0)
    dy += k.to(tl.int64) * images * (TALL * BROAD * OUTPUTS)
    w += k.to(tl.int64) * (KERNEL * KERNEL * INPUTS * OUTPUTS)
    row += reach_y
    col += reach_x
    from_dy = dy + ((image * TALL + row) * BROAD + col)[:, None] * OUTPUTS + o[None, :]
    from_w = w + ((tap_y * KERNEL + tap_x) * INPUTS + c)[None, :] * OUTPUTS + o[:, None]
    result = tl.zeros((PIXELS * IMAGES, COLUMNS), tl.float32)
    begin()
    for step in range(tall * broad * DEPTH):
        down = up + step // DEPTH // tl.maximum(broad, 1)
        right = start + step // DEPTH % tl.maximum(broad, 1)
        depth = step % DEPTH * DEEP
        there = inside & (row >= down) & (row - down < TALL) & (col >= right) & (col - right < BROAD)
        a = tl.load(from_dy + (depth - (down * BROAD + right) * OUTPUTS), there[:, None], other=0)
        b = tl.load(from_w + ((down * KERNEL + right) * (STRIDE * INPUTS * OUTPUTS) + depth))
        result = tl.dot(a, b, result, input_precision=PRECISION)
    pixel = (k.to(tl.int64) * images + image) * (HIGH * WIDE) + y * WIDE + x
    at = pixel[:, None] * INPUTS + c[None, :]
    mask = inside[:, None]
    if ADD == 1:
        result += tl.load(add + at, mask, other=0).to(tl.float32)
    elif ADD > 1:
        FEW: tl.constexpr = (HIGH + ADD - 1) // ADD
        THIN: tl.constexpr = (WIDE + ADD - 1) // ADD
        meets = inside & (y % ADD == 0) & (x % ADD == 0)
        source = ((k.to(tl.int64) * images + image) * FEW + y // ADD) * THIN + x // ADD
        result += tl.load(add + source[:, None] * INPUTS + c[None, :], meets[:, None], other=0).to(tl.float32)
    if SUMS:
        column = k * INPUTS + c
        width = tl.num_programs(1) * INPUTS
        value = tl.load(below + at, mask, other=0).to(tl.float32)
        if OUTPUT:
            is_open = tl.load(output + at, mask, other=0).to(tl.float32) > 0
        else:
            scale = tl.load(moments + 2 * width + column)[None, :]
            is_open = value * scale + tl.load(moments + 3 * width + column)[None, :] > 0
        result = tl.where(mask & is_open, result, 0.0)
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask)
        value = (value - tl.load(moments + column)[None, :]) * tl.load(moments + width + column)[None, :]
        parts = tl.num_programs(0) // SIDE
        leave(sums, number, parts, column, width, tl.sum(result, 0), tl.sum(result * value, 0))
        if is_last(tickets + k * SIDE + tl.program_id(0) % SIDE, parts):
            finish_gradient(
                sums, slopes, moments, weight, parts, images * (HIGH * WIDE), column, width, AT_ONCE // COLUMNS, COLUMNS
            )
    else:
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask)


@triton.jit
def _transposed_product(x, there, g, result, PRECISION: tl.constexpr):
    return tl.dot(tl.trans(tl.load(x, there[:, None], other=0)), g, result, input_precision=PRECISION)


@triton.jit(do_not_specialize=["each", "span"])
def weight_gradient(
    x, dy, sums, dw, tickets, images, each, span,
    HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr,
    PIXELS: tl.constexpr, IMAGES: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr, TAPS: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """dw (K, taps, inputs, outputs): `each` tiles of pixels and images for one part, see `sums`; a single part is dw.

    A program computes DEEP inputs × COLUMNS outputs of one tap, or of TAPS = 3 in a row, which share what is loaded of
    dy. With PIXELS = 1, what taps find in the padding above and below, and a single one beside, is left out. Without
    ADDS, several parts are left to be added up by others.
    """
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    SIDE: tl.constexpr = OUTPUTS // COLUMNS
    BLOCKS: tl.constexpr = SIDE * (INPUTS // DEEP)
    k = tl.program_id(1)
    part = tl.program_id(0) // BLOCKS
    tap = tl.program_id(2) * TAPS
    down = tap // KERNEL
    right = tap % KERNEL
    c = tl.program_id(0) % BLOCKS // SIDE * DEEP + tl.arange(0, DEEP)
    o = tl.program_id(0) % SIDE * COLUMNS + tl.arange(0, COLUMNS)
    x += k.to(tl.int64) * images * (HIGH * WIDE * INPUTS)
    dy += k.to(tl.int64) * images * (TALL * BROAD * OUTPUTS)
    row = tl.arange(0, PIXELS * IMAGES)
    above = 0
    before = 0
    tall = (TALL * BROAD + PIXELS - 1) // PIXELS
    broad = 1
    if PIXELS == 1:
        above = (tl.maximum(PAD - down, 0) + STRIDE - 1) // STRIDE
        tall = tl.maximum(tl.minimum((HIGH - 1 + PAD - down + STRIDE) // STRIDE, TALL) - above, 0)
        broad = BROAD
        if TAPS == 1:
            before = (tl.maximum(PAD - right, 0) + STRIDE - 1) // STRIDE
            broad = tl.maximum(tl.minimum((WIDE - 1 + PAD - right + STRIDE) // STRIDE, BROAD) - before, 0)
    places = tall * broad
    tiles = places * ((images + IMAGES - 1) // IMAGES)
    first = tl.zeros((DEEP, COLUMNS), tl.float32)
    if TAPS == 3:
        second = tl.zeros((DEEP, COLUMNS), tl.float32)
        third = tl.zeros((DEEP, COLUMNS), tl.float32)
    begin()
    for tile in range(part * each, tl.minimum((part + 1) * each, tiles)):
        image = tile // places * IMAGES + row % IMAGES
        place = tile % places
        if PIXELS == 1:
            high = above + place // broad
            wide = before + place % broad
            inside = image < images
        else:
            high = (place * PIXELS + row // IMAGES) // BROAD
            wide = (place * PIXELS + row // IMAGES) % BROAD
            inside = (image < images) & (high < TALL)
        top = high * STRIDE - PAD + down
        left = wide * STRIDE - PAD + right
        from_x = x + ((image * HIGH + top) * WIDE + left)[:, None] * INPUTS + c[None, :]
        from_dy = dy + ((image * TALL + high) * BROAD + wide)[:, None] * OUTPUTS + o[None, :]
        g = tl.load(from_dy, inside[:, None], other=0)
        there = inside & (top >= 0) & (top < HIGH)
        first = _transposed_product(from_x, there & (left >= 0) & (left < WIDE), g, first, PRECISION)
        if TAPS == 3:
            second = _transposed_product(from_x + INPUTS, there & (left + 1 < WIDE), g, second, PRECISION)
            third = _transposed_product(from_x + 2 * INPUTS, there & (left + 2 < WIDE), g, third, PRECISION)
    far = (part * tl.num_programs(1) + k).to(tl.int64) * (KERNEL * KERNEL)
    to = sums + ((far + tap) * INPUTS + c)[:, None] * OUTPUTS + o[None, :]
    tl.store(to, first)
    if TAPS == 3:
        tl.store(to + INPUTS * OUTPUTS, second)
        tl.store(to + 2 * INPUTS * OUTPUTS, third)
    parts = tl.num_programs(0) // BLOCKS
    if ADDS and parts > 1:
        block = tl.program_id(0) % BLOCKS
        finish_weight(
            sums, dw, tickets, part, parts, span, (k * tl.num_programs(2) + tl.program_id(2)) * BLOCKS + block,
            tap * INPUTS + block // SIDE * DEEP, block % SIDE * COLUMNS,
            TAPS, DEEP, COLUMNS, INPUTS, OUTPUTS, KERNEL * KERNEL * INPUTS * OUTPUTS, AT_ONCE // 2 // COLUMNS,
        )  # fmt: skip
