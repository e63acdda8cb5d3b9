"""GDumb (Prabhu et al., 2020): fill the memory greedily, then train a new model on it alone.

Tasks are only looked at for what they leave in memory. It asks what the other methods gain by anything else.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from mdcg.memory import Draw
from mdcg.methods.base import METHODS, Method, Step, TrainsOn, cross_entropy


@METHODS.register("gdumb")
class GDumb(Method):
    """A new model for every task, trained on the memory alone, the task's images among it."""

    uses_memory: ClassVar[bool] = True
    learns_revisits: ClassVar[bool] = True
    trains_on: ClassVar[TrainsOn] = "memory"
    starts_anew: ClassVar[bool] = True

    def memory_draws(self, batch: int, past: object) -> list[Draw]:
        return []

    def fills_memory_first(self) -> bool:
        return True

    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step.logits, step.labels, step.smoothing)
