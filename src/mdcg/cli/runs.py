"""The command that finds runs again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from mdcg.cli.app import app
from mdcg.cli.options import print_json
from mdcg.errors import MdcgError
from mdcg.terminal import PlainConsole, say

TOLD_BY_NAME = ("scenario", "method", "memory", "seed")  # they make room in a narrow terminal
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List finished runs, newest first: all, or those that meet every condition."""
    from mdcg.runs.export import KINDS, row_of, writer_of
    from mdcg.runs.query import find_key, in_order, parse_filter, select
    from mdcg.runs.store import Store

    write = writer_of(export) if export is not None else None
    if not out.is_dir():
        raise MdcgError(f"there is no folder {out}; give the folder of your runs with --out.")
    unreadable: list[tuple[Path, str]] = []
    every = list(Store(out).named(unreadable))
    rows = [row_of(name, record) for name, record in every]
    plain = [{key: value for key, value in row.items() if key != "R"} for row in rows]
    names = [name for name in KINDS if name != "R"]  # a matrix is neither more nor less than another
    chosen = select(plain, [parse_filter(text, plain, names) for text in filters or []])
    key = find_key(sort.removeprefix("-"), plain, names)
    order = in_order([rows[place] for place in chosen], key, down=sort.startswith("-"))
    found = [rows[chosen[place]] for place in order]
    if unreadable:
        count = f"{len(unreadable)} entries" if len(unreadable) > 1 else "1 entry"
        say(f"mdcg: {count} of {out} cannot be read, the first: {unreadable[0][1]}", error=True)
    if export is not None and write is not None:
        write(export, [every[chosen[place]] for place in order])
    if as_json:
        refused = [{"path": str(path), "reason": reason} for path, reason in unreadable]
        return print_json({"runs": found, "unreadable": refused})
    if export is not None:
        return say(f"{len(found)} of {len(rows)} runs: {export}")
    if not found:
        return say(
            f"none of the {len(rows)} runs in {out} meets every condition." if rows else f"no finished run in {out}."
        )
    return _print(found)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    console, table = PlainConsole(), _table(rows, [*TOLD_BY_NAME, *LABELS])
    needed = console.measure(table, options=console.options.update(width=10_000)).maximum
    if not console.is_terminal:  # for a file or another program: a line for each run, however long
        console.width = needed
    console.print(table if needed <= console.width else _table(rows, list(LABELS)))


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("name", overflow="fold", min_width=20)
    for key in keys:
        side: Literal["left", "right"] = "left" if isinstance(rows[0][key], str) else "right"
        table.add_column(LABELS.get(key, key), no_wrap=True, justify=side)
    for row in rows:
        table.add_row(*(Text(_cell(key, row[key])) for key in ("name", *keys)))
    return table


def _cell(key: str, value: str | float | None) -> str:
    if value is None:
        return "–"
    if key == "finished":
        return str(value)[:16].replace("T", " ")  # to the minute
    return f"{value:.1f}" if isinstance(value, float) else str(value)
