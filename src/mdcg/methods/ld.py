"""Logits Distillation (the paper's own baseline): cross-entropy on the new images, and on memory images only the
divergence from the teacher, the model as it was when the task began.

The paper's published code is Replay with such a divergence added: a second memory of 200 images is trained on beside
the current ones, and as many images as both together are held to the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mdcg import paper
from mdcg.memory import Draw
from mdcg.methods.base import METHODS, Choices, Divergence, Method, Passes, Step, Value, cross_entropy, distillation


@METHODS.register("ld")
class LogitsDistillation(Method):
    """Logits distillation: memory images are held to the teacher's answers, never trained on."""

    uses_memory: ClassVar[bool] = True
    uses_teacher: ClassVar[bool] = True
    learns_revisits: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = paper.chosen("ld")
    grid: ClassVar[Mapping[str, Sequence[float]]] = paper.grid("ld")
    published: ClassVar[Mapping[str, Value]] = {"second_memory": 200, "distilled": "twice"}
    published_passes: ClassVar[Passes] = "separate"
    added: ClassVar[Mapping[str, Value]] = {
        "divergence": "student-teacher",
        "second_memory": 0,
        "distilled": "as-current",
    }
    removed: ClassVar[Mapping[str, Value]] = {"replayed": 0}  # trained on so many images of the memory itself

    alpha: float = Field(0.1, ge=0, description="weight of the divergence from the teacher (α), 0.1 to 1 in the paper")
    divergence: Divergence = Field(
        "teacher-student", description="KL(teacher ‖ student), or student-teacher: KL(student ‖ teacher)"
    )
    second_memory: int = Field(
        0, ge=0, le=10_000_000, description="images of a second memory that are trained on, as Replay does; 0: none"
    )
    distilled: Literal["as-current", "twice"] = Field(
        "as-current", description="memory images of a step: as many as current ones, or twice: two for each"
    )

    def second_memory_size(self) -> int:
        return self.second_memory

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        if not past:
            return []
        replayed = [Draw(batch, second=True, joins=True)] if self.second_memory else []
        return [*replayed, Draw(2 * batch if self.distilled == "twice" else batch)]

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return cross_entropy(step.logits, step.labels, step.smoothing)
        logits, labels = step.memory
        replayed = step.logits.shape[1] if self.second_memory else 0  # they come first
        trained = torch.cat([step.logits, logits[:, :replayed]], 1), torch.cat([step.labels, labels[:, :replayed]], 1)
        divergence = distillation(logits[:, replayed:], step.teacher[:, replayed:], self.divergence)
        return cross_entropy(*trained, step.smoothing) + self.alpha * divergence
