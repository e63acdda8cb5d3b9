"""The store: one self-describing folder per finished run.

runs/c10-5_md-cg_m500_s0_1f2e3d4c5b/
    recipe.yaml          repeats the run
    result.json          R, metrics, history, time, environment; its presence says that the run is finished
    model.safetensors    the trained member
    measured/drift.json  what the probe `drift` measured while it trained, if it was asked to
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import from_json

from mdcg import metrics
from mdcg.errors import MdcgError, unknown
from mdcg.estimator import Learner
from mdcg.experiments.environment import Environment
from mdcg.experiments.spec import RunSpec
from mdcg.files import write_whole
from mdcg.metrics import Matrix

FORMAT = 2  # of result.json; a run's identity has its own, in spec.py
RESULT, RECIPE, MODEL, MEASURED = "result.json", "recipe.yaml", "model.safetensors", "measured"


class Record(BaseModel):
    """What is known of a finished run. Lists are by class position (order of arrival)."""

    model_config = ConfigDict(extra="ignore")  # a later version may have added fields

    format: int = FORMAT
    spec: RunSpec
    sizes: list[int]  # classes of each task
    order: list[int]  # dataset label of each class position
    class_names: list[str]  # of each class position
    correct: list[list[int]]  # [task][class position]
    total: list[int]  # images evaluated, of each class position
    memory: dict[int, list[int]]  # training images kept at the end, by class position
    history: list[dict[str, Any]]  # one row per epoch
    seconds: float  # this run's share of its group's time
    members: int = 1  # runs that were trained together
    environment: Environment = Environment()

    @model_validator(mode="after")
    def _fits_together(self) -> Record:
        classes, tasks = sum(self.sizes), len(self.sizes)
        lengths = {len(self.order), len(self.class_names), len(self.total), *map(len, self.correct)}
        if (
            not tasks
            or min(self.sizes) < 1
            or len(self.correct) != tasks
            or lengths != {classes}
            or min(self.total) < 1
        ):
            raise ValueError("its parts do not fit together")
        return self

    @property
    def R(self) -> Matrix:
        return metrics.accuracy_matrix(self.correct, self.total, self.sizes)

    @property
    def metrics(self) -> dict[str, float]:
        return metrics.summary(self.R)

    @property
    def class_accuracy(self) -> Matrix:
        return metrics.class_accuracy(self.correct, self.total)

    def as_json(self) -> dict[str, Any]:
        """For `--json`: accuracies in percent, what was not evaluated as null."""
        values = {name: _or_none(value) for name, value in self.metrics.items()}
        R = [[_or_none(entry) for entry in row] for row in self.R.tolist()]
        return {"seed": self.spec.seed, "R": R, **values, "seconds": round(self.seconds, 3)}


class NewerFormat(MdcgError):
    """A result that only a newer version can read: it must not pass for one that is damaged and may be made again."""


class Measurements(BaseModel):
    """What one probe measured of one run."""

    rows: list[dict[str, Any]]  # one per look: task and epoch (from 1; 0 epochs: the task begins), step, quantities
    seconds: float  # that it took, this run's share


class Store:
    """A folder of runs. A run is finished when its result is there, and what `probes` were to measure."""

    def __init__(self, root: Path, probes: Sequence[str] = ()) -> None:
        self.root, self.probes = root, tuple(dict.fromkeys(probes))

    def folder(self, spec: RunSpec) -> Path:
        return self.root / spec.name

    def finished(self, spec: RunSpec) -> Record | None:
        """The record of a run that is done. One that is damaged counts as not done."""
        record = self.result(spec)
        return record if all(measured_file(self.folder(spec), probe).is_file() for probe in self.probes) else None

    def result(self, spec: RunSpec) -> Record | None:
        """The same, whatever was measured."""
        try:
            record = read_record(self.folder(spec))
        except NewerFormat:
            raise
        except MdcgError:
            return None
        return record if record.spec == spec else None

    def write(self, record: Record, learner: Learner, measured: Mapping[str, Measurements]) -> None:
        """The result comes last: a folder that has it is complete.

        A run that is repeated for the sake of its probes comes to the same result, which then stays as it is. If it
        does not, on another machine for instance, all that was stored before gives way.
        """
        folder = self.folder(record.spec)
        before = self.result(record.spec)
        same = before is not None and before.correct == record.correct
        if before is not None and not same:
            self.forget(record.spec)
        for probe, found in measured.items():
            write_whole(measured_file(folder, probe), found.model_dump_json().encode())
        if same:
            return
        write_whole(folder / RECIPE, yaml.safe_dump(record.spec.as_recipe(), sort_keys=False).encode())
        learner.save(folder / MODEL)
        content = record.model_dump() | {
            "R": record.as_json()["R"],
            "metrics": {name: _or_none(value) for name, value in record.metrics.items()},
            "class_accuracy": record.class_accuracy.tolist(),
        }
        write_whole(folder / RESULT, (json.dumps(content, allow_nan=False) + "\n").encode())

    def forget(self, spec: RunSpec) -> None:
        """Make a finished run count as not done; its files are overwritten when it is."""
        (self.folder(spec) / RESULT).unlink(missing_ok=True)
        for file in (self.folder(spec) / MEASURED).glob("*.json"):
            file.unlink(missing_ok=True)

    def records(self, unreadable: list[tuple[Path, str]] | None = None) -> Iterator[tuple[Path, Record]]:
        """Every finished run below the folder, also in folders of folders, with its own folder; in order of names.

        Other files and folders are passed over. What looks like a run and cannot be read is added to `unreadable`,
        with a sentence that says why.
        """
        refused = [] if unreadable is None else unreadable

        def note(error: OSError) -> None:
            if Path(error.filename) != self.root or self.root.exists():  # no folder yet: no runs yet
                refused.append((Path(error.filename), f"cannot read {error.filename}: {error.strerror}."))

        for place, folders, files in os.walk(self.root, onerror=note):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            folder = Path(place)
            if RESULT not in files or not (folder / RESULT).is_file():  # a pipe or a dead link is no result
                continue
            folders.clear()  # the run's own
            try:
                record = read_record(folder)
            except MdcgError as error:
                refused.append((folder / RESULT, str(error)))
                continue
            yield folder, record

    def find(self, name: str) -> Path:
        """A run's folder by path, or by name in this store."""
        for path in (Path(name), self.root / name):
            if (path / RESULT).is_file():
                return path
            if path.is_dir() and path != self.root:
                raise MdcgError(f"{path} holds no finished run; give the same 'mdcg run' command again to finish it.")
        known = [path.parent.name for path in self.root.glob(f"*/{RESULT}")] if self.root.is_dir() else []
        if not known:
            raise MdcgError(f"there is no run '{name}', and no finished run in {self.root}; give --out or a path.")
        raise unknown("run", name, known)


def read_record(folder: Path) -> Record:
    path = folder / RESULT
    try:
        content = from_json(path.read_bytes(), allow_inf_nan=False)
        found = content["format"]
        if found > FORMAT:
            raise NewerFormat(
                f"{path} was written by a newer version of mdcg (format {found}; this one reads up to {FORMAT}); "
                "update mdcg."
            )
        while found < FORMAT:
            content = UPGRADES[found](content)
            found = content["format"]
        return Record.model_validate(content)
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except (ValidationError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise MdcgError(f"{path} is damaged, or is no result of mdcg; repeat the run with --fresh.") from error


def measured_file(folder: Path, probe: str) -> Path:
    """Where a run has what a probe measured of it."""
    return folder / MEASURED / f"{probe}.json"


def read_measurements(folder: Path, probe: str) -> Measurements:
    path = measured_file(folder, probe)
    try:
        return Measurements.model_validate_json(path.read_bytes())
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; repeat the run with --probe {probe}.") from error
    except ValidationError as error:
        raise MdcgError(f"{path} is damaged; remove it, and repeat the run with --probe {probe}.") from error


def _structured_environment(content: dict[str, Any]) -> dict[str, Any]:
    """Format 1 had versions and machine side by side, and one text for the device."""
    old = content["environment"]
    device = old.get("device") or ""
    on_cpu = re.fullmatch(r"cpu \((\d+) threads\)", device)
    hardware = {"threads": int(on_cpu[1])} if on_cpu else {"gpu": device or None}
    versions = {name: old.get(name) for name in ("mdcg", "torch", "numpy", "python")}
    kept = {name: old.get(name) for name in ("platform", "precision", "finished")}
    return {**content, "format": 2, "environment": {"versions": versions, "hardware": hardware, **kept}}


# What turns a format's content into the next one's.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _structured_environment}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
