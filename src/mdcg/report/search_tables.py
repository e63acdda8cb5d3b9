"""The tables of a searched grid for the terminal: a heat map where it has two axes, else a list."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.style import Style
from rich.table import Table
from rich.text import Text

from mdcg.execute.search import SearchResult
from mdcg.methods.base import Value
from mdcg.report.terminal import shade


def grid_table(found: SearchResult) -> Table:
    """Make the table of ACC in percent; the best point is bold, and marked with *."""
    return _heat_map(found) if len(found.axes) == 2 else _list(found)


def _list(found: SearchResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for key in found.axes:
        table.add_column(key, justify="right")
    table.add_column("ACC", justify="right")
    for point in found.scores:
        table.add_row(*map(text_of, point), _cell(found, point))
    return table


def _heat_map(found: SearchResult) -> Table:
    (down, rows), (across, columns) = found.axes.items()
    table = Table(box=None, padding=(0, 0), pad_edge=False)
    table.add_column(f"{down} ↓ {across} → ", justify="right")
    for value in columns:
        table.add_column(text_of(value), justify="center", min_width=7)
    for row in rows:
        table.add_row(f"{text_of(row)} ", *[_cell(found, (row, column)) for column in columns])
    return table


def _cell(found: SearchResult, point: tuple[Value, ...]) -> Text:
    value = found.scores.get(point, math.nan)
    if math.isnan(value):
        return Text("·", style="dim", justify="center")
    best = point == found.ranked[0]
    low, high = min(found.scores.values()), max(found.scores.values())
    place = 100 * (value - low) / (high - low) if high > low else 50.0
    red, green, blue = shade(place)
    style = Style(bgcolor=f"rgb({red},{green},{blue})", color="white" if place > 50 else "black", bold=best)
    return Text(f"{value:5.1f}{'*' if best else ' '} ", style=style, justify="right")


def text_of(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def verdict(found: SearchResult) -> str:
    """Say in words what was chosen."""
    best = ", ".join(f"{key} {text_of(value)}" for key, value in found.best.items())
    margin = "" if math.isnan(found.margin) else f", {found.margin:.1f} above the second"
    memory = f"memory {found.memory}: " if found.memory else ""
    return f"{memory}{best}, ACC {found.scores[found.ranked[0]]:.1f}{margin}"


def at_an_end(found: SearchResult) -> list[str]:
    """The settings whose best value is the least or the greatest tried: a better one may lie beyond."""
    ends: list[str] = []
    for key, values in found.axes.items():
        numbers: Sequence[float] = [value for value in values if isinstance(value, float)]
        if len(numbers) == len(values) > 1 and found.best[key] in (min(numbers), max(numbers)):
            ends.append(key)
    return ends
