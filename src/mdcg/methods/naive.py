"""Naive: train on each task as it comes, with nothing against forgetting. The lower bound."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from mdcg.methods.base import METHODS, Method, Step, cross_entropy


@METHODS.register("naive")
class Naive(Method):
    """Cross-entropy on the current task alone; the lower bound."""

    learns_revisits: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    needs_boundaries: ClassVar[bool] = False

    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step.logits, step.labels, step.smoothing)
