"""Cascaded gates as Eq. 5 is written, one small module for each: a measure of what doing all at once is worth.

The paper's published code computes them in this way, so that its times are those of such a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mdcg.models.heads import CascadedGates
from mdcg.models.layers import Linear


class ModulePerGate(nn.Module):
    """The first member of a head of cascaded gates, with the same weights: features (batch, F) → (batch, classes)."""

    def __init__(self, head: CascadedGates) -> None:
        super().__init__()
        self.gamma, self.beta = float(head.gamma[0]), float(head.beta[0])
        self.tasks = len(head.sizes)
        pairs = [head.sizes[earlier] for later in range(self.tasks) for earlier in range(later)]
        self.classifiers = _parts(head.classifier, head.sizes)
        self.gates = _parts(head.gates, pairs)

    def forward(self, features: Tensor) -> Tensor:
        logits = []
        for earlier, classifier in enumerate(self.classifiers):
            own = classifier(features)
            for later in range(earlier + 1, self.tasks):
                gate = self.gates[later * (later - 1) // 2 + earlier]
                own = own * torch.sigmoid(self.gamma * gate(features) + self.beta)
            logits.append(own)
        return torch.cat(logits, -1)


def _parts(layer: Linear, sizes: list[int]) -> nn.ModuleList:
    """The outputs of the first member, so many in each of several layers."""
    inputs, _ = layer.weight[0].shape
    parts = nn.ModuleList()
    with torch.no_grad():
        for weight, bias in zip(layer.weight[0].split(sizes, 1), layer.bias[0].split(sizes), strict=True):
            part = nn.utils.skip_init(nn.Linear, inputs, len(bias), device=weight.device, dtype=weight.dtype)
            part.weight.copy_(weight.T)
            part.bias.copy_(bias)
            parts.append(part)
    return parts
