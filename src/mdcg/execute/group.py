"""The training of a group of specs, to finished runs in the store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from mdcg.errors import MdcgError
from mdcg.execute.context import Context
from mdcg.execute.cost import group_of
from mdcg.execute.observer import Observer
from mdcg.execute.plan import checked_probes
from mdcg.execute.unfinished import group_folder, is_begun, note_group
from mdcg.files import locked
from mdcg.header import refuse_unkeepable
from mdcg.probes import ProbeSet
from mdcg.runs.environment import environment
from mdcg.runs.failures import forget_failure
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Measurements
from mdcg.saved import SavedModel, setup_of
from mdcg.train import state as states
from mdcg.train.capacity import Meter, forget_peak, members_that_fit, release_memory, surely_fit
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.device_errors import OutOfMemory, device_errors_explained
from mdcg.train.fork import fork, founders
from mdcg.train.group import Group
from mdcg.train.images import kept_on_device
from mdcg.train.loop import Trainer, steps_done, total_steps
from mdcg.train.precision import Compute
from mdcg.train.rehearsal import rehearse
from mdcg.train.signals import Stopped, StopSignals
from mdcg.train.state import State

logger = logging.getLogger(__name__)
Specs = Sequence[RunSpec]


def train_group(specs: Specs, context: Context) -> dict[str, str]:
    """Train runs of one group to their end, in parts where memory is short; return by name why some of them failed."""
    store, compute = context.store, context.compute(specs[0])
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_on_device())  # the images, from the trial of memory to the last part
        for spec in specs:
            stack.enter_context(locked(store.folder(spec)))
            store.tidy(spec)
            forget_failure(store, spec)
        rehearse(_group(specs, context), compute)
        queue = [(specs, context.fresh)]
        while queue:
            together, anew = queue.pop(0)
            release_memory(compute)
            most = context.members or _capacity(together, context)
            if most < len(together):
                parts = _take_apart(together, -(-len(together) // most), context, anew)
                queue[:0] = [(part, anew) for part in parts]
                continue
            try:
                failures |= _train_together(together, context, anew)
                continue
            except OutOfMemory as shortage:
                if len(together) == 1:
                    raise MdcgError(_too_large(together[0])) from shortage
            # Out of the handler: the error no longer holds on to what filled the memory.
            halves = _take_apart(together, 2, context, anew=False)
            logger.warning(
                "the memory is too small for %s runs together; going on with %s.", len(together), len(halves[0])
            )
            queue[:0] = [(half, False) for half in halves]
    return failures


def _too_large(spec: RunSpec) -> str:
    whole = spec.built_method().gradient_per_task  # its steps bring all of it
    return f"the memory is too small for this; try a smaller --batch-size{' or --memory' if whole else ''}."


def _capacity(specs: Specs, context: Context) -> int:
    """The number of runs that fit into memory together; a group that was begun did fit."""
    compute = context.compute(specs[0])
    if compute.device.type != "cuda" or len(specs) == 1 or is_begun(context.store, specs):
        return len(specs)
    group, meter = _group(specs, context), Meter(context.gpu_share)
    with contextlib.suppress(OutOfMemory), device_errors_explained():
        return len(specs) if surely_fit(group, compute, meter) else members_that_fit(group, compute, meter)
    release_memory(compute)
    return 1  # which will say that not even one fits


def _group(specs: Specs, context: Context) -> Group:
    digest = specs[0].weights
    return group_of(specs, context.dataset(specs[0]), context.weights[digest] if digest else None)


def _train_together(specs: Specs, context: Context, anew: bool) -> dict[str, str]:
    """Train a group to its end and store its runs; return by name what went wrong with single members."""
    store, compute = context.store, context.compute(specs[0])
    group = _group(specs, context)
    for k, view in enumerate(group.views):
        names = [group.dataset.class_names[label] for label in view.scenario.order]
        refuse_unkeepable(setup_of(group, k, group.outputs), names, [size for size in group.sizes if size], {})
    forget_peak(compute)
    checkpoints = Checkpoints(group_folder(store, specs))
    with contextlib.ExitStack() as stack:
        if anew:
            checkpoints.discard()
            for spec in specs:
                store.forget(spec)
        elif all(store.finished(spec) for spec in specs):  # by another process, since the plan was made
            checkpoints.discard()
            return {}
        if not is_begun(store, specs):
            note_group(store, specs)
        stop = stack.enter_context(StopSignals())
        observer = stack.enter_context(Observer(specs, context))
        try:
            with device_errors_explained():
                probes = checked_probes(specs, context)
                state = _train(group, compute, checkpoints, stop, observer, probes, title_of(specs))
        except Stopped as stopped:
            raise _stopped_by(stop, stopped) from None
        failures = state.failures(group)
        for k, spec in enumerate(specs):
            if k not in failures:
                record = store.stored(spec)  # if it was stored before the group was interrupted
                if record is None:
                    record = _record(spec, group, state, k, compute)
                    measured = {name: _measurements(state, k, name) for name in store.probes}
                    store.write(record, SavedModel.of(group, state, k, context.pixels), measured)
                observer.end(k, record)
        checkpoints.discard()
        if stop.requested():  # too late to stop this group, but not to leave the next ones
            raise _stopped_by(stop, Stopped(f"stopped after {title_of(specs)}"))
        return {specs[k].name: reason for k, reason in failures.items()}


def _train(
    group: Group,
    compute: Compute,
    checkpoints: Checkpoints,
    stop: StopSignals,
    observer: Observer,
    probes: ProbeSet,
    title: str,
) -> State:
    """Train from the newest checkpoint, or from the beginning, to the end."""
    first, parents = founders(group)
    # The newest state is the group's, or that of the founders who train its first task.
    restored = checkpoints.restore(lambda values: group if values["forked"] else first, compute)
    state = restored or states.fresh(first, compute)
    total, done = total_steps(group), steps_done(group, state)
    if 0 < done < total:
        logger.info("going on with %s in task %s, epoch %s.", title, state.task + 1, state.epoch + 1)
    observer.begin(title, group, total, done, state.task * group.training.epochs + state.epoch)

    def trainer_of(members: Group, rows: Sequence[int]) -> Trainer:
        return Trainer(members, compute, checkpoints.save, stop.requested, observer.of(rows), probes)

    if not state.forked:
        # Nothing refers to the founders' trainer any longer when the next one is made.
        state = fork(trainer_of(first, parents).train(state, tasks=1), group, parents, compute)
    return trainer_of(group, range(len(group.members))).train(state)


def _take_apart(specs: Specs, parts: int, context: Context, anew: bool) -> list[Specs]:
    """Split a group into parts that go on where the whole was, unless they are to begin anew."""
    ends = [len(specs) * (part + 1) // parts for part in range(parts)]
    pieces = [specs[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if not anew:
        for piece in pieces:
            _hand_over(specs, piece, context)
    Checkpoints(group_folder(context.store, specs)).discard()
    return pieces


def _hand_over(specs: Specs, part: Specs, context: Context) -> None:
    """Let a part of a group go on where the whole was."""
    saved = Checkpoints(group_folder(context.store, specs)).newest()
    if saved is None:
        return
    _, tensors, values = saved
    chosen = [list(specs).index(spec) for spec in part]
    if not values["forked"]:
        parents = founders(_group(specs, context))[1]
        chosen = list(dict.fromkeys(parents[member] for member in chosen))
    if max(chosen) >= len(values["history"]):  # it is of other runs: the part begins anew
        return
    share = len(part) / len(specs)  # of the time, for which each part answers
    values["seconds"] *= share
    values["measuring"] = {probe: share * seconds for probe, seconds in values["measuring"].items()}
    note_group(context.store, part)
    Checkpoints(group_folder(context.store, part)).save(*states.select_members(tensors, values, chosen))


def _stopped_by(stop: StopSignals, stopped: Stopped) -> Stopped:
    stopped.signal = stop.signal or stopped.signal
    return stopped


def _record(spec: RunSpec, group: Group, state: State, k: int, compute: Compute) -> Record:
    view = group.views[k]
    order = view.scenario.order
    return Record(
        spec=spec,
        sizes=list(view.scenario.sizes),
        tasks=None if view.scenario.tasks is None else [list(own) for own in view.scenario.tasks],
        order=list(order),
        class_names=[group.dataset.class_names[label] for label in order],
        correct=state.correct[k].tolist(),
        total=view.eval_total.tolist(),
        memory={position: kept.tolist() for position, kept in state.memories[k].by_class.items()},
        history=state.history[k],
        seconds=state.seconds / len(group.members),
        members=len(group.members),
        environment=environment(compute, group.threads),
    )


def _measurements(state: State, k: int, probe: str) -> Measurements:
    rows = [
        {key: value for key, value in row.items() if key != "probe"}
        for row in state.measured[k]
        if row["probe"] == probe
    ]
    return Measurements(rows=rows, seconds=state.measuring.get(probe, 0.0) / len(state.measured))


def title_of(specs: Specs) -> str:
    """The name of a group while it trains."""
    first = specs[0]
    return f"{first.method} on {first.task_sequence}" + (f" ({len(specs)} runs)" if len(specs) > 1 else "")
