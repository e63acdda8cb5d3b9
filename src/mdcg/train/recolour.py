"""Colour jitter and RandAugment as batched tensor code: on pixels of 0 to 255, before they are normalised.

Every operation is computed for the whole batch, and each image takes the result of its own: about sixty small kernels
for a round of RandAugment, and no waiting. Where fused kernels are in use a round is one kernel, which does for each
image only the operation drawn (`models.kernels.recolour`). Pixels are rounded to whole numbers after each operation, as
in files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.models import kernels
from mdcg.train.augment import Pixels

JITTER = "jitter"  # by these names an epoch's draws have what is random here: (K, steps, places, 3),
OPERATION, AMOUNT, PLACE = "operation", "amount", "place"  # and (K, steps, places, N), the same, (…, N, 2, 3)
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: The operations of RandAugment (Cubuk et al., 2020).
OPERATIONS = (
    "identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate", "brightness", "colour", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
CODE = {name: np.uint8(code) for code, name in enumerate(OPERATIONS)}
BLENDS = ("brightness", "colour", "contrast", "sharpness")
STRONGEST = 30  # magnitude M; the strongest of each operation is what follows
SHEAR, TRANSLATE, DEGREES, BLEND, BITS = 0.3, 150 / 331, 30.0, 0.9, 4
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue
WHITE = 255


def draw_jitter(rng: np.random.Generator, shape: tuple[int, ...], strength: float) -> Floats:
    """Draw the factors of brightness, contrast and saturation of so many images, each in 1 ± strength: (…, 3)."""
    return (1 + strength * (2 * rng.random((*shape, 3)) - 1)).astype(np.float32)


def draw_operations(
    rng: np.random.Generator, shape: tuple[int, ...], magnitude: float, side: tuple[int, int]
) -> tuple[Bytes, Floats, Floats]:
    """Draw operations with equal chances, and the sign of each: their codes (…,), their amounts (…,) and the map from
    a pixel's place to where it comes from (…, 2, 3), for images of this height and width."""
    chosen, sign = np.moveaxis(rng.random((*shape, 2)), -1, 0)
    code = (chosen * len(OPERATIONS)).astype(np.uint8)
    return code, *amounts(code, np.where(sign < 0.5, -1.0, 1.0), magnitude / STRONGEST, side)


def amounts(
    code: Bytes, sign: npt.NDArray[np.float64], strength: float, side: tuple[int, int]
) -> tuple[Floats, Floats]:
    """The amounts of operations and their maps: strength 0 changes next to nothing, 1 as much as is usual."""
    high, wide = side
    amount = np.ones(code.shape)
    place = np.zeros((*code.shape, 2, 3))
    place[..., 0, 0] = place[..., 1, 1] = 1

    def of(name: str) -> npt.NDArray[np.bool_]:
        return np.equal(code, CODE[name])

    for name in BLENDS:
        amount = np.where(of(name), 1 + sign * BLEND * strength, amount)
    amount = np.where(of("posterize"), 2.0 ** round(BITS * strength), amount)
    amount = np.where(of("solarize"), WHITE * (1 - strength), amount)
    place[..., 0, 1] = np.where(of("shear-x"), sign * SHEAR * strength, 0)
    place[..., 1, 0] = np.where(of("shear-y"), sign * SHEAR * strength, 0)
    place[..., 0, 2] = np.where(of("translate-x"), sign * TRANSLATE * strength * wide, 0)
    place[..., 1, 2] = np.where(of("translate-y"), sign * TRANSLATE * strength * high, 0)
    angle = np.where(of("rotate"), sign * math.radians(DEGREES) * strength, 0)
    turned = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1).reshape(*code.shape, 2, 2)
    place[..., :2] = np.where(of("rotate")[..., None, None], turned, place[..., :2])
    return amount.astype(np.float32), place.astype(np.float32)


def recolours(more: Mapping[str, Tensor]) -> bool:
    """Whether something is to be done with the pixels of a step."""
    return JITTER in more or OPERATION in more


def recoloured(x: Tensor, more: Mapping[str, Tensor], raw: Pixels, pixels: Pixels) -> Tensor:
    """Do with the `raw` pixels of a step, (K·places, C, H, W), what was drawn for it, and normalise them."""
    if JITTER in more:
        x = jitter(x, more[JITTER].flatten(0, 1))
    drawn = [more[name].flatten(0, 1).unbind(1) for name in (OPERATION, AMOUNT, PLACE) if name in more]
    rounds = list(zip(*drawn, strict=True))
    if rounds and kernels.in_use():
        from mdcg.models.kernels.recolour import operate as fused

        for (code, amount, place), to in zip(rounds, [*[raw] * (len(rounds) - 1), pixels], strict=True):
            x = fused(x, code, amount, place, OPERATIONS, to.scale, to.shift, to.dtype)
        return x
    for code, amount, place in rounds:
        x = operate(x, code, amount, place)
    return pixels.normalise_raw(x)


def jitter(x: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, contrast and saturation, in this order: (n, C, H, W), (n, 3)."""
    brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    x = blend(torch.zeros_like(x), x, brightness)
    x = blend(mean_grey(x), x, contrast)
    return blend(grey(x), x, saturation)


def operate(x: Tensor, code: Tensor, amount: Tensor, place: Tensor) -> Tensor:
    """Do one operation with each image: (n, C, H, W), (n,), (n,), (n, 2, 3)."""

    def of(name: str) -> Tensor:
        return (code == int(CODE[name]))[:, None, None, None]

    amount = amount[:, None, None, None]
    x = moved(x, place)
    reference = torch.zeros_like(x)
    for name, found in (("colour", grey(x)), ("contrast", mean_grey(x)), ("sharpness", smooth(x))):
        reference = torch.where(of(name), found, reference)
    blended = of("brightness") | of("colour") | of("contrast") | of("sharpness")
    x = blend(reference, x, torch.where(blended, amount, 1))
    step = torch.where(of("posterize"), amount, 1)
    x = (x / step).floor() * step
    x = torch.where(of("solarize") & (x >= amount), WHITE - x, x)
    x = torch.where(of("autocontrast"), autocontrast(x), x)
    return torch.where(of("equalize"), equalized(x), x)


def blend(reference: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """The reference at factor 0, the image at 1, beyond it above 1."""
    return (reference + factor * (x - reference)).round().clamp(0, WHITE)


def grey(x: Tensor) -> Tensor:
    """The image in grey, with one channel: (n, C, H, W) → (n, 1, H, W)."""
    if x.shape[1] != len(GREY):
        return x.mean(1, keepdim=True).round()
    red, green, blue = x.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue).round()[:, None]


def mean_grey(x: Tensor) -> Tensor:
    """The mean of the image in grey: a sum of whole numbers, which is exact in any order."""
    return grey(x).mean((2, 3), keepdim=True).round()


def smooth(x: Tensor) -> Tensor:
    """The mean of each pixel, counted five times, and its neighbours; pixels at the edge stay."""
    down = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    around = down[..., :-2] + down[..., 1:-1] + down[..., 2:]
    found = x.clone()
    found[:, :, 1:-1, 1:-1] = ((around + 4 * x[:, :, 1:-1, 1:-1]) / 13).round()
    return found


def moved(x: Tensor, place: Tensor) -> Tensor:
    """Take each pixel from where the map sends its centre, seen from the image's; black from outside."""
    high, wide = x.shape[2:]
    across = (torch.arange(wide, device=x.device) + 0.5 - wide / 2).to(x.dtype)
    down = (torch.arange(high, device=x.device) + 0.5 - high / 2).to(x.dtype)[:, None]
    row = place[..., None, None]  # (n, 2, 3, 1, 1)
    column_of, row_of = ((row[:, i, 0] * across + row[:, i, 1] * down + row[:, i, 2]) for i in (0, 1))
    columns, rows = (column_of + wide / 2).floor().long(), (row_of + high / 2).floor().long()
    inside = (columns >= 0) & (columns < wide) & (rows >= 0) & (rows < high)
    index = (rows.clamp(0, high - 1) * wide + columns.clamp(0, wide - 1)).flatten(1)
    found = x.flatten(2).gather(2, index[:, None].expand(-1, x.shape[1], -1)).view(x.shape)
    return torch.where(inside[:, None], found, 0)


def autocontrast(x: Tensor) -> Tensor:
    """Spread each channel from its darkest and lightest pixel to black and white; one of a single value stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    spread = ((x - low) * (WHITE / (high - low).clamp_min(1))).round()
    return torch.where(high > low, spread, x)


def equalized(x: Tensor) -> Tensor:
    """Give every value of a channel about as many pixels: the histogram's running sum, scaled."""
    pixels = x.flatten(2).long()
    zeros = pixels.new_zeros(*pixels.shape[:2], WHITE + 1)
    counts = zeros.scatter_add(2, pixels, torch.ones_like(pixels))
    last = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - last) // WHITE
    before = counts.cumsum(2) - counts
    table = ((before + step // 2) // step.clamp_min(1)).clamp_max(WHITE)
    return torch.where(step[..., None] > 0, table.gather(2, pixels).view(x.shape).to(x.dtype), x)
