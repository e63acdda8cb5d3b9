"""Crop, flip and normalise as batched tensor code, on the device where the images lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Normalised(Protocol):
    """Whatever knows the mean and standard deviation of its pixels."""

    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class Pixels:
    """Turns uint8 images into a network's input: scale, shift and a random view."""

    scale: Tensor  # (C,): pixel · scale + shift is the normalised value
    shift: Tensor  # (C,)
    padding: int

    @classmethod
    def of(cls, owner: Normalised, device: torch.device, dtype: torch.dtype, padding: int = 0) -> Pixels:
        mean = torch.tensor(owner.mean, dtype=torch.float64)
        std = torch.tensor(owner.std, dtype=torch.float64)
        scale, shift = 1 / (255 * std), -mean / std
        return cls(scale.to(device, dtype), shift.to(device, dtype), padding)

    def normalise(self, images: Tensor) -> Tensor:
        """(…, H, W, C) uint8 → (…, C, H, W) float."""
        return (images * self.scale + self.shift).movedim(-1, -3)

    def view(self, images: Tensor, corner: Tensor, flipped: Tensor) -> Tensor:
        """The crop of each zero-padded image at `corner`, mirrored where `flipped`, normalised.

        images (n, H, W, C) uint8, corner (n, 2) in 0..2·padding as (row, column), flipped (n,) → (n, C, H, W).
        """
        n, height, width, _ = images.shape
        side = self.padding
        padded = F.pad(images, (0, 0, side, side, side, side))
        rows = corner[:, 0, None] + torch.arange(height, device=images.device)
        across = torch.arange(width, device=images.device).expand(n, width)
        columns = corner[:, 1, None] + torch.where(flipped[:, None], width - 1 - across, across)
        image = torch.arange(n, device=images.device)
        return self.normalise(padded[image[:, None, None], rows[:, :, None], columns[:, None, :]])
