"""Archives: many finished runs in one file, one per line, to keep in git or to pass on.

A line is a record as JSON, short: without the images in memory, the history by columns. The model and what probes
measured are in a run's own folder only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from mdcg.experiments.record import DAMAGE, NewerFormat, Record, as_record
from mdcg.files import write_whole

SUFFIX = ".jsonl"
DIGITS = 6  # significant ones, of the history's numbers
MARKS = (b'"format"', b'"spec"')  # every line of ours begins with both


@dataclass(frozen=True)
class Archive:
    """The runs of one file, and a sentence for each line that cannot be read."""

    records: tuple[Record, ...]
    unreadable: tuple[str, ...]


def write_archive(path: Path, records: Iterable[Record]) -> None:
    """One line for each, in order of names: a run that is added or changed is one line of a diff."""
    lines = [_line(record) for record in sorted(records, key=lambda record: record.spec.name)]
    write_whole(path, "".join(lines).encode())


def read_archive(path: Path) -> Archive:
    """All runs of a file; one of another program has none. It is read again only when it has changed."""
    try:
        about = path.stat()
        return _read(path, about.st_mtime_ns, about.st_size)
    except OSError as error:
        return Archive((), (f"cannot read {path}: {error.strerror}; check the path.",))


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, size: int) -> Archive:
    """`changed` and `size` tell one state of the file from another."""
    records, unreadable = [], []
    with path.open("rb") as file:
        if not any(all(mark in line for mark in MARKS) for line in file):
            return Archive((), ())
        file.seek(0)
        for number, line in enumerate(file, 1):
            where = f"line {number} of {path}"
            try:
                if line.strip():
                    records.append(as_record(_by_rows(from_json(line, allow_inf_nan=False)), where))
            except NewerFormat as error:
                unreadable.append(str(error))
            except DAMAGE:
                unreadable.append(f"{where} is damaged, or is no run of mdcg; remove it, or export its run again.")
    return Archive(tuple(records), tuple(unreadable))


def _line(record: Record) -> str:
    """What a reader looks for comes first; `computed` is for other programs."""
    content = {
        **record.model_dump(exclude={"memory", "history", "seconds", "members", "environment"}),
        **record.computed(),
        "history": _by_columns(record.history),
        **record.model_dump(include={"seconds", "members", "environment"}, exclude_none=True),
    }
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


def _by_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A column for each key of any row, null where a row has none.

    >>> _by_columns([{"epoch": 1, "loss": 0.12345678}, {"epoch": 2, "loss": 0.1, "accuracy": [90.0]}])
    {'epoch': [1, 2], 'loss': [0.123457, 0.1], 'accuracy': [None, [90.0]]}
    """
    return {key: [_short(row.get(key)) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}


def _by_rows(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a line as that of a result."""
    columns = content["history"]
    rows = [
        {key: value for key, value in zip(columns, values, strict=True) if value is not None}
        for values in zip(*columns.values(), strict=True)
    ]
    return {**content, "memory": {}, "history": rows}


def _short(value: Any) -> Any:
    """A number, or each of a list, as short as can be told apart; none where it is not finite."""
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
