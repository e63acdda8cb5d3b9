"""A convolution and its BatchNorm, for K members: what they compute, as launches of kernels.

Maps are (K, images, height, width, channels). The convolution is that of `patch` for images, of `walk` for the narrow
layers of a small ResNet, and of `conv` for all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from mdcg.models.kernels import conv, norm, patch, pool, walk
from mdcg.models.kernels.launch import launch
from mdcg.models.kernels.tiles import ELEMENTS, PROGRAMS, WINDOWS, Tile, forward_tile, gradient_tile, weight_tile
from mdcg.models.layers import BatchNorm2d, Conv2d

FEW = 16  # inputs: a product with fewer terms has no instruction
FEW_PARTS = 8  # of a weight's gradient, that one program adds up
WIDE = 64  # inputs: from here on convolutions in TF32 want a turned weight


@dataclass(frozen=True)
class Masked:
    """A gradient that is zero where ReLU was closed, and the slopes by which BatchNorm goes on, see `sums`."""

    g: Tensor
    slopes: Tensor  # (5, K, channels); empty where no BatchNorm comes next


@dataclass(frozen=True)
class Below:
    """The origin of a convolution's input: a layer, its map before BatchNorm; with a residual the input itself."""

    layer: Layer
    x: Tensor
    moments: Tensor
    output: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    """A convolution and its BatchNorm, with what the kernels need to know of them."""

    conv: Conv2d
    norm: BatchNorm2d
    weight: Tensor  # (K, taps, inputs, outputs), in the precision of the maps
    turned: Tensor | None  # (K, taps, outputs, inputs), see `copies`
    products: str  # precision of the products of float32 numbers: "tf32" or "ieee"
    tickets: Tensor  # (3, …) zeros, to find out who is last: forward, backward, and of the weight's gradient

    def convolve(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve, and compute the moments (4, K, channels) of the batch, which the running ones follow."""
        moments = _floats(x, 4, *self.norm.weight.shape)
        return self._forward(x, moments), moments

    def activate(self, x: Tensor, moments: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
        """Compute relu(norm(x) + residual), x being `convolve`'s result."""
        y = torch.empty_like(x)
        launch(
            norm.apply, self._passing(x), x, residual, y, moments, _pixels(x),
            CHANNELS=self.outputs, RELU=relu, RESIDUAL=residual is not None, ROWS=ELEMENTS // self.outputs,
        )  # fmt: skip
        return y

    def pool(self, x: Tensor, moments: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the maxima of relu(norm(x)), and which pixels they are; without moments, of an `infer`'s result."""
        members, images, high, wide, channels = x.shape
        y = x.new_empty(members, images, (high + 1) // 2, (wide + 1) // 2, channels)
        winners = torch.empty_like(y, dtype=torch.int8) if moments is not None else y
        launch(
            pool.forward, self._passing(y), x, y, winners, moments, images, HIGH=high, WIDE=wide, CHANNELS=channels,
            TRAINING=moments is not None, ROWS=ELEMENTS // channels,
        )  # fmt: skip
        return y, winners

    def infer(self, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
        """Compute relu(norm(conv(x)) + residual) with the running statistics, in one go."""
        return self._forward(x, None, residual, relu)

    def gradient_sums(
        self, dy: Tensor, x: Tensor, moments: Tensor, output: Tensor | None = None, per_dy: int = 1
    ) -> Masked:
        """Mask dy by `output` (None: it is masked already), dy being that of the mean of `per_dy` pixels each."""
        grid, masked = self._passing(x), self._masked(dy if output is None else torch.empty_like(x))
        launch(
            norm.gradient_sums, grid, dy, x, output, masked.g, self._sums(grid[0]), moments, masked.slopes,
            self.norm.weight, self.tickets[1], _pixels(x), per_dy,
            CHANNELS=self.outputs, OUTPUT=output is not None, ROWS=ELEMENTS // self.outputs,
        )  # fmt: skip
        return masked

    def norm_gradient(self, masked: Masked, x: Tensor) -> Tensor:
        """The gradient of x, `convolve`'s result."""
        dx = torch.empty_like(x)
        launch(
            norm.gradient_apply, self._passing(x), masked.g, x, dx, masked.slopes, _pixels(x),
            CHANNELS=self.outputs, ROWS=ELEMENTS // self.outputs,
        )  # fmt: skip
        return dx

    def pool_gradient(self, dy: Tensor, winners: Tensor, x: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of x, `convolve`'s result, from that of the pooled map; and the slopes."""
        dx, slopes = torch.empty_like(x), self._masked(x).slopes
        (members, images, high, wide, channels), rows = x.shape, WINDOWS // self.outputs
        tiles = triton.cdiv(_pixels(dy), rows)
        each = triton.cdiv(tiles, max(1, PROGRAMS // members))
        grid = (triton.cdiv(tiles, each), members)
        sums = self._sums(grid[0])
        for finding in (True, False):
            launch(
                pool.gradient, grid, dy, winners, x, dx, sums, moments, slopes, self.norm.weight, self.tickets[1],
                images, each, HIGH=high, WIDE=wide, CHANNELS=channels, SUMS=finding, ROWS=rows,
            )  # fmt: skip
        return dx, slopes

    def weight_gradient(self, x: Tensor, dy: Tensor) -> Tensor:
        """The gradient of the convolution's weight, from its input and its output's gradient."""
        tile, images = weight_tile(self), x.shape[1]
        shape = {"HIGH": x.shape[2], "WIDE": x.shape[3], **self._shape}
        programs = max(1, tile.programs // len(x))  # of each member
        dw = _floats(x, *self.weight.shape)
        if tile.strip:
            (walks, _), tiled = self._walk(x, tile)
            strips = triton.cdiv(x.shape[2], tile.strip)
            each = triton.cdiv(walks, programs)
            parts = triton.cdiv(walks // strips, each) * strips
            launch(
                walk.weight_gradient, (parts, len(x)), x, dy, _parts(dw, parts), dw, self.tickets[2], images,
                tile.strip, each, _span(parts), **shape, **tiled,
            )  # fmt: skip
        elif self.patches:
            tiles = triton.cdiv(_pixels(dy), tile.rows)
            each = triton.cdiv(tiles, programs)
            parts = triton.cdiv(tiles, each)
            launch(
                patch.weight_gradient, (parts, len(x)), x, dy, _parts(dw, parts), dw, self.tickets[2], images,
                x.stride(0), each, _span(parts),
                PIXEL=x.stride(3), LINE=self._line(x), LINES=triton.next_power_of_2(self.conv.kernel),
                ROWS=tile.rows, **shape, **self._strides, **tile.launch,
            )  # fmt: skip
        else:
            tiled = tile.apart(dy.shape[2] * dy.shape[3], images)
            taps, blocks = self.conv.kernel**2 // tile.taps, (self.inputs // tile.deep) * (self.outputs // tile.columns)
            tiles = triton.cdiv(dy.shape[2] * dy.shape[3], tiled["PIXELS"]) * triton.cdiv(images, tiled["IMAGES"])
            each = triton.cdiv(tiles, max(1, programs // (taps * blocks)))
            parts = triton.cdiv(tiles, each)
            sums = _parts(dw, parts)
            launch(
                conv.weight_gradient, (parts * blocks, len(x), taps), x, dy, sums, dw, self.tickets[2], images, each,
                _span(parts), DEEP=tile.deep, COLUMNS=tile.columns, TAPS=tile.taps, ADDS=tile.adds,
                **tiled, **shape, **self._strides, **tile.launch,
            )  # fmt: skip
            if parts > 1 and not tile.adds:
                torch.sum(sums, 0, out=dw)
        return self.conv.as_weight(dw)

    def input_gradient(self, dy: Tensor, x: Tensor, add: Tensor | None = None, below: Below | None = None) -> Masked:
        """The gradient of the convolution's input x, plus `add`; with `below`, masked by the ReLU that made x.

        That of a 1 × 1 convolution has only those rows and columns that its stride leaves: so may `add`.
        """
        (members, images), (high, wide), stride = x.shape[:2], x.shape[2:4], self.conv.stride
        if self.conv.kernel == 1:
            (high, wide), stride = dy.shape[2:4], 1
        tile, strip = gradient_tile(self, x), []
        if tile.strip:
            kernel, strip = walk.input_gradient, [tile.strip]
            grid, tiled = self._walk(x, tile)
            parts = grid[0]
        else:
            kernel, places = conv.input_gradient, triton.cdiv(high, stride) * triton.cdiv(wide, stride)  # of a phase
            tiled = {**tile.apart(places, images), "DEEP": tile.deep, "COLUMNS": tile.columns}
            parts = triton.cdiv(places, tiled["PIXELS"]) * triton.cdiv(images, tiled["IMAGES"]) * stride**2
            grid = (parts * (self.inputs // tile.columns), members)
            tiled |= {"KERNEL": self.conv.kernel, "STRIDE": stride, **tile.launch}
        dx = torch.empty(members, images, high, wide, self.inputs, dtype=dy.dtype, device=dy.device)
        masked = below.layer._masked(dx) if below else Masked(dx, dx.new_empty(0))
        arguments: list[Tensor | None] = [None] * 7
        if below:
            own = below.layer
            sums = own._sums(parts)
            arguments = [sums, below.x, below.output, below.moments, masked.slopes, own.norm.weight, own.tickets[1]]
        launch(
            kernel, grid, dy, self.weight, dx, add, *arguments, images, *strip, HIGH=high, WIDE=wide,
            ADD=0 if add is None else triton.cdiv(high, add.shape[2]), SUMS=below is not None,
            OUTPUT=below is not None and below.output is not None, **self._shape, **tiled,
        )  # fmt: skip
        return masked

    def _forward(self, x: Tensor, moments: Tensor | None, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """The convolution, whose moments are to be found; or, without, normalised by the running statistics."""
        members, images, high, wide, _ = x.shape
        tall, broad = ((side - 1) // self.conv.stride + 1 for side in (high, wide))
        y = torch.empty(members, images, tall, broad, self.outputs, dtype=self.weight.dtype, device=x.device)
        tile, n = forward_tile(self, x), self.norm
        more: tuple[Tensor | int | None, ...]
        training, residual_too = moments is not None, {"RESIDUAL": residual is not None}
        if tile.strip:
            kernel, more = walk.forward, (residual, images, tile.strip)
            grid, tiled = self._walk(x, tile)
            parts = grid[0]
            tiled |= residual_too
        elif self.patches:
            kernel, more, parts = patch.forward, (images, x.stride(0)), triton.cdiv(_pixels(y), tile.rows)
            grid = (parts, members)
            tiled = {**self._strides, "PIXEL": x.stride(3), "LINE": self._line(x), "ROWS": tile.rows, **tile.launch}
        else:
            kernel, more = conv.forward, (residual, images)
            apart = tile.apart(tall * broad, images, training)
            parts = triton.cdiv(tall * broad, apart["PIXELS"]) * triton.cdiv(images, apart["IMAGES"])
            grid = (parts * (self.outputs // tile.columns), members)
            tiled = {**self._strides, **apart, **residual_too, "DEEP": tile.deep, "COLUMNS": tile.columns}
            tiled |= {"TURNED": self.turned is not None, **tile.launch}
        sums, tickets = (self._sums(parts), self.tickets[0]) if training else (None, None)
        launch(
            kernel, grid, x, self.weight if self.turned is None else self.turned, y, sums, moments, n.weight, n.bias,
            n.running_mean, n.running_var, tickets, *more, n.eps, n.momentum,
            HIGH=high, WIDE=wide, MOMENTS=training, RELU=relu, **self._shape, **tiled,
        )  # fmt: skip
        return y

    def _walk(self, x: Tensor, tile: Tile) -> tuple[tuple[int, int], dict[str, int]]:
        """The grid and tile of a kernel that walks over x, or over a map of its size."""
        rows = max(tile.rows, int(triton.next_power_of_2(x.shape[3])))
        groups = triton.cdiv(x.shape[1], rows // x.shape[3])
        strips = triton.cdiv(x.shape[2], tile.strip)
        return (groups * strips, len(x)), {"ROWS": rows, **tile.launch}

    def _masked(self, g: Tensor) -> Masked:
        return Masked(g, _floats(g, 5, *self.norm.weight.shape))

    def _sums(self, programs: int) -> Tensor:
        """Room for the partial sums of so many programs of each member."""
        return _floats(self.weight, 2, programs, *self.norm.weight.shape)

    def _passing(self, x: Tensor) -> tuple[int, int]:
        """The grid of a kernel that makes one pass over a map."""
        return triton.cdiv(_pixels(x), ELEMENTS // self.outputs), len(x)

    def _line(self, x: Tensor) -> int:
        """The room that a row of taps takes, see `patch`."""
        return max(FEW, int(triton.next_power_of_2(self.conv.kernel * x.stride(3))))

    @property
    def patches(self) -> bool:
        """Whether it is the first layer."""
        return self.inputs < FEW

    @property
    def half(self) -> bool:
        """Whether numbers have 16 bits."""
        return self.weight.dtype.itemsize == 2

    @property
    def inputs(self) -> int:
        return self.weight.shape[2]

    @property
    def outputs(self) -> int:
        return self.weight.shape[3]

    @property
    def _shape(self) -> dict[str, Any]:
        return {"INPUTS": self.inputs, "OUTPUTS": self.outputs, "PRECISION": self.products}

    @property
    def _strides(self) -> dict[str, Any]:
        return {"KERNEL": self.conv.kernel, "STRIDE": self.conv.stride}


def _pixels(x: Tensor) -> int:
    """The number of pixels of one member."""
    return x.shape[1] * x.shape[2] * x.shape[3]


def _parts(dw: Tensor, parts: int) -> Tensor:
    """Room for so many parts of a weight's gradient; one is all of it."""
    return dw if parts == 1 else _floats(dw, parts, *dw.shape)


def _span(parts: int) -> int:
    """The number of parts in a group: about as many as there are groups."""
    return max(FEW_PARTS, math.isqrt(parts - 1) + 1)


def _floats(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)
