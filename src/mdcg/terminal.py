"""What goes to a terminal: text as it is, and never a command to the terminal.

Names come from folders, files and results that others have made. An escape sequence among them could colour, move or
rename what a person sees, and rich would take words in brackets for its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

KEPT = "\n\t"  # of what cannot be printed


def plain(text: str) -> str:
    """Replace what a terminal would obey, not show.

    >>> plain("\\x1b[31mred\\tcafé\\n")
    '�[31mred\\tcafé\\n'
    """
    if text.isprintable():  # as nearly all of it is
        return text
    return "".join(c if c.isprintable() or c in KEPT else "\ufffd" for c in text)


def say(text: object = "", *, error: bool = False) -> None:
    """Print text without what a terminal would obey, on standard output, or as one line on standard error."""
    shown = plain(str(text))
    print(shown.replace("\n", " ") if error else shown, file=sys.stderr if error else sys.stdout)


class PlainConsole(Console):
    """A console whose text is text: without markup, and without what a terminal would obey, but for its own styles."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)
