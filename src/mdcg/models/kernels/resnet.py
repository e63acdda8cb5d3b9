"""A small ResNet of K members in fused kernels: the same function as `mdcg.models.resnet`, which holds its parameters.

The chain rule is written out by hand, in the order that touches memory least: a layer's gradient arrives already
masked by the ReLU above it, with the sums that its BatchNorm needs to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mdcg.models.kernels.beside import beside, join
from mdcg.models.kernels.copies import copied
from mdcg.models.kernels.layer import WIDE, Below, Layer, Masked
from mdcg.models.kernels.tiles import PROGRAMS

if TYPE_CHECKING:
    from mdcg.models.resnet import ResNet


class Block(NamedTuple):
    """The layers of a residual block."""

    first: Layer
    second: Layer
    shortcut: Layer | None


class Convolved(NamedTuple):
    """A map before its BatchNorm, and its moments."""

    x: Tensor
    moments: Tensor


class Trace(NamedTuple):
    """What a block's backward pass needs of its forward pass."""

    input: Tensor
    below: Below | None  # None: a pooled map
    first: Convolved
    between: Tensor
    second: Convolved
    shortcut: Convolved | None


def features(net: ResNet, images: Tensor) -> Tensor:
    """Compute the features of images: (K, images, C, H, W) → (K, images, features)."""
    if net.training:
        result: Tensor = _Training.apply(net, images, *net.parameters())  # type: ignore[no-untyped-call]
        return result
    return _infer(net, images)


class _Training(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, net: ResNet, images: Tensor, *parameters: Tensor) -> Tensor:
        stem, blocks = layers(net)
        image = _pixels_last(images)
        begin = Convolved(*stem.convolve(image))
        winners, below = None, None
        if net.large_stem:
            here, winners = stem.pool(*begin)
        else:
            here, below = stem.activate(*begin), Below(stem, *begin)
        traces = []
        for first, second, shortcut in blocks:
            one = Convolved(*first.convolve(here))
            between = first.activate(*one)
            two = Convolved(*second.convolve(between))
            other, residual = None, here
            if shortcut:
                other = Convolved(*shortcut.convolve(here))
                residual = shortcut.activate(*other, relu=False)
            traces.append(Trace(here, below, one, between, two, other))
            here = second.activate(*two, residual)
            below = Below(second, *two, here)
        ctx.net, ctx.layers, ctx.traces = net, (stem, blocks), traces
        ctx.image, ctx.begin, ctx.winners, ctx.top = image, begin, winners, here
        return _pooled(here)

    @staticmethod
    def backward(ctx: Any, dfeatures: Tensor) -> tuple[Tensor | None, ...]:
        stem, blocks = ctx.layers
        gradients: dict[Tensor, Tensor] = {}
        kept = []  # until those who read it beside are done

        def note(layer: Layer, slopes: Tensor, dx: Tensor, source: Tensor) -> None:
            gradients[layer.norm.weight], gradients[layer.norm.bias] = slopes[0], slopes[1]
            with beside(dx):
                gradients[layer.conv.weight] = layer.weight_gradient(source, dx)
            kept.append(dx)

        def through(layer: Layer, masked: Masked, of: Convolved, source: Tensor) -> Tensor:
            """Go back through BatchNorm to the convolution's result, whose gradient gives the weight's."""
            dx = layer.norm_gradient(masked, of.x)
            note(layer, masked.slopes, dx, source)
            return dx

        last, top = ctx.traces[-1], ctx.top
        masked = blocks[-1].second.gradient_sums(
            dfeatures.contiguous(), *last.second, output=top, per_dy=top.shape[2] * top.shape[3]
        )
        for (first, second, shortcut), trace in zip(reversed(blocks), reversed(ctx.traces), strict=True):
            dx = through(second, masked, trace.second, trace.between)
            inner = second.input_gradient(dx, trace.between, below=Below(first, *trace.first))
            dx = through(first, inner, trace.first, trace.input)
            add = masked.g
            if shortcut:
                other = shortcut.gradient_sums(masked.g, *trace.shortcut)
                add = shortcut.input_gradient(through(shortcut, other, trace.shortcut, trace.input), trace.input).g
            masked = first.input_gradient(dx, trace.input, add, trace.below)
        if ctx.winners is None:
            through(stem, masked, ctx.begin, ctx.image)
        else:
            dx, slopes = stem.pool_gradient(masked.g, ctx.winners, *ctx.begin)
            note(stem, slopes, dx, ctx.image)
        join(ctx.image)
        return None, None, *(gradients[parameter] for parameter in ctx.net.parameters())


def _infer(net: ResNet, images: Tensor) -> Tensor:
    stem, blocks = layers(net)
    here = stem.infer(_pixels_last(images))
    if net.large_stem:
        here, _ = stem.pool(here, None)
    for first, second, shortcut in blocks:
        residual = shortcut.infer(here, relu=False) if shortcut else here
        here = second.infer(first.infer(here), residual)
    return _pooled(here)


def layers(net: ResNet) -> tuple[Layer, list[Block]]:
    """The network's layers, their weights in the precision that autocast or TF32 ask for."""
    plain = [block.layers() for block in net.basic_blocks()]
    pairs = [(net.conv, net.norm), *(pair for block in plain for pair in block)]
    half = _half()
    weights = copied((conv for conv, _ in pairs), half) if half else [conv.taps() for conv, _ in pairs]
    wide = [not half and weight.shape[2] >= WIDE for weight in weights]
    turned = iter(copied((conv for (conv, _), own in zip(pairs, wide, strict=True) if own), half))
    products = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    # One for each member and channel, or each program of a weight's gradient, is more than any kernel needs.
    most = max(PROGRAMS, *(conv.weight[:, :, 0, 0, 0].numel() for conv, _ in pairs)) if net.training else 0
    tickets = torch.zeros(len(pairs), 3, most, dtype=torch.int32, device=weights[0].device)
    made = iter(
        Layer(*pair, weight, next(turned) if is_wide else None, products, own)
        for pair, weight, is_wide, own in zip(pairs, weights, wide, tickets, strict=True)
    )
    return next(made), [Block(next(made), next(made), next(made) if len(block) > 2 else None) for block in plain]


def _half() -> bool:
    """Whether autocast asks for bf16, on whatever device: a rehearsal is on the CPU, with a GPU's autocast."""
    return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")


def _pixels_last(images: Tensor) -> Tensor:
    """Reorder (K, n, C, H, W) → (K, n, H, W, C), without a copy where a pixel's channels are neighbours already."""
    *_, channels, high, wide = images.shape
    here = images.permute(0, 1, 3, 4, 2)
    pixel = here.stride(3)
    dtype = torch.bfloat16 if _half() else images.dtype
    if here.stride()[1:] == (high * wide * pixel, wide * pixel, pixel, 1) and pixel >= channels:
        return here.to(dtype)
    return here.to(dtype).contiguous()


def _pooled(maps: Tensor) -> Tensor:
    return maps.flatten(2, 3).mean(2, dtype=torch.float32)
