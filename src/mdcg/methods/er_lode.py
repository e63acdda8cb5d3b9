"""ER-LODE (Liang and Li, 2023): cross-entropy of new images, taken apart.

−log p_y is the sum of two parts: to tell the new classes from each other, and to tell new from old. The second is
what makes a network forget; it is weighted down by ρ·|new|/|old|, with |new| and |old| classes. For tasks of equal size
that is ρ/(t − 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from mdcg import paper
from mdcg.methods.base import METHODS, Choices, NeedsHead, Passes, Step, Value, cross_entropy
from mdcg.methods.ingredients import Distilling


@METHODS.register("er-lode")
class ErLode(Distilling):
    """Decoupled losses: among new classes, new against old weighted down, and replay."""

    uses_memory: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    needs_head: ClassVar[NeedsHead] = "growing"
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = paper.chosen("er-lode")
    grid: ClassVar[Mapping[str, Sequence[float]]] = paper.grid("er-lode")
    published: ClassVar[Mapping[str, Value]] = {"halved": True}
    published_passes: ClassVar[Passes] = "separate"
    added: ClassVar[Mapping[str, Value]] = {"halved": False, **Distilling.added}

    rho: float = Field(0.5, ge=0, description="weight of new against old (ρ), 0.1 to 1 in the paper")
    halved: bool = Field(False, description="whether the loss is halved from task 2 on, as in its authors' code")

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return cross_entropy(step.logits, step.labels, step.smoothing)
        new = step.logits.shape[-1] - step.old
        within = cross_entropy(step.logits[..., step.old :], step.labels - step.old, step.smoothing)
        between = (step.logits.logsumexp(-1) - step.logits[..., step.old :].logsumexp(-1)).mean(1)
        total = within + self.rho * new / step.old * between + cross_entropy(*step.memory, step.smoothing)
        return self.with_teacher(total / 2 if self.halved else total, step)
