"""The large stem's BatchNorm and ReLU with its pooling: the maximum of 3 × 3 pixels, every second row and column.

The map before pooling is the network's largest. It is read once forward and twice backward, where the gradient of the
pooled map finds its way by the number, 0 to 8, of each window's winner.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mdcg.models.kernels.launch import begin
from mdcg.models.kernels.sums import AT_ONCE, finish_gradient, is_last, leave, relu


@triton.jit
def forward(
    x, y, winners, moments, images, HIGH: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr,
    TRAINING: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The maxima of relu(x·scale + shift), and which pixels they are; or, not TRAINING, those of x ≥ 0."""
    TALL: tl.constexpr = (HIGH + 1) // 2
    BROAD: tl.constexpr = (WIDE + 1) // 2
    k = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    rows = images * (TALL * BROAD)
    top = row // BROAD % TALL * 2 - 1
    left = row % BROAD * 2 - 1
    x += k.to(tl.int64) * images * (HIGH * WIDE * CHANNELS)
    from_x = x + ((row // (TALL * BROAD) * HIGH + top) * WIDE + left)[:, None] * CHANNELS + c[None, :]
    best = tl.zeros((ROWS, CHANNELS), tl.float32) - 1.0
    winner = tl.zeros((ROWS, CHANNELS), tl.int32)
    begin()
    if TRAINING:
        width = tl.num_programs(1) * CHANNELS
        scale = tl.load(moments + 2 * width + k * CHANNELS + c)[None, :]
        shift = tl.load(moments + 3 * width + k * CHANNELS + c)[None, :]
    for tap in tl.static_range(9):
        down = top + tap // 3
        right = left + tap % 3
        there = ((row < rows) & (down >= 0) & (down < HIGH) & (right >= 0) & (right < WIDE))[:, None]
        value = tl.load(from_x + (tap // 3 * WIDE + tap % 3) * CHANNELS, there, other=0).to(tl.float32)
        if TRAINING:
            value = relu(value * scale + shift)
        better = there & ((value > best) | (value != value))  # what is no number wins
        best = tl.where(better, value, best)
        winner = tl.where(better, tap, winner)
    at = (k.to(tl.int64) * rows + row)[:, None] * CHANNELS + c[None, :]
    mask = (row < rows)[:, None]
    tl.store(y + at, best.to(y.dtype.element_ty), mask)
    if TRAINING:
        tl.store(winners + at, winner.to(tl.int8), mask)


@triton.jit
def _window(dy, winners, top, left, image, images, c, TALL: tl.constexpr, BROAD: tl.constexpr, CHANNELS: tl.constexpr):
    """The gradient of windows, and the number of the pixel that each of them goes to; 9 where there is no window."""
    there = ((image < images) & (top < TALL) & (left < BROAD))[:, None]
    at = ((image * TALL + top) * BROAD + left)[:, None] * CHANNELS + c[None, :]
    won = tl.load(winners + at, there, other=9)
    return tl.load(dy + at, there, other=0).to(tl.float32), won


@triton.jit(do_not_specialize=["each"])
def gradient(
    dy, winners, x, dx, sums, moments, slopes, weight, tickets, images, each,
    HIGH: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr, SUMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Find, with SUMS, BatchNorm's slopes from the pooled map's gradient dy; then, without, its input's gradient dx.

    A program goes through `each` tiles of ROWS windows. A window's centre is in no other one; with the next windows to
    the right and below, it decides on the gradients of four pixels: of its centre, and of those right of it, below it,
    and both.
    """
    TALL: tl.constexpr = (HIGH + 1) // 2
    BROAD: tl.constexpr = (WIDE + 1) // 2
    k = tl.program_id(1)
    width = tl.num_programs(1) * CHANNELS
    rows = images * (HIGH * WIDE)
    c = tl.arange(0, CHANNELS)
    column = k * CHANNELS + c
    dy += k.to(tl.int64) * images * (TALL * BROAD * CHANNELS)
    winners += k.to(tl.int64) * images * (TALL * BROAD * CHANNELS)
    x += k.to(tl.int64) * rows * CHANNELS
    dx += k.to(tl.int64) * rows * CHANNELS
    begin()
    scale = tl.load(moments + 2 * width + column)[None, :]
    shift = tl.load(moments + 3 * width + column)[None, :]
    if SUMS:
        centre = tl.load(moments + column)[None, :]
        inverse = tl.load(moments + width + column)[None, :]
        total = tl.zeros((ROWS, CHANNELS), tl.float32)
        product = tl.zeros((ROWS, CHANNELS), tl.float32)
    else:
        of_g = tl.load(slopes + 2 * width + column)[None, :]
        of_x = tl.load(slopes + 3 * width + column)[None, :]
        constant = tl.load(slopes + 4 * width + column)[None, :]
    for tile in range(tl.program_id(0) * each, (tl.program_id(0) + 1) * each):
        row = tile * ROWS + tl.arange(0, ROWS)
        image = row // (TALL * BROAD)
        top = row // BROAD % TALL
        left = row % BROAD
        own, own_won = _window(dy, winners, top, left, image, images, c, TALL, BROAD, CHANNELS)
        right, right_won = _window(dy, winners, top, left + 1, image, images, c, TALL, BROAD, CHANNELS)
        below, below_won = _window(dy, winners, top + 1, left, image, images, c, TALL, BROAD, CHANNELS)
        last, last_won = _window(dy, winners, top + 1, left + 1, image, images, c, TALL, BROAD, CHANNELS)
        for pixel in tl.static_range(4):
            if pixel == 0:
                g = tl.where(own_won == 4, own, 0.0)
            elif pixel == 1:
                g = tl.where(own_won == 5, own, 0.0) + tl.where(right_won == 3, right, 0.0)
            elif pixel == 2:
                g = tl.where(own_won == 7, own, 0.0) + tl.where(below_won == 1, below, 0.0)
            else:
                g = tl.where(own_won == 8, own, 0.0) + tl.where(right_won == 6, right, 0.0)
                g += tl.where(below_won == 2, below, 0.0) + tl.where(last_won == 0, last, 0.0)
            y = 2 * top + pixel // 2
            across = 2 * left + pixel % 2
            mask = ((image < images) & (y < HIGH) & (across < WIDE))[:, None]
            at = ((image * HIGH + y) * WIDE + across)[:, None] * CHANNELS + c[None, :]
            value = tl.load(x + at, mask, other=0).to(tl.float32)
            g = tl.where(mask & (value * scale + shift > 0), g, 0.0)
            if SUMS:
                total += g
                product += g * ((value - centre) * inverse)
            else:
                tl.store(dx + at, (of_g * g + of_x * value + constant).to(dx.dtype.element_ty), mask)
    if SUMS:
        parts = tl.num_programs(0)
        leave(sums, tl.program_id(0), parts, column, width, tl.sum(total, 0), tl.sum(product, 0))
        if is_last(tickets + k, parts):
            finish_gradient(sums, slopes, moments, weight, parts, rows, column, width, AT_ONCE // CHANNELS, CHANNELS)
