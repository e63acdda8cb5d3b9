"""ER-ACE (Caccia et al., 2022): new images compete among the classes of their batch only, memory images among all.

So the gradient of new images never pushes down the logits of past classes, which would drift otherwise. It is the
memory that sets new classes against old ones: it takes in a task's images before the task is learned, as in the
authors' own code. Without them nothing lifts a new class's logits above the old ones' while it is learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mdcg.memory import Draw
from mdcg.methods.base import METHODS, Passes, Step, Value, cross_entropy
from mdcg.methods.ingredients import Distilling


@METHODS.register("er-ace")
class ErAce(Distilling):
    """Asymmetric cross-entropy: new images among their batch's classes, memory images among all."""

    uses_memory: ClassVar[bool] = True
    learns_revisits: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    needs_boundaries: ClassVar[bool] = False
    forks: ClassVar[bool] = True
    published: ClassVar[Mapping[str, Value]] = {
        "memory_batch": 10,
        "replay_in_task_1": False,
        "halved": True,
    }
    published_passes: ClassVar[Passes] = "separate"
    added: ClassVar[Mapping[str, Value]] = {"replay_in_task_1": True, "halved": False, **Distilling.added}

    memory_batch: int = Field(
        0, ge=0, le=100_000, description="images of a step that come from memory; 0: as many as current ones"
    )
    current_in_memory: bool = Field(
        True, description="whether a task's images go into memory before it is learned, not after"
    )
    replay_in_task_1: bool = Field(
        True, description="whether task 1 is replayed, too, where its images are in memory already"
    )
    halved: bool = Field(False, description="whether the loss is the mean of its two parts, not their sum")

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        replays = past or (self.current_in_memory and self.replay_in_task_1)
        return [Draw(self.memory_batch or batch)] if replays else []

    def fills_memory_first(self) -> bool:
        return self.current_in_memory

    def loss(self, step: Step) -> Tensor:
        if step.memory_logits is None:
            return cross_entropy(step.logits, step.labels, step.smoothing)
        absent = torch.ones_like(step.logits[:, 0], dtype=torch.bool).scatter(1, step.labels, False)  # (K, classes)
        among = step.logits.masked_fill(absent[:, None], -torch.inf)
        total = cross_entropy(among, step.labels, step.smoothing) + cross_entropy(*step.memory, step.smoothing)
        return self.with_teacher(total / 2 if self.halved else total, step)
