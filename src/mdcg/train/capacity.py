"""How many members fit into a GPU's memory: by a rough count or, where that is too much, by a trial of one."""

from __future__ import annotations

import gc
from dataclasses import replace

import torch

from mdcg.models import kernels
from mdcg.models.backbones import MEMBERED, has_kernels
from mdcg.models.heads import grown_head
from mdcg.models.resnet import ResNet
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.evaluate import EVAL_BATCH
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import Compute

USABLE = 0.7  # of the free memory: allocators cut it into blocks, and others may want some
# For the rough count:
MAPS = 3  # times the maps of one forward pass: these, their gradients, a teacher's
WEIGHTS = 8  # numbers for each weight: it, its velocity and gradient, a teacher's, the kernels' copies, partial sums
NUMBER = 4  # bytes


class Meter:
    """Measures the memory of the current GPU, in bytes, or of a share of it, where others have the rest."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share

    def free(self) -> int:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return max(0, min(free, int(self.share * total) - torch.cuda.memory_reserved()))

    def used(self) -> int:
        return torch.cuda.memory_allocated()

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()


def surely_fit(group: Group, compute: Compute, meter: Meter) -> bool:
    """Whether all members fit even if they took as much as `rough_bytes`; where that cannot be told, False.

    A trial would wait for all kernels to be compiled, where the first step needs only some.
    """
    count = rough_bytes(group, compute) if compute.fused else None
    return count is not None and count <= USABLE * meter.free()


def rough_bytes(group: Group, compute: Compute) -> int | None:
    """The bytes of a group that the fused kernels train by SGD: a count, well above what it takes; of others None."""
    training, (channels, high, wide) = group.training, group.dataset.shape
    with torch.device("meta"):
        backbone = MEMBERED[training.backbone](1, channels) if has_kernels(training.backbone) else None
    tasks, classes = len(group.sizes), sum(group.sizes)
    images = max(EVAL_BATCH, sum(group.passes(tasks - 1)))
    if not isinstance(backbone, ResNet) or not kernels.fit(images * high * wide * backbone.conv.outputs, wide):
        return None
    if training.optimizer != "sgd" or group.method.gradient_per_task:
        return None
    head = grown_head(training.head, backbone.features, group.sizes)
    weights = [sum(weight.numel() for weight in part.parameters()) for part in (backbone, head)]
    units = weights[1] // backbone.features  # outputs and gates
    maps = backbone.map_elements(max(high, wide)) * compute.maps.itemsize + units * NUMBER
    logits = max(member.memory for member in group.members) * classes  # that are kept with the memory's images
    each = MAPS * images * maps + (WEIGHTS * sum(weights) + logits) * NUMBER
    shared = group.dataset.train.images.nbytes + group.dataset.test.images.nbytes + units * classes * NUMBER
    return len(group.members) * each + shared


def members_that_fit(group: Group, compute: Compute, meter: Meter | None = None) -> int:
    """The number of members that fit, at least one; a step of the last task and a batch of evaluation are tried."""
    meter = meter or Meter()
    alone = replace(group, members=group.members[:1])
    trainer = Trainer(alone, compute)  # has the images to the end: they are in no member's share, nor in what is free
    before = meter.used()
    meter.restart()
    state = states.fresh(alone, compute)
    with compute.settings(group.threads):
        for task in range(len(group.sizes) - 1):
            state.task = task
            states.begin_task(state, alone)
            states.end_task(state, alone)
        state.task = len(group.sizes) - 1
        trainer.begin_task(state)
        draws = draw_epoch(alone, state.memories, state.task, 0).to(compute.device)
        trainer.train_step(state, draws, 0, resting=True)  # which takes most
        with torch.no_grad(), compute.autocast():
            images = torch.zeros(1, EVAL_BATCH, *group.dataset.shape, device=compute.device, dtype=compute.dtype)
            state.model.eval().logits(images)
    each = max(1, meter.peak() - before)
    trainer.forget_task()
    del state, draws, images
    return max(1, int(USABLE * meter.free() / each))


def forget_peak(compute: Compute) -> None:
    """Let the peak of memory that is noted of the next group be its own."""
    if compute.device.type == "cuda":
        Meter().restart()


def release_memory(compute: Compute) -> None:
    """Give back the memory that nothing refers to any more."""
    if compute.device.type == "cuda" and not torch.cuda.memory_reserved():
        return  # as before the first group, which need not wait for a collection: a tenth of a second
    gc.collect()
    if compute.device.type == "cuda":
        torch.cuda.empty_cache()
