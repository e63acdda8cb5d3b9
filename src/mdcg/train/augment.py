"""Crop, flip and normalise as batched tensor code, on the device where the images lie.

Jitter and RandAugment come between crop and normalisation (`recolour`), mixup and CutMix after it (`mixing`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from mdcg.errors import MdcgError, unknown
from mdcg.models import kernels
from mdcg.train.group import Augmentation

WORDS: tuple[Augmentation, ...] = get_args(Augmentation)
NONE = "none"
USUAL = "usual"  # in a recipe: crop and flip as the dataset's record says, and nothing else


def parse_augment(text: str) -> tuple[Augmentation, ...]:
    """Read what is done with training images: words with + between them, or none.

    >>> parse_augment("mixup+crop"), parse_augment("none")
    (('crop', 'mixup'), ())
    """
    words = [word.strip() for word in text.split("+")]
    if USUAL in words:
        raise MdcgError(f"'{text}' says usual and more; give usual alone, or all words.", about="augment")
    for word in words:
        if word not in (*WORDS, NONE):
            raise unknown("augmentation", word, (*WORDS, NONE, USUAL), about="augment")
    if NONE in words and len(words) > 1:
        raise MdcgError(f"'{text}' says none and some; give none alone, or leave it out.", about="augment")
    if {"mixup", "cutmix"} <= set(words):
        raise MdcgError("images are mixed in one way, by mixup or by cutmix; leave one of them out.", about="augment")
    return tuple(word for word in WORDS if word in words)


def spell_augment(words: Collection[Augmentation]) -> str:
    """Write what `parse_augment` reads.

    >>> spell_augment(("flip", "crop")), spell_augment(())
    ('crop+flip', 'none')
    """
    return "+".join(word for word in WORDS if word in words) or NONE


class Normalised(Protocol):
    """Whatever knows the mean and standard deviation of its pixels."""

    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    @property
    def white(self) -> int:
        """The largest value of a pixel, which counts as 1 for mean and std; 1 of features, which have no largest."""


@dataclass(frozen=True)
class Pixels:
    """Turns uint8 images into a network's input: scale, shift and a random view; of features, which have none, rows."""

    scale: Tensor  # (C,): pixel · scale + shift is the normalised value
    shift: Tensor  # (C,)
    padding: int
    dtype: torch.dtype  # of views

    @classmethod
    def of(
        cls,
        owner: Normalised,
        device: torch.device,
        dtype: torch.dtype,
        padding: int = 0,
        views: torch.dtype | None = None,
    ) -> Pixels:
        mean = torch.tensor(owner.mean, dtype=torch.float64)
        std = torch.tensor(owner.std, dtype=torch.float64)
        scale, shift = 1 / (owner.white * std), -mean / std
        return cls(scale.to(device, dtype), shift.to(device, dtype), padding, views or dtype)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise pixels: (…, H, W, C) uint8 → (…, C, H, W) float."""
        if images.is_floating_point():  # whose mean may be large: not in one step, which would lose their digits
            images = images + self.shift / self.scale
            return (images * self.scale).movedim(-1, -3)
        return (images * self.scale + self.shift).movedim(-1, -3)

    def raw(self) -> Pixels:
        """Leave the normalisation out: views then have pixels of 0 to 255, in float32."""
        one = torch.ones_like(self.scale, dtype=torch.float32)
        return Pixels(one, torch.zeros_like(one), self.padding, torch.float32)

    def normalise_raw(self, views: Tensor) -> Tensor:
        """Normalise views of `raw`: (n, C, H, W)."""
        return (views * self.scale[:, None, None] + self.shift[:, None, None]).to(self.dtype)

    def view(self, images: Tensor, index: Tensor, corner: Tensor, flipped: Tensor) -> Tensor:
        """Crop each chosen, zero-padded image at `corner`, mirror it where `flipped`, and normalise it.

        images (all, H, W, C) uint8, index (n,), corner (n, 2) in 0..2·padding as (row, column), flipped (n,)
        → (n, C, H, W).
        """
        if images.is_floating_point():
            return self.normalise(images[index]).to(self.dtype)
        if kernels.in_use():
            from mdcg.models.kernels.images import view

            return view(images, index, corner, flipped, self.scale, self.shift, self.padding, self.dtype)
        _, height, width, _ = images.shape
        side = self.padding
        padded = F.pad(images[index], (0, 0, side, side, side, side))
        rows = corner[:, 0, None] + torch.arange(height, device=images.device)
        across = torch.arange(width, device=images.device).expand(len(index), width)
        columns = corner[:, 1, None] + torch.where(flipped[:, None], width - 1 - across, across)
        image = torch.arange(len(index), device=images.device)
        return self.normalise(padded[image[:, None, None], rows[:, :, None], columns[:, None, :]]).to(self.dtype)
