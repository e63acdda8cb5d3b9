"""Tables of texts, whatever signs these hold: HTML for notebooks, and cells of CSV files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

FORMULA = re.compile(r"[\s\x00-\x1f]*[-=+@]|[\t\r]")  # what begins like this is one, for some spreadsheet


@dataclass(frozen=True)
class Coloured:
    """A cell of a heat map."""

    text: str
    background: tuple[int, int, int]  # red, green, blue
    ink: str

    def __str__(self) -> str:
        red, green, blue = self.background
        return f'<td style="background:rgb({red},{green},{blue});color:{self.ink}">{escape(self.text)}</td>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Make a table; the first of each row names it.

    >>> table(["", "ACC"], [["a<b", 1]])
    '<table><tr><th></th><th>ACC</th></tr><tr><th>a&lt;b</th><td>1</td></tr></table>'
    """
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    lines = [f"<tr><th>{escape(str(name))}</th>{''.join(map(_cell, cells))}</tr>" for name, *cells in rows]
    return f"<table>{f'<tr>{top}</tr>' if head else ''}{''.join(lines)}</table>"


def titled(title: str, *parts: str) -> str:
    """Put a title above parts that are HTML already."""
    return f"<div><p><b>{escape(title)}</b></p>{''.join(parts)}</div>"


def _cell(content: object) -> str:
    return str(content) if isinstance(content, Coloured) else f"<td>{escape(str(content))}</td>"


def cell(value: object) -> object:
    """A value for a CSV file: text that a spreadsheet would take for a formula gets an apostrophe before it.

    A carriage return becomes a line feed: Python's writer does not quote it, and a reader takes it for a line's end.

    >>> cell("=1+1"), cell(" -x"), cell("cat"), cell(-1.5)
    ("'=1+1", "' -x", 'cat', -1.5)
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if FORMULA.match(value) else text
