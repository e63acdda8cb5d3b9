"""ER-ACE (Caccia et al., 2022): new images compete among the classes of their batch only, memory images among all.

So the gradient of new images never pushes down the logits of past classes, which would drift otherwise.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mdcg.methods.base import METHODS, Method, Step, cross_entropy


@METHODS.register("er-ace")
class ErAce(Method):
    """Asymmetric cross-entropy: new images among their batch's classes, memory images among all."""

    uses_memory: ClassVar[bool] = True
    forks: ClassVar[bool] = True

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return cross_entropy(step.logits, step.labels)
        absent = torch.ones_like(step.logits[:, 0], dtype=torch.bool).scatter(1, step.labels, False)  # (K, classes)
        among = step.logits.masked_fill(absent[:, None], -torch.inf)
        return cross_entropy(among, step.labels) + cross_entropy(*step.memory)
