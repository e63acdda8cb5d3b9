"""DER++ (Buzzega et al., 2020): memory images are trained on, and held to the logits they had when they came in.

With z the logits kept of a memory image x_m with label y_m, the loss is that of the current images plus

    α ‖f(x_m) − z‖² / outputs + β CE(f(x_m), y_m).

All of the scenario's classes are in the softmax from the start, so that logits of different tasks can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from mdcg import paper
from mdcg.methods.base import METHODS, Choices, NeedsHead, Step, cross_entropy
from mdcg.methods.ingredients import Distilling


@METHODS.register("der")
class DarkExperienceReplay(Distilling):
    """DER++: replay, and memory images held to the logits they had when they came in."""

    head: ClassVar[str] = "fixed"
    needs_head: ClassVar[NeedsHead] = "fixed"
    uses_memory: ClassVar[bool] = True
    learns_revisits: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    needs_boundaries: ClassVar[bool] = False
    stores_logits: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = paper.chosen("der")
    grid: ClassVar[Mapping[str, Sequence[float]]] = paper.grid("der")

    alpha: float = Field(0.1, ge=0, description="weight of the distance to the kept logits (α), 0.1 to 1 in the paper")
    beta: float = Field(0.5, ge=0, description="weight of the memory's cross-entropy (β), 0.1 to 1 in the paper")

    def loss(self, step: Step) -> Tensor:
        current = cross_entropy(step.logits, step.labels, step.smoothing)
        if step.memory_logits is None:
            return current
        distance = (step.memory[0] - step.stored).square().mean((1, 2))
        loss = current + self.alpha * distance + self.beta * cross_entropy(*step.memory, step.smoothing)
        return self.with_teacher(loss, step)
