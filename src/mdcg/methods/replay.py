"""Experience Replay (Chaudhry et al., 2019): images from memory are trained on beside the current ones."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mdcg.methods.base import METHODS, Method, Step, cross_entropy


@METHODS.register("replay")
class Replay(Method):
    """Cross-entropy on the current images and as many from memory."""

    uses_memory: ClassVar[bool] = True
    learns_revisits: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    needs_boundaries: ClassVar[bool] = False
    forks: ClassVar[bool] = True

    def loss(self, step: Step) -> Tensor:
        if step.memory_logits is None:
            return cross_entropy(step.logits, step.labels, step.smoothing)
        memory_logits, memory_labels = step.memory
        logits, labels = torch.cat([step.logits, memory_logits], 1), torch.cat([step.labels, memory_labels], 1)
        return cross_entropy(logits, labels, step.smoothing)
