"""The 3×3 convolutions without stride, where a small ResNet spends its time; otherwise as in `conv`.

A program takes the same strip of rows of a few images, and walks down it. A row of the input is loaded once, at its
three horizontal shifts, and used at once for the three rows of the result that it touches: a third of the loads
of a convolution that goes tap by tap.
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
def _tap(w, TAP: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BACKWARD: tl.constexpr):
    """The matrix of a tap, (inputs, outputs); backward, that of the opposite tap, transposed."""
    c = tl.arange(0, INPUTS)
    o = tl.arange(0, OUTPUTS)
    if BACKWARD:
        return tl.load(w + ((8 - TAP) * INPUTS + c)[None, :] * OUTPUTS + o[:, None])
    return tl.load(w + (TAP * INPUTS + c)[:, None] * OUTPUTS + o[None, :])


@triton.jit
def _taps(w, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BACKWARD: tl.constexpr):
    return (
        _tap(w, 0, INPUTS, OUTPUTS, BACKWARD), _tap(w, 1, INPUTS, OUTPUTS, BACKWARD),
        _tap(w, 2, INPUTS, OUTPUTS, BACKWARD), _tap(w, 3, INPUTS, OUTPUTS, BACKWARD),
        _tap(w, 4, INPUTS, OUTPUTS, BACKWARD), _tap(w, 5, INPUTS, OUTPUTS, BACKWARD),
        _tap(w, 6, INPUTS, OUTPUTS, BACKWARD), _tap(w, 7, INPUTS, OUTPUTS, BACKWARD),
        _tap(w, 8, INPUTS, OUTPUTS, BACKWARD),
    )  # fmt: skip


@triton.jit
def _place(images, strip, HIGH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr):
    """Where a program walks: the strip's first row; of each pixel of a row its column, its image, whether it is one."""
    strips = (HIGH + strip - 1) // strip
    pixel = tl.arange(0, ROWS)
    image = tl.program_id(0) // strips * (ROWS // WIDE) + pixel // WIDE
    inside = (image < images) & (pixel < ROWS // WIDE * WIDE)
    return tl.program_id(0) % strips * strip, pixel % WIDE, image, inside


@triton.jit
def _shifts(x, there, across, WIDE: tl.constexpr, CHANNELS: tl.constexpr):
    """A row of pixels, and the same shifted by one to either side; zero outside the image."""
    left = tl.load(x - CHANNELS, (there & (across > 0))[:, None], other=0)
    right = tl.load(x + CHANNELS, (there & (across < WIDE - 1))[:, None], other=0)
    return left, tl.load(x, there[:, None], other=0), right


@triton.jit
def _row_of(a, b, c, w0, w1, w2, result, PRECISION: tl.constexpr):
    result = tl.dot(a, w0, result, input_precision=PRECISION)
    result = tl.dot(b, w1, result, input_precision=PRECISION)
    return tl.dot(c, w2, result, input_precision=PRECISION)


@triton.jit(do_not_specialize=["strip"])
def forward(
    x, w, y, sums, moments, weight, bias, running_mean, running_var, tickets, residual, images, strip, eps, momentum,
    HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    MOMENTS: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """See `conv.forward`."""
    k = tl.program_id(1)
    start, across, image, inside = _place(images, strip, HIGH, WIDE, ROWS)
    c = tl.arange(0, INPUTS)
    o = tl.arange(0, OUTPUTS)
    first = ((k.to(tl.int64) * images + image) * HIGH + start) * WIDE + across
    from_x = x + first[:, None] * INPUTS + c[None, :]
    at = first[:, None] * OUTPUTS + o[None, :]
    w += k.to(tl.int64) * (9 * INPUTS * OUTPUTS)
    begin()
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = _taps(w, INPUTS, OUTPUTS, False)
    column = k * OUTPUTS + o
    width = tl.num_programs(1) * OUTPUTS
    upper = tl.zeros((ROWS, OUTPUTS), tl.float32)
    lower = tl.zeros((ROWS, OUTPUTS), tl.float32)
    if MOMENTS:
        centre = tl.load(running_mean + column)[None, :]
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        square = tl.zeros((ROWS, OUTPUTS), tl.float32)
    else:
        factor, offset = running_affine(weight, bias, running_mean, running_var, column, eps)
    for step in range(strip + 2):
        row = start + step - 1  # of x
        there = inside & (row >= 0) & (row < HIGH)
        left, here, right = _shifts(from_x + (step - 1) * (WIDE * INPUTS), there, across, WIDE, INPUTS)
        result = _row_of(left, here, right, w6, w7, w8, upper, PRECISION)
        upper = _row_of(left, here, right, w3, w4, w5, lower, PRECISION)
        lower = _row_of(left, here, right, w0, w1, w2, tl.zeros((ROWS, OUTPUTS), tl.float32), PRECISION)
        to = at + (step - 2) * (WIDE * OUTPUTS)
        mask = (inside & (step >= 2) & (row <= HIGH))[:, None]
        if MOMENTS:
            off = tl.where(mask, result - centre, 0.0)
            total += off
            square += off * off
        else:
            result = result * factor + offset
            if RESIDUAL:
                result += tl.load(residual + to, mask, other=0).to(tl.float32)
            if RELU:
                result = relu(result)
        tl.store(y + to, result.to(y.dtype.element_ty), mask)
    if MOMENTS:
        parts = tl.num_programs(0)
        leave(sums, tl.program_id(0), parts, column, width, tl.sum(total, 0), tl.sum(square, 0))
        if is_last(tickets + k, parts):
            finish_moments(
                sums, moments, weight, bias, running_mean, running_var, parts, images * (HIGH * WIDE), column, width,
                eps, momentum, AT_ONCE // 2 // OUTPUTS, OUTPUTS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["strip"])
def input_gradient(
    dy, w, dx, add, sums, below, output, moments, slopes, weight, tickets, images, strip,
    HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    ADD: tl.constexpr, SUMS: tl.constexpr, OUTPUT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """See `conv.input_gradient`: a convolution of dy with the weight turned around."""
    k = tl.program_id(1)
    start, across, image, inside = _place(images, strip, HIGH, WIDE, ROWS)
    c = tl.arange(0, INPUTS)
    o = tl.arange(0, OUTPUTS)
    first = ((k.to(tl.int64) * images + image) * HIGH + start) * WIDE + across
    from_dy = dy + first[:, None] * OUTPUTS + o[None, :]
    at = first[:, None] * INPUTS + c[None, :]
    w += k.to(tl.int64) * (9 * INPUTS * OUTPUTS)
    begin()
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = _taps(w, INPUTS, OUTPUTS, True)
    column = k * INPUTS + c
    width = tl.num_programs(1) * INPUTS
    upper = tl.zeros((ROWS, INPUTS), tl.float32)
    lower = tl.zeros((ROWS, INPUTS), tl.float32)
    if SUMS:
        centre = tl.load(moments + column)[None, :]
        inverse = tl.load(moments + width + column)[None, :]
        total = tl.zeros((ROWS, INPUTS), tl.float32)
        product = tl.zeros((ROWS, INPUTS), tl.float32)
        if not OUTPUT:
            factor = tl.load(moments + 2 * width + column)[None, :]
            offset = tl.load(moments + 3 * width + column)[None, :]
    for step in range(strip + 2):
        row = start + step - 1  # of dy
        there = inside & (row >= 0) & (row < HIGH)
        left, here, right = _shifts(from_dy + (step - 1) * (WIDE * OUTPUTS), there, across, WIDE, OUTPUTS)
        result = _row_of(left, here, right, w6, w7, w8, upper, PRECISION)
        upper = _row_of(left, here, right, w3, w4, w5, lower, PRECISION)
        lower = _row_of(left, here, right, w0, w1, w2, tl.zeros((ROWS, INPUTS), tl.float32), PRECISION)
        to = at + (step - 2) * (WIDE * INPUTS)
        mask = (inside & (step >= 2) & (row <= HIGH))[:, None]
        if ADD:
            result += tl.load(add + to, mask, other=0).to(tl.float32)
        if SUMS:
            value = tl.load(below + to, mask, other=0).to(tl.float32)
            if OUTPUT:
                is_open = tl.load(output + to, mask, other=0).to(tl.float32) > 0
            else:
                is_open = value * factor + offset > 0
            result = tl.where(mask & is_open, result, 0.0)
            total += result
            product += result * ((value - centre) * inverse)
        tl.store(dx + to, result.to(dx.dtype.element_ty), mask)
    if SUMS:
        parts = tl.num_programs(0)
        leave(sums, tl.program_id(0), parts, column, width, tl.sum(total, 0), tl.sum(product, 0))
        if is_last(tickets + k, parts):
            finish_gradient(
                sums,
                slopes,
                moments,
                weight,
                parts,
                images * (HIGH * WIDE),
                column,
                width,
                AT_ONCE // 2 // INPUTS,
                INPUTS,
            )


@triton.jit
def _transposed(a, g, result, PRECISION: tl.constexpr):
    return tl.dot(tl.trans(a), g, result, input_precision=PRECISION)


@triton.jit(do_not_specialize=["strip", "walks", "span"])
def weight_gradient(
    x, dy, sums, dw, tickets, images, strip, walks, span,
    HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dw (K, 9, inputs, outputs), see `conv.weight_gradient`: row y of x meets rows y + 1, y and y − 1 of dy.

    A program walks down several strips, of different images, for one part.
    """
    strips = (HIGH + strip - 1) // strip
    k = tl.program_id(1)
    start = tl.program_id(0) % strips * strip
    pixel = tl.arange(0, ROWS)
    across = pixel % WIDE
    c = tl.arange(0, INPUTS)
    o = tl.arange(0, OUTPUTS)
    x += k.to(tl.int64) * images * (HIGH * WIDE * INPUTS)
    dy += k.to(tl.int64) * images * (HIGH * WIDE * OUTPUTS)
    s0 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s1 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s2 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s3 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s4 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s5 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s6 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s7 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    s8 = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    begin()
    for turn in range(walks):
        image = (tl.program_id(0) // strips * walks + turn) * (ROWS // WIDE) + pixel // WIDE
        inside = (image < images) & (pixel < ROWS // WIDE * WIDE)
        first = (image * HIGH + start) * WIDE + across
        from_x = x + first[:, None] * INPUTS + c[None, :]
        from_dy = dy + first[:, None] * OUTPUTS + o[None, :]
        above = tl.load(from_dy - WIDE * OUTPUTS, (inside & (start > 0))[:, None], other=0)
        at = tl.load(from_dy, inside[:, None], other=0)
        for step in range(strip):
            row = start + step
            there = inside & (row < HIGH)
            below = tl.load(from_dy + (step + 1) * (WIDE * OUTPUTS), (inside & (row + 1 < HIGH))[:, None], other=0)
            left, here, right = _shifts(from_x + step * (WIDE * INPUTS), there, across, WIDE, INPUTS)
            s0 = _transposed(left, below, s0, PRECISION)
            s1 = _transposed(here, below, s1, PRECISION)
            s2 = _transposed(right, below, s2, PRECISION)
            s3 = _transposed(left, at, s3, PRECISION)
            s4 = _transposed(here, at, s4, PRECISION)
            s5 = _transposed(right, at, s5, PRECISION)
            s6 = _transposed(left, above, s6, PRECISION)
            s7 = _transposed(here, above, s7, PRECISION)
            s8 = _transposed(right, above, s8, PRECISION)
            above = at
            at = below
    part = (tl.program_id(0) * tl.num_programs(1) + k).to(tl.int64) * (9 * INPUTS)
    to = sums + (part + c)[:, None] * OUTPUTS + o[None, :]
    tl.store(to, s0)
    tl.store(to + INPUTS * OUTPUTS, s1)
    tl.store(to + 2 * INPUTS * OUTPUTS, s2)
    tl.store(to + 3 * INPUTS * OUTPUTS, s3)
    tl.store(to + 4 * INPUTS * OUTPUTS, s4)
    tl.store(to + 5 * INPUTS * OUTPUTS, s5)
    tl.store(to + 6 * INPUTS * OUTPUTS, s6)
    tl.store(to + 7 * INPUTS * OUTPUTS, s7)
    tl.store(to + 8 * INPUTS * OUTPUTS, s8)
    parts = tl.num_programs(0)
    if parts > 1:
        finish_weight(
            sums, dw, tickets, tl.program_id(0), parts, span, k, 0, 0,
            1, 9 * INPUTS, OUTPUTS, INPUTS, OUTPUTS, 9 * INPUTS * OUTPUTS, AT_ONCE // 4 // OUTPUTS,
        )  # fmt: skip
