"""The Python calls: `run`, `compare` and `search` train what is asked for, `load_runs` reads what was trained."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from mdcg import metrics
from mdcg.arguments import flag, plain
from mdcg.data import Dataset
from mdcg.data.normalise import Named
from mdcg.errors import InputError, MdcgError, said
from mdcg.execute.plan import Undone
from mdcg.execute.progress import messages
from mdcg.execute.search import SearchResult, chosen_recipe, read_search, recipe_file, recipe_text, search_sweep
from mdcg.execute.sweep import Sweep
from mdcg.extras import extra
from mdcg.files import path_of, shown
from mdcg.methods.base import Passes, Preset, Value
from mdcg.metrics import Matrix, spread
from mdcg.models import Given
from mdcg.recipes.document import written
from mdcg.report.notebook import as_html, comparison_html, one_line, search_html
from mdcg.report.search_tables import verdict
from mdcg.results.settings import Setting, of_sweep
from mdcg.runs.export import NamedRecord
from mdcg.runs.frame import Part, frame_of
from mdcg.runs.record import Record
from mdcg.runs.store import MODEL, Store, archive_of
from mdcg.trackers import Tracker
from mdcg.train.group import OptimizerName, ScheduleName

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from mdcg.learner import Learner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Result:
    """The runs of one setting: arrays have one row per seed, accuracies are in percent."""

    setting: Setting
    out: Path  # the folder of runs
    dataset: Dataset

    def __repr__(self) -> str:
        return f"<Result: {one_line(self.setting)}>"

    def _repr_html_(self) -> str:
        """The result as a notebook shows it."""
        return as_html(self.setting)

    @property
    def records(self) -> list[Record]:
        """The records of all runs, in the order of the seeds: counts, history, time, environment."""
        return self.setting.records

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order in which all arrays have them."""
        return [record.spec.seed for record in self.records]

    @property
    def R(self) -> Matrix:
        """The accuracy matrices (seeds, tasks, tasks): accuracy on task j after task i, NaN where j > i."""
        return self.setting.matrices

    @property
    def ACC(self) -> Matrix:
        """The accuracy over all tasks at the end, per seed."""
        return self._metric("ACC")

    @property
    def BWT(self) -> Matrix:
        """The mean change of past accuracy over all pairs of tasks, per seed."""
        return self._metric("BWT")

    @property
    def BWT_final(self) -> Matrix:
        """The mean change of past accuracy at the end, per seed."""
        return self._metric("BWT_final")

    @property
    def forgetting(self) -> Matrix:
        """The mean loss from the best accuracy before the last task to the end, per seed."""
        return self._metric("forgetting")

    @property
    def anytime(self) -> Matrix:
        """The accuracy over the stream, on all classes so far: the mean over all times at which it was evaluated."""
        return self._metric("anytime")

    @property
    def mean(self) -> dict[str, float]:
        """The mean over seeds of every metric, by name."""
        return {name: self.setting.stats[name].mean for name in metrics.NAMES}

    @property
    def std(self) -> dict[str, float]:
        """The sample standard deviation over seeds; NaN for a single one."""
        return {name: self.setting.stats[name].std for name in metrics.NAMES}

    @property
    def learner(self) -> Learner:
        """The classifier of the first seed."""
        return self.learners[0]

    @cached_property
    def learners(self) -> list[Learner]:
        """The trained classifiers, one per seed."""
        return [self._learner(run.folder) for run in self.setting.runs]

    def _learner(self, place: Path) -> Learner:
        if archive := archive_of(place):
            raise MdcgError(
                f"{place.name} is a run of the archive {archive}, which has no model; repeat the run with --fresh "
                "(fresh=True)."
            )
        file = place / MODEL
        if not file.exists():
            raise MdcgError(f"the model of a finished run, {file}, is gone; repeat the run with --fresh (fresh=True).")
        from mdcg.learner import Learner  # which needs scikit-learn, as figures need matplotlib: no run waits for them

        return Learner.load(file)

    def measured(self, probe: str) -> list[dict[str, Any]]:
        """The rows that a probe measured, one per look, each with the run's seed."""
        return [{"seed": run.spec.seed, **row} for run in self.setting.runs for row in run.measured(probe)]

    def frame(self, part: Part = "runs") -> pandas.DataFrame:
        """The runs as a pandas frame: a row per run, per accuracy of "R", or per epoch of the "history"."""
        return frame_of(_named(self.setting), part)

    def plot(self) -> Figure:
        """Draw the accuracy as tasks are learned, and R: a matplotlib figure, which a notebook shows."""
        from mdcg.figures.overview import overview

        return overview([self.setting])

    def as_json(self) -> dict[str, Any]:
        """The result as plain values for JSON."""

        def clean(values: dict[str, float]) -> dict[str, float | None]:
            return {name: None if np.isnan(value) else round(value, 6) for name, value in values.items()}

        runs = [{**run.record.as_json(), "folder": str(run.folder)} for run in self.setting.runs]
        return {"runs": runs, "mean": clean(self.mean), "std": clean(self.std)}

    def _metric(self, name: str) -> Matrix:
        return np.array([record.metrics[name] for record in self.records])


class Comparison(dict[str, Result]):
    """Results by name, as `mdcg.compare` returns them: a dictionary that can be looked at.

    Make one yourself of results to be seen side by side: Comparison({"mine": result, "theirs": other}).
    """

    def __repr__(self) -> str:
        accs = [f"{name}, ACC {spread(one.mean['ACC'], one.std['ACC'])}" for name, one in self.items()]
        return f"<Comparison: {'; '.join(accs)}>"

    def _repr_html_(self) -> str:
        """The comparison as a notebook shows it, best first."""
        return comparison_html(self._settings())

    def frame(self, part: Part = "runs") -> pandas.DataFrame:
        """All runs as one pandas frame, see `Result.frame`; the first column, `setting`, has the results' names."""
        pandas = extra("pandas", "pandas", "a data frame")
        self._settings()  # or say that there are none
        parts = {name: result.frame(part) for name, result in self.items()}
        return pandas.concat(parts, names=["setting"]).reset_index("setting").reset_index(drop=True)

    def plot(self) -> Figure:
        """Draw the accuracy as tasks are learned, a line for each result: a matplotlib figure."""
        from mdcg.figures.overview import overview

        return overview(self._settings())

    def _settings(self) -> list[Setting]:
        if not self:
            raise MdcgError("a comparison without results has nothing to show; put some into it.")
        for name, result in self.items():
            if not isinstance(result, Result):
                raise InputError(f"{said(name)} of the comparison is {said(result)}, no result; leave it out.")
        return [replace(result.setting, label=name) for name, result in self.items()]


def _named(setting: Setting) -> list[NamedRecord]:
    return [(run.folder.name, run.record) for run in setting.runs]


@dataclass(frozen=True, repr=False)
class Search:
    """A finished search: ACC on images held out at every point of a grid, and what that chooses."""

    results: list[SearchResult]  # one for each memory size
    recipe: dict[str, Any]  # what was chosen: `mdcg.run(**recipe)`, for one memory size, trains it on the test images
    sweep: Sweep  # the runs

    def __repr__(self) -> str:
        return f"<Search: {'; '.join(map(verdict, self.results))}>"

    def _repr_html_(self) -> str:
        """The search as a notebook shows it: the grid, the best point marked."""
        return search_html(self.results)

    @property
    def best(self) -> dict[str, Value]:
        """The settings that were chosen, by name."""
        return self._one().best

    @property
    def margin(self) -> float:
        """The ACC of the choice less that of the second best; NaN for a grid of one point."""
        return self._one().margin

    def _one(self) -> SearchResult:
        if len(self.results) > 1:
            sizes = ", ".join(str(one.memory) for one in self.results)
            raise MdcgError(f"each memory size ({sizes}) has a choice of its own; look at each one in 'results'.")
        return self.results[0]

    def frame(self) -> pandas.DataFrame:
        """The grid as a pandas frame: a row per point, with its ACC in percent."""
        pandas = extra("pandas", "pandas", "a data frame")
        return pandas.DataFrame([{"memory": one.memory, **point} for one in self.results for point in one.grid])

    def write(self, path: Path | str, *, force: bool = False) -> None:
        """Write the recipe as YAML, for `mdcg run` or, with several memory sizes, `mdcg sweep`.

        One that a search wrote gives way to it, any other file only with `force`.
        """
        recipe_file(path_of(path), flag(force, "force")).write(recipe_text(self.recipe))


class RunOptions(TypedDict, total=False):
    """The options that `run` and `compare` share, see `Recipe`; what is left out follows the paper."""

    title: str | None
    tasks: Sequence[Sequence[str]] | None
    order: Sequence[str] | str | None
    sizes: Sequence[int] | str | None
    first: int | None
    returning: bool | None
    blurry: float | None
    online: bool | None
    preset: Preset | None
    head: str | None
    backbone: Given | None
    weights: Path | str | None
    backbone_lr: float | None
    head_lr: float | None
    epochs: int | None
    batch_size: int | None
    lr: float | None
    optimizer: OptimizerName | None
    momentum: float | None
    weight_decay: float | None
    schedule: ScheduleName | None
    warmup: float | None
    clip: float | None
    label_smoothing: float | None
    augment: str | None
    jitter_strength: float | None
    randaugment_n: int | None
    randaugment_m: float | None
    mix_alpha: float | None
    precision: str | None
    hold_out: float | None
    evaluate_every: int | None
    image_size: int | None
    normalise: Named | None
    augmentation: Preset | None
    passes: Passes | None
    device: Literal["auto", "cpu", "cuda"] | None
    out: Path | str | None
    data: Path | str | Dataset | None  # where datasets are looked for, or a dataset of your own


def run(
    *,
    scenario: str | Mapping[str, Any],
    method: str,
    memory: int | None = None,
    seeds: Iterable[int] | str | int = (0,),
    set: Mapping[str, Value] | None = None,
    members: int | None = None,
    fresh: bool = False,
    pixels: bool = True,
    quiet: bool = False,
    log: Sequence[str | Tracker] = (),
    probes: Sequence[str] = (),
    check_probes: bool = False,
    **asked: Unpack[RunOptions],
) -> Result:
    """Train one method for each seed, or take up the runs that are already there.

    `set` are settings of the method or head; `log` names trackers, for instance ["tensorboard"], or gives your own;
    `probes` names what to measure as it trains, see `Result.measured`; with `check_probes` one that changes anything
    is an error. Without `pixels` the model's file keeps no
    images, and a `Learner` that is loaded from it can learn no more.

    >>> import mdcg, tempfile
    >>> result = mdcg.run(scenario="digits-2", method="naive", epochs=1, seeds=range(2), out=tempfile.mkdtemp())
    >>> result.R.shape
    (2, 2, 2)
    """
    keys = {"scenario": scenario, "method": method, "memory": memory, "set": set, **asked}
    how = {"members": members, "fresh": fresh, "pixels": pixels, "log": log}
    sweep = _sweep(keys, seeds, quiet, probes=probes, check_probes=check_probes, **how)
    if len(sweep.cells) > 1:
        raise MdcgError(
            "mdcg.run takes one method, one memory size and one value of each setting; for several see mdcg.compare."
        )
    (result,) = results_of(sweep, quiet).values()
    return result


def compare(
    *,
    scenario: str | Mapping[str, Any],
    methods: Sequence[str] | str | None = None,
    method: str | None = None,
    memory: int | Sequence[int] | str | None = None,
    seeds: Iterable[int] | str | int = (0,),
    set: Mapping[str, Value | Sequence[Value]] | None = None,
    members: int | None = None,
    fresh: bool = False,
    pixels: bool = True,
    quiet: bool = False,
    log: Sequence[str | Tracker] = (),
    probes: Sequence[str] = (),
    check_probes: bool = False,
    **asked: Unpack[RunOptions],
) -> Comparison:
    """Train several methods, with several memory sizes or settings set={"lam": [0.1, 1]}: a result for each.

    >>> import mdcg, tempfile
    >>> found = mdcg.compare(
    ...     scenario="digits-2", methods=["naive", "replay"], memory=20, epochs=1, out=tempfile.mkdtemp()
    ... )
    >>> sorted(found)
    ['naive', 'replay']
    """
    keys = {"scenario": scenario, "methods": methods, "method": method, "memory": memory, "set": set, **asked}
    how = {"members": members, "fresh": fresh, "pixels": pixels, "log": log}
    sweep = _sweep(keys, seeds, quiet, probes=probes, check_probes=check_probes, **how)
    return results_of(sweep, quiet)


def search(
    *,
    scenario: str | Mapping[str, Any],
    method: str,
    memory: int | Sequence[int] | str | None = None,
    seeds: Iterable[int] | str | int = (0,),
    set: Mapping[str, Value | Sequence[Value]] | None = None,
    members: int | None = None,
    fresh: bool = False,
    pixels: bool = True,
    quiet: bool = False,
    log: Sequence[str | Tracker] = (),
    **asked: Unpack[RunOptions],
) -> Search:
    """Choose a method's settings as the paper did: each point of a grid, judged on training images held out.

    The grid is the method's own, or that of `set`, for instance {"lam": [0.1, 1]}. The test images are never looked at.
    Without `hold_out` a tenth of each class's training images is held out.

    >>> import mdcg, tempfile
    >>> found = mdcg.search(
    ...     scenario="digits-2", method="md", memory=20, set={"lam": [0.1, 1]}, epochs=1, out=tempfile.mkdtemp()
    ... )
    >>> sorted(found.best)
    ['lam']
    """
    given = {"scenario": scenario, "method": method, "memory": memory, "set": set, "seeds": _seeds(seeds), **asked}
    with messages(flag(quiet, "quiet")):
        sweep, keys = search_sweep(written({}), given, members=members, fresh=fresh, pixels=pixels, log=log)
        found = read_search(sweep, sweep.run(retry=fresh, quiet=quiet))
    return Search(found, chosen_recipe(keys, found), sweep)


def load_runs(path: Path | str = "runs", part: Part = "runs") -> pandas.DataFrame:
    """Read all finished runs below a folder, archives among them, or those of one archive, as a pandas frame.

    A row per run has its settings (those of method and head as set.NAME), metrics, time and place; with the `part` "R"
    there is a row per accuracy, with "history" one per epoch.
    """
    place, unreadable = path_of(path, home=True), list[tuple[Path, str]]()
    if not place.exists():
        raise MdcgError(f"there is no folder {shown(place)}; give the folder of your runs, or an archive.")
    found = list(Store(place).named(unreadable))
    for _, reason in unreadable:
        logger.warning("%s", reason)
    return frame_of(found, part)


def _sweep(keys: Mapping[str, Any], seeds: Iterable[int] | str | int, quiet: bool, **how: Any) -> Sweep:
    with messages(flag(quiet, "quiet")):  # a dataset may be downloaded
        return Sweep.of(written({}), **how, **keys, seeds=_seeds(seeds))


def _seeds(given: Iterable[int] | str | int) -> Any:
    """The seeds as plain values; None does not stand for the usual one here."""
    if given is None:
        raise InputError("seeds is None; give a number, several, or a text such as '0-4', or leave it out.")
    return plain(given, "seeds")


def results_of(sweep: Sweep, quiet: bool = False) -> Comparison:
    """Train a sweep to its end, what failed before too: a result for each cell, or the error that says why not."""
    undone, context = sweep.run(retry=True, quiet=quiet), sweep.context
    settings = of_sweep(sweep)
    undone = undone or Undone(left=sweep.gone({run.spec.name for setting in settings for run in setting.runs}))
    if undone:
        raise _error(undone)
    return Comparison(
        {setting.label: Result(setting, context.out, context.dataset(setting.spec)) for setting in settings}
    )


def _error(undone: Undone) -> MdcgError:
    left = [f"not finished: {reason}; give the same command again." for reason in undone.left.values()]
    error = MdcgError(" ".join(dict.fromkeys([*undone.failed.values(), *left])))
    error.__cause__ = next(iter(undone.errors), None)  # where it came from, for those who fix their own method
    return error
