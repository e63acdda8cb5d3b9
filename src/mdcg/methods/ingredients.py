"""Ingredients that methods of replay can be given, to compare them with `md-replay`; all are off unless asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.methods.base import Divergence, Method, Step, Value, kl_divergences
from mdcg.scenario import Stream

Temperature = Field(1.0, gt=0, description="temperature of the answers that are compared with the teacher's (T)")


class Distilling(Method):
    """A method of replay that may also hold its memory images to the answers of a teacher."""

    added: ClassVar[Mapping[str, Value]] = {"distils": False, "distil": 1.0, "temperature": 1.0}

    distils: bool = Field(
        False, description="whether memory images are held to the answers of the model as it was when the task began"
    )
    distil: float = Field(
        1.0, ge=0, description="weight of the divergence from these answers (δ), where they are asked for"
    )
    temperature: float = Temperature

    def needs_teacher(self) -> bool:
        return self.distils

    def check_stream(self, name: str, stream: Stream) -> None:
        super().check_stream(name, stream)
        if self.distils and stream.online and not self.needs_boundaries:
            raise MdcgError(
                f"{name} is not told of tasks in an online stream, so that no teacher is kept; leave distils out, or "
                "train without --online.",
                about="set.distils",
            )

    def with_teacher(self, loss: Tensor, step: Step) -> Tensor:
        """Add the divergence from the teacher's answers, where it is asked for; in task 1 there is no teacher."""
        if not self.distils or step.teacher_logits is None:
            return loss
        return loss + self.distil * distance_to_teacher(step, self.temperature)


def distance_to_teacher(step: Step, temperature: Tensor | float, direction: Divergence = "teacher-student") -> Tensor:
    """The mean of T² KL(p̄ ‖ p) over the memory images of past classes, p and p̄ at temperature T: (K,).

    T² keeps gradients as large as they are (Hinton et al., 2015). Of the task's own classes, of which there may be
    images in memory too, the teacher knows nothing.
    """
    logits, labels = step.memory
    heat = torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device).view(-1, 1, 1)
    student, teacher = logits / heat, step.teacher / heat
    pair = (teacher, student) if direction == "teacher-student" else (student, teacher)
    known = (labels < step.old).to(logits.dtype)
    return temperature**2 * (known * kl_divergences(*pair)).sum(1) / known.sum(1).clamp_min(1)
