"""The logits kept with the memory: what the model answered to an image when it came in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mdcg.draws import Ints
from mdcg.memory import Memory


@dataclass(frozen=True)
class StoredLogits:
    """The logits of each member's memory images. A member with fewer images than the others repeats some, so that all
    have the same number of places."""

    index: Tensor  # (K, places) images, on the host
    logits: Tensor  # (K, places, outputs)
    place: Tensor  # (K, all images) where each image in memory has its logits; the others' entries mean nothing

    @classmethod
    def of(cls, index: Tensor, logits: Tensor, images: int) -> StoredLogits:
        place = np.zeros((len(index), images), np.int64)
        for own, held in zip(place, index.numpy(), strict=True):
            own[held[::-1]] = np.arange(len(held))[::-1]  # of several places the first, whatever the company
        return cls(index, logits, torch.from_numpy(place).to(logits.device))

    def at(self, index: Tensor) -> Tensor:
        """The logits kept of images (K, n) that are in memory: (K, n, outputs)."""
        return self.in_places(self.place.gather(1, index))

    def in_places(self, places: Tensor) -> Tensor:
        """The logits in these places (K, n): (K, n, outputs)."""
        return self.logits.gather(1, places[..., None].expand(*places.shape, self.logits.shape[-1]))

    @torch.no_grad()
    def put(self, places: Tensor, logits: Tensor) -> None:
        """Keep logits (K, n, outputs) in these places (K, n), in place of what was there."""
        self.logits.scatter_(1, places[..., None].expand_as(logits), logits.to(self.logits.dtype))

    def of_member(self, k: int, index: Ints) -> Tensor:
        """The logits kept of one member's images (n,): (n, outputs); those of images without any mean nothing."""
        return self.logits[k][self.place[k, torch.from_numpy(index).to(self.place.device)]]


def no_logits(like: Tensor, places: int, outputs: int | None, images: int) -> StoredLogits:
    """Make places (K, places) for the logits of images that are still to come; `like` (K,) says where and in what."""
    assert outputs is not None, "logits stay comparable only in a head that has all of them from the start"
    index = torch.zeros(len(like), places, dtype=torch.int64)
    return StoredLogits.of(index, like.new_zeros(len(like), places, outputs), images)


def keep(
    before: StoredLogits | None, memories: Sequence[Memory], images: int, answer: Callable[[Tensor], Tensor]
) -> StoredLogits:
    """Keep the logits of the images still in memory, and ask the model for those of images that are new there."""
    places = max(len(memory) for memory in memories)
    index = torch.from_numpy(np.stack([np.resize(memory.indices(), places) for memory in memories]))
    logits = answer(index)
    if before is not None:
        known = [np.isin(new, old) for new, old in zip(index, before.index, strict=True)]
        was_known = torch.from_numpy(np.stack(known)).to(logits.device)
        logits = torch.where(was_known[..., None], before.at(index.to(logits.device)), logits)
    return StoredLogits.of(index, logits, images)
