"""A small convolutional net for images of about 8×8 pixels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from mdcg.models.layers import BatchNorm2d, Conv2d, fold, unfold


class SmallConv(nn.Module):
    """Three 3×3 convolutions with BatchNorm, two halvings of the resolution, global average; 64 features."""

    def __init__(self, members: int, channels: int) -> None:
        super().__init__()
        self.members, self.features = members, 64
        widths = (channels, 16, 32, 64)
        self.convs = nn.ModuleList(Conv2d(members, widths[i], widths[i + 1], 3, stride=2 if i else 1) for i in range(3))
        self.norms = nn.ModuleList(BatchNorm2d(members, width) for width in widths[1:])

    def forward(self, images: Tensor) -> Tensor:
        x = fold(images)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return unfold(x.mean((2, 3)), len(images))
