"""Figures in a report: those that the runs of a section are enough for."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from mdcg.errors import MdcgError
from mdcg.figures import FIGURES, OfRuns
from mdcg.figures.captions import of_runs
from mdcg.figures.make import drawing
from mdcg.figures.read import numbers
from mdcg.figures.selection import installed, one_protocol
from mdcg.results.settings import Section
from mdcg.runs.finished import FinishedRun


def figures(section: Section) -> str:
    """As HTML, each an image that says in words what it shows; empty where there is none."""
    runs = one_protocol(installed([run for setting in section.settings for run in setting.runs]))
    found = "\n".join(text for name in FIGURES.names() if (text := _figure(name, runs)))
    return f'<h3>Figures</h3>\n<div class="figures">\n{found}\n</div>' if found else ""


def _figure(name: str, runs: Sequence[FinishedRun]) -> str:
    try:
        figure = FIGURES[name]()
        if not isinstance(figure, OfRuns) or not (picked := figure.pick(runs)):
            return ""
        rows = numbers(figure, picked)
        caption = f"{figure.caption(rows)} {of_runs(picked)}"
        image = b64encode(drawing(figure, rows, caption, ["svg"])["svg"]).decode()
    except Exception as error:  # of measurements that are damaged, or another package's figure: the report is not
        reason = error if isinstance(error, MdcgError) else f"it cannot be drawn ({type(error).__name__}: {error})."
        return f'<p class="faint">{escape(name)} is left out: {escape(str(reason))}</p>'
    source = f"data:image/svg+xml;base64,{image}"
    return f'<figure id="figure-{escape(name)}"><img alt="{escape(caption)}" src="{source}"></figure>'
