"""ER-LODE (Liang and Li, 2023): cross-entropy of new images, taken apart.

−log p_y is the sum of two parts: to tell the new classes from each other, and to tell new from old. The second is
what makes a network forget; it is weighted down by ρ·|new|/|old|, with |new| and |old| classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from mdcg.methods.base import METHODS, Choices, Method, NeedsHead, Step, cross_entropy

#: ρ by scenario and memory size, from the paper's Appendix "Hyperparameters selection".
RHO = {
    "c10-5": {200: 0.2, 500: 0.5, 1000: 0.5, 2000: 0.5},
    "c100-10": {200: 0.1, 500: 0.2, 1000: 0.2, 2000: 0.5},
    "tym-10": {2000: 0.1, 5000: 0.5},
    "tym-20": {2000: 0.1, 5000: 0.2},
    "tym-50": {2000: 0.2, 5000: 0.2},
}


@METHODS.register("er-lode")
class ErLode(Method):
    """Decoupled losses: among new classes, new against old weighted down, and replay."""

    uses_memory: ClassVar[bool] = True
    needs_head: ClassVar[NeedsHead] = "growing"
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = {"rho": RHO}

    rho: float = Field(0.5, ge=0, description="weight of new against old (ρ), 0.1 to 1 in the paper")

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return cross_entropy(step.logits, step.labels)
        new = step.logits.shape[-1] - step.old
        within = cross_entropy(step.logits[..., step.old :], step.labels - step.old)
        between = (step.logits.logsumexp(-1) - step.logits[..., step.old :].logsumexp(-1)).mean(1)
        return within + self.rho * new / step.old * between + cross_entropy(*step.memory)
