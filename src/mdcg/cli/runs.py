"""The command that finds runs again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from mdcg.cli.app import app
from mdcg.cli.options import FORCE, print_json
from mdcg.errors import MdcgError
from mdcg.terminal import PlainConsole, plain, say

TOLD_BY_NAME = ("scenario", "method", "memory", "seed")  # they make room in a narrow terminal
NARROWEST, AROUND = 20, 3  # letters that a name is folded to, and spaces beside it
LABELS = {"ACC": "ACC", "BWT_final": "BWT-final", "seconds": "s", "finished": "finished"}


@app.command()
def runs(
    filters: Annotated[
        list[str] | None,
        typer.Argument(help="Conditions, for instance method=md-cg,replay 'memory>=500' 'set.lam<0.5'."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    sort: Annotated[
        str, typer.Option(help="Column to sort by; with a minus before it from high to low.")
    ] = "-finished",
    export: Annotated[
        Path | None,
        typer.Option(help="Write them to this file: all columns as .csv or .parquet, an archive as .jsonl."),
    ] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List finished runs, newest first: all, or those that meet every condition."""
    from mdcg.runs.export import KINDS, row_of, writer_of
    from mdcg.runs.query import find_key, in_order, parse_filter, select
    from mdcg.runs.store import Store

    write = writer_of(export, force, [out]) if export is not None else None
    if not out.is_dir():
        raise MdcgError(f"there is no folder {out}; give the folder of your runs with --out.")
    unreadable: list[tuple[Path, str]] = []
    every = list(Store(out).named(unreadable))
    rows = [row_of(name, record) for name, record in every]
    matrices = [row.pop("R") for row in rows]  # a matrix is neither more nor less than another
    names = [name for name in KINDS if name != "R"]
    conditions = [parse_filter(text, rows, names) for text in filters or []]
    chosen = select(rows, conditions)
    key = find_key(sort.removeprefix("-"), rows, names)
    places = [chosen[place] for place in in_order([rows[place] for place in chosen], key, down=sort.startswith("-"))]
    found = [rows[place] for place in places]
    if unreadable:
        count = f"{len(unreadable)} entries" if len(unreadable) > 1 else "1 entry"
        say(f"mdcg: {count} of {out} cannot be read, the first: {unreadable[0][1]}", error=True)
    if write is not None:
        write([every[place] for place in places])
    if as_json:
        refused = [{"path": str(path), "reason": reason} for path, reason in unreadable]
        for place in places:
            rows[place]["R"] = matrices[place]
        return print_json({"runs": found, "unreadable": refused})
    if export is not None:
        return say(f"{len(found)} of {len(rows)} runs: {export}")
    if not found:
        return say(
            f"none of the {len(rows)} runs in {out} meets every condition." if rows else f"no finished run in {out}."
        )
    asked = dict.fromkeys([condition.key for condition in conditions] + [key])
    return _print(found, [name for name in asked if name not in {"name", *TOLD_BY_NAME, *LABELS}])


def _print(rows: Sequence[dict[str, Any]], asked: Sequence[str]) -> None:
    """Print the table, with a column for each value that was asked about.

    In a narrow terminal what the name tells makes room first, then what was asked about and is too wide: a narrower
    column after it may still be shown.
    """
    console, keys = PlainConsole(), ["name", *TOLD_BY_NAME, *asked, *LABELS]

    def width(keys: Sequence[str]) -> int:
        return console.measure(_table(rows, keys), options=console.options.update(width=10_000)).maximum

    if not console.is_terminal or NARROWEST + AROUND + width(list(LABELS)) > console.width:
        # For a file, another program or hardly any room: a line for each run, however long.
        return say("\n".join(_lines(rows, keys, box.SIMPLE_HEAD.substitute(console.options))))
    if width(keys) <= console.width:
        return console.print(_table(rows, keys))
    shown: list[str] = []
    for one in asked:
        if NARROWEST + AROUND + width([*shown, one, *LABELS]) <= console.width:
            shown.append(one)
    console.print(_table(rows, ["name", *shown, *LABELS]))
    if left := [one for one in asked if one not in shown]:
        say(f"there is no room for {', '.join(left)}; widen the terminal, or write all to a file with --export.")
    return None


def _lines(rows: Sequence[dict[str, Any]], keys: Sequence[str], lines: box.Box) -> Iterator[str]:
    """The table as text, as rich would print it: which takes a second for a thousand runs."""
    head, *body = cells = [[LABELS.get(key, key) for key in keys], *(_cells(row, keys) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    left = [_is_text(rows, key) for key in keys]

    def line(cells: Sequence[str], first: str, between: str, last: str) -> str:
        padding = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        parts = [
            f" {cell}{space} " if to_left else f" {space}{cell} "
            for cell, space, to_left in zip(cells, padding, left, strict=True)
        ]
        return first + between.join(parts) + last

    around = [width + 2 for width in widths]
    yield lines.get_top(around)
    yield line(head, lines.head_left, lines.head_vertical, lines.head_right)
    yield lines.get_row(around, "head")
    yield from (line(row, lines.mid_left, lines.mid_vertical, lines.mid_right) for row in body)
    yield lines.get_bottom(around)


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> Table:
    cells = [_cells(row, keys) for row in rows]
    table = Table(box=box.SIMPLE_HEAD)
    for key, column in zip(keys, zip(*cells, strict=True), strict=True):
        label = LABELS.get(key, key)
        side: Literal["left", "right"] = "left" if _is_text(rows, key) else "right"
        if key == "name":
            table.add_column(label, overflow="fold", min_width=NARROWEST)
        else:
            table.add_column(label, no_wrap=True, justify=side, width=max(map(cell_len, (label, *column))))
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _is_text(rows: Sequence[dict[str, Any]], key: str) -> bool:
    return any(isinstance(row.get(key), str) for row in rows)


def _cells(row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """The texts of a run, each on one line, whatever its name is made of."""
    return [" ".join(plain(_cell(key, row.get(key))).splitlines()).replace("\t", " ") for key in keys]


def _cell(key: str, value: str | float | None) -> str:
    if value is None:
        return "–"
    if key == "finished":
        return str(value)[:16].replace("T", " ")  # to the minute
    if isinstance(value, float):
        return f"{value:.1f}" if key in LABELS else f"{value:.4g}"
    return str(value)
