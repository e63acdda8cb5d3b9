"""A sweep: all runs that a recipe with axes means, in as few groups as can be, to the last one.

Whatever happens to one group, the others go on. What is finished is never done again, what was begun goes on where it
was, and what failed is tried again only when asked for.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from mdcg.data import Dataset, load
from mdcg.errors import Busy, MachineError, MdcgError, unknown
from mdcg.experiments.axes import Combination
from mdcg.experiments.cost import cost_per_image, work
from mdcg.experiments.environment import source
from mdcg.experiments.failures import failure, forget_failure, note_failure
from mdcg.experiments.plan import Warn, default_members, plan
from mdcg.experiments.runner import group_of, train
from mdcg.experiments.spec import RunSpec
from mdcg.experiments.store import Record, Store
from mdcg.scenario import parse
from mdcg.trackers import Telling, opened
from mdcg.train.precision import Compute, compute
from mdcg.train.progress import Display


@dataclass(frozen=True)
class Site:
    """Where a sweep's runs are stored, and what they are computed from and on. Any process can work from it."""

    out: Path
    data: Path | None
    device: str
    members: int | None = None
    log: tuple[str, ...] = ()  # trackers that are told

    @property
    def store(self) -> Store:
        return Store(self.out)

    def dataset(self, spec: RunSpec) -> Dataset:
        return _loaded(parse(spec.scenario)[0], self.data, spec.image_size)

    def compute(self, spec: RunSpec) -> Compute:
        return compute(self.device, spec.precision)


@cache
def _loaded(name: str, data: Path | None, image_size: int | None) -> Dataset:
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
class Cell:
    """All runs of one setting: a combination's, or of several that mean the same."""

    labels: Mapping[str, str]
    specs: list[RunSpec]


def resolve(combinations: Sequence[Combination], site: Site) -> list[Cell]:
    """The runs of every combination; one that others mean as well (Naive has no memory) is the first one's."""
    cells, seen = [], set()
    for combination in combinations:
        recipe = combination.recipe
        try:
            dataset = _loaded(parse(recipe.scenario)[0], site.data, recipe.image_size)
            specs = recipe.resolve(dataset)
        except MdcgError as error:
            raise combination.located(error) from error
        new = [spec for spec in specs if spec.name not in seen]
        seen |= {spec.name for spec in new}
        if new:
            cells.append(Cell(combination.labels, new))
    return cells


def only(cells: Sequence[Cell], wanted: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Those with one of the values wanted, of an axis or of a setting of the runs."""
    for key, values in wanted.items():
        found = {value for cell in cells for spec in cell.specs for value in _values(cell, spec, key)}
        if not found:
            fields = set(RunSpec.model_fields) | {axis for cell in cells for axis in cell.labels}
            raise unknown("axis or setting", key, fields)
        for value in values:
            if value not in found:
                raise unknown(f"value of {key} in this recipe", value, found)
    kept = []
    for cell in cells:
        specs = [
            spec for spec in cell.specs if all(set(values) & _values(cell, spec, key) for key, values in wanted.items())
        ]
        if specs:
            kept.append(Cell(cell.labels, specs))
    if not kept:
        raise MdcgError("no run has all of these values; give fewer of them with --only.")
    return kept


def _values(cell: Cell, spec: RunSpec, key: str) -> set[str]:
    """What a run has under a name: its label on that axis, and its own setting."""
    fields: dict[str, Any] = spec.model_dump()
    settings = {f"set.{name}": value for name, value in {**spec.hyperparameters, **spec.head_settings}.items()}
    named = {**fields, **settings}
    own = {str(named[key])} if key in named else set()
    return own | ({cell.labels[key]} if key in cell.labels else set())


def plan_sweep(cells: Sequence[Cell], site: Site, retry: bool, warn: Warn) -> Planned:
    store = site.store
    specs = [spec for cell in cells for spec in cell.specs]
    finished = [spec for spec in specs if store.finished(spec) is not None]
    names = {spec.name for spec in finished}
    reasons = {spec.name: failure(store, spec) for spec in specs if spec.name not in names}
    failed = {} if retry else {name: reason for name, reason in reasons.items() if reason is not None}

    def most(spec: RunSpec) -> int:
        return site.members or default_members(site.dataset(spec), site.compute(spec))

    groups = plan(store, [spec for spec in specs if spec.name not in failed], most, warn=warn)
    records = [record for spec in finished if (record := store.finished(spec)) is not None]
    return Planned([_job(together, site, records) for together in groups], finished, failed)


def _job(specs: list[RunSpec], site: Site, records: Sequence[Record]) -> Job:
    dataset = site.dataset(specs[0])
    images = work(group_of(specs, dataset))
    cost = cost_per_image(specs, dataset, records, site.compute(specs[0]))
    if cost is None:
        return Job(specs, images, None, measured=False)
    return Job(specs, images, cost.seconds * images, cost.measured)


def do(job: Job, site: Site, display: Display, warn: Warn) -> dict[str, str]:
    """Train a job's runs; by name, why some of them failed. What the machine is to blame for is raised."""
    source()  # now: the files may change while runs train
    store, first = site.store, job.specs[0]
    for spec in job.specs:
        forget_failure(store, spec)
    details = ""
    try:
        machine = site.compute(first)
        telling = Telling(opened(site.log), warn)
        failures = train(job.specs, store, site.dataset(first), machine, display, telling, False, site.members, warn)
    except (MachineError, Busy):
        raise
    except Exception as error:  # of a method or backbone of a user's own, for instance: the others go on
        reason = str(error) if isinstance(error, MdcgError) else f"{type(error).__name__}: {error}"
        details = "" if isinstance(error, MdcgError) else traceback.format_exc()
        failures = {spec.name: reason for spec in job.specs if store.finished(spec) is None}
    for spec in job.specs:
        if spec.name in failures:
            note_failure(store, spec, failures[spec.name], details)
    return failures


class Watching(Display, Protocol):
    """A display of a whole sweep."""

    def running(self, runs: int) -> None:
        """So many train elsewhere."""

    def job_ends(self, job: Job, failures: Mapping[str, str]) -> None:
        """A job is done, or has failed."""


def do_here(jobs: Sequence[Job], site: Site, display: Watching, warn: Warn) -> dict[str, str]:
    """One job after the other, in this process."""
    failures: dict[str, str] = {}
    for job in jobs:
        try:
            failed = do(job, site, display, warn)
        except Busy as busy:
            warn(f"{busy} These {len(job.specs)} runs are left to it.")
            failed = {}
        failures |= failed
        display.job_ends(job, failed)
    return failures


Executor = Callable[[Sequence[Job], Site, Watching, Warn], dict[str, str]]
