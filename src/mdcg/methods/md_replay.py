"""Replayed Margin Dampening, beyond the paper: Margin Dampening whose memory images are trained on, too.

Margin Dampening holds its memory images to the teacher's answers and to nothing else. A teacher knows them beside
fewer classes: that they are none of those that came since, nobody says. Here a memory image (x_m, y_m) has, beside the
divergence, its cross-entropy among all classes, and the teacher is asked about current images (x, y), too:

    λ max(0, max p_past(x) − p_y(x) + m) + CE(softmax over the new classes, y) + ρ CE(p(x_m), y_m)
        + δ T² KL(p̄_T(x_m) ‖ p_T(x_m)) + δ' T² KL(p̄_past,T(x) ‖ p_past,T(x)).

With ρ = 0, T = 1 and `distils=memory`, without the last term, it is Margin Dampening. With `current_in_memory` the
memory has images of the task's own classes while these are learned; for them there is no divergence.

All settings were chosen on images held out from training (docs/beyond.md). With many images in memory, beside those of
a task, the margin may weigh more: λ = min(1, 5 M / N), M being the memory's images and N those of a task. With fewer
than ten images of a class in memory, weights do not decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from mdcg.methods.base import METHODS, Choices, Step, Value, cross_entropy
from mdcg.methods.ingredients import Distilling, Distils
from mdcg.methods.md import MarginDampening

MARGIN = 5  # λ of a memory as large as a task
FEW = 10  # images of a class in memory


@METHODS.register("md-replay")
class ReplayedMarginDampening(Distilling, MarginDampening):
    """Margin Dampening with replay: memory images are also trained on. Not in the paper."""

    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = {}
    published: ClassVar[Mapping[str, Value]] = {}
    added: ClassVar[Mapping[str, Value]] = {"distils": "memory", "distil_current": 1.0, "among": "all"}
    recipe: ClassVar[Mapping[str, Value]] = {
        "lr": 0.1, "schedule": "cosine", "weight_decay": 5e-4, "augment": "randaugment"
    }  # fmt: skip
    rule: ClassVar[str] = f"weight_decay 0 where the memory has fewer than {FEW} images of a class"

    lam: float = Field(
        0.25,
        ge=0,
        description="weight of the margin loss (λ); unless it is chosen, 5 M / N and at most 1, M being the memory's "
        "images and N those of a task",
    )
    replay: float = Field(0.5, ge=0, description="weight of the memory images' cross-entropy (ρ)")
    distils: Distils = Field(
        "all", description="images that are held to the teacher's answers: nothing, memory, or all"
    )
    temperature: float = Field(2.0, gt=0, description="temperature of the answers that are compared (T)")
    current_in_memory: bool = Field(
        False, description="whether a task's images go into memory before it is learned, not after"
    )

    @classmethod
    def suited(cls, memory: int, classes: int, images: int) -> dict[str, Value]:
        found: dict[str, Value] = {"lam": round(min(1.0, MARGIN * memory / max(1, images)), 4)}
        return found | ({"weight_decay": 0.0} if memory < FEW * classes else {})

    def fills_memory_first(self) -> bool:
        return self.current_in_memory

    def retention(self, step: Step) -> Tensor:
        return self.with_teacher(self.replay * cross_entropy(*step.memory, step.smoothing), step, self.divergence)
