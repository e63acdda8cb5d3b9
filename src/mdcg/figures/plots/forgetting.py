"""The figure that shows how the accuracy on each task changes as later ones are learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure as Drawing

from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots.tasks import some
from mdcg.figures.selection import side_by_side
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun

SHOWN = ("naive", "replay", "er-ace", "md-cg")
NUMBERS = 10  # which stand side by side below a panel


@FIGURES.register("forgetting")
class Forgetting(RunFigure):
    """Accuracy on each task as later ones are learned, per method."""

    def wanted(self, asked: Recipe) -> list[Recipe]:
        return [recipe_of(asked, asked.methods or SHOWN, memory(asked))]

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        return [
            {**run.named(), "task": j + 1, "learned": i + 1, "accuracy": round(accuracy, 4)}
            for run in runs
            for i, row in enumerate(run.record.R.tolist())
            for j, accuracy in enumerate(row[: i + 1])
        ]

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        return side_by_side(super().pick(runs))

    def draw(self, rows: Sequence[Row]) -> Drawing:
        methods = list(dict.fromkeys(row["method"] for row in rows))
        tasks = max(row["task"] for row in rows)
        columns = 2 if len(methods) in (2, 4) else min(3, len(methods))
        drawing, axes = style.panels(-(-len(methods) // columns), columns, sharey=True)
        shown = some(row["task"] for row in rows)
        for ax, method in zip(axes, methods, strict=False):
            for task, look in zip(shown, style.LOOKS, strict=False):
                own = [row for row in rows if row["method"] == method and row["task"] == task]
                after = sorted({row["learned"] for row in own})
                seeds = sorted({row["seed"] for row in own})
                values = {(row["seed"], row["learned"]): row["accuracy"] for row in own}
                matrix = np.array([[values[seed, learned] for learned in after] for seed in seeds])
                style.band(ax, after, matrix, f"task {task}", look, every=1)
            ax.set_title(method)
            ax.set_xticks(range(1, tasks + 1, -(-tasks // NUMBERS)))
            ax.set_ylim(-5, 105)
            ax.set_xlabel("tasks learned")
        for ax in axes[len(methods) :]:
            ax.set_visible(False)
        for ax in axes[::columns]:
            ax.set_ylabel("accuracy (%)")
        style.legend(drawing, axes, columns=5)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        shown, tasks = len(some(row["task"] for row in rows)), max(row["task"] for row in rows)
        fewer = f" Of {tasks} tasks {shown} are drawn." if shown < tasks else ""
        return (
            "Accuracy on the evaluated images of each task, after it was learned and after each later one."
            f"{fewer} {captions.averaged(rows)}"
        )
