"""SGD with momentum, the paper's optimiser, for members that may stop at different steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


class SGD:
    """The update v ← μ v + g, p ← p − η v, without weight decay (paper, Section 4.1).

    Velocities go by parameter name, so that they outlive a head's growth: what existed keeps its velocity,
    what is new starts at zero.
    """

    def __init__(self, lr: float, momentum: float) -> None:
        self.lr, self.momentum = lr, momentum
        self.velocity: dict[str, Tensor] = {}
        self.parameters: list[Tensor] = []

    def follow(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Take up the parameters of a new or grown model."""
        known, self.velocity, self.parameters = self.velocity, {}, []
        for name, parameter in named:
            if not parameter.requires_grad:
                continue
            velocity = torch.zeros_like(parameter, requires_grad=False)
            if name in known:
                old = known[name]
                velocity[tuple(slice(length) for length in old.shape)] = old
            self.velocity[name] = velocity
            self.parameters.append(parameter)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], active: Tensor | None = None) -> None:
        """Update all members, or those for which `active` (K,) is true; the others stay to the bit."""
        velocities = list(self.velocity.values())
        if active is None:
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, list(gradients))
            torch._foreach_add_(self.parameters, velocities, alpha=-self.lr)
            return
        for parameter, velocity, gradient in zip(self.parameters, velocities, gradients, strict=True):
            moving = active.view(-1, *[1] * (parameter.ndim - 1))
            velocity.copy_(torch.where(moving, self.momentum * velocity + gradient, velocity))
            parameter.copy_(torch.where(moving, torch.add(parameter, velocity, alpha=-self.lr), parameter))
