"""The schema of a checkpoint: what it may hold, and how that must fit the group that is to go on with it.

All of it is checked before a network is made or grown, so that no number of a damaged file decides how much memory is
taken or how long is trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter
from torch import Tensor

from mdcg.models import HEADS
from mdcg.stored import Count, Counted, NotNegative, plain
from mdcg.tensors import below
from mdcg.train.epoch import steps_per_epoch
from mdcg.train.group import Group
from mdcg.train.optimizer import fits, is_kind

OWN = ("memory.", "second.", "measured.")  # tensors of each member apart, for they differ in length


class Epoch(BaseModel):
    """A row of the history: of a run that fails, its loss is no number."""

    model_config = ConfigDict(extra="allow")

    task: Counted
    epoch: Counted
    loss: float
    train_accuracy: float


class Look(BaseModel):
    """A row of what a probe measured."""

    model_config = ConfigDict(extra="allow")

    probe: str
    task: Counted
    epoch: Count
    step: Count


Rows = Annotated[list[dict[str, Any]], AfterValidator(lambda rows: plain(rows, finite=False))]
_EPOCHS, _LOOKS = TypeAdapter(list[Epoch]), TypeAdapter(list[Look])


class CheckpointHeader(BaseModel):
    """What a checkpoint says beside its tensors, see `state.dump`."""

    task: Count
    epoch: Count
    step: Count
    seconds: NotNegative
    forked: bool
    begun: bool
    within: list[list[tuple[Count, NotNegative]]]
    sizes: list[Counted]
    has_teacher: bool
    has_start: bool
    memories: dict[str, list[tuple[Count, Count]]]
    history: list[Rows]
    measuring: dict[str, NotNegative]

    @property
    def members(self) -> int:
        """The number of members that it is of."""
        return len(self.history)


def check_whole(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> CheckpointHeader:
    """Refuse with a ValueError what is no checkpoint of any group."""
    header = CheckpointHeader.model_validate(values)
    together = [tensor for name, tensor in tensors.items() if not name.startswith(OWN)]
    _demand(
        0 < header.members == len(header.within)
        and all(tensor.ndim > 0 and len(tensor) == header.members for tensor in together),
        "its parts do not fit together",
    )
    for rows in header.history:
        _EPOCHS.validate_python(rows)
    return header


def check_fits(tensors: Mapping[str, Tensor], values: Mapping[str, Any], group: Group) -> None:
    """Refuse with a ValueError what is no checkpoint of this group."""
    header = check_whole(tensors, values)
    _demand(header.members == len(group.members), "it is of other runs")
    _check_place(header, group)
    _check_counts(tensors, group)
    _check_optimizer(tensors)
    for k in range(header.members):
        _LOOKS.validate_python(_rows(tensors, k))
        _check_memory(f"memory.{k}", k, header, tensors, group)
        if group.method.second_memory_size():
            _check_memory(f"second.{k}", k, header, tensors, group)
    _check_logits(header, tensors, group)


def _demand(so: bool, otherwise: str) -> None:
    if not so:
        raise ValueError(otherwise)


def _check_place(header: CheckpointHeader, group: Group) -> None:
    """Refuse a place in the training that there is not, and a head that is not that of this place."""
    task, stages = header.task, len(group.sizes)
    if task < stages:
        steps = int(steps_per_epoch(group, task).max())
        there = header.epoch < group.training.epochs and header.step <= steps
    else:
        there = task == stages and not (header.epoch or header.step or header.begun)
    _demand(there, "there is no such task, epoch or step")
    known = group.modules(task) if header.begun else group.modules(task - 1) if task else 0
    _demand(header.sizes == [size for size in group.sizes[:known] if size], "its head is of another task")
    if not group.looks_ahead:  # where a teacher may stay for several stages
        taught = group.method.needs_teacher() and header.begun and task > 0
        _demand(header.has_teacher == taught, "its teacher is of another task")
    _demand(header.begun or not header.has_start, "its parts do not fit together")


def _check_counts(tensors: Mapping[str, Tensor], group: Group) -> None:
    """Refuse counts that cannot be."""
    members, classes = len(group.members), group.classes
    correct, hits = tensors["correct"], tensors["hits"]
    _demand(
        (correct.dtype, correct.shape) == (torch.int64, (members, group.training.tasks, classes))
        and (hits.dtype, hits.shape) == (torch.int64, (members,))
        and (tensors["loss_sum"].is_floating_point(), tensors["loss_sum"].shape) == (True, (members,)),
        "its counts are of other types or shapes",
    )
    most = np.stack([view.eval_total for view in group.views])[:, None]
    found = correct.numpy()
    _demand(bool((found >= 0).all() and (found <= most).all() and (hits >= 0).all()), "its counts cannot be")


def _check_optimizer(tensors: Mapping[str, Tensor]) -> None:
    """Refuse what an optimiser cannot have remembered of these weights."""
    shapes = {name: tensor.shape for name, tensor in below("model.", tensors).items()}
    for name, tensor in tensors.items():
        kind, _, parameter = name.partition(".")
        if is_kind(kind):
            fit = parameter in shapes and fits(kind, tensor, shapes[parameter]) and tensor.is_floating_point()
            _demand(fit, "what its optimiser remembers does not fit its network")


def _rows(tensors: Mapping[str, Tensor], k: int) -> Any:
    """The rows that probes measured of a member."""
    held = tensors[f"measured.{k}"]
    _demand(held.dtype == torch.uint8, "what probes measured is damaged")
    try:
        return plain(json.loads(held.numpy().tobytes()), finite=False)
    except RecursionError as error:
        raise ValueError("what probes measured is damaged") from error


def _check_memory(name: str, k: int, header: CheckpointHeader, tensors: Mapping[str, Tensor], group: Group) -> None:
    """Refuse a memory of images that there are not, or that are of other classes."""
    kept, held = header.memories[name], tensors[name]
    counts = [count for _, count in kept]
    _demand(
        (held.dtype, held.ndim) == (torch.int64, 1)
        and sum(counts) == len(held)
        and len({position for position, _ in kept}) == len(kept),
        "its memory does not fit together",
    )
    index, positions = held.numpy(), np.repeat(np.array([position for position, _ in kept], np.int64), counts)
    there = len(index) == 0 or bool(index.min() >= 0 and index.max() < len(group.dataset.train))
    _demand(there and bool((group.views[k].train_positions[index] == positions).all()), "its memory is of other images")
    needed = group.method.uses_memory and header.task > 0 and group.members[k].memory > 0
    _demand(len(index) > 0 or not needed, "its memory is empty")


def _check_logits(header: CheckpointHeader, tensors: Mapping[str, Tensor], group: Group) -> None:
    """Refuse stored logits that are not those of the memory's images."""
    index, logits = tensors.get("kept.index"), tensors.get("kept.logits")
    needed = group.method.stores_logits and header.begun and (header.task > 0 or group.online)
    _demand((index is None) == (logits is None) and not (needed and index is None), "its logits are missing")
    if index is None or logits is None:
        return
    outputs = HEADS[group.training.head].capacity(group.outputs)
    _demand(
        (index.dtype, index.ndim) == (torch.int64, 2)
        and logits.is_floating_point()
        and logits.shape == (*index.shape, outputs)
        and (not index.numel() or 0 <= int(index.min()) <= int(index.max()) < len(group.dataset.train))
        and (not group.online or index.shape[1] == group.places + 1),
        "its logits do not fit its memory",
    )
    if needed and not group.online:
        held = all(np.isin(tensors[f"memory.{k}"].numpy(), index[k].numpy()).all() for k in range(header.members))
        _demand(held, "its logits do not fit its memory")
