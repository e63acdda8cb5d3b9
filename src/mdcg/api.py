"""`mdcg.run`: from a recipe to results, in one call."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mdcg import metrics
from mdcg.data import Dataset, load
from mdcg.errors import MdcgError
from mdcg.execute.display import SweepDisplay
from mdcg.execute.group import run_specs
from mdcg.execute.plan import aloud, say_what_is_repeated, tidy
from mdcg.execute.sweep import Cell, Executor, Here, Planned, Site, Undone, plan_sweep
from mdcg.learner import Learner
from mdcg.memory import Memory
from mdcg.metrics import Matrix
from mdcg.recipes.choose import choose
from mdcg.recipes.document import read_written
from mdcg.recipes.grid import combinations
from mdcg.recipes.recipe import Recipe, make_recipe
from mdcg.runs.record import Record
from mdcg.runs.store import MODEL, Store, archive_of, read_measurements
from mdcg.scenario import parse
from mdcg.trackers import Tracker, opened
from mdcg.train.precision import compute


@dataclass(frozen=True)
class Result:
    """The runs of one method: arrays have one row per seed, accuracies are in percent."""

    records: list[Record]
    out: Path
    dataset: Dataset

    @property
    def seeds(self) -> list[int]:
        return [record.spec.seed for record in self.records]

    @cached_property
    def R(self) -> Matrix:
        """(seeds, tasks, tasks): accuracy on task j after task i, NaN where j > i."""
        return np.stack([record.R for record in self.records])

    @property
    def ACC(self) -> Matrix:
        return self._metric("ACC")

    @property
    def BWT(self) -> Matrix:
        return self._metric("BWT")

    @property
    def BWT_final(self) -> Matrix:
        return self._metric("BWT_final")

    @property
    def forgetting(self) -> Matrix:
        return self._metric("forgetting")

    @property
    def mean(self) -> dict[str, float]:
        return {name: metrics.mean_std(self._metric(name).tolist())[0] for name in metrics.NAMES}

    @property
    def std(self) -> dict[str, float]:
        """Sample standard deviation over seeds; NaN for a single one."""
        return {name: metrics.mean_std(self._metric(name).tolist())[1] for name in metrics.NAMES}

    @property
    def learner(self) -> Learner:
        """The classifier of the first seed."""
        return self.learners[0]

    @cached_property
    def learners(self) -> list[Learner]:
        return [self._learner(record) for record in self.records]

    def _learner(self, record: Record) -> Learner:
        place = Store(self.out).where(record.spec)
        if archive := archive_of(place):
            raise MdcgError(
                f"{place.name} is a run of the archive {archive}, which has no model; repeat the run with --fresh "
                "(fresh=True)."
            )
        file = place / MODEL
        if not file.exists():
            raise MdcgError(f"the model of a finished run, {file}, is gone; repeat the run with --fresh (fresh=True).")
        learner = Learner.load(file)
        if record.memory:
            kept = {position: np.asarray(indices) for position, indices in record.memory.items()}
            learner.memory = Memory(record.spec.memory, kept).copy(self.dataset.train.images)
        return learner

    def measured(self, probe: str) -> list[dict[str, Any]]:
        """What a probe measured: a row per look, with the run's seed."""
        store = Store(self.out)
        return [
            {"seed": record.spec.seed, **row}
            for record in self.records
            for row in read_measurements(store.folder(record.spec), probe).rows
        ]

    def as_json(self) -> dict[str, Any]:
        def clean(values: dict[str, float]) -> dict[str, float | None]:
            return {name: None if np.isnan(value) else round(value, 6) for name, value in values.items()}

        store = Store(self.out)
        runs = [{**record.as_json(), "folder": str(store.where(record.spec))} for record in self.records]
        return {"runs": runs, "mean": clean(self.mean), "std": clean(self.std)}

    def _metric(self, name: str) -> Matrix:
        return np.array([record.metrics[name] for record in self.records])


def run(
    *,
    seeds: Iterable[int] | str | int = (0,),
    members: int | None = None,
    fresh: bool = False,
    quiet: bool = False,
    log: Sequence[str | Tracker] = (),
    probes: Sequence[str] = (),
    **recipe: Any,
) -> Result:
    """Train one method for each seed, or take up the runs that are already there.

    Keywords are those of `Recipe`: scenario, method, memory, epochs, backbone, set, … `log` names trackers, for
    instance ["tensorboard"], or gives your own; `probes` names what to measure as it trains, see `Result.measured`.

    >>> import mdcg, tempfile
    >>> result = mdcg.run(scenario="digits-2", method="naive", epochs=1, seeds=range(2), out=tempfile.mkdtemp())
    >>> result.R.shape
    (2, 2, 2)
    """
    if "methods" in recipe:
        raise MdcgError("mdcg.run takes one method=…; for several see mdcg.compare.")
    asked = _recipe(seeds, recipe)
    if len(asked.memory) > 1 or any(isinstance(value, list) for value in asked.set.values()):
        raise MdcgError("mdcg.run takes one memory size and one value of each setting; for several see mdcg.compare.")
    (result,) = run_recipe(asked, members=members, fresh=fresh, quiet=quiet, log=log, probes=probes).values()
    return result


def compare(
    *,
    seeds: Iterable[int] | str | int = (0,),
    members: int | None = None,
    fresh: bool = False,
    quiet: bool = False,
    log: Sequence[str | Tracker] = (),
    probes: Sequence[str] = (),
    **recipe: Any,
) -> dict[str, Result]:
    """The same for several methods=[…], memory sizes memory=[…] or settings set={"lam": […]}: a result for each.

    >>> import mdcg, tempfile
    >>> asked = dict(methods=["naive", "replay"], memory=20, epochs=1, out=tempfile.mkdtemp())
    >>> sorted(mdcg.compare(scenario="digits-2", **asked))
    ['naive', 'replay']
    """
    return run_recipe(_recipe(seeds, recipe), fresh=fresh, quiet=quiet, members=members, log=log, probes=probes)


def _recipe(seeds: Iterable[int] | str | int, keys: dict[str, Any]) -> Recipe:
    chosen = seeds if isinstance(seeds, str | int) else [operator.index(seed) for seed in seeds]
    return make_recipe(**keys, seeds=chosen)


def run_recipe(
    recipe: Recipe,
    *,
    fresh: bool = False,
    quiet: bool = False,
    members: int | None = None,
    log: Sequence[str | Tracker] = (),
    probes: Sequence[str] = (),
) -> dict[str, Result]:
    """All runs of a recipe, by method; where memories or settings were given as lists, by these too."""
    trackers = opened(log)
    machine = compute(recipe.device, recipe.precision)
    recipe.check_names()
    dataset = load_for(recipe)
    specs = recipe.resolve(dataset)
    how: dict[str, Any] = {"fresh": fresh, "quiet": quiet, "members": members, "trackers": trackers, "probes": probes}
    records = run_specs(specs, dataset, machine, recipe.out, warn=aloud, **how)
    together: dict[str, list[Record]] = {}
    for record in records:
        together.setdefault(recipe.label(record.spec), []).append(record)
    return {label: Result(own, recipe.out, dataset) for label, own in together.items()}


def load_for(recipe: Recipe) -> Dataset:
    name, _ = parse(recipe.scenario)
    return load(name, recipe.data, recipe.image_size)


class Sweep:
    """All runs of a recipe with axes: plan them, run them, look at them.

    >>> import tempfile
    >>> work = Sweep.read("recipes/quick.yaml", only={"method": ["naive"]}, out=tempfile.mkdtemp())
    >>> len(work.plan().jobs)
    1
    """

    def __init__(self, cells: list[Cell], site: Site, title: str) -> None:
        self.cells, self.site, self.title = cells, site, title

    @classmethod
    def read(
        cls,
        recipe: Path | str,
        *,
        only: Mapping[str, Sequence[str]] | None = None,
        members: int | None = None,
        log: Sequence[str] = (),
        probes: Sequence[str] = (),
        **given: Any,
    ) -> Sweep:
        """`given` (seeds, out, data, device, precision) overrules what the recipe says."""
        path = Path(recipe)
        found = combinations(read_written(path), given)
        base = found[0].recipe
        opened(log)  # or say what is missing, before anything trains
        site = Site(base.out, base.data, base.device, members, tuple(log), probes=tuple(probes))
        return cls(choose(found, site, only or {}), site, base.title or path.stem)

    def plan(self, retry: bool = False, executor: Executor | None = None) -> Planned:
        """What would be trained, in which groups."""
        return plan_sweep(self.cells, (executor or Here()).prepare(self.site), retry, aloud)

    def run(self, retry: bool = False, quiet: bool = False, executor: Executor | None = None) -> Undone:
        """Train what is not finished; what failed, now or before, and what could not be had."""
        worker = executor or Here()
        site = worker.prepare(self.site)
        planned = plan_sweep(self.cells, site, retry, aloud)
        specs = [spec for cell in self.cells for spec in cell.specs]
        say_what_is_repeated(site.store, specs, aloud)
        tidy(site.store, specs, aloud)
        undone = Undone(failed=planned.failed)
        if planned.jobs:
            with SweepDisplay(planned, quiet) as display:
                undone |= worker.execute(planned.jobs, site, display, aloud)
        done = self.records()  # some of what others were at may be finished by now
        return Undone(undone.failed, {name: why for name, why in undone.left.items() if name not in done})

    def records(self) -> dict[str, Record]:
        """Of all finished runs, by name."""
        store = self.site.store
        found = [store.finished(spec) for cell in self.cells for spec in cell.specs]
        return {record.spec.name: record for record in found if record is not None}
