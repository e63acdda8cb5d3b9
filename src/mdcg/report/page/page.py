"""A report as one self-contained HTML page: tables that need no script, charts that need no network.

`page.html` is the frame and `section.html` a section of it, both templates of Jinja2; `page.css` has the looks,
`page.js` all that moves, `charts.js` what plotly.js draws. Whatever comes from data is escaped in the tables, and for
the charts goes in as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from itertools import accumulate
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from mdcg.report.columns import Column, columns
from mdcg.report.page import payload
from mdcg.report.page.figures import EmbeddedFigure, figures
from mdcg.results.settings import Section
from mdcg.results.statistics import ALPHA

CHOSEN = 12  # settings, at most, whose charts are shown at first
ASCENDING = ("method", "memory", "significant?", "forgetting", "s/run")  # sorted first from small to large


@dataclass(frozen=True)
class Part:
    """A section as the page shows it."""

    section: Section
    first: int  # the number that its first setting has on the page
    columns: list[Column]
    chosen: set[str]  # the names whose charts are shown at first
    figures: list[EmbeddedFigure]


def page_file(sections: Sequence[Section], title: str) -> bytes:
    """Make the content of the page's file: piece by piece, for as text a page of thousands of runs takes several times
    the room. What cannot be written of the name of a file is replaced."""
    content = BytesIO()
    for piece in _pieces(sections, title):
        content.write(piece.encode("utf-8", "replace"))
    return content.getvalue()


def _pieces(sections: Sequence[Section], title: str) -> Iterator[str]:
    parts: list[Part] = []
    first = 0
    for section in sections:
        parts.append(Part(section, first, columns(section), _chosen_at_first(section), figures(section)))
        first += len(section.settings)
    template = templates().get_template("page.html")
    return template.generate(
        title=title,
        summary=_summary(sections),
        alpha=f"{ALPHA:g}",
        ascending=ASCENDING,
        css=_file("page.css"),
        scripts=[_inside_script(code) for code in (get_plotlyjs(), _file("charts.js"), _file("page.js"))],
        parts=parts,
        data=_data(parts),
    )


def _data(parts: Sequence[Part]) -> Iterator[tuple[str, Any]]:
    """The data of the charts, each with the id of its script element, made as it is written."""
    for number, part in enumerate(parts):
        yield f"section-{number}", payload.of_section(part.section, part.first)
        for place, setting in enumerate(part.section.settings):
            yield f"setting-{part.first + place}", payload.of_setting(setting)


def templates() -> Environment:
    """The templates of this folder: what goes into them is escaped, and a name that is missing is an error."""
    made = Environment(
        loader=PackageLoader("mdcg.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies |= {"json.dumps_function": payload.dumps, "json.dumps_kwargs": {}}
    made.tests["known"] = lambda value: value is not None and not (isinstance(value, float) and math.isnan(value))
    return made


def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _inside_script(code: str) -> str:
    """Make code safe in a script element: its strings cannot end the element, or seem to begin a comment."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _summary(sections: Sequence[Section]) -> str:
    settings = [setting for section in sections for setting in section.settings]
    runs = [run for setting in settings for run in setting.runs]
    scenarios = {setting.spec.scenario for setting in settings}
    days = sorted({run.finished[:10] for run in runs if run.finished})
    text = f"{_count(len(runs), 'run')} of {_count(len(settings), 'setting')} in {_count(len(scenarios), 'scenario')}"
    if days:
        text += f", finished {days[0]}" if days[0] == days[-1] else f", finished {days[0]} to {days[-1]}"
    return text + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _chosen_at_first(section: Section) -> set[str]:
    """The best names with all their memory sizes, so that each is a whole line, as long as charts stay readable."""
    sizes = Counter(setting.name for setting in section.settings)  # in the order of the best
    return {name for name, so_far in zip(sizes, accumulate(sizes.values()), strict=True) if so_far <= CHOSEN}
