"""A rehearsal: a group's steps without a GPU, where kernels are only asked for, to have them compiled before the first.

It takes place on the CPU, with few members, and what is not a kernel is really done there: little, and its results mean
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from mdcg.data.stand_in import blackened
from mdcg.models.backbones import has_kernels
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.evaluate import EVAL_BATCH, logits_of
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import Compute
from mdcg.train.state import State

logger = logging.getLogger(__name__)
_played: list[object] = []  # all that this process has asked for, and need not ask for again


@dataclass(frozen=True)
class Stage(Compute):
    """The CPU, in the precision of a GPU."""

    real: Compute

    def autocast(self) -> torch.autocast:
        """The context in which the kernels are those of the GPU; for what the CPU does it means nothing."""
        return self.real.autocast()


def rehearse(group: Group, compute: Compute) -> None:
    """Have compiled what a run's steps and evaluations launch, where they use the fused kernels."""
    # Kernels are the same for any number of members; only where tasks become members too, one is a special case.
    few = replace(group, members=group.members[: 2 if group.method.gradient_per_task else 1])
    look = group.dataset.shape, group.dataset.padding, group.dataset.flip
    piece = (replace(group.training, weights=None), few.members, group.sizes, look, compute)
    if piece in _played:
        return
    last = len(group.sizes) - 1
    if group.method.gradient_per_task:  # its steps take all past tasks apart, and are not cheap: three must do
        tasks = {0, 1, 2}  # with no past task, with one, and with several
    else:  # kernels change when the classes have doubled
        tasks = {last, *(2**power - 1 for power in range(last.bit_length() + 1))}
    if _rehearse(few, compute, lambda stage: states.fresh(few, stage), {task for task in tasks if task <= last}):
        _played.append(piece)


def rehearse_task(group: Group, compute: Compute, begin: Callable[[Compute], State]) -> None:
    """Have compiled what the next task's steps launch, given how its state is made."""
    _rehearse(group, compute, begin, None)


def _rehearse(group: Group, compute: Compute, begin: Callable[[Compute], State], tasks: Collection[int] | None) -> bool:
    """Make a step of some tasks, or of the one that comes next; return whether that could be done."""
    if not (compute.fused and has_kernels(group.training.backbone)) or torch.version.hip is not None:
        return False
    from mdcg.models.kernels.launch import compile_ahead

    # Not the images themselves: they lie in a file, at addresses of another kind than on a GPU, which kernels go by.
    group = replace(group, dataset=blackened(group.dataset))
    stage = Stage(torch.device("cpu"), compute.precision, compute)
    try:
        state = begin(stage)
        trainer = Trainer(group, stage)
        # One thread: several would wait for each other, since the cores are compiling.
        with torch.random.fork_rng(devices=[]), compute.settings(threads=1), compile_ahead():
            if tasks is None:
                _try(trainer, state)
            for state.task in range(max(tasks) + 1 if tasks else 0):
                if tasks and state.task in tasks:
                    _try(trainer, state)
                else:
                    states.grow(state, group)
                states.end_task(state, group)
    except Exception as error:  # a method or network of a user's: what it needs is compiled when it is launched
        logger.debug("could not be rehearsed: %s", error, exc_info=True)
        return False
    return True


def _try(trainer: Trainer, state: State) -> None:
    """Make a step as all steps are, one as if members rested, and evaluate."""
    if not state.begun:
        trainer.begin_task(state)
    trainer.forget_task()
    state.model.train()
    draws = draw_epoch(trainer.group, state.memories, state.task, 0)
    for resting in (False, True):
        trainer.train_step(state, draws, 0, resting)
    index = torch.zeros(len(trainer.group.members), EVAL_BATCH, dtype=torch.int64)
    logits_of(state.model, trainer.images, index, trainer.pixels, trainer.compute)
