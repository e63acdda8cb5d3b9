"""The Python calls `mdcg.run` and `mdcg.compare`, which train what is asked for and return the results."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from mdcg import metrics
from mdcg.data import Dataset
from mdcg.data.normalise import Named
from mdcg.errors import MdcgError
from mdcg.execute.plan import Undone
from mdcg.execute.progress import messages
from mdcg.execute.sweep import Sweep
from mdcg.learner import Learner
from mdcg.methods.base import Passes, Preset, Value
from mdcg.metrics import Matrix
from mdcg.models import Given
from mdcg.recipes.document import written
from mdcg.report.notebook import as_html, one_line
from mdcg.results.settings import Setting, of_sweep
from mdcg.runs.record import Record
from mdcg.runs.store import MODEL, archive_of
from mdcg.trackers import Tracker
from mdcg.train.group import OptimizerName, ScheduleName


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
        return self.setting.records

    @property
    def seeds(self) -> list[int]:
        return [record.spec.seed for record in self.records]

    @property
    def R(self) -> Matrix:
        """The accuracy matrices (seeds, tasks, tasks): accuracy on task j after task i, NaN where j > i."""
        return self.setting.matrices

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
        return Learner.load(file)

    def measured(self, probe: str) -> list[dict[str, Any]]:
        """The rows that a probe measured, one per look, each with the run's seed."""
        return [{"seed": run.spec.seed, **row} for run in self.setting.runs for row in run.measured(probe)]

    def as_json(self) -> dict[str, Any]:
        """The result as plain values for JSON."""

        def clean(values: dict[str, float]) -> dict[str, float | None]:
            return {name: None if np.isnan(value) else round(value, 6) for name, value in values.items()}

        runs = [{**run.record.as_json(), "folder": str(run.folder)} for run in self.setting.runs]
        return {"runs": runs, "mean": clean(self.mean), "std": clean(self.std)}

    def _metric(self, name: str) -> Matrix:
        return np.array([record.metrics[name] for record in self.records])


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
    **asked: Unpack[RunOptions],
) -> Result:
    """Train one method for each seed, or take up the runs that are already there.

    `set` are settings of the method or head; `log` names trackers, for instance ["tensorboard"], or gives your own;
    `probes` names what to measure as it trains, see `Result.measured`. Without `pixels` the model's file keeps no
    images, and a `Learner` that is loaded from it can learn no more.

    >>> import mdcg, tempfile
    >>> result = mdcg.run(scenario="digits-2", method="naive", epochs=1, seeds=range(2), out=tempfile.mkdtemp())
    >>> result.R.shape
    (2, 2, 2)
    """
    keys = {"scenario": scenario, "method": method, "memory": memory, "set": set, **asked}
    sweep = _sweep(keys, seeds, quiet, members=members, fresh=fresh, pixels=pixels, log=log, probes=probes)
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
    **asked: Unpack[RunOptions],
) -> dict[str, Result]:
    """Train several methods, with several memory sizes or settings set={"lam": [0.1, 1]}: a result for each.

    >>> import mdcg, tempfile
    >>> found = mdcg.compare(
    ...     scenario="digits-2", methods=["naive", "replay"], memory=20, epochs=1, out=tempfile.mkdtemp()
    ... )
    >>> sorted(found)
    ['naive', 'replay']
    """
    keys = {"scenario": scenario, "methods": methods, "method": method, "memory": memory, "set": set, **asked}
    sweep = _sweep(keys, seeds, quiet, members=members, fresh=fresh, pixels=pixels, log=log, probes=probes)
    return results_of(sweep, quiet)


def _sweep(keys: Mapping[str, Any], seeds: Iterable[int] | str | int, quiet: bool, **how: Any) -> Sweep:
    chosen = seeds if isinstance(seeds, str | int) else [operator.index(seed) for seed in seeds]
    with messages(quiet):  # a dataset may be downloaded
        return Sweep.of(written({}), **how, **keys, seeds=chosen)


def results_of(sweep: Sweep, quiet: bool = False) -> dict[str, Result]:
    """Train a sweep to its end, what failed before too: a result for each cell, or the error that says why not."""
    undone = sweep.run(retry=True, quiet=quiet)
    if undone:
        raise _error(undone)
    context = sweep.context
    return {setting.label: Result(setting, context.out, context.dataset(setting.spec)) for setting in of_sweep(sweep)}


def _error(undone: Undone) -> MdcgError:
    left = [f"not finished: {reason}; give the same command again." for reason in undone.left.values()]
    error = MdcgError(" ".join(dict.fromkeys([*undone.failed.values(), *left])))
    error.__cause__ = next(iter(undone.errors), None)  # where it came from, for those who fix their own method
    return error
