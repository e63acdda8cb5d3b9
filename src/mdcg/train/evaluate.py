"""The evaluation: what the model answers, and how often it is right, in large batches of unaugmented images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from mdcg.draws import Ints
from mdcg.models import Model
from mdcg.train.augment import Pixels
from mdcg.train.group import Group
from mdcg.train.precision import Compute

Ask = Callable[[Tensor], Tensor]  # of a model in evaluation mode
EVAL_BATCH = 256  # images of each member; fixed, so that rounding does not depend on the company


@torch.no_grad()
def logits_of(model: Model, images: Tensor, index: Tensor, pixels: Pixels, compute: Compute) -> Tensor:
    """The logits (K, n, outputs) of images (K, n)."""
    return _of_all(model, model.logits, images, index, pixels, compute)


@torch.no_grad()
def features_of(model: Model, images: Tensor, index: Tensor, pixels: Pixels, compute: Compute) -> Tensor:
    """The features (K, n, features) of images (K, n): what the head is given."""
    return _of_all(model, model.features, images, index, pixels, compute)


@torch.no_grad()
def evaluate(model: Model, images: Tensor, group: Group, pixels: Pixels, compute: Compute) -> Ints:
    """Count correct predictions (K, classes) on the images of all classes learned so far."""
    seen = model.head.classes
    lists = [view.eval_indices_of(seen) for view in group.views]
    members, longest = len(lists), max(len(indices) for indices in lists)
    longest = -(-longest // EVAL_BATCH) * EVAL_BATCH
    index = np.zeros((members, longest), np.int64)
    labels = np.zeros((members, longest), np.int64)
    real = np.zeros((members, longest), np.int64)  # lists differ in length: the rest does not count
    for k, (indices, view) in enumerate(zip(lists, group.views, strict=True)):
        index[k, : len(indices)] = indices
        labels[k, : len(indices)] = view.eval_positions[indices]
        real[k, : len(indices)] = 1
    all_index, all_labels, all_real = compute.put(index), compute.put(labels), compute.put(real)
    correct = torch.zeros(members, group.classes, dtype=torch.int64, device=compute.device)
    for part, logits in _in_batches(model, model.logits, images, all_index, pixels, compute):
        predicted = logits[..., :seen].argmax(-1)  # nobody expects a class that was never seen
        hit = (predicted == all_labels[:, part]) * all_real[:, part]
        correct.scatter_add_(1, all_labels[:, part], hit)
    return correct.cpu().numpy()


def _of_all(model: Model, ask: Ask, images: Tensor, index: Tensor, pixels: Pixels, compute: Compute) -> Tensor:
    missing = -index.shape[1] % EVAL_BATCH
    whole = torch.cat([index, index[:, :1].expand(-1, missing)], 1)
    parts = [found for _, found in _in_batches(model, ask, images, whole.to(compute.device), pixels, compute)]
    return torch.cat(parts, 1)[:, : index.shape[1]]


def _in_batches(
    model: Model, ask: Ask, images: Tensor, index: Tensor, pixels: Pixels, compute: Compute
) -> Iterator[tuple[slice, Tensor]]:
    """The places and answers of one batch after the other; `index` (K, n) has whole batches."""
    was_training = model.training
    model.eval()
    for start in range(0, index.shape[1], EVAL_BATCH):
        part = slice(start, start + EVAL_BATCH)
        x = pixels.normalise(images[index[:, part]])
        with compute.autocast():
            found = ask(x)
        yield part, found
    model.train(was_training)
