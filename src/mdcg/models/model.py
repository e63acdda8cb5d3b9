"""A model: a backbone and a head, K members of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mdcg.draws import Purpose, stream
from mdcg.models.backbones import build_backbone
from mdcg.models.heads import HEADS, Head
from mdcg.models.members import one_by_one


class Model(nn.Module):
    """f(x) = h(b(x)): images (K, batch, C, H, W) to logits (K, batch, classes)."""

    def __init__(self, backbone: nn.Module, head: Head, seeds: Sequence[int]) -> None:
        super().__init__()
        self.backbone, self.head, self.seeds = backbone, head, tuple(seeds)

    def statistics(self) -> list[Tensor]:
        """The members' buffers, BatchNorm's running statistics above all; each has the leading axis K."""
        kept = self.state_dict(keep_vars=True)
        return [buffer for name, buffer in self.named_buffers() if name in kept]

    def grow(self, classes: int) -> None:
        """Make room for the next task's classes; new weights come from each member's own seed."""
        task = len(self.head.sizes)
        self.head.grow(
            classes,
            [stream(seed, Purpose.HEAD, task) for seed in self.seeds],
            [stream(seed, Purpose.GATES, task) for seed in self.seeds],
        )

    def logits(self, images: Tensor) -> Tensor:
        """All members at once on a GPU, one after the other on a CPU."""
        logits: Tensor = self(images) if images.is_cuda else one_by_one(self, images)
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the head is given, (K, batch, features), in the same way."""
        found: Tensor = self.backbone(images) if images.is_cuda else one_by_one(self.backbone, images)
        return found

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        # Under autocast only the backbone computes in bf16: logits and gates stay in full precision.
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.head(features.to(self.head.classifier.weight.dtype))
        return logits


def build_model(
    backbone: str,
    head: str,
    shape: tuple[int, int, int],
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[float]] | None = None,
    dtype: torch.dtype = torch.float32,
    classes: int = 0,
) -> Model:
    """K members with an empty head; `settings` gives the head's settings, one value per member.

    `classes` is how many there will be in the end, for a head that has all of them from the start.

    >>> model = build_model("smallconv", "cascaded-gates", (1, 8, 8), seeds=[0, 1])
    >>> model.grow(2)
    >>> model(torch.zeros(2, 5, 1, 8, 8)).shape
    torch.Size([2, 5, 2])
    """
    body = build_backbone(backbone, shape, [stream(seed, Purpose.BACKBONE) for seed in seeds])
    kind = HEADS[head]
    chosen = {name: [default] * len(seeds) for name, (default, _) in kind.settings.items()}
    chosen |= {name: list(values) for name, values in (settings or {}).items()}
    made = kind(len(seeds), body.features, **chosen)  # type: ignore[arg-type]
    made.total = classes
    return Model(body, made, seeds).to(dtype)
