"""From many runs to groups of members, from groups to finished records."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from mdcg.data import Dataset
from mdcg.estimator import Learner
from mdcg.experiments.recipe import RunSpec
from mdcg.experiments.store import Record, Store, environment
from mdcg.files import locked, remove_partial, write_whole
from mdcg.train import state as states
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import Compute
from mdcg.train.progress import Progress
from mdcg.train.signals import Stopped, StopSignals
from mdcg.train.state import State

GROUPS = ".groups"  # checkpoints of unfinished groups, below the store
MEMBERS = "members.json"


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
) -> list[Record]:
    """Finish every run that is not finished yet; their records, in the order asked for.

    Runs that can share a group train together, at most `members` at a time.
    """
    store = Store(out)
    if fresh:
        _forget(store, specs)
    for group in plan(store, specs, members or default_members(dataset, compute)):
        _train_group(group, store, dataset, compute, quiet, warn)
    records = [store.finished(spec) for spec in specs]
    return [record for record in records if record is not None]


def default_members(dataset: Dataset, compute: Compute) -> int:
    """On a CPU only small images gain from company; larger ones would just take more memory."""
    return 64 if compute.device.type == "cuda" or dataset.shape[1] <= 16 else 1


def plan(store: Store, specs: Sequence[RunSpec], most: int) -> list[list[RunSpec]]:
    """Groups to train: first those that were begun and not finished, as they were; then new ones."""
    asked = {spec.name: spec for spec in specs}
    groups: list[list[RunSpec]] = []
    for names in _begun(store):
        if all(name in asked for name in names):
            groups.append([asked.pop(name) for name in names])
    new: dict[str, list[RunSpec]] = {}
    for spec in asked.values():
        if store.finished(spec) is None:
            new.setdefault(spec.group_key(), []).append(spec)
    for together in new.values():
        groups += [together[start : start + most] for start in range(0, len(together), most)]
    return groups


def _begun(store: Store) -> list[list[str]]:
    """Run names of each unfinished group."""
    found = []
    for path in sorted((store.root / GROUPS).glob(f"*/{MEMBERS}")):
        with contextlib.suppress(OSError, ValueError):
            names = json.loads(path.read_text())
            if isinstance(names, list) and names:
                found.append([str(name) for name in names])
    return found


def _forget(store: Store, specs: Sequence[RunSpec]) -> None:
    names = {spec.name for spec in specs}
    with contextlib.ExitStack() as locks:
        for spec in specs:
            locks.enter_context(locked(store.folder(spec)))
            store.forget(spec)
        for group in _begun(store):
            if names & set(group):
                Checkpoints(_group_folder(store, group), lambda text: None).discard()


def _group_folder(store: Store, names: Sequence[str]) -> Path:
    digest = hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
    return store.root / GROUPS / digest


def _train_group(
    specs: list[RunSpec],
    store: Store,
    dataset: Dataset,
    compute: Compute,
    quiet: bool,
    warn: Callable[[str], None],
) -> None:
    group = Group(specs[0].training(), tuple(spec.member() for spec in specs), dataset)
    names = [spec.name for spec in specs]
    folder = _group_folder(store, names)
    checkpoints = Checkpoints(folder, warn)
    with contextlib.ExitStack() as stack:
        for spec in specs:
            stack.enter_context(locked(store.folder(spec)))
            remove_partial(store.folder(spec))
        if not (folder / MEMBERS).exists():
            write_whole(folder / MEMBERS, json.dumps(names).encode())
        stop = stack.enter_context(StopSignals())
        progress = stack.enter_context(Progress(_title(specs), quiet))
        trainer = Trainer(group, compute, checkpoints.save, stop.requested, progress)
        saved = checkpoints.newest()
        state = states.revive(*saved, group, compute) if saved else states.fresh(group, compute)
        progress.begin(trainer.total_steps(), trainer.steps_done(state))
        try:
            trainer.train(state)
        except Stopped as stopped:
            raise _stopped_by(stop, stopped) from None
        for k, spec in enumerate(specs):
            store.write(_record(spec, group, state, k, compute), Learner.of(group, state, k))
        checkpoints.discard()
        if stop.requested():  # too late to stop this group, but not to leave the next ones
            raise _stopped_by(stop, Stopped(f"stopped after {_title(specs)}"))


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


def _title(specs: Sequence[RunSpec]) -> str:
    first = specs[0]
    return f"{first.method} on {first.scenario}" + (f" ({len(specs)} runs)" if len(specs) > 1 else "")
