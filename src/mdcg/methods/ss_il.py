"""SS-IL (Ahn et al., 2021): separated softmax, and distillation task by task.

New images are classified among the new classes, memory images among the old ones, so that neither pushes the other's
logits down. The teacher, the model as it was when the task began, is followed on all images by the softmax over each
past task's classes, at temperature T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from mdcg.memory import Draw
from mdcg.methods.base import METHODS, Method, NeedsHead, Passes, Step, TeacherSees, Value, cross_entropy, kl_divergence


@METHODS.register("ss-il")
class SsIl(Method):
    """Separated softmax for old and new classes, distillation within each past task."""

    uses_memory: ClassVar[bool] = True
    needs_head: ClassVar[NeedsHead] = "growing"
    uses_teacher: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    published: ClassVar[Mapping[str, Value]] = {
        "divided": True,
        "memory_among": "all",
        "distilled": "memory",
        "current_in_memory": True,
        "memory_batches": "once",
    }
    published_passes: ClassVar[Passes] = "separate"
    published_epochs: ClassVar[Mapping[str, int]] = {"cifar10": 100, "cifar100": 100}
    added: ClassVar[Mapping[str, Value]] = {
        "divided": False,
        "memory_among": "old",
        "distilled": "all",
        "current_in_memory": False,
        "memory_batches": "anew",
    }

    temperature: float = Field(2.0, gt=0, description="temperature of the distillation (T)")
    weight: float = Field(1.0, ge=0, description="weight of the cross-entropy, in task 1 too")
    divided: bool = Field(
        False, description="whether the cross-entropy is divided by the batch size once more, from task 2 on"
    )
    memory_among: Literal["old", "all"] = Field(
        "old", description="classes among which memory images are told apart: old, or all"
    )
    distilled: Literal["all", "memory"] = Field(
        "all", description="images on which the teacher is followed: all, or memory"
    )
    current_in_memory: bool = Field(
        False, description="whether a task's images go into memory before it is learned, not after"
    )
    memory_batches: Literal["anew", "once"] = Field(
        "anew", description="anew in each epoch, or once: drawn once per task and then repeated, crops included"
    )

    @model_validator(mode="after")
    def _new_images_need_new_classes(self) -> SsIl:
        if self.current_in_memory and self.memory_among == "old":
            raise ValueError("with current_in_memory, memory has new classes too; give memory_among=all as well")
        return self

    def teacher_sees(self) -> TeacherSees:
        return self.distilled

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        return [Draw(batch, once=self.memory_batches == "once")] if past else []

    def fills_memory_first(self) -> bool:
        return self.current_in_memory

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return self.weight * cross_entropy(step.logits, step.labels, step.smoothing)
        logits, labels = step.memory
        new = cross_entropy(step.logits[..., step.old :], step.labels - step.old, step.smoothing)
        old = cross_entropy(logits if self.memory_among == "all" else logits[..., : step.old], labels, step.smoothing)
        student, teacher = logits, step.teacher
        if self.distilled == "all":
            student = torch.cat([step.logits, student], 1)
            teacher = torch.cat([step.teacher_current, teacher], 1)
        heat = torch.as_tensor(self.temperature, dtype=student.dtype, device=student.device).view(-1, 1, 1)
        divergence = torch.zeros_like(new)
        start = 0
        for size in step.past:
            own = slice(start, start + size)
            divergence = divergence + kl_divergence(teacher[..., own] / heat, student[..., own] / heat)
            start += size
        images = step.logits.shape[1] if self.divided else 1
        return self.weight * (new + old) / (2 * images) + heat[:, 0, 0] ** 2 * divergence
