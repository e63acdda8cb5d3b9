"""The numbers of a figure, read from its runs, and a sentence where what was measured of one does not fit."""

from __future__ import annotations

from collections.abc import Sequence

from mdcg.errors import MdcgError
from mdcg.figures.base import Row, RunFigure
from mdcg.runs.finished import FinishedRun
from mdcg.runs.store import measured_file

UNFIT = (LookupError, TypeError, ValueError)  # of rows that lack a look or a key, or hold what is no number


def numbers(figure: RunFigure, runs: Sequence[FinishedRun]) -> list[Row]:
    """The figure's rows, at least one of every run."""
    for run in runs:
        for probe in figure.probes:
            if not run.measured(probe):
                raise _damaged(run, [probe])
    try:
        rows = figure.numbers(runs)
    except UNFIT as error:
        for run in runs if figure.probes else ():
            try:
                figure.numbers([run])
            except UNFIT:
                raise _damaged(run, figure.probes) from error
        raise
    if not rows:
        raise MdcgError("there is no number to draw in these runs; train others.")
    return rows


def _damaged(run: FinishedRun, probes: Sequence[str]) -> MdcgError:
    """The error for measurements that are damaged: once their file is removed, they are made again."""
    what, files = " or ".join(probes), " and ".join(str(measured_file(run.folder, probe)) for probe in probes)
    return MdcgError(
        f"what the probe {what} measured of {run.folder.name} is damaged; remove {files}, and ask for the figure again."
    )
