"""A convolution and its BatchNorm, for K members: what they compute, as launches of kernels.

Maps are (K, images, height, width, channels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from mdcg.models.kernels import conv, norm, walk
from mdcg.models.kernels.launch import launch
from mdcg.models.kernels.tiles import Tile, forward_tile, gradient_tile, weight_tile
from mdcg.models.layers import BatchNorm2d, Conv2d

PARTS, COLUMNS = 128, 16  # tile of the kernels that add up partial sums
ELEMENTS = 4096  # tile of the kernels that make one pass over a map


@dataclass(frozen=True)
class Moments:
    """The statistics of a batch per member and channel, and the affine map that normalises by them."""

    mean: Tensor
    rstd: Tensor
    scale: Tensor
    shift: Tensor


@dataclass(frozen=True)
class Masked:
    """A gradient that is zero where ReLU was closed, and the partial sums of it that BatchNorm needs."""

    g: Tensor
    sums: Tensor
    products: Tensor


@dataclass(frozen=True)
class Below:
    """The origin of a convolution's input: a map before BatchNorm, its statistics; with a residual the input itself."""

    x: Tensor
    moments: Moments
    output: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    """A convolution and its BatchNorm, with what the kernels need to know of them."""

    conv: Conv2d
    norm: BatchNorm2d
    weight: Tensor  # (K, taps, inputs, outputs), in the precision of the maps
    products: str  # precision of the products of float32 numbers: "tf32" or "ieee"

    def convolve(self, x: Tensor) -> tuple[Tensor, Moments]:
        """Convolve, and compute the statistics over the batch, which the running ones follow."""
        y, sums, squares = self._forward(x)
        mean, rstd, scale, shift = _floats(x, 4, self._columns)
        rows = y.numel() // self._columns
        n = self.norm
        launch(
            norm.finish_moments, (triton.cdiv(self._columns, COLUMNS),),
            sums, squares, n.weight, n.bias, n.running_mean, n.running_var, mean, rstd, scale, shift,
            len(sums), rows, self._columns, n.eps, n.momentum, PARTS=PARTS, COLUMNS=COLUMNS,
        )  # fmt: skip
        return y, Moments(mean, rstd, scale, shift)

    def activate(self, x: Tensor, m: Moments, residual: Tensor | None = None, relu: bool = True) -> Tensor:
        """Compute relu(norm(x) + residual), x being `convolve`'s result."""
        y = torch.empty_like(x)
        rows, tile = self._rows(x), ELEMENTS // self.outputs
        launch(
            norm.apply, (triton.cdiv(rows, tile), len(x)), x, residual, y, m.scale, m.shift, rows,
            CHANNELS=self.outputs, RELU=relu, RESIDUAL=residual is not None, ROWS=tile,
        )  # fmt: skip
        return y

    def infer(
        self, x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None, relu: bool = True
    ) -> Tensor:
        """Compute relu(norm(conv(x)) + residual) with fixed statistics, in one go."""
        return self._forward(x, scale, shift, residual, relu)[0]

    def gradient_sums(self, dy: Tensor, x: Tensor, m: Moments, output: Tensor | None = None, per_dy: int = 1) -> Masked:
        """Mask dy by `output` (None: it is masked already), dy being that of the mean of `per_dy` pixels each."""
        rows, tile = self._rows(x), ELEMENTS // self.outputs
        tiles = triton.cdiv(rows, tile)
        g = dy if output is None else torch.empty_like(x)
        sums, products = _floats(x, 2, tiles, self._columns)
        launch(
            norm.gradient_sums, (tiles, len(x)), dy, x, output, g, sums, products, m.mean, m.rstd, rows, per_dy,
            CHANNELS=self.outputs, OUTPUT=output is not None, ROWS=tile,
        )  # fmt: skip
        return Masked(g, sums, products)

    def norm_gradient(self, masked: Masked, x: Tensor, m: Moments) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, `convolve`'s result, and of BatchNorm's weight and bias."""
        rows, tile = self._rows(x), ELEMENTS // self.outputs
        dweight, dbias, of_g, of_x, constant = _floats(x, 5, self._columns)
        launch(
            norm.finish_gradient_sums, (triton.cdiv(self._columns, COLUMNS),),
            masked.sums, masked.products, m.mean, m.rstd, self.norm.weight, dweight, dbias, of_g, of_x, constant,
            len(masked.sums), rows, self._columns, PARTS=PARTS, COLUMNS=COLUMNS,
        )  # fmt: skip
        dx = torch.empty_like(x)
        launch(
            norm.gradient_apply, (triton.cdiv(rows, tile), len(x)), masked.g, x, dx, of_g, of_x, constant, rows,
            CHANNELS=self.outputs, ROWS=tile,
        )  # fmt: skip
        return dx, dweight.view_as(self.norm.weight), dbias.view_as(self.norm.bias)

    def weight_gradient(self, x: Tensor, dy: Tensor) -> Tensor:
        """The gradient of the convolution's weight, from its input and its output's gradient."""
        tile = weight_tile(self)
        shape = {"HIGH": x.shape[2], "WIDE": x.shape[3], "PIXEL": x.stride(3), "BLOCK": self._block, **self._shape}
        programs = max(1, tile.programs // len(x))  # of each member
        if tile.strip:
            (walks, _), tiled = self._walk(x, tile)
            strips = triton.cdiv(x.shape[2], tile.strip)
            each = triton.cdiv(walks, programs)
            dw = _floats(x, triton.cdiv(walks // strips, each) * strips, *self.weight.shape)
            launch(walk.weight_gradient, (len(dw), len(x)), x, dy, dw, x.shape[1], x.stride(0), each, **shape, **tiled)
        else:
            kernel = self.conv.kernel
            tiles = triton.cdiv(self._rows(dy), tile.rows)
            each = triton.cdiv(tiles, max(1, programs // kernel))
            dw = _floats(x, triton.cdiv(tiles, each), *self.weight.shape)
            launch(
                conv.weight_gradient, (len(dw), len(x), kernel), x, dy, dw, x.shape[1], x.stride(0), each,
                **shape, **self._strides, ROWS=tile.rows, **tile.launch,
            )  # fmt: skip
        return self.conv.as_weight(dw.sum(0))

    def input_gradient(self, dy: Tensor, x: Tensor, add: Tensor | None = None, below: Below | None = None) -> Masked:
        """The gradient of the convolution's input x, plus `add`; with `below`, masked by the ReLU that made x."""
        tile = gradient_tile(self, x)
        if tile.strip:
            kernel = walk.input_gradient
            grid, tiled = self._walk(x, tile)
        else:
            kernel, stride = conv.input_gradient, self.conv.stride
            pixels = x.shape[1] * triton.cdiv(x.shape[2], stride) * triton.cdiv(x.shape[3], stride)  # of a phase
            grid = (triton.cdiv(pixels, tile.rows) * stride**2, len(x))
            tiled = {**self._strides, "ROWS": tile.rows, **tile.launch}
        dx = torch.empty(x.shape, dtype=dy.dtype, device=dy.device)
        sums, products = _floats(x, 2, grid[0] if below else 0, len(x) * self.inputs)
        m, output = (below.moments, below.output) if below else (None, None)
        launch(
            kernel, grid,
            dy, self.weight, dx, add, sums, products, below and below.x, m and m.mean, m and m.rstd, m and m.scale,
            m and m.shift, output, x.shape[1], HIGH=x.shape[2], WIDE=x.shape[3], ADD=add is not None,
            SUMS=below is not None, OUTPUT=output is not None, **self._shape, **tiled,
        )  # fmt: skip
        return Masked(dx, sums, products)

    def _forward(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        residual: Tensor | None = None,
        relu: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The convolution, normalised if `scale` and `shift` are known, and else its partial sums."""
        high, wide = ((side - 1) // self.conv.stride + 1 for side in x.shape[2:4])
        y = torch.empty(len(x), x.shape[1], high, wide, self.outputs, dtype=self.weight.dtype, device=x.device)
        tile = forward_tile(self, x)
        if tile.strip:
            kernel = walk.forward
            grid, tiled = self._walk(x, tile)
        else:
            kernel = conv.forward
            grid = (triton.cdiv(self._rows(y), tile.rows), len(x))
            tiled = {**self._strides, "ROWS": tile.rows, **tile.launch}
        sums, squares = _floats(x, 2, grid[0] if scale is None else 0, self._columns)
        launch(
            kernel, grid,
            x, self.weight, y, sums, squares, self.norm.running_mean, scale, shift, residual, x.shape[1], x.stride(0),
            HIGH=x.shape[2], WIDE=x.shape[3], PIXEL=x.stride(3), MOMENTS=scale is None, RELU=relu,
            RESIDUAL=residual is not None, BLOCK=self._block, **self._shape, **tiled,
        )  # fmt: skip
        return y, sums, squares

    def _walk(self, x: Tensor, tile: Tile) -> tuple[tuple[int, int], dict[str, int]]:
        """The grid and tile of a kernel that walks over x, or over a map of its size."""
        rows = max(tile.rows, int(triton.next_power_of_2(x.shape[3])))
        groups = triton.cdiv(x.shape[1], rows // x.shape[3])
        strips = triton.cdiv(x.shape[2], tile.strip)
        return (groups * strips, len(x)), {"ROWS": rows, "STRIP": tile.strip, **tile.launch}

    @property
    def inputs(self) -> int:
        return self.weight.shape[2]

    @property
    def outputs(self) -> int:
        return self.weight.shape[3]

    @property
    def _columns(self) -> int:
        return len(self.weight) * self.outputs

    @property
    def _block(self) -> int:
        """The block of a product's terms, at least 16: a multiplication by a smaller matrix has no instruction."""
        return max(16, int(triton.next_power_of_2(self.inputs)))

    @property
    def _shape(self) -> dict[str, Any]:
        return {"INPUTS": self.inputs, "OUTPUTS": self.outputs, "PRECISION": self.products}

    @property
    def _strides(self) -> dict[str, Any]:
        return {"KERNEL": self.conv.kernel, "STRIDE": self.conv.stride}

    @staticmethod
    def _rows(x: Tensor) -> int:
        """The number of pixels of one member."""
        return x.shape[1] * x.shape[2] * x.shape[3]


def _floats(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)
