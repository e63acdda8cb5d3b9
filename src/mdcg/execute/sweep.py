"""A sweep: all runs of a grid, in as few groups as can be, to the last one.

One run and a comparison of two methods are sweeps of few cells. Whatever happens to one group, the others go on. What
is finished is never done again, what was begun goes on where it was, and what failed is tried again only when asked.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mdcg import compiler, markup, metrics
from mdcg.arguments import flag, plain, texts
from mdcg.data import Dataset
from mdcg.data.stand_in import stand_in
from mdcg.errors import InputError, MdcgError, said
from mdcg.execute.context import Context
from mdcg.execute.cost import group_of
from mdcg.execute.local import WORKED_ON, Executor, LocalExecutor
from mdcg.execute.observer import tell_of_finished
from mdcg.execute.plan import Plan, Undone, make_plan, say_what_is_repeated
from mdcg.execute.progress import PlanDisplay, messages
from mdcg.execute.unfinished import tidy
from mdcg.files import is_locked
from mdcg.methods.base import Preset
from mdcg.models.naming import backbone_name
from mdcg.models.weights import WeightsFile
from mdcg.recipes.document import Document, read_document
from mdcg.recipes.grid import GridCell, choose, expand
from mdcg.recipes.recipe import Recipe
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.scenario import parse
from mdcg.trackers import Tracker, TrackerSet
from mdcg.train.rehearsal import rehearse

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Sweep:
    """All runs of a grid: plan them, run them, look at them.

    >>> import tempfile
    >>> sweep = Sweep.read("quick", only={"method": ["naive"]}, out=tempfile.mkdtemp())
    >>> len(sweep.plan().jobs)
    1
    """

    cells: Sequence[GridCell]
    context: Context
    title: str

    def __repr__(self) -> str:
        return f"<Sweep: {self.title}, {len(self.cells)} settings, {len(self.specs)} runs, in {self.context.out}>"

    def _repr_html_(self) -> str:
        """The sweep as a notebook shows it: its settings, how many runs are finished, and their ACC so far."""
        done, rows = self.records(), []
        axes = list(dict.fromkeys(axis for cell in self.cells for axis in cell.labels))
        for cell in self.cells:
            accs = [done[spec.name].metrics["ACC"] for spec in cell.specs if spec.name in done]
            acc = metrics.spread(*metrics.mean_std(accs)) if accs else "–"
            labels = [cell.labels.get(axis, "") for axis in axes] or [cell.specs[0].method]
            rows.append([*labels, f"{len(accs)} of {len(cell.specs)}", acc])
        head = [*(axes or ["method"]), "runs finished", "ACC"]
        return markup.titled(f"{self.title}, in {self.context.out}", markup.table(head, rows))

    @classmethod
    def read(cls, recipe: Path | str, **how: Any) -> Sweep:
        """The sweep of a YAML file, or of a recipe that comes with mdcg; `how` are the keywords of `of`."""
        return cls.of(read_document(recipe), **how)

    @classmethod
    def of(
        cls,
        document: Document,
        *,
        only: Mapping[str, Sequence[str]] | None = None,
        members: int | None = None,
        log: Sequence[str | Tracker] = (),
        probes: Sequence[str] = (),
        check_probes: bool = False,
        fresh: bool = False,
        pixels: bool = True,
        **given: Any,
    ) -> Sweep:
        """The sweep of a document; `given` (seeds, out, data, device, …) overrides what it says beside its axes.

        A backbone that is given, not one that the document names, may be an object or code to import; `data` may be a
        `Dataset`. With `check_probes` a probe that changes anything is an error.
        """
        given = as_given(given)
        trackers = TrackerSet(log)  # or say what is missing, before anything trains
        probes, check_probes = texts(probes, "probes"), flag(check_probes, "check_probes")
        if check_probes and not probes:
            raise MdcgError("there is no probe to check; name one with --probe (probes), or leave --check-probes out.")
        fresh, pixels, members = flag(fresh, "fresh"), flag(pixels, "pixels"), plain(members, "members")
        if members is not None and (type(members) is not int or members < 1):
            raise InputError(f"members must be a number of runs, from 1 on, not {said(members)}.")
        if not isinstance(document, Document):
            raise InputError(f"{said(document)} is no recipe; use Sweep.read for a file, or mdcg.compare.")
        own = _own_dataset(given)
        found = expand(document, given | {"backbone": _backbones(given.get("backbone"))})
        base = found[0].recipe
        if own is not None:
            _check_named(own, [one.recipe.scenario for one in found])
        context = Context(
            *(base.out, None if own else base.data, base.device, members, tuple(probes), check_probes),
            *(trackers, fresh, pixels),
            given=own,
        )
        cells = choose(found, lambda recipe: _read(recipe, context), _wanted(only))
        paths = {one.recipe.weights for one in found}
        files = [WeightsFile.of(path) for path in paths if path and path.is_file()]  # of what is not wanted, maybe none
        context = replace(context, weights={file.digest: file for file in files})
        name = document.path.stem if document.path else ""
        return cls(cells, context, base.title or name or _title(cells, base.preset))

    @property
    def specs(self) -> list[RunSpec]:
        """All runs of the grid."""
        return [spec for cell in self.cells for spec in cell.specs]

    def plan(self, retry: bool = False, executor: Executor | None = None) -> Plan:
        """Plan what would be trained, in which groups."""
        return make_plan(self.specs, (executor or LocalExecutor()).prepare(self.context), retry)

    def run(self, retry: bool = False, quiet: bool = False, executor: Executor | None = None) -> Undone:
        """Train what is not finished; return what failed, now or before, and what could not be had."""
        worker = executor or LocalExecutor()
        with messages(quiet):
            context = worker.prepare(self.context)
            plan = make_plan(self.specs, context, retry)
            if plan.finished:
                logger.info(
                    "%s of %s runs were already finished; --fresh repeats them.", len(plan.finished), len(self.specs)
                )
            if not context.fresh:
                say_what_is_repeated(context.store, self.specs)
            tidy(context.store, self.specs)
            if told := tell_of_finished(plan.finished, self.context):
                logger.info("new in the log, of the finished runs: %s.", told)
            undone = Undone(failed=plan.failed)
            if plan.jobs:
                with PlanDisplay(plan, quiet) as display:
                    undone |= worker.execute(plan.jobs, context, display)
        done = self.records()
        # Some of what others were at may be finished by now.
        left = {name: why for name, why in undone.left.items() if self.context.fresh or name not in done}
        return replace(undone, left={**self.gone({*done, *undone.failed}), **left})

    def gone(self, known: Collection[str]) -> dict[str, str]:
        """Why the runs that are not among those known have lost their result, by name: it was there a moment ago."""
        folders = {spec.name: self.context.store.folder(spec) for spec in self.specs if spec.name not in known}
        removed = "its result has been removed meanwhile"
        return {name: WORKED_ON if is_locked(folder) else removed for name, folder in folders.items()}

    def records(self) -> dict[str, Record]:
        """The records of all finished runs, by name."""
        store = self.context.store
        found = [store.finished(spec) for spec in self.specs]
        return {record.spec.name: record for record in found if record is not None}


def _read(recipe: Recipe, context: Context) -> Dataset:
    """The images of a recipe; if they must be read, what its runs will launch is asked for before."""
    blank = stand_in(context.record(recipe)) if compiler.is_started() else None
    if blank is not None and context.must_read(recipe):
        with contextlib.suppress(MdcgError):  # whatever is wrong is said when the images are there
            specs = recipe.model_copy(update={"seeds": recipe.seeds[:2]}).resolve(blank)
            rehearse(group_of(specs, blank), context.compute(specs[0]))
    return context.dataset(recipe)


def as_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a person gives in Python, as plain values but for those that are objects: a dataset, a backbone.

    A scenario that is a table need not say whose classes they are beside a dataset of one's own.
    """
    data = given.get("data")
    if data is not None and not isinstance(data, str | os.PathLike | Dataset):
        raise InputError(
            f"data is {type(data).__name__}; give a path, or a dataset as mdcg.Dataset.from_arrays makes one.",
            about="data",
        )
    objects = {"data", "backbone"} if isinstance(data, Dataset) else {"backbone"}
    found = {key: value if key in objects else plain(value, f"'{key}'") for key, value in given.items()}
    scenario = found.get("scenario")
    if isinstance(data, Dataset) and isinstance(scenario, dict):
        return {**found, "scenario": {"dataset": data.name, **scenario}}
    return found


def _wanted(only: Any) -> dict[str, list[str]]:
    """The values that are wanted of each axis."""
    if only is not None and not isinstance(only, Mapping):
        raise InputError(f"only must say which values of which axis, as {{'method': ['md']}}, not {said(only)}.")
    return {key: texts(values, f"only of '{key}'") for key, values in plain(only or {}, "only").items()}


def _own_dataset(given: dict[str, Any]) -> Dataset | None:
    """Take a dataset of one's own out of what is given; a path is left there."""
    data = given.get("data")
    return given.pop("data") if isinstance(data, Dataset) else None


def _check_named(own: Dataset, scenarios: Sequence[str]) -> None:
    """Refuse a dataset that was given and that no scenario asks for."""
    if all(parse(name)[0] != own.name for name in scenarios):
        raise MdcgError(
            f"the scenario {scenarios[0]} is not one of the dataset {own.name}, which is given as data; write "
            f"{own.name}-{parse(scenarios[0])[1]}, or leave data out.",
            about="scenario",
        )


def _backbones(given: Any) -> Any:
    """The names of one backbone or several."""
    if isinstance(given, list | tuple):
        return [backbone_name(one, may_import=True) for one in given]
    return None if given is None else backbone_name(given, may_import=True)


def _title(cells: Sequence[GridCell], preset: Preset) -> str:
    """A title of what all runs of a sweep share."""
    specs = [spec for cell in cells for spec in cell.specs]
    sizes = {spec.memory for spec in specs} - {0}
    alike = len({spec.stream for spec in specs}) == 1
    parts = [
        specs[0].task_sequence if alike else specs[0].scenario,
        *([f"memory {sizes.pop()}"] if len(sizes) == 1 else []),
    ]
    parts += ["as the published code"] if preset == "published" else []
    return ", ".join(parts) + held_out(specs[0])


def held_out(spec: RunSpec) -> str:
    """A clause that says on which images a run is evaluated, where they are held out; else empty."""
    return f", on {spec.hold_out:.0%} of the training images held out" if spec.hold_out else ""
