"""The export of runs to a file: a table in CSV or, where pyarrow is installed, Parquet; or an archive."""

from __future__ import annotations

import csv
import io
import json
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Union, get_args, get_origin

from mdcg import metrics
from mdcg.errors import MdcgError
from mdcg.extras import extra
from mdcg.markup import cell
from mdcg.outputs import Kind, Output, csv_of
from mdcg.runs.archive import SUFFIX, archive_file, write_archive
from mdcg.runs.environment import Versions
from mdcg.runs.query import RunRow
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.scenario import Stream

NamedRecord = tuple[str, Record]  # a run, and what it is called where it was found
SETTING = "set."  # what the name of a method's or head's setting begins with
BIGGEST = 2**53  # integers up to here are exact in every column of numbers


def row_of(name: str, record: Record) -> dict[str, Any]:
    """The row of a run, with all that is worth comparing. What is not known or was not evaluated is None."""
    described = record.as_json()
    around = record.environment
    return {
        "name": name,
        **record.spec.settings(),
        **{metric: described[metric] for metric in metrics.NAMES},
        "seconds": record.seconds,
        "members": record.members,
        **around.versions.model_dump(),
        "device": around.device,
        "finished": around.finished,
        "R": described["R"],
    }


def _kinds() -> dict[str, type]:
    """The types of the columns that every run has."""
    own = {name: _kind(field.annotation) for name, field in RunSpec.model_fields.items()}
    spec = {name: kind for name, kind in own.items() if kind not in (dict, Stream)}
    spec |= {"stream": str, "blurry": float, "online": bool}
    texts = dict.fromkeys([*Versions.model_fields, "device", "finished"], str)
    numbers = dict.fromkeys([*metrics.NAMES, "seconds"], float)
    return {"name": str, **spec, **numbers, "members": int, **texts, "R": list}


def _kind(annotation: Any) -> type:
    """The type of a column's values, from the annotation of its field.

    >>> _kind(Annotated[int, 0] | None), _kind(Literal["a", "b"]), _kind(dict[str, float])
    (<class 'int'>, <class 'str'>, <class 'dict'>)
    """
    if get_origin(annotation) in (types.UnionType, Union, Annotated):
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return str
    kind: type = get_origin(annotation) or annotation
    return kind


KINDS = _kinds()
TOLD_BY = {"name", "scenario", "method", "memory", "seed", "ACC", "R"}  # columns that there always were


def _are_columns(names: Sequence[str]) -> bool:
    return {*names} >= TOLD_BY and all(name in KINDS or name.startswith(SETTING) for name in names)


def _is_parquet(file: BinaryIO) -> bool:
    return _are_columns(extra("pyarrow.parquet", "parquet", "a Parquet file").read_schema(file).names)


def _file_of(path: Path) -> Kind | None:
    """The kind of file that is written by this name."""
    return {
        ".csv": Kind.told_by("a table of runs", csv_of(_are_columns)),
        ".parquet": Kind.told_by("a table of runs", _is_parquet),
        SUFFIX: archive_file(path),
    }.get(path.suffix.lower())


def columns(rows: Sequence[RunRow]) -> list[str]:
    """The columns of all rows: first what every run has, with settings after the rest of the spec."""
    settings = sorted({name for row in rows for name in row if name.startswith(SETTING)})
    names = list(KINDS)
    place = names.index(metrics.NAMES[0])
    return [*names[:place], *settings, *names[place:]]


def writer_of(path: Path, force: bool = False, inputs: Sequence[Path] = ()) -> Callable[[Sequence[NamedRecord]], None]:
    """The function that writes runs to a file of this name.

    A missing package, or a file that is not to be replaced, is told of now, before any work.
    """
    suffix, kind = path.suffix.lower(), _file_of(path)
    if suffix == ".parquet":
        extra("pyarrow.parquet", "parquet", "a Parquet file")
    if kind is not None:
        output = Output(path, kind, force, inputs)
        output.check()
        if suffix == SUFFIX:
            return lambda runs: write_archive(path, [record for _, record in runs], output.forced)
        return partial(_write_csv if suffix == ".csv" else _write_parquet, output)
    raise MdcgError(f"cannot tell what kind of file {path} is to be; let its name end in .csv, .parquet or {SUFFIX}.")


def _write_csv(output: Output, runs: Sequence[NamedRecord]) -> None:
    rows = [row_of(*run) for run in runs]
    names = columns(rows)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(names)
    table.writerows([_text(row.get(name)) for name in names] for row in rows)
    output.write(text.getvalue().encode())


def _text(value: object) -> str | None:
    """Write a value as text: R and true or false as in JSON; a float with all its digits."""
    if value is None:
        return None
    return str(cell(value)) if isinstance(value, str) else json.dumps(value)


def _write_parquet(output: Output, runs: Sequence[NamedRecord]) -> None:
    arrow = extra("pyarrow", "parquet", "a Parquet file")
    parquet = extra("pyarrow.parquet", "parquet", "a Parquet file")
    rows = [row_of(*run) for run in runs]
    names = columns(rows)
    types = {
        bool: arrow.bool_(),
        int: arrow.int64(),
        float: arrow.float64(),
        str: arrow.string(),
        list: arrow.list_(arrow.list_(arrow.float64())),
    }
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        kind = kind_of(name, values)
        arrays.append(arrow.array([_text(value) for value in values] if kind is str else values, types[kind]))
    table = arrow.Table.from_arrays(arrays, names)
    with output.open() as file:
        parquet.write_table(table, file)


def kind_of(name: str, values: Sequence[Any]) -> type:
    """The type of a column, by its values; of one that has none by its name."""
    return _common(values) or KINDS.get(name, str)


def _common(values: Sequence[Any]) -> type | None:
    """The common type of all values, if there is any; text where methods use one name for a number and for a word."""
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    exact = all(abs(value) <= BIGGEST for value in there if type(value) is int)
    if kinds == {int, float} and exact:
        return float
    return next(iter(kinds), None) if exact and len(kinds) < 2 else str
