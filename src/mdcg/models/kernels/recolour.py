"""The kernel for a round of RandAugment: a program for each channel of an image, which does the one operation drawn.

The arithmetic is that of `mdcg.train.recolour.operate`, in the same order, and no product is fused with a sum
(`enable_fp_fusion`): the pixels are the same. On a GPU torch multiplies by a reciprocal to find a mean; where an
image's pixels are no power of two, a tie may then be rounded in another way than here and on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdcg.models.kernels.launch import begin, launch

PIXELS = 1024  # of a tile; a program takes one after the other
NAMES = (  # of the operations that the kernel tells apart; the rest move pixels, and their map says all
    "identity", "brightness", "colour", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
WHITE = tl.constexpr(255)
WHOLE = tl.constexpr(1.5 * 2**23)  # so large that float32 has no room for what is behind the point


@triton.jit
def _round(x):
    """The nearest whole number, the even one of two: for −2²² to 2²²."""
    return (x + WHOLE) - WHOLE


@triton.jit
def _blend(reference, x, factor):
    return tl.minimum(tl.maximum(_round(reference + factor * (x - reference)), 0.0), WHITE)


@triton.jit
def _grey(image, there, to_channel, CHANNELS: tl.constexpr):
    """The pixels in grey whose first channels lie there."""
    first = tl.load(image, there, other=0.0)
    if CHANNELS == 3:
        green = tl.load(image + to_channel, there, other=0.0)
        blue = tl.load(image + 2 * to_channel, there, other=0.0)
        grey = 0.299 * first + 0.587 * green + 0.114 * blue
    else:
        for c in tl.static_range(1, CHANNELS):
            first += tl.load(image + c * to_channel, there, other=0.0)
        grey = tl.div_rn(first, CHANNELS * 1.0)
    return _round(grey)


@triton.jit
def _mean_grey(image, to_channel, to_pixel, AREA: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr):
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, AREA, TILE):
        pixel = start + tl.arange(0, TILE)
        total += _grey(image + pixel * to_pixel, pixel < AREA, to_channel, CHANNELS)
    return _round(tl.div_rn(tl.sum(total, 0), AREA * 1.0))


@triton.jit
def _extremes(channel, to_pixel, AREA: tl.constexpr, TILE: tl.constexpr):
    """The darkest and the lightest pixel."""
    low = tl.full((TILE,), WHITE, tl.float32)
    high = tl.zeros((TILE,), tl.float32)
    for start in range(0, AREA, TILE):
        pixel = start + tl.arange(0, TILE)
        low = tl.minimum(low, tl.load(channel + pixel * to_pixel, pixel < AREA, other=WHITE))
        high = tl.maximum(high, tl.load(channel + pixel * to_pixel, pixel < AREA, other=0.0))
    return tl.min(low, 0), tl.max(high, 0)


@triton.jit
def _equalizing(channel, to_pixel, AREA: tl.constexpr, TILE: tl.constexpr):
    """What becomes of each value."""
    value = tl.arange(0, WHITE + 1)
    counts = tl.where(value == 0, AREA - tl.cdiv(AREA, TILE) * TILE, 0)  # what is beyond the last pixel counts as black
    for start in range(0, AREA, TILE):
        pixel = start + tl.arange(0, TILE)
        counts += tl.histogram(tl.load(channel + pixel * to_pixel, pixel < AREA, other=0.0).to(tl.int32), WHITE + 1)
    lightest = tl.max(tl.where(counts > 0, value, 0), 0)
    step = (AREA - tl.sum(tl.where(value == lightest, counts, 0), 0)) // WHITE
    before = tl.cumsum(counts, 0) - counts
    table = tl.minimum((before + step // 2) // tl.maximum(step, 1), WHITE)
    return tl.where(step > 0, table, value)


@triton.jit
def _smooth(channel, x, pixel, to_pixel, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """The mean of each pixel, counted five times, and its neighbours; x at the edge."""
    row = pixel // WIDE
    column = pixel % WIDE
    within = (row > 0) & (row < HIGH - 1) & (column > 0) & (column < WIDE - 1)
    around = 4 * x
    for tap in tl.static_range(9):
        near = pixel + (tap // 3 - 1) * WIDE + tap % 3 - 1
        around += tl.load(channel + near * to_pixel, within, other=0.0)
    return tl.where(within, _round(tl.div_rn(around, 13.0)), x)


@triton.jit
def _moved(channel, place, pixel, there, to_pixel, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Pixels from where the map sends their centres, seen from the image's; black from outside."""
    across = (pixel % WIDE).to(tl.float32) + (0.5 - WIDE / 2)
    down = (pixel // WIDE).to(tl.float32) + (0.5 - HIGH / 2)
    column_of = tl.load(place) * across + tl.load(place + 1) * down + tl.load(place + 2)
    row_of = tl.load(place + 3) * across + tl.load(place + 4) * down + tl.load(place + 5)
    column = tl.floor(column_of + WIDE / 2).to(tl.int32)
    row = tl.floor(row_of + HIGH / 2).to(tl.int32)
    there = there & (column >= 0) & (column < WIDE) & (row >= 0) & (row < HIGH)
    return tl.load(channel + (row * WIDE + column) * to_pixel, there, other=0.0)


@triton.jit
def _operate(
    x, code, amount, place, scale, shift, out, to_image, to_channel, to_pixel, to_code, to_amount, to_place,
    HIGH: tl.constexpr, WIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    IDENTITY: tl.constexpr, BRIGHTNESS: tl.constexpr, COLOUR: tl.constexpr, CONTRAST: tl.constexpr,
    SHARPNESS: tl.constexpr, POSTERIZE: tl.constexpr, SOLARIZE: tl.constexpr, AUTOCONTRAST: tl.constexpr,
    EQUALIZE: tl.constexpr,
):  # fmt: skip
    AREA: tl.constexpr = HIGH * WIDE
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    real = c < CHANNELS  # what a pixel is filled up with is zero, and stays so
    begin()
    operation = tl.load(code + n * to_code, real, other=IDENTITY).to(tl.int32)
    factor = tl.load(amount + n * to_amount)
    image = x + n * to_image
    channel = image + c * to_channel
    place += n * to_place
    mean = 0.0
    low = 0.0
    high = 0.0
    table = tl.arange(0, WHITE + 1)
    if operation == CONTRAST:
        mean = _mean_grey(image, to_channel, to_pixel, AREA, CHANNELS, TILE)
    elif operation == AUTOCONTRAST:
        low, high = _extremes(channel, to_pixel, AREA, TILE)
    elif operation == EQUALIZE:
        table = _equalizing(channel, to_pixel, AREA, TILE)
    steepness = tl.div_rn(1.0, tl.maximum(high - low, 1.0)) * WHITE
    slope = tl.load(scale + c, real, other=0.0)
    offset = tl.load(shift + c, real, other=0.0)
    for start in range(0, AREA, TILE):
        pixel = start + tl.arange(0, TILE)
        there = (pixel < AREA) & real
        value = _moved(channel, place, pixel, there, to_pixel, HIGH, WIDE)  # by nothing, if it is recoloured
        if operation == BRIGHTNESS:
            value = _blend(0.0, value, factor)
        elif operation == COLOUR:
            value = _blend(_grey(image + pixel * to_pixel, there, to_channel, CHANNELS), value, factor)
        elif operation == CONTRAST:
            value = _blend(mean, value, factor)
        elif operation == SHARPNESS:
            value = _blend(_smooth(channel, value, pixel, to_pixel, HIGH, WIDE), value, factor)
        elif operation == POSTERIZE:
            value = tl.floor(tl.div_rn(value, factor)) * factor
        elif operation == SOLARIZE:
            value = tl.where(value >= factor, WHITE - value, value)
        elif operation == AUTOCONTRAST:
            value = tl.where(high > low, _round((value - low) * steepness), value)
        elif operation == EQUALIZE:
            value = tl.gather(table, value.to(tl.int32), 0).to(tl.float32)
        value = value * slope + offset
        tl.store(out + (n * AREA + pixel) * BLOCK + c, value.to(out.dtype.element_ty), pixel < AREA)


def operate(
    x: Tensor, code: Tensor, amount: Tensor, place: Tensor, operations: Sequence[str], scale: Tensor,
    shift: Tensor, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Compute `mdcg.train.recolour.operate`, times `scale` plus `shift`. Pixels are stored as in `images.view`.

    A code is a place in `operations`. One that recolours comes with a map that moves nothing.
    """
    _, channels, high, wide = x.shape
    block = triton.next_power_of_2(channels)
    out = torch.empty(len(x), high, wide, block, dtype=dtype, device=x.device)
    planes = x.flatten(2)
    launch(
        _operate, (len(x), block), planes, code, amount, place, scale, shift, out, *planes.stride(),
        code.stride(0), amount.stride(0), place.stride(0), HIGH=high, WIDE=wide, CHANNELS=channels, BLOCK=block,
        TILE=PIXELS, **{name.upper(): operations.index(name) for name in NAMES}, enable_fp_fusion=False,
    )  # fmt: skip
    return out[..., :channels].permute(0, 3, 1, 2)
