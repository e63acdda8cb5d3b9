"""The gradients of every past task's memory, of many tasks in one pass.

A pass for each task is hundreds of launches for a few images. But a model of K members is K models side by side
already: here past tasks become members too, of a wider model that holds the same weights for each task. One forward and
one backward pass of it give what separate passes would: each task's images keep BatchNorm statistics of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mdcg.methods import Method, Step, stack
from mdcg.models import Model
from mdcg.train.group import Group
from mdcg.train.precision import Compute
from mdcg.train.smoothing import label_smoothing
from mdcg.train.state import State

AT_ONCE = 1024  # images of a member in one pass: with more a GPU is no faster, and its memory fills up


class PastTasks:
    """The memories of all tasks before a state's current one, in as few passes as may be.

    Made before the task's first step, and so before any graph; it holds nothing that does not follow from the state.
    """

    def __init__(self, state: State, group: Group, compute: Compute) -> None:
        self.model, self.task, self.compute = state.model, state.task, compute
        sizes = [draw.size for draw in group.memory_draws(state.task)]
        self.passes = list(passes(sizes, together(state.model, compute)))
        methods = [member.method for member in group.members]
        smoothing = label_smoothing(group, compute)
        self._wide = {tasks: WideModel(state.model, tasks, methods, compute, smoothing) for tasks, _ in self.passes}

    def is_of(self, state: State) -> bool:
        """Whether it was made for this model and task."""
        return self.model is state.model and self.task == state.task

    def gradients(self, images: Tensor, labels: Tensor, teacher: Model | None) -> Tensor:
        """The gradients of each past task, (K, tasks, P), given the memory's images (K, places, …), task after task."""
        found = [
            wide.gradients(images[:, places], labels[:, places], teacher, self.compute)
            for wide, places in self._places()
        ]
        return torch.cat(found, 1)

    def _places(self) -> Iterator[tuple[WideModel, slice]]:
        end = 0
        for tasks, size in self.passes:
            start, end = end, end + tasks * size
            yield self._wide[tasks], slice(start, end)


class WideModel:
    """A model with all members once for each of so many tasks: those of the first task, then of the second, etc."""

    def __init__(
        self, model: Model, tasks: int, methods: Sequence[Method], compute: Compute, smoothing: Tensor | None = None
    ) -> None:
        self.tasks = tasks
        self.smoothing = None if smoothing is None else smoothing.repeat(tasks)
        self.method = stack([*methods] * tasks, compute.device, compute.dtype)
        self.model = model.repeated(tasks).train()
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        members = len(model.seeds)
        self._from = [value for value in model.state_dict().values() for _ in range(tasks)]
        self._to = [part for value in self.model.state_dict().values() for part in value.split(members)]
        self._statistics = model.statistics()
        moved = [own.split(members) for own in self.model.statistics()]
        self._moved = [[own[task] for own in moved] for task in range(tasks)]
        self._retained = [1 if part is None else part for part in model.retained()]  # None: a task is by itself

    def apart(self, x: Tensor) -> Tensor:
        """Split the places of some tasks, member by member: (K, tasks·size, …) → (tasks·K, size, …)."""
        by_task: Tensor = x.unflatten(1, (self.tasks, -1))
        return by_task.transpose(0, 1).flatten(0, 1)

    def gradients(self, images: Tensor, labels: Tensor, teacher: Model | None, compute: Compute) -> Tensor:
        """The gradients of each task, (K, tasks, P); statistics of the copied model move on as by separate passes."""
        torch._foreach_copy_(self._to, self._from)
        taught = None
        with compute.autocast():
            logits = self.model.logits(self.apart(images))
            if teacher is not None and self.method.teacher_sees() == "all":
                with torch.no_grad():
                    taught = self.apart(teacher.logits(images))
        past = tuple(self.model.head.sizes[:-1])
        step = Step(
            logits,
            self.apart(labels),
            sum(past),
            teacher_current_logits=taught,
            past=past,
            smoothing=self.smoothing,
        )
        loss = self.method.loss(step)
        found = flat(torch.autograd.grad(loss.sum(), self.parameters, materialize_grads=True))
        self._move_statistics()
        by_task: Tensor = found.unflatten(0, (self.tasks, -1))
        return by_task.transpose(0, 1)

    @torch.no_grad()
    def _move_statistics(self) -> None:
        """Let the real model's statistics follow the tasks' images, one task after the other.

        A batch makes ρ s + b of a statistic s. The wide model has w = ρ s + b for each task's own b; where the tasks
        before have made s' of s, ρ s' + b is w + ρ (s' − s).
        """
        if not self._statistics:
            return
        now, *others = self._moved
        for moved in others:
            now = list(torch._foreach_sub(now, self._statistics))
            torch._foreach_mul_(now, self._retained)
            torch._foreach_add_(now, moved)
        torch._foreach_copy_(self._statistics, now)


def together(model: Model, compute: Compute) -> bool:
    """Whether tasks share a pass: on a GPU, and if it is known how the model's statistics move.

    On a CPU, where members are computed one by one, that would only take memory.
    """
    return compute.device.type != "cpu" and None not in model.retained()


def passes(sizes: Sequence[int], together: bool) -> Iterator[tuple[int, int]]:
    """The number of tasks of each pass and of images of each of these tasks, in turn; sizes as in `sizes`.

    >>> list(passes([300, 300, 300, 300, 299], together=True))
    [(2, 300), (2, 300), (1, 299)]
    """
    for size, equal in itertools.groupby(sizes):
        tasks = len(list(equal))
        count = -(-tasks // max(1, AT_ONCE // size)) if together else tasks
        ends = [tasks * number // count for number in range(count + 1)]
        yield from ((end - start, size) for start, end in itertools.pairwise(ends))


def flat(gradient: Sequence[Tensor]) -> Tensor:
    """Flatten gradients to one vector for each member, (K, P)."""
    return torch.cat([part.flatten(1) for part in gradient], 1)


def parts(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a vector into gradients again, the reverse of `flat`."""
    found = vector.split([part[0].numel() for part in like], 1)
    return [own.view(part.shape) for own, part in zip(found, like, strict=True)]
