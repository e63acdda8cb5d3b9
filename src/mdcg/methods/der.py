"""DER++ (Buzzega et al., 2020): memory images are trained on, and held to the logits they had when they came in.

With z the logits kept of a memory image x_m with label y_m, the loss is that of the current images plus

    α ‖f(x_m) − z‖² / outputs + β CE(f(x_m), y_m).

All of the scenario's classes are in the softmax from the start, so that logits of different tasks can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from mdcg.methods.base import METHODS, Choices, Method, NeedsHead, Step, cross_entropy

#: α and β by scenario and memory size, from the paper's Appendix "Hyperparameters selection".
ALPHA = {
    "c10-5": {200: 0.1, 500: 0.5, 1000: 0.5, 2000: 0.2},
    "c100-10": {200: 0.1, 500: 0.1, 1000: 0.1, 2000: 0.1},
    "tym-10": {2000: 0.1, 5000: 0.1},
    "tym-20": {2000: 0.1, 5000: 0.1},
    "tym-50": {2000: 0.1, 5000: 0.1},
}
BETA = {
    "c10-5": {200: 0.5, 500: 0.8, 1000: 0.1, 2000: 0.8},
    "c100-10": {200: 0.8, 500: 1.0, 1000: 0.8, 2000: 0.8},
    "tym-10": {2000: 0.2, 5000: 0.2},
    "tym-20": {2000: 0.5, 5000: 0.1},
    "tym-50": {2000: 0.2, 5000: 0.1},
}


@METHODS.register("der")
class DarkExperienceReplay(Method):
    """DER++: replay, and memory images held to the logits they had when they came in."""

    head: ClassVar[str] = "fixed"
    needs_head: ClassVar[NeedsHead] = "fixed"
    uses_memory: ClassVar[bool] = True
    keeps_logits: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = {"alpha": ALPHA, "beta": BETA}

    alpha: float = Field(0.1, ge=0, description="weight of the distance to the kept logits (α), 0.1 to 1 in the paper")
    beta: float = Field(0.5, ge=0, description="weight of the memory's cross-entropy (β), 0.1 to 1 in the paper")

    def loss(self, step: Step) -> Tensor:
        current = cross_entropy(step.logits, step.labels)
        if not step.old:
            return current
        distance = (step.memory[0] - step.kept).square().mean((1, 2))
        return current + self.alpha * distance + self.beta * cross_entropy(*step.memory)
