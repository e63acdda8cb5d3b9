"""A sweep: all runs that a recipe with axes means, in as few groups as can be, to the last one.

Whatever happens to one group, the others go on. What is finished is never done again, what was begun goes on where it
was, and what failed is tried again only when asked for.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from mdcg.data import Dataset, load
from mdcg.errors import Busy, MachineError, MdcgError
from mdcg.execute.cost import cost_per_image, work
from mdcg.execute.group import group_of, probes_for, train
from mdcg.execute.plan import Warn, default_members, plan
from mdcg.execute.progress import Display
from mdcg.files import in_use
from mdcg.probes import ProbeError
from mdcg.runs.environment import gpu_name, source
from mdcg.runs.failures import failure, note_failure
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.scenario import parse
from mdcg.trackers import Telling, opened
from mdcg.train.precision import Compute, compute


@dataclass(frozen=True)
class Site:
    """Where a sweep's runs are stored, and what they are computed from and on. Any process can work from it."""

    out: Path
    data: Path | None
    device: str
    members: int | None = None
    log: tuple[str, ...] = ()  # trackers that are told
    remote: bool = False  # the device is that of other machines
    slots: int = 1  # groups that train at the same time
    probes: tuple[str, ...] = ()  # that look at the runs

    @property
    def store(self) -> Store:
        return Store(self.out, self.probes)

    def dataset(self, spec: RunSpec) -> Dataset:
        return loaded(parse(spec.scenario)[0], self.data, spec.image_size)

    def compute(self, spec: RunSpec) -> Compute:
        """Of this machine."""
        return compute(self.device, spec.precision)

    def kind(self, spec: RunSpec) -> str:
        """cpu or cuda, of where the run will train."""
        return self.device if self.remote else self.compute(spec).device.type


@cache
def loaded(name: str, data: Path | None, image_size: int | None) -> Dataset:
    return load(name, data, image_size)


@dataclass(frozen=True)
class Job:
    """Runs that train together."""

    specs: list[RunSpec]
    work: int  # images, all in all
    seconds: float | None  # what that will take, where it can be told
    measured: bool  # whether that is from runs that were trained here


@dataclass(frozen=True)
class Planned:
    """What a sweep would do."""

    jobs: list[Job]
    finished: list[RunSpec]
    failed: dict[str, str]  # by name, why; left out

    @property
    def seconds(self) -> float | None:
        known = [job.seconds for job in self.jobs if job.seconds is not None]
        return sum(known) if len(known) == len(self.jobs) else None

    @property
    def measured(self) -> bool:
        return all(job.measured for job in self.jobs)


@dataclass(frozen=True)
class Undone:
    """Runs that a sweep did not finish, by name, and why."""

    failed: Mapping[str, str] = field(default_factory=dict)  # they would fail again
    left: Mapping[str, str] = field(default_factory=dict)  # in use by others, or a machine's trouble: try again

    def __or__(self, other: Undone) -> Undone:
        return Undone({**self.failed, **other.failed}, {**self.left, **other.left})

    def __len__(self) -> int:
        return len(self.failed) + len(self.left)


@dataclass(frozen=True)
class Cell:
    """All runs of one setting: a combination's, or of several that mean the same."""

    labels: Mapping[str, str]
    specs: list[RunSpec]


def plan_sweep(cells: Sequence[Cell], site: Site, retry: bool, warn: Warn) -> Planned:
    """What is to be trained, in which groups; changes nothing."""
    store = site.store
    specs = [spec for cell in cells for spec in cell.specs]
    probes_for(store, specs)  # or say which cannot be had, before anything trains
    finished = [spec for spec in specs if store.finished(spec) is not None]
    names = {spec.name for spec in finished}
    reasons = {spec.name: failure(store, spec) for spec in specs if spec.name not in names}
    failed = {} if retry else {name: reason for name, reason in reasons.items() if reason is not None}
    wanted = [spec for spec in specs if spec.name not in failed]

    def most(spec: RunSpec) -> int:
        usual = site.members or default_members(site.dataset(spec), site.kind(spec))
        return min(usual, max(1, -(-(len(wanted) - len(finished)) // site.slots)))

    groups = plan(store, wanted, most, warn=warn)
    records = [record for _, record in store.records()] if groups else []
    return Planned([_job(together, site, records) for together in groups], finished, failed)


def _job(specs: list[RunSpec], site: Site, records: Sequence[Record]) -> Job:
    dataset, kind = site.dataset(specs[0]), site.kind(specs[0])
    images = work(group_of(specs, dataset))
    gpu = None if site.remote else gpu_name(site.compute(specs[0]))
    cost = cost_per_image(specs, dataset, records, kind, gpu)
    if cost is None:
        return Job(specs, images, None, measured=False)
    return Job(specs, images, cost.seconds * images, cost.measured)


def do(job: Job, site: Site, display: Display, warn: Warn) -> Undone:
    """Train a job's runs. What the machine is to blame for is raised; what others are at is left to them."""
    source()  # now: the files may change while runs train
    store, first = site.store, job.specs[0]
    dataset, machine = site.dataset(first), site.compute(first)
    telling = Telling(opened(site.log), warn)
    undone = Undone(left={spec.name: "another process is at it" for spec in job.specs if in_use(store.folder(spec))})
    free = [spec for spec in job.specs if spec.name not in undone.left]
    for together in plan(store, free, lambda _: len(free), warn=warn):  # in parts, if it was in parts before
        details = ""
        try:
            failures = train(together, store, dataset, machine, display, telling, False, site.members, warn)
        except (MachineError, ProbeError):
            raise
        except Busy as busy:  # since we looked
            undone |= Undone(left={spec.name: str(busy) for spec in together if store.finished(spec) is None})
            continue
        except Exception as error:  # of a method or backbone of a user's own, for instance: the others go on
            reason = str(error) if isinstance(error, MdcgError) else f"{type(error).__name__}: {error}"
            details = "" if isinstance(error, MdcgError) else traceback.format_exc()
            failures = {spec.name: reason for spec in together if store.finished(spec) is None}
        for spec in together:
            if spec.name in failures:
                note_failure(store, spec, failures[spec.name], details)
        undone |= Undone(failed=failures)
    return undone


class Watching(Display, Protocol):
    """A display of a whole sweep."""

    def running(self, runs: int) -> None:
        """So many train elsewhere."""

    def job_ends(self, job: Job, undone: Undone) -> None:
        """All that could be done of a job is done."""


class Executor(Protocol):
    """What has jobs done."""

    def prepare(self, site: Site) -> Site:
        """The site as it is where the work will be done."""

    def execute(self, jobs: Sequence[Job], site: Site, display: Watching, warn: Warn) -> Undone: ...


class Here:
    """One job after the other, in this process."""

    def prepare(self, site: Site) -> Site:
        return site

    def execute(self, jobs: Sequence[Job], site: Site, display: Watching, warn: Warn) -> Undone:
        undone = Undone()
        for job in jobs:
            of_this = do(job, site, display, warn)
            undone |= of_this
            display.job_ends(job, of_this)
        return undone
