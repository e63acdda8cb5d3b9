"""The tiles: how much a program computes at a time, chosen by measurement on an H200, see docs/performance.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from mdcg.models.kernels.layer import Layer

WARPS = 1280  # that keep the GPU busy: about ten for each multiprocessor
IMAGES = 64  # of a batch: strips do not follow the actual number, or each would be compiled anew


class Tile(NamedTuple):
    """The part of a map that one program computes, and how it is launched."""

    rows: int  # pixels
    warps: int
    stages: int = 1  # loads in flight
    strip: int = 0  # rows of an image that a program walks down; 0: it does not walk
    programs: int = 1056  # that share the sum of a weight's gradient, each with a copy of its own

    @property
    def launch(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


def forward_tile(layer: Layer, x: Tensor) -> Tile:
    if _plain(layer) and layer.outputs == 16:
        return _long_strips(Tile(64, 2, 2), x)
    if _plain(layer) and layer.outputs == 32:
        return _long_strips(Tile(32, 2, 2), x)
    if layer.outputs <= 32:
        return Tile(128, 4)
    return Tile(64, 4) if _half(layer) else Tile(256, 8)


def gradient_tile(layer: Layer, x: Tensor) -> Tile:
    if _plain(layer) and layer.inputs == 16:
        return _long_strips(Tile(32, 1), x)
    if layer.inputs == 16:
        return Tile(256, 4)
    return Tile(64, 4) if layer.inputs == 32 and not _half(layer) else Tile(128, 4)


def weight_tile(layer: Layer) -> Tile:
    if _plain(layer) and layer.outputs == 16:
        return Tile(64 if _half(layer) else 32, 1, strip=8)
    if layer.outputs <= 32:
        return Tile(64, 2, 1 if _plain(layer) else 3)
    return Tile(64, 4, 3 if _half(layer) else 1, programs=528)  # within the 99 KiB that smaller GPUs share


def _plain(layer: Layer) -> bool:
    return layer.conv.kernel == 3 and layer.conv.stride == 1


def _half(layer: Layer) -> bool:
    """Whether numbers have 16 bits."""
    return layer.weight.dtype.itemsize == 2


def _long_strips(tile: Tile, x: Tensor) -> Tile:
    """Make strips as long as they can be with all of the GPU at work: where they meet, rows are computed twice."""
    members, _, high, wide, _ = x.shape
    strip = high
    while strip > 4 and members * (IMAGES * wide // tile.rows) * (high // strip) * tile.warps < WARPS:
        strip //= 2
    return tile._replace(strip=strip)
