"""The state: everything that changes while a group trains, and its form on disk."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdcg.draws import Ints, Purpose, stream
from mdcg.memory import Memory, share_of_task
from mdcg.models import Model, build_model
from mdcg.stored import HUGE
from mdcg.tensors import below, check_kinds
from mdcg.train.checked import OWN
from mdcg.train.group import Group
from mdcg.train.optimizer import Optimizer, make_optimizer
from mdcg.train.precision import Compute
from mdcg.train.stored_logits import StoredLogits

HistoryRow = dict[str, Any]  # of one epoch: its losses and accuracies
MeasuredRow = dict[str, Any]  # of one look of a probe: when it looked, and what it measured
PlainValues = dict[str, Any]  # what a checkpoint holds beside tensors, fit for JSON


@dataclass
class State:
    """The state of a group. (task, epoch, step) is what comes next; `begun` says whether the head has its classes.

    A task here is a stage (`online.Stages`): the same, unless a method finds its tasks by itself. `correct` and the
    history go by the stream's tasks. Until it is `forked`, after task 1, the state is that of the group's founders.
    """

    model: Model
    optimizer: Optimizer
    memories: list[Memory]
    correct: Ints  # (K, tasks, classes): correct predictions after each task
    loss_sum: Tensor  # (K,) over the steps of the current epoch
    hits: Tensor  # (K,) correct among the current images of the epoch
    history: list[list[HistoryRow]]  # per member, one row per epoch
    measured: list[list[MeasuredRow]]  # per member, one row per look of a probe
    within: list[list[tuple[int, float]]]  # per member, (step, accuracy) of evaluations within the current epoch
    measuring: dict[str, float] = field(default_factory=dict)  # seconds of each probe, of the whole group
    teacher: Model | None = None
    start: Model | None = None  # the model as it was when the task began, for probes that need it
    stored_logits: StoredLogits | None = None
    task: int = 0
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    forked: bool = False
    begun: bool = False  # the current task

    def failures(self, group: Group) -> dict[int, str]:
        """The members whose loss was not finite, and what to say of each. They harm nobody else in the group."""
        found = {}
        for k, (member, rows) in enumerate(zip(group.members, self.history, strict=True)):
            broken = next((row for row in rows if not abs(row["loss"]) <= HUGE), None)
            if broken is not None:
                weights = {name: value for name, value in member.method.model_dump().items() if type(value) is float}
                about = {"seed": member.seed, "memory": member.memory, **weights, **group.differing(member)}
                who = ", ".join(f"{key} {value}" for key, value in about.items() if value or key != "memory")
                found[k] = (
                    f"the loss of {who} is not finite in task {broken['task']}, epoch {broken['epoch']}; "
                    "lower the learning rate or the method's weights, and check the images."
                )
        return found


def fresh(group: Group, compute: Compute) -> State:
    """The state of a group before task 1."""
    training, members = group.training, group.members
    with compute.settings(threads=1):  # several would wait for each other while the cores compile kernels
        model = _new_model(group)
    return State(
        model=model.to(compute.device, compute.dtype),
        optimizer=make_optimizer(group, compute),
        memories=empty_memories(group),
        correct=np.zeros((len(members), training.tasks, group.classes), np.int64),
        loss_sum=torch.zeros(len(members), device=compute.device, dtype=compute.dtype),
        hits=torch.zeros(len(members), device=compute.device, dtype=torch.int64),
        history=[[] for _ in members],
        measured=[[] for _ in members],
        within=[[] for _ in members],
    )


def empty_memories(group: Group) -> list[Memory]:
    second = group.method.second_memory_size()
    return [Memory(member.memory, second=Memory(second) if second else None) for member in group.members]


def _new_model(group: Group) -> Model:
    """Make a model without classes from its members' seeds and the file of weights."""
    training, members = group.training, group.members
    settings = {name: [member.head_settings[name] for member in members] for name in members[0].head_settings}
    seeds = [member.seed for member in members]
    model = build_model(
        training.backbone,
        training.head,
        group.dataset.shape,
        seeds,
        settings,
        classes=group.outputs,
        trained=not group.frozen,
    )
    if training.weights is not None:
        training.weights.into(model.backbone)
    if group.frozen:
        model.freeze()
    return model


def begin_task(state: State, group: Group) -> None:
    """Grow the head, then fix the teacher: the model just before the task's training (Section 3.1)."""
    if group.method.fills_memory_first() and not group.online:
        fill_memories(state, group, state.task)
    if group.method.starts_anew and state.task > 0:
        state.model, known = _new_model(group).to(state.loss_sum), state.model.head.sizes
        state.optimizer.forget()
        for size in known:
            state.model.grow(size)
    grow(state, group)
    state.begun = True
    _take_up(state)
    if group.method.needs_teacher() and state.task > 0 and group.begins_anew(state.task):
        state.teacher = frozen_copy(state.model)


def grow(state: State, group: Group) -> None:
    """Make room in the head for the classes of the current task."""
    for task in range(group.modules(state.task - 1) if state.task else 0, group.modules(state.task)):
        if group.sizes[task]:
            state.model.grow(group.sizes[task])


def _take_up(state: State) -> None:
    """Let the optimiser have the parameters as they are now."""
    backbone = state.model.resnet()
    state.optimizer.follow(state.model.named_parameters(), backbone.convolutions() if backbone else ())


def frozen_copy(model: Model) -> Model:
    """Make a copy of the model as it is now, which never changes."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def end_task(state: State, group: Group) -> None:
    """Let go of the teacher, and keep a random subset of the task's images in memory."""
    if state.task + 1 == len(group.sizes) or group.begins_anew(state.task + 1):
        state.teacher = state.start = None
    state.begun = False
    _take_in(state, group)


def memories_after(state: State, group: Group) -> list[Memory]:
    """The memories as they will be when the current task has ended."""
    later = replace(state, memories=copy.deepcopy(state.memories))
    _take_in(later, group)
    return later.memories


def _take_in(state: State, group: Group) -> None:
    """Let the memories have images of the current task, if they have none yet."""
    if group.online or not group.method.fills_memory_first():
        fill_memories(state, group, state.task)


def fill_memories(state: State, group: Group, task: int) -> None:
    """Add the images of a task to the memories."""
    if not group.method.uses_memory:
        return
    if group.online:
        _take_over_reservoirs(state, group, task)
        return
    for memory, member, view in zip(state.memories, group.members, group.views, strict=True):
        share = share_of_task(memory.size, group.training.tasks, task) if group.method.gradient_per_task else None
        arrived = view.arrivals(task)
        _add(memory, arrived, stream(member.seed, Purpose.KEEP, task), share)
        if memory.second is not None:
            _add(memory.second, arrived, stream(member.seed, Purpose.KEEP_SECOND, task))


def _add(memory: Memory, arrived: dict[int, Ints], rng: np.random.Generator, share: int | None = None) -> None:
    known = {position: images for position, images in arrived.items() if position in memory.by_class}
    memory.add({position: images for position, images in arrived.items() if position not in known}, rng, share)
    if known:
        memory.refresh(known, rng)


def _take_over_reservoirs(state: State, group: Group, task: int) -> None:
    """Let the memories, and the logits kept with them, be what the online streams hold after a task."""
    index = np.zeros((len(group.members), group.places + 1), np.int64)
    for k, (coming, view) in enumerate(zip(group.streams, group.views, strict=True)):
        held = coming.held(int(coming.starts[task + 1]))
        images = coming.images[held[held >= 0]]  # the places are filled one after the other
        positions = view.train_positions[images]
        state.memories[k].by_class = {int(c): images[positions == c] for c in np.unique(positions)}
        index[k] = np.resize(images, group.places + 1)
        index[k, : len(images)] = images
    if state.stored_logits is not None:
        state.stored_logits = StoredLogits.of(
            torch.from_numpy(index), state.stored_logits.logits, len(group.dataset.train)
        )


def dump(state: State) -> tuple[dict[str, Tensor], PlainValues]:
    """Turn the state into tensors and plain values."""
    tensors = {
        "correct": torch.from_numpy(state.correct.copy()),
        "loss_sum": state.loss_sum,
        "hits": state.hits,
    }
    tensors |= {f"model.{name}": value for name, value in state.model.state_dict().items()}
    tensors |= state.optimizer.dump()
    for name, model in (("teacher", state.teacher), ("start", state.start)):
        if model is not None:
            tensors |= {f"{name}.{key}": value for key, value in model.state_dict().items()}
    if state.stored_logits is not None:
        tensors |= {"kept.index": state.stored_logits.index, "kept.logits": state.stored_logits.logits}
    held = _held(state.memories)
    tensors |= {name: torch.from_numpy(memory.indices()) for name, memory in held.items()}
    for k, rows in enumerate(state.measured):  # as bytes: they may be more than a header can hold
        tensors[f"measured.{k}"] = torch.frombuffer(bytearray(json.dumps(rows).encode()), dtype=torch.uint8)
    values = {
        "task": state.task,
        "epoch": state.epoch,
        "step": state.step,
        "seconds": state.seconds,
        "forked": state.forked,
        "begun": state.begun,
        "within": state.within,
        "sizes": state.model.head.sizes,
        "has_teacher": state.teacher is not None,
        "memories": {name: [(c, len(kept)) for c, kept in memory.by_class.items()] for name, memory in held.items()},
        "history": state.history,
        "has_start": state.start is not None,
        "measuring": state.measuring,
    }
    return tensors, values


def _fill(model: Model, weights: dict[str, Tensor]) -> None:
    check_kinds(weights, model.state_dict())
    model.load_state_dict(weights)


def _held(memories: Sequence[Memory]) -> dict[str, Memory]:
    """The memories of all members, by their names on disk."""
    second = {f"second.{k}": memory.second for k, memory in enumerate(memories) if memory.second is not None}
    return {f"memory.{k}": memory for k, memory in enumerate(memories)} | second


def select_members(
    tensors: dict[str, Tensor], values: PlainValues, members: Sequence[int]
) -> tuple[dict[str, Tensor], PlainValues]:
    """Select what `dump` would have given of these members alone; one may be named several times."""
    chosen = torch.tensor(members)
    picked = {name: tensor[chosen.to(tensor.device)] for name, tensor in tensors.items() if not name.startswith(OWN)}
    names = {f"{kind}{k}": f"{kind}{member}" for kind in OWN for k, member in enumerate(members)}
    picked |= {name: tensors[was] for name, was in names.items() if was in tensors}
    held = {name: list(values["memories"][was]) for name, was in names.items() if was in values["memories"]}
    history = [list(values["history"][member]) for member in members]
    within = [list(values["within"][member]) for member in members]
    return picked, {**values, "memories": held, "history": history, "within": within}


def restore(tensors: dict[str, Tensor], values: PlainValues, group: Group, compute: Compute) -> State:
    """Make the state from what `dump` wrote, on any device."""
    state = fresh(group, compute)
    for size in values["sizes"]:
        state.model.grow(size)
    if values["has_teacher"]:
        state.teacher = frozen_copy(state.model)
        _fill(state.teacher, below("teacher.", tensors))
    if values["has_start"]:
        state.start = frozen_copy(state.model)
        _fill(state.start, below("start.", tensors))
    _fill(state.model, below("model.", tensors))
    state.optimizer.load(tensors, compute.device)
    if values["sizes"]:
        _take_up(state)
    for name, memory in _held(state.memories).items():
        classes = values["memories"][name]
        parts = np.split(tensors[name].numpy(), np.cumsum([count for _, count in classes]))
        memory.by_class = {int(c): part for (c, _), part in zip(classes, parts, strict=False)}
    if "kept.index" in tensors:
        logits = tensors["kept.logits"].to(compute.device)
        state.stored_logits = StoredLogits.of(tensors["kept.index"], logits, len(group.dataset.train))
    state.correct = tensors["correct"].numpy().copy()
    state.loss_sum = tensors["loss_sum"].to(compute.device)
    state.hits = tensors["hits"].to(compute.device)
    state.history, state.measuring = values["history"], values["measuring"]
    state.measured = [json.loads(tensors[f"measured.{k}"].numpy().tobytes()) for k in range(len(group.members))]
    state.task, state.epoch, state.step = values["task"], values["epoch"], values["step"]
    state.seconds, state.forked, state.begun = values["seconds"], values["forked"], values["begun"]
    state.within = [[(step, accuracy) for step, accuracy in rows] for rows in values["within"]]
    return state
