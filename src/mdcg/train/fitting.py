"""The fit of a head to the memory, as a task ends: one of its layers is trained by itself, on as much of every class.

In a step new classes have half of the images and past ones share the rest, if they are trained on at all, so that a
head comes to prefer new classes. The memory has equal shares. With the features of its images as they are now, h(x) the
head's answer and W the weights of the layer in question, where features have the spread s,

    mean over classes of the mean over a class's images of CE(h(x), y) + penalty · mean over outputs of ‖s ΔW‖²

is brought down by full-batch steps of Adam. A head names its layer (`Head.fitted`). After the first task nothing is
fitted: there is no past class yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from mdcg.draws import Ints
from mdcg.memory import Memory
from mdcg.models import Head
from mdcg.models.layers import Linear
from mdcg.train import state as states
from mdcg.train.augment import Pixels
from mdcg.train.evaluate import features_of
from mdcg.train.group import Group
from mdcg.train.precision import Compute
from mdcg.train.state import State

STEPS, RATE = 100, 0.05  # of Adam; features are standardised for it
BETAS, EPSILON = (0.9, 0.999), 1e-8  # its own usual ones
LEAST = 1e-6  # of a spread: a feature may be the same for all images


def fit_head(state: State, group: Group, images: Tensor, pixels: Pixels, compute: Compute) -> None:
    """Fit the layer that the head names to the images that are in memory after the current task."""
    head = state.model.head
    if not head.fitted or len(head.sizes) < 2:
        return
    memories = states.memories_after(state, group)
    index, labels, share = (compute.put(own) for own in _laid_out(memories))
    features = features_of(state.model, images, index, pixels, compute).to(head.classifier.weight.dtype)
    layer = head.get_submodule(head.fitted)
    assert isinstance(layer, Linear)
    # On a CPU each member by itself, and without others' places: so its company changes no bit.
    alone = [slice(k, k + 1) for k in range(len(memories))]
    for own in [slice(None)] if features.is_cuda else alone:
        places = max(map(len, memories[own]))
        found = fitted(head, own, *(part[own, :places] for part in (features, labels, share)))
        with torch.no_grad():
            for parameter, value in zip((layer.weight, layer.bias), found, strict=True):
                parameter[own] = value


def _laid_out(memories: Sequence[Memory]) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """The images of each memory (K, places), their labels, and the share of each in a mean over classes.

    A member with fewer images than others repeats some, which do not count.
    """
    places = max(map(len, memories))
    index, labels = np.zeros((2, len(memories), places), np.int64)
    share = np.zeros((len(memories), places))
    for k, memory in enumerate(memories):
        held = {position: kept for position, kept in memory.by_class.items() if len(kept)}
        counts = [len(kept) for kept in held.values()]
        index[k] = np.resize(np.concatenate(list(held.values())), places)
        labels[k, : sum(counts)] = np.repeat(list(held), counts)
        share[k, : sum(counts)] = np.repeat([1 / len(held) / count for count in counts], counts)
    return index, labels, share


@torch.enable_grad()
def fitted(head: Head, members: slice, features: Tensor, labels: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The weight and the bias of some members' layer, fitted to features (K, n, F) with labels and shares (K, n)."""
    kept = {name: value[members] for name, value in head.state_dict().items()}
    names = f"{head.fitted}.weight", f"{head.fitted}.bias"
    weight, bias = (kept[name] for name in names)
    share = share.to(features.dtype)[..., None]
    mean = (share * features).sum(1, keepdim=True)
    spread = (share * (features - mean).square()).sum(1, keepdim=True).sqrt() + LEAST
    turn, shift = (torch.zeros_like(own, requires_grad=True) for own in (weight, bias))

    def layer() -> tuple[Tensor, Tensor]:
        """The layer whose outputs have changed by `turn` times the standardised features, plus `shift`."""
        change = turn / spread.mT
        return weight + change, bias + shift - (mean @ change)[:, 0]

    moments = [(parameter, torch.zeros_like(parameter), torch.zeros_like(parameter)) for parameter in (turn, shift)]
    for step in range(1, STEPS + 1):
        logits = functional_call(head, kept | dict(zip(names, layer(), strict=True)), (features,), tie_weights=False)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        changes = kept["penalty"].to(turn.dtype) * turn.square().sum((1, 2)) / bias.shape[1]
        gradients = torch.autograd.grad(((share[..., 0] * losses).sum(1) + changes).sum(), (turn, shift))
        with torch.no_grad():  # Adam (Kingma and Ba, 2015); to import torch's takes longer than a fit
            for (parameter, mean_of, square_of), gradient in zip(moments, gradients, strict=True):
                mean_of.lerp_(gradient, 1 - BETAS[0])
                square_of.lerp_(gradient.square(), 1 - BETAS[1])
                size = (square_of / (1 - BETAS[1] ** step)).sqrt() + EPSILON
                parameter -= RATE / (1 - BETAS[0] ** step) * mean_of / size
    return layer()
