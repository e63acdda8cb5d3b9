"""The figures in a report: those that the runs of a section are enough for."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from mdcg.errors import MdcgError, reason_of
from mdcg.figures import FIGURES, RunFigure
from mdcg.figures.captions import of_runs
from mdcg.figures.make import drawing
from mdcg.figures.read import numbers
from mdcg.figures.selection import installed, one_protocol
from mdcg.results.settings import Section
from mdcg.runs.finished import FinishedRun


@dataclass(frozen=True)
class EmbeddedFigure:
    """A figure as an image that says in words what it shows, or the trouble with it."""

    name: str
    caption: str = ""
    svg: str = ""  # in base 64
    trouble: str = ""


def figures(section: Section) -> list[EmbeddedFigure]:
    """The figures that a section's runs are enough for, by name."""
    runs = one_protocol(installed([run for setting in section.settings for run in setting.runs]))
    return [drawn for name in FIGURES.names() if (drawn := _figure(name, runs))]


def _figure(name: str, runs: Sequence[FinishedRun]) -> EmbeddedFigure | None:
    try:
        figure = FIGURES[name]()
        if not isinstance(figure, RunFigure) or not (picked := figure.pick(runs)):
            return None
        rows = numbers(figure, picked)
        caption = f"{figure.caption(rows)} {of_runs(picked)}"
        svg = drawing(figure, rows, caption, ["svg"])["svg"]
    except MdcgError as error:
        return EmbeddedFigure(name, trouble=str(error))
    except Exception as error:  # of measurements that are damaged, or another package's figure: the report is not
        return EmbeddedFigure(name, trouble=f"it cannot be drawn ({type(error).__name__}: {reason_of(error)}).")
    return EmbeddedFigure(name, caption, b64encode(svg).decode())
