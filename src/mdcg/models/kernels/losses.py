"""Losses of single images: from an image's logits its loss, and the gradient of it, in one kernel instead of a dozen.

A program takes the logits of one image. They may be a part of a wider row: a slice by classes is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.models.kernels.launch import begin, launch

FEWEST = 64  # classes, up to which all share a kernel
IGNORED = tl.constexpr(-100)  # a label that has no loss, as in torch

#: What may have any value, or lie anywhere, for one and the same kernel.
ANY = [
    *("logits", "reference", "labels", "images", "classes", "old", "to_member", "to_image"),
    *("label_to_member", "label_to_image", "reference_to_member", "reference_to_image"),
]

_Found = tuple[Tensor, Sequence[Tensor | None]]


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute `mdcg.methods.base.cross_entropies` without smoothing."""
    return _of_labels(_cross_entropy, logits, labels)


def margins(logits: Tensor, labels: Tensor, old: int) -> Tensor:
    """Compute `mdcg.methods.md.margin_loss`."""
    return _of_labels(_margin, logits, labels, old)


def divergences(logits: Tensor, reference: Tensor) -> Tensor:
    """Compute `mdcg.methods.base.kl_divergences`."""
    sought = [own.requires_grad for own in (logits, reference)]

    def find(logits: Tensor, reference: Tensor) -> _Found:
        loss = logits.new_empty(logits.shape[:-1])
        gradients = [logits.new_empty(logits.shape) if asked else None for asked in sought]
        launch(
            _divergence, (loss.numel(),), logits, reference, loss, *gradients, *_layout(logits),
            *reference.stride()[:2], FIRST=sought[0], SECOND=sought[1], SIZE=_size(logits), num_warps=1,
        )  # fmt: skip
        return loss, gradients

    return _apply(find, logits, reference)


def _of_labels(kernel: Any, logits: Tensor, labels: Tensor, *more: int) -> Tensor:
    """Find a loss of logits and labels."""

    def find(logits: Tensor) -> _Found:
        loss, gradient = logits.new_empty(logits.shape[:-1]), logits.new_empty(logits.shape)
        launch(
            kernel, (loss.numel(),), logits, labels, loss, gradient, *_layout(logits), *labels.stride(), *more,
            SIZE=_size(logits), num_warps=1,
        )  # fmt: skip
        return loss, [gradient]

    return _apply(find, logits)


class _WithGradients(torch.autograd.Function):
    """A loss (K, images) that is found together with its gradients."""

    @staticmethod
    def forward(ctx: Any, find: Callable[..., _Found], *logits: Tensor) -> Tensor:
        loss, ctx.gradients = find(*logits)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for a derivative of this one, which would be taken for a constant
            raise MdcgError("fused losses have no second derivatives; set MDCG_KERNELS=plain to do without them.")
        return None, *(None if own is None else own * dloss[..., None] for own in ctx.gradients)


def _apply(find: Callable[..., _Found], *logits: Tensor) -> Tensor:
    result: Tensor = _WithGradients.apply(find, *logits)  # type: ignore[no-untyped-call]
    return result


def _layout(logits: Tensor) -> tuple[int, ...]:
    _, images, classes = logits.shape
    return images, classes, *logits.stride()[:2]


def _size(logits: Tensor) -> int:
    return max(FEWEST, int(triton.next_power_of_2(logits.shape[-1])))


@triton.jit
def _row(tensor, images, to_member, to_image):
    """Where the numbers of this program's image begin."""
    place = tl.program_id(0)
    return tensor + (place // images).to(tl.int64) * to_member + place % images * to_image


@triton.jit
def _softmax(logits, c, classes):
    """Logits from a place on, the logarithm of their exponentials' sum, and the softmax; all 0 beyond the last."""
    there = c < classes
    z = tl.load(logits + c, there, other=-float("inf"))
    top = tl.max(z, 0)
    e = tl.exp(z - top)
    total = tl.sum(e, 0)
    return tl.where(there, z, 0.0), top + tl.log(total), e / total


@triton.jit
def _one_or_nan(label, classes):
    """1, if there is such a class; NaN, if the label is a mistake."""
    return tl.where((label >= 0) & (label < classes), 1.0, float("nan"))


@triton.jit(do_not_specialize=ANY)
def _cross_entropy(
    logits, labels, loss, gradient, images, classes, to_member, to_image, label_to_member, label_to_image,
    SIZE: tl.constexpr,
):  # fmt: skip
    """loss = log Σ exp(z) − z_y; its gradient is p − 1_y."""
    place = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SIZE)
    begin()
    label = tl.load(_row(labels, images, label_to_member, label_to_image))
    own = c == label
    z, log_sum, p = _softmax(_row(logits, images, to_member, to_image), c, classes)
    value = _one_or_nan(label, classes) * (log_sum - tl.sum(tl.where(own, z, 0.0), 0))
    tl.store(loss + place, tl.where(label == IGNORED, 0.0, value))
    by_z = tl.where(label == IGNORED, 0.0, _one_or_nan(label, classes) * (p - own.to(tl.float32)))
    tl.store(gradient + place * classes + c, by_z, c < classes)


@triton.jit(do_not_specialize=ANY)
def _divergence(
    logits, reference, loss, first, second, images, classes, to_member, to_image, reference_to_member,
    reference_to_image, FIRST: tl.constexpr, SECOND: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """loss = KL(p ‖ q) = Σ p (log p − log q); its gradients are p (log p − log q − KL), by p's logits, and q − p."""
    place = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SIZE)
    begin()
    z, log_sum, p = _softmax(_row(logits, images, to_member, to_image), c, classes)
    r, of_r, q = _softmax(_row(reference, images, reference_to_member, reference_to_image), c, classes)
    apart = (z - log_sum) - (r - of_r)
    divergence = tl.sum(p * apart, 0)
    tl.store(loss + place, divergence)
    at = place * classes + c
    if FIRST:
        tl.store(first + at, p * (apart - divergence), c < classes)
    if SECOND:
        tl.store(second + at, q - p, c < classes)


@triton.jit(do_not_specialize=ANY)
def _margin(
    logits, labels, loss, gradient, images, classes, to_member, to_image, label_to_member, label_to_image, old,
    SIZE: tl.constexpr,
):  # fmt: skip
    """loss = max(0, max p_past − p_y + m), m = 1 / (classes − 1); past classes that are equally likely share it."""
    place = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SIZE)
    begin()
    label = tl.load(_row(labels, images, label_to_member, label_to_image))
    own = (c == label).to(tl.float32)
    _, _, p = _softmax(_row(logits, images, to_member, to_image), c, classes)
    highest = tl.max(tl.where(c < old, p, -1.0), 0)
    value = _one_or_nan(label, classes) * (highest - tl.sum(own * p, 0) + 1.0 / (classes - 1))
    tl.store(loss + place, tl.where(value < 0, 0.0, value))  # a maximum would hide what is no number
    likeliest = ((c < old) & (p == highest)).to(tl.float32)
    by_p = tl.where(
        value < 0, 0.0, _one_or_nan(label, classes) * likeliest / tl.maximum(tl.sum(likeliest, 0), 1.0) - own
    )
    tl.store(gradient + place * classes + c, p * (by_p - tl.sum(p * by_p, 0)), c < classes)
