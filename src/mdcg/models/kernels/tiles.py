"""The tiles: how much a program computes at a time, chosen by measurement on an H200, see docs/performance.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import triton
from torch import Tensor

if TYPE_CHECKING:
    from mdcg.models.kernels.layer import Layer

PROGRAMS = 1056  # that keep the GPU busy: eight for each multiprocessor
WARPS = 1280  # that keep the GPU busy: about ten for each multiprocessor
IMAGES = 64  # of a batch, at most, in a tile of a small map
INFERRED = 32  # the same without training, where batches of all sizes share a kernel
SMALL = 64  # pixels of a map that is taken pixel by pixel, of many images
FEWEST = 4  # pixels of a map on which that saves most
ELEMENTS = 2048  # of a map, in kernels that make one pass over it
WINDOWS = 1024  # the same of a pooled map, where a window's gradient finds its way


class Tile(NamedTuple):
    """The part of a map or a weight that one program computes, and how it is launched."""

    rows: int  # pixels, of one image or of several
    warps: int
    stages: int = 1  # loads in flight
    columns: int = 64  # channels of the result, or of a weight's outputs
    deep: int = 64  # channels that a step sums over, or of a weight's inputs
    taps: int = 1  # of a weight's gradient, that share what they load
    strip: int = 0  # rows of an image that a program walks down; 0: it does not walk
    programs: int = PROGRAMS  # that share a weight's gradient, of all members; more of them take a part of the sum each
    adds: bool = True  # the last of these programs adds up the parts

    @property
    def launch(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}

    def apart(self, pixels: int, images: int, training: bool = True) -> dict[str, int]:
        """The number of pixels and of images that make up the rows."""
        most = min(self.rows, IMAGES if training else INFERRED)
        many = min(most, int(triton.next_power_of_2(images))) if pixels <= SMALL else 1
        return {"PIXELS": self.rows // many, "IMAGES": many}


def forward_tile(layer: Layer, x: Tensor) -> Tile:
    """The tile of a convolution, or of a walk."""
    if layer.patches:
        return Tile(128, 4, 2)
    if _walks(layer) and layer.outputs == 16:
        return _long_strips(Tile(64, 2, 3), x, 2 * WARPS)
    if _walks(layer) and layer.outputs == 32:
        return _long_strips(Tile(32, 2, 3), x)
    pixels = (x.shape[2] // layer.conv.stride) * (x.shape[3] // layer.conv.stride)
    rows = 64 if pixels <= FEWEST else 128
    programs = len(x) * x.shape[1] * pixels * layer.outputs // (rows * 128)
    if not layer.half:
        rows = 128 if programs >= PROGRAMS // 8 else rows
        tile = Tile(rows, 4, 3, deep=32)
    elif layer.outputs >= 128 and programs >= PROGRAMS // 4:
        tile = Tile(rows, 4, 3, columns=128)
    else:
        tile = Tile(rows, 4, 4 if rows == 64 else 3)
    return _fitting(tile, layer.inputs, layer.outputs)


def gradient_tile(layer: Layer, x: Tensor) -> Tile:
    """The tile of an input's gradient."""
    if _walks(layer) and layer.inputs == 16:
        return _long_strips(Tile(32, 1), x)
    few = (x.shape[2] // layer.conv.stride) * (x.shape[3] // layer.conv.stride) <= FEWEST
    if layer.half:
        tile = Tile(64, 4, 4) if few else Tile(128, 4, 3)
    else:
        tile = Tile(64 if few or layer.conv.stride > 1 else 128, 4, 3, deep=32)
    return _fitting(tile, layer.outputs, layer.inputs)


def weight_tile(layer: Layer) -> Tile:
    """The tile of a weight's gradient: its rows are what a step sums over."""
    if layer.patches:
        return Tile(64, 8) if layer.half else Tile(32, 8)
    if _walks(layer) and layer.outputs == 16:
        return Tile(64 if layer.half else 32, 1, strip=8)
    if not layer.half:
        tile = Tile(64, 4, 2, 128, 32, programs=528) if layer.outputs >= 128 else Tile(32, 4, 3, deep=32)
    elif layer.conv.kernel == 1:
        tile = Tile(64, 4, 3, programs=264) if layer.inputs >= 64 else Tile(128, 4, 2, programs=528)
    elif layer.inputs >= 128 and layer.outputs >= 256:
        # Parts are few, if any. With the registers to add them up, two programs share a multiprocessor and not three.
        tile = Tile(64, 4, 2, 128, 128, programs=528, adds=False)
    elif layer.inputs == 128:
        tile = Tile(64, 4, 3, 128, programs=528)
    elif layer.inputs == 64:
        tile = Tile(64, 4, 3, taps=3, programs=264)
    else:
        tile = Tile(64, 2, 3, taps=3, programs=528)
    return _fitting(tile, layer.inputs, layer.outputs)


def _walks(layer: Layer) -> bool:
    return layer.conv.kernel == 3 and layer.conv.stride == 1 and layer.inputs == layer.outputs


def _fitting(tile: Tile, deep: int, columns: int) -> Tile:
    return tile._replace(deep=min(tile.deep, deep), columns=min(tile.columns, columns))


def _long_strips(tile: Tile, x: Tensor, warps: int = WARPS) -> Tile:
    """Make strips as long as they can be with all of the GPU at work: where they meet, rows are computed twice."""
    members, _, high, wide, _ = x.shape
    strip = high
    while strip > 4 and members * (IMAGES * wide // tile.rows) * (high // strip) * tile.warps < warps:
        strip //= 2
    return tile._replace(strip=strip)
