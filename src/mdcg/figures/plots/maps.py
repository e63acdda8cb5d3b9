"""The heat maps of ACC and BWT over two settings of one method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from mdcg.figures import captions, style
from mdcg.figures.base import Row, RunFigure
from mdcg.figures.selection import usual
from mdcg.metrics import Matrix
from mdcg.results.settings import alike
from mdcg.runs.finished import FinishedRun

ROOM = 44  # letters, which stand side by side below a map


class Maps(RunFigure):
    """A figure of ACC and BWT over two settings; a subclass names them, and `memory` counts as one."""

    down: ClassVar[str]  # a setting for the rows, the largest value on top
    across: ClassVar[str]  # and one for the columns
    labels: ClassVar[dict[str, str]]  # of the two axes
    frames: ClassVar[bool] = False  # mark the best ACC of each column
    tasks: ClassVar[int] = 2  # with one there is no BWT

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        return [
            {
                **run.named(),
                self.down: _value(run, self.down),
                self.across: _value(run, self.across),
                "ACC": round(run.record.metrics["ACC"], 4),
                "BWT": round(run.record.metrics["BWT"], 4),
            }
            for run in runs
        ]

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        """The runs of one method, alike in other settings, whose map is fullest: at least 2 × 2, over half known."""
        varied = {self.down, self.across}
        fitting = [run for run in super().pick(runs) if all(_value(run, key) is not None for key in varied)]
        maps = [own for own in alike(fitting, {*varied, "seed"}) if self._worth_drawing(own)]
        return max(
            maps,
            key=lambda own: (len(self._cells(own)), len(own), sum(usual(run, varied) for run in own)),
            default=[],
        )

    def draw(self, rows: Sequence[Row]) -> Drawing:
        downs, across = values(rows, self.down)[::-1], values(rows, self.across)
        drawing, axes = style.panels(1, 2, height=0.9 + 0.3 * max(3, len(downs)))
        best = means(rows, self.down, self.across, "ACC")
        for ax, metric, title in zip(axes, ("ACC", "BWT"), ("A  ACC (%)", "B  BWT (percentage points)"), strict=True):
            found = means(rows, self.down, self.across, metric)
            image = style.heat_map(ax, found, _named(downs), _named(across), title, size=_size(len(across)))
            bar = drawing.colorbar(image, ax=ax, pad=0.02, aspect=30)
            bar.outline.set_visible(False)
            if len(across) * (1 + max(map(len, _named(across)))) > ROOM:
                ax.tick_params(axis="x", rotation=90)
            ax.set_xlabel(self.labels[self.across])
            ax.set_ylabel(self.labels[self.down])
            if self.frames:
                for column in range(len(across)):
                    _frame(ax, int(np.nanargmax(best[:, column])), column)
        return drawing

    def averaged(self, rows: Sequence[Row]) -> str:
        return captions.averaged(rows, spread="", apart=(self.down, self.across))

    def _cells(self, runs: Sequence[FinishedRun]) -> set[tuple[object, object]]:
        return {(_value(run, self.down), _value(run, self.across)) for run in runs}

    def _worth_drawing(self, runs: Sequence[FinishedRun]) -> bool:
        cells = self._cells(runs)
        downs, across = ({cell[axis] for cell in cells} for axis in (0, 1))
        return min(len(downs), len(across)) > 1 and 2 * len(cells) > len(downs) * len(across)


def values(rows: Sequence[Row], setting: str) -> list[float]:
    """The values of a setting that occur, from the smallest on."""
    return sorted({row[setting] for row in rows})


def means(rows: Sequence[Row], down: str, across: str, metric: str) -> Matrix:
    """The means over seeds, one row for each value of `down`, the largest first; NaN where there is no run."""
    cells: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        cells.setdefault((row[down], row[across]), []).append(row[metric])
    return np.array(
        [
            [np.mean(cells.get((one, other), [np.nan])) for other in values(rows, across)]
            for one in reversed(values(rows, down))
        ]
    )


def _value(run: FinishedRun, setting: str) -> float | None:
    """A setting of method or head, or the memory size; None where the run has no such number."""
    found = {**run.spec.hyperparameters, **run.spec.head_settings, "memory": run.spec.memory or None}.get(setting)
    return None if isinstance(found, bool | str) else found


def _size(columns: int) -> float:
    """The font size of the numbers, in points: as large as fits into a cell."""
    return max(4, min(8, 42 / columns))


def _named(numbers: Sequence[float]) -> list[str]:
    return [f"{number:,}" if isinstance(number, int) else f"{number:g}" for number in numbers]


def _frame(ax: Axes, row: int, column: int) -> None:
    """Frame one cell in black within white: it is seen on dark cells and on light ones."""
    edge = Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor="black", linewidth=1.2)
    edge.set_path_effects([withStroke(linewidth=2.8, foreground="white")])
    ax.add_patch(edge)
