"""The store: one self-describing folder per finished run.

runs/c10-5_md-cg_m500_s0_1f2e3d4c5b/
    recipe.yaml          repeats the run
    result.json          R, metrics, history, time, versions; its presence says that the run is finished
    model.safetensors    the trained member
"""

from __future__ import annotations

import json
import math
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

import mdcg
from mdcg import metrics
from mdcg.errors import MdcgError, unknown
from mdcg.estimator import Learner
from mdcg.experiments.spec import RunSpec
from mdcg.files import write_whole
from mdcg.metrics import Matrix
from mdcg.train.precision import Compute

FORMAT = 1
RESULT, RECIPE, MODEL = "result.json", "recipe.yaml", "model.safetensors"


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
    environment: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fits_together(self) -> Record:
        if self.format > FORMAT:
            raise ValueError("it was written by a newer version of mdcg")
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
    def device(self) -> str:
        return str(self.environment.get("device", ""))

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


class Store:
    """A folder of runs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, spec: RunSpec) -> Path:
        return self.root / spec.name

    def finished(self, spec: RunSpec) -> Record | None:
        """The record of a run that is done. One that cannot be read counts as not done."""
        try:
            record = read_record(self.folder(spec))
        except MdcgError:
            return None
        return record if record.spec == spec else None

    def write(self, record: Record, learner: Learner) -> None:
        """The result comes last: a folder that has it is complete."""
        folder = self.folder(record.spec)
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
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except ValidationError as error:
        raise MdcgError(f"{path} is damaged or from another version; repeat the run with --fresh.") from error


def device_name(compute: Compute) -> str:
    return torch.cuda.get_device_name() if compute.device.type == "cuda" else "cpu"


def environment(compute: Compute) -> dict[str, Any]:
    return {
        "mdcg": mdcg.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device_name(compute),
        "threads": torch.get_num_threads(),
        "precision": compute.precision,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
