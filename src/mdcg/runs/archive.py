"""The archives: many finished runs in one file, one per line, to keep in git or to pass on.

A line is a record as JSON, short: without the images in memory, the history by columns. The model and what probes
measured are in a run's own folder only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from mdcg.files import open_file
from mdcg.outputs import Foreign, Kind, Output
from mdcg.runs.packed import columns_of
from mdcg.runs.record import DAMAGE, NewerFormat, Record, as_record, columns
from mdcg.stored import MOST_BYTES, json_of

SUFFIX = ".jsonl"
DIGITS = 6  # significant ones, of the history's numbers
MARKS = (b'"format"', b'"spec"')  # every line of ours begins with both,
LOOK = 2**20  # so that they are among the first bytes of a file of ours, even if its first line is damaged


@dataclass(frozen=True)
class Archive:
    """The runs of one file, and a sentence for each line that cannot be read."""

    records: tuple[Record, ...]
    unreadable: tuple[str, ...]
    newer: str | None = None  # the first of these that only a newer version can read


def write_archive(path: Path, records: Iterable[Record], force: bool = False) -> None:
    """Write one line for each run, in order of names: a run that is added or changed is one line of a diff.

    An archive that is there gives way only to one that has all of its runs, any other file only with `force`.
    """
    ordered = sorted(records, key=lambda record: record.spec.name)
    kind = archive_file(path, {record.spec.digest() for record in ordered})
    Output(path, kind, force).write("".join(map(_line, ordered)).encode())


def archive_file(path: Path, kept: Collection[str] | None = None) -> Kind:
    """The kind of these files. One with runs that are not kept, by their digests, would be lost: it may be the only
    place where they are."""

    def lost(file: BinaryIO) -> str:
        before = read_archive(path)
        if not (before.records or before.unreadable or file.read(1) == b""):  # of no run it is empty
            raise Foreign
        if kept is None:
            return ""
        gone = sum(record.spec.digest() not in kept for record in before.records) + len(before.unreadable)
        runs, them = ("a run", "it") if gone == 1 else (f"{gone} runs", "them")
        return f"holds {runs} that would be lost; choose {them} too, name another file" if gone else ""

    return Kind("an archive of runs", lost)


def read_archive(path: Path) -> Archive:
    """Read all runs of a file; one of another program has none. It is read again only when it has changed."""
    try:
        about = path.stat()
        return _read(path, about.st_mtime_ns, about.st_size)
    except OSError as error:
        return Archive((), (f"cannot read {path}: {error.strerror}; check the path.",))


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, size: int) -> Archive:
    """Read an archive, cached as long as `changed` and `size` tell that the file is the same."""
    records, unreadable, newer = list[Record](), list[str](), None
    with open_file(path) as file:
        beginning = file.read(LOOK)
        if not all(mark in beginning for mark in MARKS):
            return Archive((), ())
        file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(MOST_BYTES), b""), 1):
            where = f"line {number} of {path}"
            try:
                if line.strip():
                    content = json_of(line)
                    content |= {"memory": {}, "history": columns(content["history"])}
                    records.append(as_record(content, where))
            except NewerFormat as error:
                unreadable.append(str(error))
                newer = newer or str(error)
            except DAMAGE:
                unreadable.append(f"{where} is damaged, or is no run of mdcg; remove it, or export its run again.")
    return Archive(tuple(records), tuple(unreadable), newer)


def _line(record: Record) -> str:
    """Write a record as one line: what a reader looks for comes first; `computed` is for other programs."""
    content = {
        **record.model_dump(exclude={"memory", "history", "seconds", "members", "environment"}),
        **record.computed(),
        "history": {key: [_short(value) for value in values] for key, values in columns_of(record.history).items()},
        **record.model_dump(include={"seconds", "members", "environment"}, exclude_none=True),
    }
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


def _short(value: Any) -> Any:
    """Shorten a number, or each of a list, to the digits that count; null where it is not finite."""
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
