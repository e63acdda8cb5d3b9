"""From many runs to groups of members, from groups to finished records."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from mdcg.data import Dataset
from mdcg.errors import MdcgError
from mdcg.estimator import Learner
from mdcg.experiments.environment import environment, source
from mdcg.experiments.presets import augmented
from mdcg.experiments.spec import RunSpec
from mdcg.experiments.store import Record, Store
from mdcg.experiments.troubles import Shortage, is_shortage, troubles_explained
from mdcg.files import locked, remove_partial, write_whole
from mdcg.trackers import Followed, Outcome, Run, Telling, Tracker, opened
from mdcg.train import state as states
from mdcg.train.capacity import members_that_fit, release_memory
from mdcg.train.checkpoint import DONE, MEMBERS, Checkpoints
from mdcg.train.fork import fork, founders
from mdcg.train.group import Group
from mdcg.train.loop import Trainer, steps_done, total_steps
from mdcg.train.precision import Compute
from mdcg.train.progress import Progress
from mdcg.train.signals import Stopped, StopSignals
from mdcg.train.state import State

GROUPS = ".groups"  # checkpoints of unfinished groups, below the store


def run_specs(
    specs: Sequence[RunSpec],
    dataset: Dataset,
    compute: Compute,
    out: Path,
    *,
    fresh: bool = False,
    members: int | None = None,
    quiet: bool = False,
    warn: Callable[[str], None] = lambda text: None,
    trackers: Sequence[str | Tracker] = (),
) -> list[Record]:
    """Finish every run that is not finished yet; their records, in the order asked for.

    Runs that can share a group train together, at most `members` at a time; `fresh` repeats finished ones;
    `trackers` are told of them as they train.
    """
    store, telling = Store(out), Telling(opened(trackers), warn)
    source()  # now: the files may change while runs train
    done = 0 if fresh else sum(store.finished(spec) is not None for spec in specs)
    if done:
        warn(f"{done} of {len(specs)} runs were already finished; --fresh repeats them.")
    failures: list[str] = []
    planned = plan(store, specs, members or default_members(dataset, compute), fresh, warn)
    queue = [(together, fresh) for together in planned]
    while queue:
        together, anew = queue.pop(0)
        release_memory(compute)
        most = members or _capacity(together, store, dataset, compute)
        if most < len(together):
            parts = _take_apart(together, -(-len(together) // most), store, dataset, anew, warn)
            queue[:0] = [(part, anew) for part in parts]
            continue
        try:
            failures += _train_group(together, store, dataset, compute, anew, quiet, warn, telling)
            continue
        except Shortage as shortage:
            if len(together) == 1:
                raise MdcgError(_too_large(together[0])) from shortage
        # Out of the handler: the error no longer holds on to what filled the memory.
        halves = _take_apart(together, 2, store, dataset, False, warn)
        warn(f"the memory is too small for {len(together)} runs together; going on with {len(halves[0])}.")
        queue[:0] = [(half, False) for half in halves]
    if failures:
        raise MdcgError(" ".join(dict.fromkeys(failures)))
    records = [store.finished(spec) for spec in specs]
    return [record for record in records if record is not None]


def _too_large(spec: RunSpec) -> str:
    whole = spec.built_method().gradient_per_task  # its steps bring all of it
    return f"the memory is too small for this; try a smaller --batch-size{' or --memory' if whole else ''}."


def default_members(dataset: Dataset, compute: Compute) -> int:
    """On a CPU only small images gain from company; larger ones would just take more memory."""
    return 64 if compute.device.type == "cuda" or dataset.shape[1] <= 16 else 1


def split(specs: list[RunSpec], parts: int) -> list[list[RunSpec]]:
    """Parts of nearly equal size, in order."""
    ends = [len(specs) * (part + 1) // parts for part in range(parts)]
    return [specs[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def plan(
    store: Store,
    specs: Sequence[RunSpec],
    most: int,
    fresh: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> list[list[RunSpec]]:
    """Groups to train: first those that were begun and not finished, as they were; then new ones."""
    asked = {spec.name: spec for spec in specs}
    open_ = {name: spec for name, spec in asked.items() if fresh or store.finished(spec) is None}
    groups: list[list[RunSpec]] = []
    for folder, names in [] if fresh else _begun(store):
        if not any(name in open_ for name in names):
            if all(name in asked for name in names):  # all of it was finished in other company
                Checkpoints(folder, warn).discard()
        elif all(name in asked for name in names):
            together = [asked[name] for name in names]
            if len({spec.group_key() for spec in together}) == 1:
                groups.append(together)
                open_ = {name: spec for name, spec in open_.items() if name not in names}
        else:
            warn(
                f"{len(names)} runs were begun together and not finished, among them some asked for now; these "
                "start anew. To go on with all of them, ask for all of them as before."
            )
    new: dict[str, list[RunSpec]] = {}
    for spec in open_.values():
        new.setdefault(spec.group_key(), []).append(spec)
    for together in new.values():
        groups += [together[start : start + most] for start in range(0, len(together), most)]
    return groups


def _begun(store: Store) -> list[tuple[Path, list[str]]]:
    """Folder and run names of each unfinished group."""
    found = []
    for folder in sorted((store.root / GROUPS).glob("*")):
        if folder.name.endswith(DONE):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(OSError, ValueError):
            names = json.loads((folder / MEMBERS).read_text())
            if isinstance(names, list) and len(set(map(str, names))) == len(names) > 0:
                found.append((folder, [str(name) for name in names]))
    return found


def _group_folder(store: Store, names: Sequence[str]) -> Path:
    digest = hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
    return store.root / GROUPS / digest


def _group(specs: Sequence[RunSpec], dataset: Dataset) -> Group:
    return Group(specs[0].training(), tuple(spec.member() for spec in specs), augmented(dataset, specs[0].augmentation))


def _capacity(specs: list[RunSpec], store: Store, dataset: Dataset, compute: Compute) -> int:
    """Runs that fit into memory together; a group that was begun did fit."""
    begun = (_group_folder(store, [spec.name for spec in specs]) / MEMBERS).exists()
    if compute.device.type != "cuda" or len(specs) == 1 or begun:
        return len(specs)
    with contextlib.suppress(Shortage), troubles_explained():
        return members_that_fit(_group(specs, dataset), compute)
    release_memory(compute)
    return 1  # which will say that not even one fits


def _train_group(
    specs: list[RunSpec],
    store: Store,
    dataset: Dataset,
    compute: Compute,
    fresh: bool,
    quiet: bool,
    warn: Callable[[str], None],
    telling: Telling,
) -> list[str]:
    """Train a group to its end and store its runs; what went wrong with single members."""
    group = _group(specs, dataset)
    names = [spec.name for spec in specs]
    folder = _group_folder(store, names)
    checkpoints = Checkpoints(folder, warn)
    with contextlib.ExitStack() as stack:
        for spec in specs:
            stack.enter_context(locked(store.folder(spec)))
            remove_partial(store.folder(spec))
        if fresh:
            checkpoints.discard()
            for spec in specs:
                store.forget(spec)
        elif all(store.finished(spec) for spec in specs):  # by another process, since the plan was made
            checkpoints.discard()
            return []
        if not (folder / MEMBERS).exists():
            write_whole(folder / MEMBERS, json.dumps(names).encode())
        stop = stack.enter_context(StopSignals())
        progress = stack.enter_context(Progress(_title(specs), quiet))
        runs = [_tracked(spec, store) for spec in specs]
        watcher = stack.enter_context(Followed(progress, telling, runs, specs[0].epochs))
        try:
            with troubles_explained():
                state = _train(group, compute, checkpoints, stop, watcher, _title(specs), warn)
        except Stopped as stopped:
            raise _stopped_by(stop, stopped) from None
        failures = state.failures(group)
        for k, spec in enumerate(specs):
            if k not in failures:
                record = _record(spec, group, state, k, compute)
                store.write(record, Learner.of(group, state, k))
                described = record.as_json()
                watcher.end(k, Outcome({name: described[name] for name in record.metrics}, described["R"]))
        checkpoints.discard()
        if stop.requested():  # too late to stop this group, but not to leave the next ones
            raise _stopped_by(stop, Stopped(f"stopped after {_title(specs)}"))
        return list(failures.values())


def _train(
    group: Group,
    compute: Compute,
    checkpoints: Checkpoints,
    stop: StopSignals,
    watcher: Followed,
    title: str,
    warn: Callable[[str], None],
) -> State:
    """From the newest checkpoint, or from the beginning, to the end."""
    first, parents = founders(group)
    state = _restored(checkpoints, group, first, compute) or states.fresh(first, compute)
    total, done = total_steps(group), steps_done(group, state)
    if 0 < done < total:
        warn(f"going on with {title} in task {state.task + 1}, epoch {state.epoch + 1}.")
    watcher.begin(total, done, state.task * group.training.epochs + state.epoch)
    if not state.forked:
        Trainer(first, compute, checkpoints.save, stop.requested, watcher.of(parents)).train(state, tasks=1)
        state = fork(state, group, parents, compute)
    everyone = range(len(group.members))
    return Trainer(group, compute, checkpoints.save, stop.requested, watcher.of(everyone)).train(state)


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
    specs: list[RunSpec], parts: int, store: Store, dataset: Dataset, anew: bool, warn: Callable[[str], None]
) -> list[list[RunSpec]]:
    """Parts of a group that go on where the whole was, unless they are to begin anew."""
    pieces = split(specs, parts)
    if not anew:
        for piece in pieces:
            _hand_over(specs, piece, store, dataset, warn)
    Checkpoints(_group_folder(store, [spec.name for spec in specs]), warn).discard()
    return pieces


def _hand_over(
    specs: list[RunSpec], part: list[RunSpec], store: Store, dataset: Dataset, warn: Callable[[str], None]
) -> None:
    """Let a part of a group go on where the whole was."""
    saved = Checkpoints(_group_folder(store, [spec.name for spec in specs]), warn).newest()
    if saved is None:
        return
    _, tensors, values = saved
    chosen = [specs.index(spec) for spec in part]
    if not values["forked"]:
        parents = founders(_group(specs, dataset))[1]
        chosen = list(dict.fromkeys(parents[member] for member in chosen))
    values["seconds"] *= len(part) / len(specs)  # each part answers for its share of the time
    folder = _group_folder(store, [spec.name for spec in part])
    write_whole(folder / MEMBERS, json.dumps([spec.name for spec in part]).encode())
    Checkpoints(folder, warn).save(*states.select(tensors, values, chosen))


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
        environment=environment(compute),
    )


def _tracked(spec: RunSpec, store: Store) -> Run:
    return Run(spec.name, store.folder(spec), spec.settings(), spec.training().tasks * spec.epochs)


def _title(specs: Sequence[RunSpec]) -> str:
    first = specs[0]
    return f"{first.method} on {first.scenario}" + (f" ({len(specs)} runs)" if len(specs) > 1 else "")
