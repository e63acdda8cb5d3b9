"""The plan: what is to be trained, in which groups, and how long that may take. It changes nothing on disk."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mdcg.data import Dataset
from mdcg.errors import MdcgError
from mdcg.execute.context import Context
from mdcg.execute.cost import Cost, cost_per_image, expense, group_of, work
from mdcg.execute.unfinished import begun, begun_otherwise, finished_run
from mdcg.files import is_locked
from mdcg.probes import ProbeSet, probes_for
from mdcg.runs.environment import gpu_name
from mdcg.runs.failures import failure
from mdcg.runs.fingerprint import changed
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.stored import warn_of
from mdcg.train.group import SMALL

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """Runs that train together."""

    specs: Sequence[RunSpec]
    work: int  # images, all in all
    seconds: float | None  # what that will take, where it can be told
    measured: bool  # whether that is from runs that were trained here


@dataclass(frozen=True)
class Plan:
    """The jobs to be done, and the runs that are in none."""

    jobs: Sequence[Job]
    finished: Sequence[RunSpec]
    failed: Mapping[str, str]  # by name, why; left out
    at_once: int = 1  # jobs that do not slow each other down

    @property
    def seconds(self) -> float | None:
        """The time until all jobs are done, whoever is free taking the next; None where that is not known of each.

        >>> Plan([Job([], 0, seconds, True) for seconds in (5.0, 1.0, 1.0, 2.0)], [], {}, at_once=2).seconds
        5.0
        """
        known = [job.seconds for job in self.jobs if job.seconds is not None]
        free = [0.0] * self.at_once
        for seconds in known:
            heapq.heapreplace(free, free[0] + seconds)
        return max(free) if len(known) == len(self.jobs) else None

    @property
    def measured(self) -> bool:
        """Whether the time of every job is from runs that were trained here."""
        return all(job.measured for job in self.jobs)


@dataclass(frozen=True)
class Undone:
    """The runs that were not finished, by name, and why."""

    failed: Mapping[str, str] = field(default_factory=dict)  # they would fail again
    left: Mapping[str, str] = field(default_factory=dict)  # in use by others, or a machine's trouble: try again
    errors: Sequence[Exception] = field(default=(), compare=False)  # behind failures that are nobody's mistake

    def __or__(self, other: Undone) -> Undone:
        return Undone({**self.failed, **other.failed}, {**self.left, **other.left}, [*self.errors, *other.errors])

    def __len__(self) -> int:
        return len(self.failed) + len(self.left)


def make_plan(specs: Sequence[RunSpec], context: Context, retry: bool) -> Plan:
    """The jobs that finish these runs. What failed before is left out, unless it is to be tried again."""
    store = context.store
    checked_probes(specs, context)  # or say which probe cannot, before anything trains
    finished = [] if context.fresh else [spec for spec in specs if store.finished(spec) is not None]
    names = {spec.name for spec in finished}
    reasons = {} if retry else {spec.name: failure(store, spec) for spec in specs if spec.name not in names}
    failed = {name: reason for name, reason in reasons.items() if reason is not None}
    wanted = [spec for spec in specs if spec.name not in failed]

    def most(spec: RunSpec) -> int:
        usual = context.members or default_members(context.dataset(spec), context.device_type(spec))
        return min(usual, max(1, -(-(len(wanted) - len(finished)) // context.slots)))

    groups = make_groups(wanted, context, most, names)
    unreadable = list[tuple[Path, str]]()
    records = [record for _, record in store.records(unreadable)] if groups else []
    for path, reason in unreadable:
        warn_of(path, reason)
    costs: Costs = {}
    jobs = [_job(together, context, records, costs) for together in groups]
    devices = max(1, round(context.slots * context.gpu_share))  # jobs that share a GPU take their time from each other
    return Plan(jobs, finished, failed, devices)


def make_groups(
    specs: Sequence[RunSpec],
    context: Context,
    most: Callable[[RunSpec], int],
    finished: Collection[str] | None = None,
) -> list[list[RunSpec]]:
    """The groups to train: first the unfinished ones that were begun, as they were; then new ones, at most so large.

    `finished` names what is, where that has just been read.
    """
    store, fresh = context.store, context.fresh
    asked = {spec.name: spec for spec in specs}
    if finished is None:
        finished = {name for name, spec in asked.items() if not fresh and store.finished(spec) is not None}
    open_ = {name: spec for name, spec in asked.items() if name not in finished}
    groups: list[list[RunSpec]] = []
    for names in [] if fresh else begun_otherwise(store):
        if any(name in open_ for name in names) and not _are_worked_on(store, names):
            logger.warning(
                "%s runs were begun with other probes, among them some asked for now; these start anew.", len(names)
            )
    for _, names in [] if fresh else begun(store):
        if not any(name in open_ for name in names):
            continue
        # One that is finished need not be asked for: the others go on where they were.
        found = [asked.get(name) or finished_run(store, name, store.probes) for name in names]
        together = [spec for spec in found if spec is not None]
        if len(together) == len(names):
            if len({spec.group_key() for spec in together}) == 1:
                groups.append(together)
                open_ = {name: spec for name, spec in open_.items() if name not in names}
        elif not _are_worked_on(store, names):
            logger.warning(
                "%s runs were begun together and not finished, among them some asked for now; these start anew. To go "
                "on with all of them, ask for all of them as before.",
                len(names),
            )
    new: dict[str, list[RunSpec]] = {}
    for spec in open_.values():
        new.setdefault(spec.group_key(), []).append(spec)
    for together in new.values():
        size = most(together[0])
        groups += [together[start : start + size] for start in range(0, len(together), size)]
    return groups


def _are_worked_on(store: Store, names: Iterable[str]) -> bool:
    """Whether a process is training some of these runs."""
    return any(is_locked(store.root / name) for name in names)


def default_members(dataset: Dataset, device: str) -> int:
    """The most runs that train together: on a CPU only small images gain from company, larger ones just take memory."""
    return 64 if device == "cuda" or dataset.shape[1] <= SMALL else 1


def checked_probes(specs: Sequence[RunSpec], context: Context) -> ProbeSet:
    """The context's probes, if they can look at these runs; else the error that says why not."""
    for spec in specs:
        if context.probes and (spec.stream.revisits or spec.built_method().looks_ahead()):
            raise MdcgError(
                "probes look at tasks of new classes, each with all its images; leave --probe out for streams in which "
                "classes come again or borders are blurry, and for look_ahead.",
                about="set.look_ahead",
            )
    methods = {(spec.method, spec.head): spec.built_method() for spec in specs}
    return probes_for(context.probes, methods, context.check_probes)


def say_what_is_repeated(store: Store, specs: Sequence[RunSpec]) -> None:
    """Tell of finished runs that train once more: probes have not looked at them, or their code has changed.

    It also tells of others that may, because their archive is damaged.
    """
    for reason in store.damaged():
        logger.warning("%s", reason)
    again = sum(store.finished(spec) is None and store.result(spec) is not None for spec in specs)
    if again:
        logger.info("%s finished runs are trained again, so that %s can look at them.", again, ", ".join(store.probes))
    _say_what_code_has_changed(store, specs)


def _say_what_code_has_changed(store: Store, specs: Sequence[RunSpec]) -> None:
    """Tell of finished runs of a user's own code as it was before, where it now trains runs of the same settings."""
    new = {_whatever_code(spec): spec for spec in specs if spec.code and store.result(spec) is None}
    if not new:
        return
    older = [record.spec for _, record in store.records() if _whatever_code(record.spec) in new]
    what = {
        f"{kind} '{getattr(spec, kind)}'"
        for spec in older
        for kind in changed(spec.code, new[_whatever_code(spec)].code)
    }
    if older:
        runs = "a finished run was" if len(older) == 1 else f"{len(older)} finished runs were"
        logger.warning(
            "the code of %s has changed since %s made; what is there is left as it is, and these are trained anew.",
            " and ".join(sorted(what)),
            runs,
        )


def _whatever_code(spec: RunSpec) -> str:
    """The key that all runs with the same settings share, whatever their code."""
    return spec.model_copy(update={"code": ""}).digest()


Costs = dict[tuple[object, ...], Cost | None]  # of an image, by all that it depends on


def _job(specs: Sequence[RunSpec], context: Context, records: Sequence[Record], costs: Costs) -> Job:
    """The job of these runs; `costs` is what others have asked the records for, and is added to."""
    dataset, kind = context.dataset(specs[0]), context.device_type(specs[0])
    images = work(group_of(specs, dataset))
    gpu = None if context.remote else gpu_name(context.compute(specs[0]))
    key = (*expense(specs[0]), specs[0].method, kind, gpu)
    if key not in costs:
        costs[key] = cost_per_image(specs, dataset, records, kind, gpu)
    cost = costs[key]
    if cost is None:
        return Job(specs, images, None, measured=False)
    return Job(specs, images, cost.seconds * images, cost.measured)
