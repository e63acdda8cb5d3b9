"""Fig. "future": how far predictions for past test images move while a task is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure as Drawing

from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots import single
from mdcg.figures.selection import side_by_side
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun

SHOWN = ("der", "replay", "ld", "md-cg")


@FIGURES.register("drift")
class Drift(RunFigure):
    """KL between the predictions for past test images when a task begins and during its training."""

    probes: ClassVar[tuple[str, ...]] = ("drift",)
    tasks: ClassVar[int] = 2

    def wanted(self, asked: Recipe) -> list[Recipe]:
        return [recipe_of(asked, asked.methods or SHOWN, memory(asked))]

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        return [
            {**single.moments(run, row), "past_task": past, "kl": kl}
            for run in runs
            for row in run.measured("drift")
            for past, kl in enumerate(row["kl"], start=1)
        ]

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        return side_by_side(super().pick(runs))

    def draw(self, rows: Sequence[Row]) -> Drawing:
        epochs, tasks = rows[0]["epochs"], rows[0]["tasks"]
        drawing, (ax,) = style.panels(height=3)
        methods = list(dict.fromkeys(row["method"] for row in rows))
        for method in methods:
            means = _over_past_tasks([row for row in rows if row["method"] == method])
            seeds = sorted({seed for seed, _, _ in means})
            for task in range(2, tasks + 1):  # a line for each: when a task begins, the comparison begins anew
                moments = [(task, epoch) for epoch in range(epochs + 1)]
                values = np.array([[means.get((seed, *moment), np.nan) for moment in moments] for seed in seeds])
                x = [(task - 1) * epochs + epoch for epoch in range(epochs + 1)]
                style.band(ax, x, values, method, style.look_of(method, methods))
        style.training_axis(ax, tasks, epochs, first=2)
        ax.set_ylabel("KL(now ‖ task's beginning) (nats)")
        ax.set_ylim(bottom=0)
        style.legend(drawing, [ax])
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            "KL divergence of the predictions for all past tasks' evaluated images, over the classes seen so far, from "
            f"those of the same model when the current task began, mean over past tasks. {captions.averaged(rows)}"
        )


def _over_past_tasks(rows: Sequence[Row]) -> dict[tuple[int, int, int], float]:
    """The mean over past tasks, by seed, task and epoch."""
    found: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        found.setdefault((row["seed"], row["task"], row["epoch"]), []).append(row["kl"])
    return {moment: float(np.mean(np.array(own, float))) for moment, own in found.items()}
