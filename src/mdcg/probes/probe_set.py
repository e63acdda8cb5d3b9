"""The set of probes that look at runs; what they measure is kept with the runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch import Tensor

from mdcg.errors import FOREIGN, MdcgError, reason_of
from mdcg.methods import Method
from mdcg.models import HEADS
from mdcg.probes.base import PROBES, Probe, ProbeError, Snapshot
from mdcg.probes.untouched import untouched
from mdcg.stored import HUGE, LARGEST
from mdcg.train.device_errors import is_device_error
from mdcg.train.loop import Trainer
from mdcg.train.state import MeasuredRow, State

RESERVED = ("probe", "task", "epoch", "step")  # what every row has


class ProbeSet:
    """Probes that look at runs together, by name, as the loop knows them; perhaps with a `check` that each look has
    changed nothing."""

    def __init__(self, probes: Mapping[str, Probe], check: bool = False) -> None:
        self.probes, self.check = dict(probes), check

    @property
    def needs_start(self) -> bool:
        """Whether any probe compares with the model as it was when the task began."""
        return any(probe.needs_start for probe in self.probes.values())

    def next_look(self, step: int, last: int) -> int:
        """The next step of the epoch after which some probe looks, or its last."""
        return min([last, *((step // probe.every + 1) * probe.every for probe in self.probes.values() if probe.every)])

    def look(self, trainer: Trainer, state: State, epoch: int, step: int) -> None:
        """Let the probes look that want to, after so many epochs of the task and steps of the next."""
        epochs, training = trainer.group.training.epochs, state.model.training
        for name, probe in self.probes.items():
            between = step and not (probe.every and step % probe.every == 0)
            if between or not probe.wants(state.task, epoch, epochs):
                continue
            with untouched(name, trainer, state) if self.check else nullcontext():
                started = time.perf_counter()
                columns = _measured(name, probe, _snapshot(trainer, state, epoch, step))
                took = time.perf_counter() - started
            state.model.train(training)  # as it was, whatever the probe did
            for k, rows in enumerate(state.measured):
                row: MeasuredRow = {"probe": name, "task": state.task + 1, "epoch": epoch, "step": step}
                rows.append(row | {key: values[k] for key, values in columns.items()})
            state.measuring[name] = state.measuring.get(name, 0.0) + took


def probes_for(names: Sequence[str], methods: Mapping[tuple[str, str], Method], check: bool = False) -> ProbeSet:
    """Find probes by name; one that cannot look at some method, by its name and its head's, is refused before anything
    trains."""
    probes = {name: PROBES[name]() for name in dict.fromkeys(names)}
    for name, probe in probes.items():
        for (method, head), built in methods.items():
            if (reason := probe.unsuited(built, HEADS[head])) is not None:
                raise MdcgError(f"the probe {name} cannot look at {method}: {reason}; leave one of the two out.")
    return ProbeSet(probes, check)


def _snapshot(trainer: Trainer, state: State, epoch: int, step: int) -> Snapshot:
    return Snapshot(
        group=trainer.group,
        model=state.model,
        start=state.start,
        memories=state.memories,
        stored_logits=state.stored_logits,
        task=state.task,
        epoch=epoch,
        step=step,
        train_pixels=trainer.images,
        test_pixels=trainer.eval_images,
        pixels=trainer.pixels,
        compute=trainer.compute,
    )


def _measured(name: str, probe: Probe, snapshot: Snapshot) -> dict[str, list[Any]]:
    try:
        columns = {key: _plain(values) for key, values in probe.look(snapshot).items()}
    except FOREIGN as error:
        if is_device_error(error):
            raise
        raise ProbeError(
            f"the probe {name} failed ({type(error).__name__}: {reason_of(error)}); fix it, or leave it out."
        ) from error
    for key, values in columns.items():
        if key in RESERVED:
            raise ProbeError(f"the probe {name} calls a quantity '{key}', which every row has; choose another name.")
        if not isinstance(values, list) or len(values) != snapshot.members:
            count = len(values) if isinstance(values, list) else "no list of"
            raise ProbeError(
                f"the probe {name} gave {count} values of '{key}' for {snapshot.members} runs; it must give one for "
                "each."
            )
    return columns


def _plain(value: Any) -> Any:
    """Turn a value into numbers, words and lists of them, fit for JSON; what is not finite, or beyond all bounds, is
    None."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if abs(value) < HUGE else None
    if isinstance(value, int) and abs(value) > LARGEST:
        return None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"a {type(value).__name__} is no number, word or list of them")
