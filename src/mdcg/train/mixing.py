"""Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019): two images of a batch become one, with both labels.

Current images are mixed among themselves, and so are those of each draw from memory. In a step all images of a member
have the same weight λ: the loss is λ times that with their own labels plus 1 − λ times that with their partners'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.draws import Ints

#: By these names an epoch's draws have what is random here: (K, steps, places), (K, steps), (K, steps, 4).
PARTNER, WEIGHT, BOX = "partner", "weight", "box"


@dataclass(frozen=True)
class Mix:
    """What a batch of mixed images was made of."""

    partner: Tensor  # (K, places): the place of each image's other half
    labels: Tensor  # (K, places) of the partners
    weight: Tensor  # (K,): λ, of the image's own part

    def part(self, start: int, end: int) -> Mix:
        """Take some places that were mixed among themselves."""
        return Mix(self.partner[:, start:end] - start, self.labels[:, start:end], self.weight)

    def mostly(self, labels: Tensor) -> Tensor:
        """The labels of the larger parts, given the images' own."""
        return torch.where(self.weight[:, None] >= 0.5, labels, self.labels)


def draw_partners(rng: np.random.Generator, steps: int, start: int, size: int) -> Ints:
    """Draw a random order of the places `start` to `start + size` for each step: (steps, size)."""
    return start + np.argsort(rng.random((steps, size)), axis=1, kind="stable")


def draw_weights(rng: np.random.Generator, steps: int, alpha: float) -> npt.NDArray[np.float64]:
    """Draw λ from Beta(α, α) for each step: (steps,)."""
    return rng.beta(alpha, alpha, steps)


def draw_boxes(
    rng: np.random.Generator, weights: npt.NDArray[np.float64], side: tuple[int, int]
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Draw the boxes that the partners' pixels fill: (steps, 4) as top, bottom, left, right, and what λ then is.

    A box covers 1 − λ of the image and lies anywhere; what of it is outside is cut off, and raises λ.
    """
    extent = np.array(side)
    half = np.sqrt(1 - weights)[:, None] * extent / 2
    middle = rng.random((len(weights), 2)) * extent
    first, last = (np.clip(np.rint(edge), 0, extent).astype(np.int64) for edge in (middle - half, middle + half))
    covered = (last - first).prod(1) / extent.prod()
    return np.stack([first[:, 0], last[:, 0], first[:, 1], last[:, 1]], 1), 1 - covered


def partners_of(x: Tensor, partner: Tensor) -> Tensor:
    """The entries of the partners' places: (K, places, …) → (K, places, …)."""
    return x[torch.arange(len(x), device=x.device)[:, None], partner]


def mixes(more: Mapping[str, Tensor]) -> bool:
    """Whether the images of a step are to be mixed."""
    return PARTNER in more


def mixed(x: Tensor, labels: Tensor, more: Mapping[str, Tensor]) -> tuple[Tensor, Mix]:
    """Mix the images of a step, (K, places, C, H, W), with the partners that were drawn for it."""
    partner, weight = more[PARTNER], more[WEIGHT]
    x = cut_mixed(x, partner, more[BOX]) if BOX in more else mixed_up(x, partner, weight)
    return x, Mix(partner, partners_of(labels, partner), weight)


def mixed_up(x: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    """λ of each image and 1 − λ of its partner: (K, places, C, H, W), (K, places), (K,)."""
    share = weight.to(torch.promote_types(x.dtype, torch.float32))[:, None, None, None, None]
    return (share * x + (1 - share) * partners_of(x, partner)).to(x.dtype)


def cut_mixed(x: Tensor, partner: Tensor, box: Tensor) -> Tensor:
    """Each image with its partner's pixels in a box (K, 4)."""
    top, bottom, left, right = box[:, :, None, None, None, None].unbind(1)
    rows = torch.arange(x.shape[3], device=x.device)[:, None]
    columns = torch.arange(x.shape[4], device=x.device)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return torch.where(inside, partners_of(x, partner), x)
