"""From a group of runs to finished records."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from mdcg.data import Dataset
from mdcg.errors import MdcgError
from mdcg.execute.plan import (
    Warn,
    default_members,
    group_folder,
    note_group,
    plan,
    say_what_is_repeated,
    silent,
    split,
    tidy,
)
from mdcg.execute.progress import Display, Progress
from mdcg.files import locked, remove_partial
from mdcg.learner import Learner
from mdcg.probes import Watch, made
from mdcg.recipes.presets import augmented
from mdcg.runs.environment import environment, source
from mdcg.runs.failures import forget_failure
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Measurements, Store
from mdcg.trackers import Followed, Outcome, Run, Telling, Tracker, opened
from mdcg.train import state as states
from mdcg.train.capacity import members_that_fit, release_memory
from mdcg.train.checkpoint import MEMBERS, Checkpoints
from mdcg.train.device_errors import Shortage, is_shortage, troubles_explained
from mdcg.train.fork import fork, founders
from mdcg.train.group import Group
from mdcg.train.loop import Trainer, steps_done, total_steps
from mdcg.train.precision import Compute
from mdcg.train.signals import Stopped, StopSignals
from mdcg.train.state import State


def run_specs(
    specs: Sequence[RunSpec],
    dataset: Dataset,
    compute: Compute,
    out: Path,
    *,
    fresh: bool = False,
    members: int | None = None,
    quiet: bool = False,
    warn: Warn = silent,
    trackers: Sequence[str | Tracker] = (),
    probes: Sequence[str] = (),
) -> list[Record]:
    """Finish every run that is not finished yet; their records, in the order asked for.

    Runs that can share a group train together, at most `members` at a time; `fresh` repeats finished ones;
    `trackers` are told of them as they train, `probes` look at them.
    """
    store, telling = Store(out, probes), Telling(opened(trackers), warn)
    probes_for(store, specs)
    source()  # now: the files may change while runs train
    done = 0 if fresh else sum(store.finished(spec) is not None for spec in specs)
    if done:
        warn(f"{done} of {len(specs)} runs were already finished; --fresh repeats them.")
    if not fresh:
        say_what_is_repeated(store, specs, warn)
        tidy(store, specs, warn)
    failures: dict[str, str] = {}
    for together in plan(store, specs, lambda _: members or default_members(dataset, compute.device.type), fresh, warn):
        with Progress(quiet) as display:
            failures |= train(together, store, dataset, compute, display, telling, fresh, members, warn)
    if failures:
        raise MdcgError(" ".join(dict.fromkeys(failures.values())))
    records = [store.finished(spec) for spec in specs]
    return [record for record in records if record is not None]


def train(
    specs: list[RunSpec],
    store: Store,
    dataset: Dataset,
    compute: Compute,
    display: Display,
    telling: Telling,
    fresh: bool,
    members: int | None,
    warn: Warn,
) -> dict[str, str]:
    """Train runs of one group to their end, in parts where memory is short; by name, why some of them failed."""
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for spec in specs:
            stack.enter_context(locked(store.folder(spec)))
            remove_partial(store.folder(spec))
            forget_failure(store, spec)
        queue = [(specs, fresh)]
        while queue:
            together, anew = queue.pop(0)
            release_memory(compute)
            most = members or _capacity(together, store, dataset, compute)
            if most < len(together):
                parts = _take_apart(together, -(-len(together) // most), store, dataset, anew, warn)
                queue[:0] = [(part, anew) for part in parts]
                continue
            try:
                failures |= _train_group(together, store, dataset, compute, anew, display, warn, telling)
                continue
            except Shortage as shortage:
                if len(together) == 1:
                    raise MdcgError(_too_large(together[0])) from shortage
            # Out of the handler: the error no longer holds on to what filled the memory.
            halves = _take_apart(together, 2, store, dataset, False, warn)
            warn(f"the memory is too small for {len(together)} runs together; going on with {len(halves[0])}.")
            queue[:0] = [(half, False) for half in halves]
    return failures


def probes_for(store: Store, specs: Sequence[RunSpec]) -> Watch:
    """Those of the store, if they can look at these runs; or say why not."""
    return Watch(made(store.probes, {(spec.method, spec.head): spec.built_method() for spec in specs}))


def _too_large(spec: RunSpec) -> str:
    whole = spec.built_method().gradient_per_task  # its steps bring all of it
    return f"the memory is too small for this; try a smaller --batch-size{' or --memory' if whole else ''}."


def group_of(specs: Sequence[RunSpec], dataset: Dataset) -> Group:
    return Group(specs[0].training(), tuple(spec.member() for spec in specs), augmented(dataset, specs[0].augmentation))


def _capacity(specs: list[RunSpec], store: Store, dataset: Dataset, compute: Compute) -> int:
    """Runs that fit into memory together; a group that was begun did fit."""
    begun = (group_folder(store, specs) / MEMBERS).exists()
    if compute.device.type != "cuda" or len(specs) == 1 or begun:
        return len(specs)
    with contextlib.suppress(Shortage), troubles_explained():
        return members_that_fit(group_of(specs, dataset), compute)
    release_memory(compute)
    return 1  # which will say that not even one fits


def _train_group(
    specs: list[RunSpec],
    store: Store,
    dataset: Dataset,
    compute: Compute,
    fresh: bool,
    display: Display,
    warn: Warn,
    telling: Telling,
) -> dict[str, str]:
    """Train a group to its end and store its runs; by name, what went wrong with single members."""
    group = group_of(specs, dataset)
    folder = group_folder(store, specs)
    checkpoints = Checkpoints(folder, warn)
    with contextlib.ExitStack() as stack:
        if fresh:
            checkpoints.discard()
            for spec in specs:
                store.forget(spec)
        elif all(store.finished(spec) for spec in specs):  # by another process, since the plan was made
            checkpoints.discard()
            return {}
        if not (folder / MEMBERS).exists():
            note_group(store, specs)
        stop = stack.enter_context(StopSignals())
        runs = [_tracked(spec, store) for spec in specs]
        watcher = stack.enter_context(Followed(display, telling, runs, specs[0].epochs))
        try:
            with troubles_explained():
                probes = probes_for(store, specs)
                state = _train(group, compute, checkpoints, stop, watcher, probes, _title(specs), warn)
        except Stopped as stopped:
            raise _stopped_by(stop, stopped) from None
        failures = state.failures(group)
        for k, spec in enumerate(specs):
            if k not in failures:
                record = store.stored(spec)  # if it was stored before the group was interrupted
                if record is None:
                    record = _record(spec, group, state, k, compute)
                    measured = {name: _measurements(state, k, name) for name in store.probes}
                    store.write(record, Learner.of(group, state, k), measured)
                described = record.as_json()
                watcher.end(k, Outcome({name: described[name] for name in record.metrics}, described["R"]))
        checkpoints.discard()
        if stop.requested():  # too late to stop this group, but not to leave the next ones
            raise _stopped_by(stop, Stopped(f"stopped after {_title(specs)}"))
        return {specs[k].name: reason for k, reason in failures.items()}


def _train(
    group: Group,
    compute: Compute,
    checkpoints: Checkpoints,
    stop: StopSignals,
    watcher: Followed,
    probes: Watch,
    title: str,
    warn: Warn,
) -> State:
    """From the newest checkpoint, or from the beginning, to the end."""
    first, parents = founders(group)
    state = _restored(checkpoints, group, first, compute) or states.fresh(first, compute)
    total, done = total_steps(group), steps_done(group, state)
    if 0 < done < total:
        warn(f"going on with {title} in task {state.task + 1}, epoch {state.epoch + 1}.")
    watcher.begin(title, group, total, done, state.task * group.training.epochs + state.epoch)
    if not state.forked:
        trainer = Trainer(first, compute, checkpoints.save, stop.requested, watcher.of(parents), probes)
        trainer.train(state, tasks=1)
        state = fork(state, group, parents, compute)
    everyone = range(len(group.members))
    return Trainer(group, compute, checkpoints.save, stop.requested, watcher.of(everyone), probes).train(state)


def _restored(checkpoints: Checkpoints, group: Group, first: Group, compute: Compute) -> State | None:
    """The newest state that fits the group, or the founders who train its first task."""
    while (saved := checkpoints.newest()) is not None:
        file, tensors, values = saved
        try:
            return states.revive(tensors, values, group if values["forked"] else first, compute)
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            if is_shortage(error):
                raise  # the checkpoint is not to blame
            checkpoints.refuse(file, f"it does not fit this network: {str(error).splitlines()[0]}")
    return None


def _take_apart(
    specs: list[RunSpec], parts: int, store: Store, dataset: Dataset, anew: bool, warn: Warn
) -> list[list[RunSpec]]:
    """Parts of a group that go on where the whole was, unless they are to begin anew."""
    pieces = split(specs, parts)
    if not anew:
        for piece in pieces:
            _hand_over(specs, piece, store, dataset, warn)
    Checkpoints(group_folder(store, specs), warn).discard()
    return pieces


def _hand_over(specs: list[RunSpec], part: list[RunSpec], store: Store, dataset: Dataset, warn: Warn) -> None:
    """Let a part of a group go on where the whole was."""
    saved = Checkpoints(group_folder(store, specs), warn).newest()
    if saved is None:
        return
    _, tensors, values = saved
    chosen = [specs.index(spec) for spec in part]
    if not values["forked"]:
        parents = founders(group_of(specs, dataset))[1]
        chosen = list(dict.fromkeys(parents[member] for member in chosen))
    share = len(part) / len(specs)  # of the time, for which each part answers
    values["seconds"] *= share
    values["measuring"] = {probe: share * seconds for probe, seconds in values["measuring"].items()}
    note_group(store, part)
    Checkpoints(group_folder(store, part), warn).save(*states.select(tensors, values, chosen))


def _stopped_by(stop: StopSignals, stopped: Stopped) -> Stopped:
    stopped.signal = stop.signal or stopped.signal
    return stopped


def _record(spec: RunSpec, group: Group, state: State, k: int, compute: Compute) -> Record:
    view = group.views[k]
    order = view.scenario.order
    return Record(
        spec=spec,
        sizes=list(view.scenario.sizes),
        order=list(order),
        class_names=[group.dataset.class_names[label] for label in order],
        correct=state.correct[k].tolist(),
        total=view.eval_total.tolist(),
        memory={position: kept.tolist() for position, kept in state.memories[k].kept.items()},
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


def _tracked(spec: RunSpec, store: Store) -> Run:
    return Run(spec.name, store.folder(spec), spec.settings(), spec.training().tasks * spec.epochs)


def _title(specs: Sequence[RunSpec]) -> str:
    first = specs[0]
    return f"{first.method} on {first.scenario}" + (f" ({len(specs)} runs)" if len(specs) > 1 else "")
