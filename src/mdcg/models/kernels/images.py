"""The kernel that makes a network's input of the dataset's bytes: gathered, cropped, mirrored, normalised in one go."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdcg.models.kernels.launch import begin, launch

PIXELS = 256  # of a tile


@triton.jit
def _view(
    images, index, corner, flipped, scale, shift, out, HIGH: tl.constexpr, WIDE: tl.constexpr,
    CHANNELS: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    pixel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    c = tl.arange(0, BLOCK)
    begin()
    y = pixel // WIDE + tl.load(corner + 2 * place) - PADDING
    across = pixel % WIDE
    across = tl.where(tl.load(flipped + place) != 0, WIDE - 1 - across, across)
    x = across + tl.load(corner + 2 * place + 1) - PADDING
    there = (pixel < HIGH * WIDE) & (y >= 0) & (y < HIGH) & (x >= 0) & (x < WIDE)
    source = images + tl.load(index + place) * (HIGH * WIDE * CHANNELS)
    byte = tl.load(
        source + ((y * WIDE + x) * CHANNELS)[:, None] + c[None, :], there[:, None] & (c < CHANNELS)[None, :], other=0
    )
    factor = tl.load(scale + c, c < CHANNELS, other=0)
    value = byte.to(tl.float32) * factor[None, :] + tl.load(shift + c, c < CHANNELS, other=0)[None, :]
    to = out + (place.to(tl.int64) * (HIGH * WIDE) + pixel)[:, None] * BLOCK + c[None, :]
    tl.store(to, value.to(out.dtype.element_ty), (pixel < HIGH * WIDE)[:, None])


def view(
    images: Tensor, index: Tensor, corner: Tensor, flipped: Tensor, scale: Tensor, shift: Tensor, padding: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Compute `mdcg.train.augment.Pixels.view`. Pixels are stored with channels last, filled up to a power of two."""
    _, high, wide, channels = images.shape
    block = triton.next_power_of_2(channels)
    out = torch.empty(len(index), high, wide, block, dtype=dtype, device=images.device)
    launch(
        _view, (len(index), triton.cdiv(high * wide, PIXELS)), images, index, corner, flipped, scale, shift, out,
        HIGH=high, WIDE=wide, CHANNELS=channels, PADDING=padding, BLOCK=block, TILE=PIXELS,
    )  # fmt: skip
    return out[..., :channels].permute(0, 3, 1, 2)
