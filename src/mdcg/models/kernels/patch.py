"""The first convolution, of images with few channels; otherwise as in `conv`.

One tap of three channels is too little for the matrix units. But the taps of a row, and their channels, are neighbours
in memory: LINE numbers, KERNEL pixels of PIXEL each, filled up with zeros to a power of two. A product takes a line of
taps at a time, and for the weight's gradient all lines at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mdcg.models.kernels.launch import begin
from mdcg.models.kernels.sums import AT_ONCE, finish_moments, finish_weight, is_last, leave, relu, running_affine


@triton.jit
def _spot(images, TALL: tl.constexpr, BROAD: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, row):
    """The image, top and left of the patch that each row of the result is made of, and whether there is one."""
    image = row // (TALL * BROAD)
    return image, row // BROAD % TALL * STRIDE - PAD, row % BROAD * STRIDE - PAD, image < images


@triton.jit
def forward(
    x, w, y, sums, moments, weight, bias, running_mean, running_var, tickets, images, member, eps, momentum,
    HIGH: tl.constexpr, WIDE: tl.constexpr, PIXEL: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, MOMENTS: tl.constexpr, RELU: tl.constexpr,
    PRECISION: tl.constexpr, LINE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """See `conv.forward`. A pixel takes PIXEL numbers, of which those after its INPUTS are zero; a member `member`."""
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    k = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    image, top, left, inside = _spot(images, TALL, BROAD, STRIDE, PAD, row)
    j = tl.arange(0, LINE)
    o = tl.arange(0, OUTPUTS)
    right = j // PIXEL
    of_weight = (right < KERNEL) & (j % PIXEL < INPUTS)
    across = left[:, None] + right[None, :]
    within = inside[:, None] & (right < KERNEL)[None, :] & (across >= 0) & (across < WIDE)
    x += k.to(tl.int64) * member
    w += k.to(tl.int64) * (KERNEL * KERNEL * INPUTS * OUTPUTS)
    from_x = x + ((image * HIGH + top) * WIDE + left)[:, None] * PIXEL + j[None, :]
    from_w = w + (right * INPUTS + j % PIXEL)[:, None] * OUTPUTS + o[None, :]
    result = tl.zeros((ROWS, OUTPUTS), tl.float32)
    begin()
    for down in range(KERNEL):
        there = (top + down >= 0) & (top + down < HIGH)
        a = tl.load(from_x + down * (WIDE * PIXEL), within & there[:, None], other=0)
        b = tl.load(from_w + down * (KERNEL * INPUTS * OUTPUTS), of_weight[:, None], other=0)
        result = tl.dot(a, b, result, input_precision=PRECISION)
    rows = images * (TALL * BROAD)
    at = (k.to(tl.int64) * rows + row)[:, None] * OUTPUTS + o[None, :]
    mask = inside[:, None]
    column = k * OUTPUTS + o
    width = tl.num_programs(1) * OUTPUTS
    if MOMENTS:
        tl.store(y + at, result.to(y.dtype.element_ty), mask)
        off = tl.where(mask, result - tl.load(running_mean + column)[None, :], 0.0)
        parts = tl.num_programs(0)
        leave(sums, tl.program_id(0), parts, column, width, tl.sum(off, 0), tl.sum(off * off, 0))
        if is_last(tickets + k, parts):
            finish_moments(
                sums, moments, weight, bias, running_mean, running_var, parts, rows, column, width, eps, momentum,
                AT_ONCE // 2 // OUTPUTS, OUTPUTS,
            )  # fmt: skip
    else:
        scale, shift = running_affine(weight, bias, running_mean, running_var, column, eps)
        result = result * scale + shift
        if RELU:
            result = relu(result)
        tl.store(y + at, result.to(y.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["each", "span"])
def weight_gradient(
    x, dy, sums, dw, tickets, images, member, each, span,
    HIGH: tl.constexpr, WIDE: tl.constexpr, PIXEL: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PRECISION: tl.constexpr, LINE: tl.constexpr, LINES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """dw (K, taps, inputs, outputs), see `conv.weight_gradient`: `each` tiles of ROWS pixels for one part."""
    PAD: tl.constexpr = KERNEL // 2
    TALL: tl.constexpr = (HIGH + 2 * PAD - KERNEL) // STRIDE + 1
    BROAD: tl.constexpr = (WIDE + 2 * PAD - KERNEL) // STRIDE + 1
    k = tl.program_id(1)
    j = tl.arange(0, LINES * LINE)
    o = tl.arange(0, OUTPUTS)
    down = j // LINE
    right = j % LINE // PIXEL
    c = j % LINE % PIXEL
    within = (down < KERNEL) & (right < KERNEL)
    x += k.to(tl.int64) * member
    dy += k.to(tl.int64) * images * (TALL * BROAD * OUTPUTS)
    result = tl.zeros((LINES * LINE, OUTPUTS), tl.float32)
    begin()
    for tile in range(tl.program_id(0) * each, (tl.program_id(0) + 1) * each):
        row = tile * ROWS + tl.arange(0, ROWS)
        image, top, left, inside = _spot(images, TALL, BROAD, STRIDE, PAD, row)
        y = top[:, None] + down[None, :]
        across = left[:, None] + right[None, :]
        there = inside[:, None] & within[None, :] & (y >= 0) & (y < HIGH) & (across >= 0) & (across < WIDE)
        spot = ((image * HIGH + top) * WIDE + left)[:, None] * PIXEL
        a = tl.load(x + spot + (down * (WIDE * PIXEL) + j % LINE)[None, :], there, other=0)
        g = tl.load(dy + row[:, None] * OUTPUTS + o[None, :], inside[:, None], other=0)
        result = tl.dot(tl.trans(a), g, result, input_precision=PRECISION)
    tap = (tl.program_id(0) * tl.num_programs(1) + k).to(tl.int64) * (KERNEL * KERNEL) + down * KERNEL + right
    to = sums + (tap * INPUTS + c)[:, None] * OUTPUTS + o[None, :]
    tl.store(to, result, (within & (c < INPUTS))[:, None])
    parts = tl.num_programs(0)
    if parts > 1:
        finish_weight(
            sums, dw, tickets, tl.program_id(0), parts, span, k, 0, 0,
            1, KERNEL * KERNEL * INPUTS, OUTPUTS, INPUTS, OUTPUTS, KERNEL * KERNEL * INPUTS * OUTPUTS,
            AT_ONCE // 2 // OUTPUTS,
        )  # fmt: skip
