"""The command that finds runs again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mdcg.cli.app import app
from mdcg.cli.options import print_json
from mdcg.errors import MdcgError


@app.command()
def runs(
    filters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILTER", help="Conditions, for instance method=md-cg,replay 'memory>=500' 'set.lam<0.5'."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    sort: Annotated[
        str, typer.Option(help="Column to sort by; with a minus before it from high to low.")
    ] = "-finished",
    export: Annotated[Path | None, typer.Option(help="Write all columns to this .csv or .parquet file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List finished runs, newest first: all, or those that meet every condition."""
    from mdcg.experiments.export import KINDS, row_of, writer_of
    from mdcg.experiments.select import find_key, in_order, parse_filter, select
    from mdcg.experiments.store import Store

    write = writer_of(export) if export is not None else None
    if not out.is_dir():
        raise MdcgError(f"there is no folder {out}; give the folder of your runs with --out.")
    unreadable: list[tuple[Path, str]] = []
    rows = [row_of(_name(folder, out), record) for folder, record in Store(out).records(unreadable)]
    plain = [{key: value for key, value in row.items() if key != "R"} for row in rows]
    names = [name for name in KINDS if name != "R"]  # a matrix is neither more nor less than another
    chosen = select(plain, [parse_filter(text, plain, names) for text in filters or []])
    key = find_key(sort.removeprefix("-"), plain, names)
    found = [rows[place] for place in chosen]
    found = [found[place] for place in in_order(found, key, down=sort.startswith("-"))]
    if unreadable:
        count = f"{len(unreadable)} entries" if len(unreadable) > 1 else "1 entry"
        print(f"mdcg: {count} of {out} cannot be read, the first: {unreadable[0][1]}", file=sys.stderr)
    if export is not None and write is not None:
        write(export, found)
    if as_json:
        refused = [{"path": str(path), "reason": reason} for path, reason in unreadable]
        return print_json({"runs": found, "unreadable": refused})
    if export is not None:
        return print(f"{len(found)} of {len(rows)} runs: {export}")
    if not found:
        return print(
            f"none of the {len(rows)} runs in {out} meets every condition." if rows else f"no finished run in {out}."
        )
    return _print(found)


def _name(folder: Path, out: Path) -> str:
    """As 'mdcg show' understands it with the same --out."""
    return str(folder.relative_to(out)) if folder != out else folder.resolve().name


def _print(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("name", overflow="fold")
    for label in ("scenario", "method"):
        table.add_column(label, no_wrap=True)
    for label in ("memory", "seed", "ACC", "BWT-final", "s"):
        table.add_column(label, no_wrap=True, justify="right")
    table.add_column("finished", no_wrap=True)
    for row in rows:
        texts = [row["name"], row["scenario"], row["method"], str(row["memory"]), str(row["seed"])]
        numbers = [_short(row[key]) for key in ("ACC", "BWT_final", "seconds")]
        finished = (row["finished"] or "–")[:16].replace("T", " ")
        table.add_row(*map(Text, [*texts, *numbers, finished]))
    console = Console()
    if not console.is_terminal:  # for a file or another program: a line for each run, however long
        console.width = console.measure(table, options=console.options.update(width=10_000)).maximum
    console.print(table)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
