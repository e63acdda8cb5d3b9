"""Logits Distillation (the paper's own baseline): cross-entropy on the new images, and on memory images only the
divergence from the teacher, the model as it was when the task began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from mdcg.methods.base import METHODS, Choices, Method, Step, cross_entropy, kl_divergence

#: α by scenario and memory size, from the paper's Appendix "Hyperparameters selection".
ALPHA = {
    "c10-5": {200: 0.1, 500: 0.1, 1000: 0.1, 2000: 0.1},
    "c100-10": {200: 1.0, 500: 1.0, 1000: 0.75, 2000: 0.75},
}


@METHODS.register("ld")
class LogitsDistillation(Method):
    """Logits distillation: memory images are held to the teacher's answers, never trained on."""

    uses_memory: ClassVar[bool] = True
    uses_teacher: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = {"alpha": ALPHA}

    alpha: float = Field(0.1, ge=0, description="weight of the divergence from the teacher (α), 0.1 to 1 in the paper")

    def loss(self, step: Step) -> Tensor:
        current = cross_entropy(step.logits, step.labels)
        if not step.old:
            return current
        return current + self.alpha * kl_divergence(step.memory[0], step.teacher)
