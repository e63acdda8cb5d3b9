"""The fit of a head to the memory, as a task ends: one of its layers is trained by itself, on as much of every class.

In a step new classes have half of the images and past ones share the rest, if they are trained on at all, so that a
head may come to prefer new classes. With the features of the memory's images as they are now, h(x) the head's answer,
ΔW the change of the layer's weights and s the spread of each feature,

    mean over classes of the mean over a class's images of CE(h(x), y) + penalty · mean over outputs of ‖s ΔW‖²

is brought down by full-batch steps of Adam. A head names its layer (`Head.fitted_layer`). After the first task nothing
is fitted: runs that share this task may differ in their memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
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
from mdcg.train.optimizer import AdamW
from mdcg.train.precision import Compute
from mdcg.train.state import State

STEPS, RATE = 100, 0.05  # of Adam; features are standardised for it
LEAST = 0.05  # of the mean spread, added to each: a feature that hardly varies would get enormous weights


def fit_head(state: State, group: Group, images: Tensor, pixels: Pixels, compute: Compute, together: bool) -> None:
    """Fit the layer that the head names to the images that are in memory after the current task.

    All members `together`, or each by itself, which on a CPU keeps it the same to the bit whatever its company.
    """
    head = state.model.head
    if not head.fitted_layer or group.stages.tasks[state.task] == 0:
        return
    layer = head.get_submodule(head.fitted_layer)
    assert isinstance(layer, Linear)
    if not layer.outputs:  # no class is past yet
        return
    memories = states.memories_after(state, group)
    index, labels, share = (compute.put(own) for own in _laid_out(memories))
    features = features_of(state.model, images, index, pixels, compute).to(layer.weight.dtype)
    everybody = range(len(memories))
    for members in [slice(None)] if together else [slice(k, k + 1) for k in everybody]:
        places = max(map(len, memories[members]))  # those that only others need would change the sums' order
        found = fit_layer(head, members, *(part[members, :places] for part in (features, labels, share)))
        with torch.no_grad():
            for parameter, value in zip((layer.weight, layer.bias), found, strict=True):
                parameter[members] = value


def _laid_out(memories: Sequence[Memory]) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """The images of each memory (K, places), their labels, and the share of each in a mean over classes.

    A member with fewer images than others repeats some, which do not count.
    """
    places = max(map(len, memories))
    index = np.stack([np.resize(memory.indices(), places) for memory in memories])
    labels, share = np.zeros_like(index), np.zeros(index.shape)
    for k, memory in enumerate(memories):
        counts = {position: len(kept) for position, kept in memory.by_class.items() if len(kept)}
        labels[k, : len(memory)] = np.repeat(list(counts), list(counts.values()))
        share[k, : len(memory)] = np.repeat([1 / len(counts) / count for count in counts.values()], [*counts.values()])
    return index, labels, share


def fit_layer(head: Head, members: slice, features: Tensor, labels: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The weight and the bias of some members' layer, fitted to features (K, n, F) with labels and shares (K, n)."""
    kept = {name: value[members] for name, value in head.state_dict().items()}
    names = f"{head.fitted_layer}.weight", f"{head.fitted_layer}.bias"
    weight, bias = (kept[name] for name in names)
    share = share.to(features.dtype)
    mean = (share[..., None] * features).sum(1, keepdim=True)
    spread = (share[..., None] * (features - mean).square()).sum(1, keepdim=True).sqrt()
    spread = spread + LEAST * spread.mean(2, keepdim=True).clamp_min(1e-6)  # of a dead network it is 0
    turn, shift = (nn.Parameter(torch.zeros_like(part)) for part in (weight, bias))

    def layer() -> tuple[Tensor, Tensor]:
        """The layer whose outputs have changed by `turn` times the standardised features, plus `shift`."""
        change = turn / spread.mT
        return weight + change, bias + shift - (mean @ change)[:, 0]

    adam = AdamW(RATE)
    adam.follow([("turn", turn), ("shift", shift)])
    for _ in range(STEPS):
        logits = functional_call(head, kept | dict(zip(names, layer(), strict=True)), (features,), tie_weights=False)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        changed = kept["penalty"].to(turn.dtype) * turn.square().sum((1, 2)) / bias.shape[1]
        adam.step(list(torch.autograd.grad(((share * losses).sum(1) + changed).sum(), (turn, shift))))
    return layer()
