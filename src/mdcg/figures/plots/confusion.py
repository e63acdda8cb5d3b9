"""The figure that shows which class is taken for which when all tasks are learned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, groupby
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure as Drawing

from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots.tasks import task_of
from mdcg.figures.selection import one_setting_each
from mdcg.metrics import Matrix
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun

SHOWN = ("replay", "md-cg")
FEW = 20  # classes, whose cells have room for a number
TICKS = (0, 1, 5, 20, 50, 100)  # percent


@FIGURES.register("confusion")
class Confusion(RunFigure):
    """Predicted against true classes after the last task, per method."""

    probes: ClassVar[tuple[str, ...]] = ("confusion",)
    several: ClassVar[tuple[str, ...]] = ("memory",)

    def wanted(self, asked: Recipe) -> list[Recipe]:
        return [recipe_of(asked, asked.methods or SHOWN, memory(asked))]

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        rows: list[Row] = []
        for run in runs:
            sizes, task = run.record.sizes, task_of(run.record.sizes)
            (counts,) = (row["counts"] for row in run.measured("confusion") if row["task"] == len(sizes))
            rows += [
                {
                    **run.named(),
                    "true": true,
                    "predicted": predicted,
                    "task_true": task[true],
                    "task_predicted": task[predicted],
                    "count": count,
                }
                for true, own in enumerate(counts)
                for predicted, count in enumerate(own)
            ]
        return rows

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        return one_setting_each(super().pick(runs))

    def draw(self, rows: Sequence[Row]) -> Drawing:
        shown = list(dict.fromkeys((row["method"], row["memory"]) for row in rows))
        several = len({memory for _, memory in shown if memory}) > 1
        columns = min(2, len(shown))
        lines = -(-len(shown) // columns)
        drawing, axes = style.panels(lines, columns, height=3.3 if columns > 1 else 4.6)
        for ax, letter, (method, size) in zip(axes, cycle(ascii_uppercase), shown, strict=False):
            own = [row for row in rows if (row["method"], row["memory"]) == (method, size)]
            title = f"{method}, memory {size:,}" if several and size else method
            image = _matrix(ax, own, f"{letter}  {title}" if len(shown) > 1 else title)
        for ax in axes[len(shown) :]:
            ax.set_visible(False)
        bar = drawing.colorbar(
            image, ax=axes, shrink=0.8 / lines, pad=0.02, ticks=TICKS, label="% of the true class's images"
        )
        bar.outline.set_visible(False)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            "Predictions for the evaluated images of all classes after the last task, in percent of each true class (a "
            "row); colours are on a square-root scale. Classes are in their order of arrival, which differs from seed "
            "to seed: a place on the axes is not one class but the first, second, … to arrive. Lines part the tasks. "
            f"{captions.averaged(rows, spread='')}"
        )


def percent(rows: Sequence[Row]) -> Matrix:
    """The percentage of each true class's images, the mean over seeds: [true][predicted]."""
    classes, seeds = max(row["true"] for row in rows) + 1, sorted({row["seed"] for row in rows})
    counts = np.zeros((len(seeds), classes, classes))
    for row in rows:
        counts[seeds.index(row["seed"]), row["true"], row["predicted"]] = row["count"]
    shares: Matrix = 100 * counts / counts.sum(2, keepdims=True)
    mean: Matrix = shares.mean(0)
    return mean


def _matrix(ax: Axes, rows: Sequence[Row], title: str) -> Any:
    values = percent(rows)
    sizes, names = _sizes(rows), [""] * len(values)
    form, size = ("{:.0f}" if len(values) <= FEW else ""), max(4.5, min(8, 65 / len(values)))
    norm = PowerNorm(0.5, 0, 100)  # a linear scale would show little but the diagonal
    image = style.heat_map(ax, values, names, names, title, form, size, norm=norm)
    ax.set_aspect("equal")
    ends = np.cumsum(sizes)
    for end in ends[:-1]:
        ax.axvline(end - 0.5, color="white", linewidth=0.5)
        ax.axhline(end - 0.5, color="white", linewidth=0.5)
    middles = ends - np.array(sizes) / 2 - 0.5
    every = 1 if len(sizes) <= style.MANY else 2
    numbers = [str(task) for task in range(1, len(sizes) + 1)]
    ax.set_xticks(middles[::every], numbers[::every])
    ax.set_yticks(middles[::every], numbers[::every])
    ax.set_xlabel("task of the predicted class")
    ax.set_ylabel("task of the true class")
    return image


def _sizes(rows: Sequence[Row]) -> list[int]:
    """The number of classes of each task."""
    tasks = sorted({(row["task_true"], row["true"]) for row in rows})
    return [len(list(own)) for _, own in groupby(tasks, key=lambda pair: pair[0])]
