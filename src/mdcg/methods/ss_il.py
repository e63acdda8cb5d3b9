"""SS-IL (Ahn et al., 2021): separated softmax, and distillation task by task.

New images are classified among the new classes, memory images among the old ones, so that neither pushes the other's
logits down. The teacher, the model as it was when the task began, is followed on all images by the softmax over each
past task's classes, at temperature T.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mdcg.methods.base import METHODS, Method, NeedsHead, Step, TeacherSees, Value, cross_entropy, kl_divergence


@METHODS.register("ss-il")
class SsIl(Method):
    """Separated softmax for old and new classes, distillation within each past task."""

    uses_memory: ClassVar[bool] = True
    needs_head: ClassVar[NeedsHead] = "growing"
    uses_teacher: ClassVar[bool] = True
    teacher_sees: ClassVar[TeacherSees] = "all"
    published: ClassVar[Mapping[str, Value]] = {"weight": 1 / 64}

    temperature: float = Field(2.0, gt=0, description="temperature of the distillation (T)")
    weight: float = Field(1.0, ge=0, description="weight of the cross-entropy, 1/64 in the published code")

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return self.weight * cross_entropy(step.logits, step.labels)
        logits, labels = step.memory
        new = cross_entropy(step.logits[..., step.old :], step.labels - step.old)
        old = cross_entropy(logits[..., : step.old], labels)
        student = torch.cat([step.logits, logits], 1)
        teacher = torch.cat([step.teacher_current, step.teacher], 1)
        heat = torch.as_tensor(self.temperature, dtype=student.dtype, device=student.device).view(-1, 1, 1)
        divergence = torch.zeros_like(new)
        start = 0
        for size in step.past:
            own = slice(start, start + size)
            divergence = divergence + kl_divergence(teacher[..., own] / heat, student[..., own] / heat)
            start += size
        return self.weight * (new + old) / 2 + heat[:, 0, 0] ** 2 * divergence
