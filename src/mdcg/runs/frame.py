"""Finished runs as pandas frames, for those who look at them in Python: the columns of the CSV export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from mdcg.errors import unknown
from mdcg.extras import extra
from mdcg.runs.export import NamedRecord, columns, kind_of, row_of
from mdcg.runs.query import RunRow
from mdcg.runs.record import Record

if TYPE_CHECKING:
    import pandas

Part = Literal["runs", "R", "history"]
WHOSE = ("scenario", "method", "memory", "seed")  # of a run, before what is told of it; its name is the key to the rest
#: The types of columns whose values are all there, and of those where some are not.
TYPES: dict[type, tuple[str, str]] = {
    bool: ("bool", "boolean"),
    int: ("int64", "Int64"),
    float: ("float64", "float64"),
}


def frame_of(runs: Sequence[NamedRecord], part: Part = "runs") -> pandas.DataFrame:
    """Make a frame of finished runs.

    "runs": a row for each run, with its settings, metrics, time and place. "R": a row for each accuracy, in percent on
    `task` after the task `after`, both from 1. "history": a row for each epoch of training.
    """
    if not isinstance(part, str) or part not in get_args(Part):
        raise unknown("part of runs", part, get_args(Part))
    pandas = extra("pandas", "pandas", "a data frame")
    rows, names = _PARTS[part](runs)
    return pandas.DataFrame({name: _column(pandas, name, [row.get(name) for row in rows]) for name in names})


def _runs(runs: Sequence[NamedRecord]) -> tuple[list[RunRow], list[str]]:
    rows = [row_of(*run) for run in runs]
    return [*rows], [name for name in columns(rows) if name != "R"]  # which is a frame of its own


def _accuracies(runs: Sequence[NamedRecord]) -> tuple[list[RunRow], list[str]]:
    rows: list[RunRow] = []
    for name, record in runs:
        whose, R = _whose(name, record), record.R
        known = np.argwhere(~np.isnan(R)).tolist()
        rows += [{**whose, "after": i + 1, "task": j + 1, "accuracy": float(R[i, j])} for i, j in known]
    return rows, ["name", *WHOSE, "after", "task", "accuracy"]


def _epochs(runs: Sequence[NamedRecord]) -> tuple[list[RunRow], list[str]]:
    rows = [{**_whose(name, record), **told} for name, record in runs for told in _told(record)]
    first = ["name", *WHOSE, "task", "epoch", "loss", "train_accuracy"]
    return [*rows], list(dict.fromkeys([*first, *(key for row in rows for key in row)]))


def _told(record: Record) -> Iterator[dict[str, Any]]:
    """The rows of the history; in place of the accuracies on each task so far, where there are any, their mean."""
    for row in record.history:
        yield {
            key: float(np.mean(np.array(value, np.float64))) if isinstance(value, list) else value
            for key, value in row.items()
            if key != "within"  # steps and accuracies of an online task, for which there is no column
        }


def _whose(name: str, record: Record) -> dict[str, Any]:
    return {"name": name, **{key: getattr(record.spec, key) for key in WHOSE}}


_PARTS: dict[Part, Callable[[Sequence[NamedRecord]], tuple[list[RunRow], list[str]]]] = {
    "runs": _runs,
    "R": _accuracies,
    "history": _epochs,
}


def _column(pandas: Any, name: str, values: Sequence[Any]) -> Any:
    whole, with_gaps = TYPES.get(kind_of(name, values), (None, None))
    return pandas.Series(values, dtype=with_gaps if None in values else whole)
