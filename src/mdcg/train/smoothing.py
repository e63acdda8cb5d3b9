"""Label smoothing, of each member its own."""

from __future__ import annotations

import torch
from torch import Tensor

from mdcg.train.group import Group
from mdcg.train.precision import Compute


def label_smoothing(group: Group, compute: Compute) -> Tensor | None:
    """The share of a label that all classes have, (K,); None where no member has any."""
    shares = [member.numbers.label_smoothing for member in group.members]
    return torch.tensor(shares, dtype=compute.dtype, device=compute.device) if any(shares) else None
