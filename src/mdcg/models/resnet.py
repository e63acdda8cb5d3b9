"""ResNets (He et al., 2016): 20, 32, 44 and 56 layers for small images, 18 layers for larger ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from mdcg.models import kernels
from mdcg.models.layers import BatchNorm2d, Conv2d, Linear, fold, unfold


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected (1×1, "option B") where the shape changes."""

    def __init__(self, members: int, inputs: int, outputs: int, stride: int, fan: str) -> None:
        super().__init__()
        self.conv1 = Conv2d(members, inputs, outputs, 3, stride, fan)
        self.norm1 = BatchNorm2d(members, outputs)
        self.conv2 = Conv2d(members, outputs, outputs, 3, 1, fan)
        self.norm2 = BatchNorm2d(members, outputs)
        self.shortcut = nn.Sequential()  # empty: the identity
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                Conv2d(members, inputs, outputs, 1, stride, fan), BatchNorm2d(members, outputs)
            )

    def layers(self) -> list[tuple[Conv2d, BatchNorm2d]]:
        """The convolutions, each with its BatchNorm: the first, the second, and the shortcut's if it has them."""
        conv = [layer for layer in self.shortcut if isinstance(layer, Conv2d)]
        norm = [layer for layer in self.shortcut if isinstance(layer, BatchNorm2d)]
        return [(self.conv1, self.norm1), (self.conv2, self.norm2), *zip(conv, norm, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of basic blocks, each after the first at half the resolution; global average as features."""

    def __init__(
        self, members: int, channels: int, widths: Sequence[int], blocks: int, large_stem: bool, fan: str
    ) -> None:
        super().__init__()
        self.members, self.features, self.large_stem = members, widths[-1], large_stem
        self.blocks_per_stage = blocks
        kernel, stride = (7, 2) if large_stem else (3, 1)
        self.conv = Conv2d(members, channels, widths[0], kernel, stride, fan)
        self.norm = BatchNorm2d(members, widths[0])
        stages, inputs = [], widths[0]
        for number, width in enumerate(widths):
            for block in range(blocks):
                stages.append(BasicBlock(members, inputs, width, 2 if number and not block else 1, fan))
                inputs = width
        self.blocks = nn.Sequential(*stages)

    def basic_blocks(self) -> list[BasicBlock]:
        """The blocks of all stages, in the order of the forward pass."""
        return [block for block in self.blocks if isinstance(block, BasicBlock)]

    def map_elements(self, side: int) -> int:
        """The elements of all maps of a square image: what each convolution gives, and what BatchNorm makes of it."""
        side = -(-side // self.conv.stride)
        found = self.conv.outputs * side**2
        if self.large_stem:
            side = -(-side // 2)
        for block in self.basic_blocks():
            side = -(-side // block.conv1.stride)
            found += sum(conv.outputs for conv, _ in block.layers()) * side**2
        return 2 * found

    def convolutions(self) -> list[Conv2d]:
        """All convolutions."""
        return [module for module in self.modules() if isinstance(module, Conv2d)]

    def follow(self) -> None:
        """Let the copies of weights that the kernels use follow the weights, see `kernels.copies`."""
        if kernels.in_use():
            from mdcg.models.kernels.copies import follow

            follow(self.convolutions())

    def _fused(self, images: Tensor) -> bool:
        _, batch, _, high, wide = images.shape
        return kernels.in_use() and kernels.fit(batch * high * wide * self.conv.outputs, wide)

    def forward(self, images: Tensor) -> Tensor:
        if self._fused(images):
            from mdcg.models.kernels.resnet import features

            return features(self, images)
        x = F.relu(self.norm(self.conv(fold(images))))
        if self.large_stem:
            x = F.max_pool2d(x, 3, 2, 1)
        return unfold(self.blocks(x).mean((2, 3)), len(images))


class Projected(nn.Module):
    """A ResNet whose features go through one more linear layer."""

    def __init__(self, resnet: ResNet, features: int) -> None:
        super().__init__()
        self.resnet, self.features = resnet, features
        self.linear = Linear(resnet.members, resnet.features)

    def initialise(self, rngs: Sequence[np.random.Generator]) -> None:
        self.linear.grow(self.features, rngs)

    def make_room(self) -> None:
        """Have all of its layer, whose values are yet to come from a file."""
        self.linear.make_room(self.features)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.linear(self.resnet(images))
        return features


def small_resnet(depth: int, members: int, channels: int) -> ResNet:
    """A ResNet-(6n+2) for 32×32 images: n blocks at each of 16, 32 and 64 channels; 64 features."""
    return ResNet(members, channels, (16, 32, 64), (depth - 2) // 6, large_stem=False, fan="in")


def resnet18(members: int, channels: int) -> ResNet:
    """The 18-layer network with its 7×7 stem and max pooling; 512 features."""
    return ResNet(members, channels, (64, 128, 256, 512), 2, large_stem=True, fan="out")


def resnet18_1000(members: int, channels: int) -> Projected:
    """A ResNet-18 with its 1,000-way layer, whose outputs serve as features: so in the paper's published code."""
    return Projected(resnet18(members, channels), 1000)
