"""Layers that hold K members at once.

Every parameter and buffer has a leading axis K, and nothing mixes members: a member is a slice. Inside a
backbone the members' feature maps lie side by side as channels, (batch, K·channels, height, width), so that a
convolution of all members is one grouped convolution and BatchNorm over K·C channels is already right.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from mdcg.programs import cores

MANY = 100_000  # weights of a member, from which on members are initialised side by side


def fold(images: Tensor) -> Tensor:
    """Lay members side by side as channels: (K, batch, C, H, W) → (batch, K·C, H, W), channels last."""
    members, batch, channels, height, width = images.shape
    beside = images.permute(1, 3, 4, 0, 2).reshape(batch, height, width, members * channels)
    return beside.permute(0, 3, 1, 2)


def unfold(features: Tensor, members: int) -> Tensor:
    """Take members apart again: (batch, K·F) → (K, batch, F)."""
    beside: Tensor = features.unflatten(1, (members, -1))
    return beside.transpose(0, 1)


def one_by_one(module: nn.Module, x: Tensor) -> Tensor:
    """Compute `module(x)`, each member by itself: the same numbers to the bit, whatever the company.

    For CPUs, where one grouped kernel is no faster than K plain ones but may sum in another order.
    """
    members = len(x)
    if members == 1:
        alone: Tensor = module(x)
        return alone
    # Views into the stacked state: gradients and running statistics find their way back.
    states = {name: value.split(1) for name, value in module.state_dict(keep_vars=True).items()}
    parts = [
        functional_call(
            module, {name: slices[k] for name, slices in states.items()}, (x[k : k + 1],), tie_weights=False
        )
        for k in range(members)
    ]
    return torch.cat(parts)


class Conv2d(nn.Module):
    """K convolutions without bias, He-normal initialised."""

    def __init__(self, members: int, inputs: int, outputs: int, kernel: int, stride: int = 1, fan: str = "in") -> None:
        super().__init__()
        self.kernel, self.stride, self.outputs = kernel, stride, outputs
        self.fan = (inputs if fan == "in" else outputs) * kernel * kernel
        self.weight = nn.Parameter(self.as_weight(torch.empty(members, kernel * kernel, inputs, outputs)))
        self.copy: tuple[tuple[object, ...], Tensor] | None = None  # for the fused kernels, see `kernels.copies`

    def initialise(self, rngs: Sequence[np.random.Generator]) -> None:
        scale = np.float32(np.sqrt(2 / self.fan))

        def fill(weight: Tensor, rng: np.random.Generator) -> None:
            weight.copy_(torch.from_numpy(scale * rng.standard_normal(weight.shape, np.float32)))

        weights = self.weight.detach()
        assert len(weights) == len(rngs)
        if weights[0].numel() < MANY:
            for member in zip(weights, rngs, strict=True):
                fill(*member)
            return
        with ThreadPoolExecutor(cores()) as pool:  # members have generators of their own, which do not wait for Python
            list(pool.map(fill, weights, rngs))

    def taps(self) -> Tensor:
        """The weight as it lies in memory, (K, taps, inputs, outputs): so the fused kernels read it."""
        return self.weight.permute(0, 3, 4, 2, 1).flatten(1, 2).contiguous()  # no copy, as made by `as_weight`

    def as_weight(self, taps: Tensor) -> Tensor:
        """Turn `taps` back into the weight: (K, outputs, inputs, kernel, kernel)."""
        members, _, inputs, outputs = taps.shape
        return taps.view(members, self.kernel, self.kernel, inputs, outputs).permute(0, 4, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.flatten(0, 1)
        return F.conv2d(x, weight, stride=self.stride, padding=self.kernel // 2, groups=len(self.weight))


class BatchNorm2d(nn.Module):
    """K batch normalisations, each with its own statistics."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, members: int, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(members, channels))
        self.bias = nn.Parameter(torch.zeros(members, channels))
        self.register_buffer("running_mean", torch.zeros(members, channels))
        self.register_buffer("running_var", torch.ones(members, channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x,
            self.running_mean.view(-1),
            self.running_var.view(-1),
            self.weight.view(-1),
            self.bias.view(-1),
            self.training,
            self.momentum,
            self.eps,
        )


class Linear(nn.Module):
    """K linear layers of growing width, as one batched product: (K, batch, F) → (K, batch, outputs)."""

    def __init__(self, members: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, inputs, 0))
        self.bias = nn.Parameter(torch.empty(members, 0))

    @property
    def outputs(self) -> int:
        return self.bias.shape[1]

    def make_room(self, outputs: int) -> None:
        """Have so many outputs, whose values are yet to come from a file."""
        members, inputs, _ = self.weight.shape
        self.weight = nn.Parameter(self.weight.detach().new_zeros(members, inputs, outputs))
        self.bias = nn.Parameter(self.bias.detach().new_zeros(members, outputs))

    def grow(self, outputs: int, rngs: Sequence[np.random.Generator]) -> None:
        """Append outputs, uniform in ±1/√F as PyTorch's own linear layer; the old ones stay as they are."""
        inputs = self.weight.shape[1]
        bound = 1 / np.sqrt(inputs)
        drawn = np.stack([rng.uniform(-bound, bound, (inputs + 1, outputs)) for rng in rngs])
        fresh = torch.from_numpy(drawn).to(self.weight)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh[:, :-1]], 2))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), fresh[:, -1]], 1))

    def forward(self, features: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], features, self.weight)
