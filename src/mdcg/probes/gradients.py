"""The probe for whether the two things that DER asks of memory images agree (the paper, Appendix "Regularising and
learning")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from mdcg.methods import Method
from mdcg.methods.base import cross_entropy
from mdcg.models import Head, Model
from mdcg.models.layers import Conv2d, Linear
from mdcg.models.stacked import Stacked
from mdcg.probes.base import PROBES, Images, Measured, Probe, Snapshot
from mdcg.train.stored_logits import StoredLogits

IMAGES = 128  # of each member's memory, at most
AT_ONCE = 8  # members on a GPU, so that a group that fits into its memory does so with this probe too


@dataclass(frozen=True)
class LayerWeight:
    """A weight that has output channels."""

    name: str
    parameter: str  # its name in the model's state
    axis: int  # of the output channels, after that of the members


@PROBES.register("gradients")
class Gradients(Probe):
    """Cosine, per layer, between the gradients of the memory's cross-entropy and of its distance to kept logits."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task > 0

    def unsuited(self, method: Method, head: type[Head]) -> str | None:
        return None if method.stores_logits else "it keeps no logits of the images in memory, as DER does"

    def look(self, snapshot: Snapshot) -> Measured:
        """Measure `cosine`: of each layer in `layers`, the mean over output channels.

        Images are as they are, without crop or flip, and BatchNorm goes by the batch, as in training.
        """
        layers, images = layers_of(snapshot.model), snapshot.memory(range(snapshot.seen)).at_most(IMAGES)
        found = torch.full((snapshot.members, len(layers)), torch.nan, dtype=torch.float64)
        # On a CPU to the bit as if each were alone; on a GPU in few, large steps.
        sets = _together([len(own) for own in images.index], apart=snapshot.compute.device.type == "cpu")
        was_training = snapshot.model.training
        snapshot.model.train()
        try:
            # Neither TF32 nor fused kernels, which would have to be compiled for these shapes.
            with replace(snapshot.compute, precision="fp32").settings():
                for members in sets:
                    found[members] = _cosines(snapshot, images, members, layers).cpu()
        finally:
            snapshot.model.train(was_training)
        return {"layers": [[layer.name for layer in layers]] * snapshot.members, "cosine": found}


def layers_of(model: Model) -> list[LayerWeight]:
    """The layers in the order of the forward pass, the head's classifier last; named as in backbone and head."""
    found = []
    for path, module in model.named_modules():
        if isinstance(module, Conv2d | Linear) and module.weight.requires_grad:
            name = path.split(".", 1)[1]
            found.append(LayerWeight(name, f"{path}.weight", 1 if isinstance(module, Conv2d) else 2))
        elif isinstance(module, Stacked):
            found += [
                LayerWeight(module.names[own].removesuffix(".weight"), f"{path}.{own}", 1)
                for own, value in module.named_parameters()
                if value.ndim > 2 and value.requires_grad  # biases and BatchNorm's have one number per channel
            ]
    return found


def _together(counts: list[int], apart: bool) -> Iterator[list[int]]:
    """The members whose gradients are computed at once: those with equally many images, or each apart.

    So a member's numbers do not depend on how much its neighbours hold. BatchNorm needs two images.
    """
    if apart:
        yield from ([k] for k, count in enumerate(counts) if count > 1)
    else:
        for wanted in sorted({count for count in counts if count > 1}):
            same = [k for k, count in enumerate(counts) if count == wanted]
            yield from (same[start : start + AT_ONCE] for start in range(0, len(same), AT_ONCE))


def _cosines(snapshot: Snapshot, images: Images, members: list[int], layers: list[LayerWeight]) -> Tensor:
    """The cosines of some members with equally many images: (members, layers)."""
    index = snapshot.compute.put(np.stack([images.index[k] for k in members]))
    labels = snapshot.compute.put(np.stack([images.labels[k] for k in members]))
    # A copy, so that the model's own statistics stay as they are.
    state = {name: value.detach()[members].clone() for name, value in snapshot.model.state_dict().items()}
    weights = [state[layer.parameter].requires_grad_() for layer in layers]
    x = snapshot.pixels.normalise(images.pixels[index])
    logits: Tensor = functional_call(snapshot.model, state, (x,), tie_weights=False)
    distance = (logits - _stored(snapshot, members).at(index)).square().mean((1, 2))
    losses = cross_entropy(logits, labels).sum(), distance.sum()
    learned = torch.autograd.grad(losses[0], weights, retain_graph=True, materialize_grads=True)
    held = torch.autograd.grad(losses[1], weights, materialize_grads=True)
    return torch.stack(
        [channel_cosine(a, b, layer.axis) for a, b, layer in zip(learned, held, layers, strict=True)], dim=1
    )


def _stored(snapshot: Snapshot, members: list[int]) -> StoredLogits:
    assert snapshot.stored_logits is not None
    return StoredLogits(
        snapshot.stored_logits.index[members],
        snapshot.stored_logits.logits[members],
        snapshot.stored_logits.place[members],
    )


def channel_cosine(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """The mean cosine of each member over the output channels along `axis` with non-zero gradients: (K, …) → (K,)."""
    a, b = (gradient.double().movedim(axis, 1).flatten(2) for gradient in (a, b))
    cosines: Tensor = (a * b).sum(2) / (a.norm(dim=2) * b.norm(dim=2))
    return cosines.nanmean(1)  # 0 / 0 is left out
