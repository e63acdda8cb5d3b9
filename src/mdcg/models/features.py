"""No network at all: rows of features, made by some network before, go to the head as they are."""

from __future__ import annotations

from torch import Tensor, nn

FEATURES = "features"  # the name of this backbone, which a file has in place of a network's


class Features(nn.Module):
    """Hands on what an image of one pixel has in its channels, as features: it learns nothing, the head does.

    Whoever wants more between features and head trains a network that makes better features: here each member has only
    what is small, and a task takes seconds.
    """

    def __init__(self, members: int, channels: int) -> None:
        super().__init__()
        self.members, self.features = members, channels

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(2)
