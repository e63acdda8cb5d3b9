"""The data of the page's charts, as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from mdcg.metrics import Matrix
from mdcg.report.terminal import settings_of
from mdcg.results.settings import Section, Setting
from mdcg.runs.finished import FinishedRun
from mdcg.runs.record import Record

NUMBER = (int, float)


def dumps(content: object) -> str:
    """Write JSON as short as it can be; the template's `tojson` makes it safe inside HTML."""
    return json.dumps(lean(content), allow_nan=False, separators=(",", ":"))


def lean(content: Any) -> Any:
    """Shorten all numbers; what is no number is null.

    >>> lean({"R": np.array([1 / 3, np.nan])})
    {'R': [0.3333, None]}
    """
    if isinstance(content, float):  # first what there is most of
        return round(content, 4) if math.isfinite(content) else None
    if isinstance(content, str | int):
        return content
    if isinstance(content, np.ndarray):  # at once, where nothing is missing
        return content.round(4).tolist() if np.isfinite(content).all() else lean(content.tolist())
    if isinstance(content, dict):
        return {key: lean(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [value if type(value) is int else lean(value) for value in content]  # most are
    return content


def of_section(section: Section, first: int) -> list[dict[str, Any]]:
    """The data to compare the settings of a section; the first of them is number `first` on the page."""
    return [_summary(setting) | {"id": first + place} for place, setting in enumerate(section.settings)]


def _summary(setting: Setting) -> dict[str, Any]:
    matrices = setting.matrices
    seen = np.stack([[R[i, : i + 1].mean() for i in range(len(R))] for R in matrices])
    acc = setting.stats["ACC"]
    return {
        "name": setting.name,
        "label": setting.label,
        "memory": setting.spec.memory,
        "acc": [acc.mean, acc.std],
        "seen": _mean_std(seen),
        "forgetting": _mean_std(np.stack([_forgetting(R) for R in matrices])),
    }


def of_setting(setting: Setting) -> dict[str, Any]:
    """The data to look at one setting and each of its runs."""
    return {
        "label": setting.label,
        "R": setting.matrices.mean(0),
        "runs": [_run(run, R) for run, R in zip(setting.runs, setting.matrices, strict=True)],
    }


def _run(run: FinishedRun, R: Matrix) -> dict[str, Any]:
    record = run.record
    rows = [row for row in record.history if _is_epoch(row)]
    return {
        "seed": record.spec.seed,
        "R": R,
        "forgetting": _forgetting(R),
        "epochs": record.spec.epochs,
        "task": [row["task"] for row in rows],
        "epoch": [row["epoch"] for row in rows],
        "loss": np.array([row["loss"] for row in rows], float),
        "train": np.array([row["train_accuracy"] for row in rows], float),
        "accuracy": {place: row["accuracy"] for place, row in enumerate(rows) if _are_numbers(row.get("accuracy"))},
        "classes": _classes(record),
        "facts": [("folder", run.printable), *settings_of(record), *_kept(record)],
    }


def _classes(record: Record) -> list[list[tuple[str, float]]]:
    """The classes of each task and their accuracies; empty where only tasks were counted."""
    accuracy = record.class_accuracy
    if accuracy is None:
        return []
    named = list(zip(record.class_names, accuracy.tolist(), strict=True))
    return [[named[c] for c in classes] for classes in record.task_columns]


def _kept(record: Record) -> list[tuple[str, str]]:
    """The number of images in memory, which an archive does not say."""
    known = record.memory or not record.spec.memory
    return [("images in memory", str(sum(map(len, record.memory.values()))))] if known else []


def _forgetting(R: Matrix) -> Matrix:
    """The forgetting of each task but the last: its best accuracy before the last task, less the final one."""
    return np.nanmax(R[:-1, :-1], axis=0) - R[-1, :-1] if len(R) > 1 else np.zeros(0)


def _mean_std(values: Matrix) -> list[Matrix]:
    std = values.std(0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
    return [values.mean(0), std]


def _is_epoch(row: dict[str, Any]) -> bool:
    """Whether a row of the history is an epoch's: the store does not check it, and one that is foreign is left out."""
    counts = isinstance(row.get("task"), int) and isinstance(row.get("epoch"), int)
    return counts and isinstance(row.get("loss"), NUMBER) and isinstance(row.get("train_accuracy"), NUMBER)


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, NUMBER) for value in values)
