"""Ingredients that methods of replay can be given, to compare them with `md-replay`; off unless asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.methods.base import Divergence, Method, Step, TeacherSees, Value, kl_divergences
from mdcg.scenario import Stream

Distils = Literal["nothing", "memory", "all"]


class Distilling(Method):
    """A method of replay that may also be held to the answers of a teacher, the model as it was when the task began.

    Of a memory image x_m and a current one x, p and p̄ the answers of model and teacher at temperature T, it adds

        δ T² KL(p̄(x_m) ‖ p(x_m)) + δ' T² KL(p̄_past(x) ‖ p_past(x)),

    the second, where it is asked for, among the past classes alone: of the others the teacher knows nothing. T² keeps
    gradients as large as they are (Hinton et al., 2015).
    """

    added: ClassVar[Mapping[str, Value]] = {
        "distils": "nothing",
        "distil": 1.0,
        "distil_current": 1.0,
        "temperature": 1.0,
        "among": "all",
    }

    distils: Distils = Field(
        "nothing",
        description="images that are held to the teacher's answers: nothing, those of the memory, or all: the current "
        "ones too",
    )
    distil: float = Field(1.0, ge=0, description="weight of the memory images' divergence from these answers (δ)")
    distil_current: float = Field(1.0, ge=0, description="the same of the current images, where they have one (δ')")
    temperature: float = Field(1.0, gt=0, description="temperature of the answers that are compared (T)")
    among: Literal["all", "past"] = Field(
        "all", description="classes among which the answers to memory images are compared, all or the past ones"
    )

    @field_validator("distils", mode="before")
    @classmethod
    def _in_words(cls, value: object) -> object:
        """Models and recipes of a first version said yes or no."""
        return ("memory" if value else "nothing") if isinstance(value, bool) else value

    def needs_teacher(self) -> bool:
        return self.distils != "nothing"

    def teacher_sees(self) -> TeacherSees:
        return "all" if self.distils == "all" else "memory"

    def check_stream(self, name: str, stream: Stream) -> None:
        super().check_stream(name, stream)
        if self.distils != "nothing" and stream.online and not self.needs_boundaries:
            raise MdcgError(
                f"{name} is not told of tasks in an online stream, so that no teacher is kept; leave distils out, or "
                "train without --online.",
                about="set.distils",
            )

    def with_teacher(self, loss: Tensor, step: Step, direction: Divergence = "teacher-student") -> Tensor:
        """Add the divergence from the teacher's answers to a loss (K,); in task 1, or unasked, there is none."""
        if self.distils == "nothing" or step.teacher_logits is None:
            return loss
        logits, labels = step.memory
        known = (labels < step.old).to(logits.dtype)  # of the task's own images, in memory too, it has no answers
        classes = step.old if self.among == "past" else logits.shape[-1]
        apart = self._divergences(logits[..., :classes], step.teacher[..., :classes], direction)
        loss = loss + self.distil * (known * apart).sum(1) / known.sum(1).clamp_min(1)
        if self.distils != "all":
            return loss
        past = step.logits[..., : step.old], step.teacher_current[..., : step.old]
        return loss + self.distil_current * self._divergences(*past, direction).mean(1)

    def _divergences(self, student: Tensor, teacher: Tensor, direction: Divergence) -> Tensor:
        heat = torch.as_tensor(self.temperature, dtype=student.dtype, device=student.device).view(-1, 1, 1)
        pair = (teacher, student) if direction == "teacher-student" else (student, teacher)
        return heat[..., 0] ** 2 * kl_divergences(pair[0] / heat, pair[1] / heat)
