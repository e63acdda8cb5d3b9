"""A small ResNet of K members in fused kernels: the same function as `mdcg.models.resnet`, which holds its parameters.

The chain rule is written out by hand, in the order that touches memory least: a layer's gradient arrives already
masked by the ReLU above it, with the sums that its BatchNorm needs to go on.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mdcg.models.kernels.launch import compile_ahead
from mdcg.models.kernels.layer import Below, Layer, Masked, Moments

if TYPE_CHECKING:
    from mdcg.models.resnet import ResNet


class Block(NamedTuple):
    """The layers of a residual block."""

    first: Layer
    second: Layer
    shortcut: Layer | None


class Trace(NamedTuple):
    """What a block's backward pass needs of its forward pass."""

    input: Tensor
    below: Below
    first: tuple[Tensor, Moments]
    between: Tensor
    second: tuple[Tensor, Moments]
    shortcut: tuple[Tensor, Moments] | None


def features(net: ResNet, images: Tensor) -> Tensor:
    """Compute the features of images: (K, images, C, H, W) → (K, images, features)."""
    if net.training:
        result: Tensor = _Training.apply(net, images, *net.parameters())  # type: ignore[no-untyped-call]
        return result
    return _infer(net, images)


def prepare(net: ResNet, trained: Tensor, inferred: Tensor | None) -> None:
    """Compile what training and, if asked for, inference with such images will launch.

    A frozen network is not trained: steps infer too.
    """

    def train() -> None:
        trace = SimpleNamespace()
        _Training.backward(trace, _Training.forward(trace, net, trained, *net.parameters()))

    with torch.no_grad():
        first = train if net.training else lambda: _infer(net, trained)
        compile_ahead(first, *([] if inferred is None else [lambda: _infer(net, inferred)]))


class _Training(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, net: ResNet, images: Tensor, *parameters: Tensor) -> Tensor:
        stem, blocks = layers(net)
        image = _pixels_last(images)
        x, moments = stem.convolve(image)
        here, below = stem.activate(x, moments), Below(x, moments)
        traces = []
        for first, second, shortcut in blocks:
            one = first.convolve(here)
            between = first.activate(*one)
            two = second.convolve(between)
            beside, residual = None, here
            if shortcut:
                beside = shortcut.convolve(here)
                residual = shortcut.activate(*beside, relu=False)
            traces.append(Trace(here, below, one, between, two, beside))
            here = second.activate(*two, residual)
            below = Below(*two, here)
        ctx.net, ctx.layers, ctx.traces, ctx.image, ctx.top = net, (stem, blocks), traces, image, here
        return _pooled(here)

    @staticmethod
    def backward(ctx: Any, dfeatures: Tensor) -> tuple[Tensor | None, ...]:
        stem, blocks = ctx.layers
        gradients: dict[Tensor, Tensor] = {}

        def through(layer: Layer, masked: Masked, of: tuple[Tensor, Moments], source: Tensor) -> Tensor:
            """Go back through BatchNorm to the convolution's result, whose gradient gives the weight's."""
            dx, dweight, dbias = layer.norm_gradient(masked, *of)
            gradients[layer.norm.weight], gradients[layer.norm.bias] = dweight, dbias
            gradients[layer.conv.weight] = layer.weight_gradient(source, dx)
            return dx

        last, top = ctx.traces[-1], ctx.top
        masked = blocks[-1].second.gradient_sums(
            dfeatures.contiguous(), *last.second, output=top, per_dy=top.shape[2] * top.shape[3]
        )
        for (first, second, shortcut), trace in zip(reversed(blocks), reversed(ctx.traces), strict=True):
            dx = through(second, masked, trace.second, trace.between)
            inner = second.input_gradient(dx, trace.between, below=Below(*trace.first))
            dx = through(first, inner, trace.first, trace.input)
            add = masked.g
            if shortcut:
                beside = shortcut.gradient_sums(masked.g, *trace.shortcut)
                add = shortcut.input_gradient(through(shortcut, beside, trace.shortcut, trace.input), trace.input).g
            masked = first.input_gradient(dx, trace.input, add, trace.below)
        through(stem, masked, (ctx.traces[0].below.x, ctx.traces[0].below.moments), ctx.image)
        return None, None, *(gradients[parameter] for parameter in ctx.net.parameters())


def _infer(net: ResNet, images: Tensor) -> Tensor:
    stem, blocks = layers(net)
    flat = [stem, *(layer for block in blocks for layer in block if layer)]
    affine = iter(_running_affine(flat))
    here = stem.infer(_pixels_last(images), *next(affine))
    for first, second, shortcut in blocks:
        between = first.infer(here, *next(affine))
        fixed = next(affine)
        residual = shortcut.infer(here, *next(affine), relu=False) if shortcut else here
        here = second.infer(between, *fixed, residual)
    return _pooled(here)


def layers(net: ResNet) -> tuple[Layer, list[Block]]:
    """The network's layers, their weights in the precision that autocast or TF32 ask for."""
    plain = [block.layers() for block in net.basic_blocks()]
    pairs = [(net.conv, net.norm), *(pair for block in plain for pair in block)]
    weights = [conv.taps() for conv, _ in pairs]
    if torch.is_autocast_enabled(weights[0].device.type):
        cast = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        torch._foreach_copy_(cast, weights)
        weights = cast
    products = "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    made = iter([Layer(*pair, weight, products) for pair, weight in zip(pairs, weights, strict=True)])
    return next(made), [Block(next(made), next(made), next(made) if len(block) > 2 else None) for block in plain]


def _running_affine(flat: list[Layer]) -> list[tuple[Tensor, Tensor]]:
    """The scale and shift of every layer's BatchNorm by its running statistics; of all at once, to launch little."""
    norms = [layer.norm for layer in flat]
    mean = torch.cat([norm.running_mean.flatten() for norm in norms])
    var = torch.cat([norm.running_var.flatten() for norm in norms])
    weight = torch.cat([norm.weight.flatten() for norm in norms])
    bias = torch.cat([norm.bias.flatten() for norm in norms])
    scale = weight * torch.rsqrt(var + norms[0].eps)
    shift = bias - mean * scale
    sizes = [norm.weight.numel() for norm in norms]
    return list(zip(scale.split(sizes), shift.split(sizes), strict=True))


def _pixels_last(images: Tensor) -> Tensor:
    """Reorder (K, n, C, H, W) → (K, n, H, W, C), without a copy where a pixel's channels are neighbours already."""
    *_, channels, high, wide = images.shape
    here = images.permute(0, 1, 3, 4, 2)
    pixel = here.stride(3)
    dtype = torch.bfloat16 if torch.is_autocast_enabled(images.device.type) else images.dtype
    if here.stride()[1:] == (high * wide * pixel, wide * pixel, pixel, 1) and pixel >= channels:
        return here.to(dtype)
    return here.to(dtype).contiguous()


def _pooled(maps: Tensor) -> Tensor:
    return maps.flatten(2, 3).mean(2, dtype=torch.float32)
