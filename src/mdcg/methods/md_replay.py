"""Replayed Margin Dampening, beyond the paper: Margin Dampening whose memory images are trained on, too.

Margin Dampening holds its memory images to the teacher's answers and to nothing else. A teacher knows them beside
fewer classes: that they are none of those that came since, nobody says. Here a memory image (x_m, y_m) has, beside the
divergence, its cross-entropy among all classes, and the teacher is asked about current images (x, y), too:

    λ max(0, max p_past(x) − p_y(x) + m) + CE(softmax over the new classes, y) + ρ CE(p(x_m), y_m)
        + δ T² KL(p̄_T(x_m) ‖ p_T(x_m)) + δ' T² KL(p̄_past,T(x) ‖ p_past,T(x)).

With ρ = 0, T = 1 and `distils=memory`, without the last term, it is Margin Dampening. With `current_in_memory` the
memory has images of the task's own classes while these are learned; for them there is no divergence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from mdcg.methods.base import METHODS, Step, Value, cross_entropy
from mdcg.methods.ingredients import Distilling, Distils
from mdcg.methods.md import MarginDampening


@METHODS.register("md-replay")
class ReplayedMarginDampening(Distilling, MarginDampening):
    """Margin Dampening with replay: memory images are also trained on. Not in the paper."""

    forks: ClassVar[bool] = True
    published: ClassVar[Mapping[str, Value]] = {}
    added: ClassVar[Mapping[str, Value]] = {"distils": "memory", "distil_current": 1.0, "among": "all"}
    recipe: ClassVar[Mapping[str, Value]] = {
        "lr": 0.1, "schedule": "cosine", "weight_decay": 5e-4, "augment": "randaugment"
    }  # fmt: skip

    replay: float = Field(0.5, ge=0, description="weight of the memory images' cross-entropy (ρ)")
    distils: Distils = Field(
        "all", description="images that are held to the teacher's answers: nothing, memory, or all"
    )
    temperature: float = Field(2.0, gt=0, description="temperature of the answers that are compared (T)")
    current_in_memory: bool = Field(
        False, description="whether a task's images go into memory before it is learned, not after"
    )

    def fills_memory_first(self) -> bool:
        return self.current_in_memory

    def retention(self, step: Step) -> Tensor:
        return self.with_teacher(self.replay * cross_entropy(*step.memory, step.smoothing), step, self.divergence)
