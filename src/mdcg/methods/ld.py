"""Logits Distillation (the paper's own baseline): cross-entropy on the new images, and on memory images only the
divergence from the teacher, the model as it was when the task began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mdcg import paper
from mdcg.memory import Draw
from mdcg.methods.base import METHODS, Choices, Method, Step, Value, cross_entropy, kl_divergence


@METHODS.register("ld")
class LogitsDistillation(Method):
    """Logits distillation: memory images are held to the teacher's answers, never trained on."""

    uses_memory: ClassVar[bool] = True
    uses_teacher: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = paper.chosen("ld")
    grid: ClassVar[Mapping[str, Sequence[float]]] = paper.grid("ld")
    published: ClassVar[Mapping[str, Value]] = {"replayed": 200}

    alpha: float = Field(0.1, ge=0, description="weight of the divergence from the teacher (α), 0.1 to 1 in the paper")

    replayed: int = Field(0, ge=0, description="so many of the memory's images are also trained on, as Replay does")

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        draws = super().memory_draws(batch, past)
        return [*draws, Draw(batch, within=self.replayed)] if draws and self.replayed else draws

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return cross_entropy(step.logits, step.labels)
        batch = step.logits.shape[1]
        logits, labels = step.memory  # those held to the teacher, then those replayed
        trained = torch.cat([step.logits, logits[:, batch:]], 1), torch.cat([step.labels, labels[:, batch:]], 1)
        return cross_entropy(*trained) + self.alpha * kl_divergence(logits[:, :batch], step.teacher[:, :batch])
