"""The figure that maps where the backbone puts the classes before and after the last task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from mdcg.figures import style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots.tasks import task_of
from mdcg.figures.selection import one_setting_each
from mdcg.metrics import Matrix
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun

MOMENTS = ("before", "after")


@FIGURES.register("embedding")
class Embedding(RunFigure):
    """The features of test images before and after the last task, on their two principal axes."""

    probes: ClassVar[tuple[str, ...]] = ("features",)
    tasks: ClassVar[int] = 2
    seeds: ClassVar[str] = "0"

    def wanted(self, asked: Recipe) -> list[Recipe]:
        """The runs that it needs, one of each method: maps of several cannot be averaged."""
        first = asked.model_copy(update={"seeds": asked.seeds[:1]})
        return [recipe_of(first, asked.methods or ["md-cg"], memory(asked))]

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        rows: list[Row] = []
        for run in runs:
            sizes, task = run.record.sizes, task_of(run.record.sizes)
            looks = [row for row in run.measured("features") if row["task"] == len(sizes)]
            features = np.array([row["features"] for row in looks], float)  # (2, images, features)
            places, shares = principal(features.reshape(-1, features.shape[-1]))
            for moment, look, own in zip(MOMENTS, looks, places.reshape(2, -1, 2).tolist(), strict=True):
                rows += [
                    {
                        **run.named(),
                        "task": task[position],
                        "moment": moment,
                        "class": position,
                        "x": float(f"{x:.6g}"),
                        "y": float(f"{y:.6g}"),
                        "share_x": round(shares[0], 2),
                        "share_y": round(shares[1], 2),
                    }
                    for position, (x, y) in zip(look["classes"], own, strict=True)
                ]
        return rows

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        """The run of each method that has the first seed."""
        chosen = sorted(one_setting_each(super().pick(runs)), key=lambda run: run.spec.seed, reverse=True)
        return list({run.spec.method: run for run in chosen}.values())

    def draw(self, rows: Sequence[Row]) -> Drawing:
        methods = list(dict.fromkeys(row["method"] for row in rows))
        drawing, axes = style.panels(len(methods), 2, height=3.1, sharex="row", sharey="row")
        letters = cycle(ascii_uppercase)
        for method, pair in zip(methods, zip(axes[::2], axes[1::2], strict=True), strict=True):
            own = [row for row in rows if row["method"] == method and row["seed"] == first_seed(rows, method)]
            last = max(row["task"] for row in own)
            for ax, moment in zip(pair, MOMENTS, strict=True):
                _map(ax, [row for row in own if row["moment"] == moment], last)
                ax.set_title(f"{next(letters)}  {method}, {moment} task {last}")
                ax.set_xlabel(f"first axis ({own[0]['share_x']:.0f}% of variance)")
            pair[0].set_ylabel(f"second axis ({own[0]['share_y']:.0f}% of variance)")
        style.legend(drawing, axes, columns=6)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        methods = dict.fromkeys(row["method"] for row in rows)
        seeds = ", ".join(str(seed) for seed in dict.fromkeys(first_seed(rows, method) for method in methods))
        last = max(row["task"] for row in rows)
        return (
            f"The backbone's features of evaluated images of each class, when task {last} begins and when it is over, "
            "on the first two principal axes of both together, the same in both panels of a method. Each point is an "
            f"image, the same images on either side; those of task {last} are large. Maps of several seeds cannot be "
            f"averaged: drawn is the first, seed {seeds}."
        )


def principal(features: Matrix) -> tuple[Matrix, list[float]]:
    """Project features (n, F) on their first two principal axes (n, 2); also the percent of the variance along each.

    scikit-learn points an axis to where its largest entry is positive, so that the map does not flip.
    """
    from sklearn.decomposition import PCA  # only here: it takes a while to load

    axes = PCA(2, svd_solver="full")  # exact; the default may draw random numbers where there is much data
    places: Matrix = axes.fit_transform(features)
    return places, (100 * axes.explained_variance_ratio_).tolist()


def first_seed(rows: Sequence[Row], method: str) -> int:
    return min(int(row["seed"]) for row in rows if row["method"] == method)


def _map(ax: Axes, rows: Sequence[Row], last: int) -> None:
    for task in range(1, last + 1):
        points = np.array([(row["x"], row["y"]) for row in rows if row["task"] == task])
        ax.scatter(points[:, 0], points[:, 1], label=f"task {task}", **_look(task, task == last))
    ax.tick_params(length=0)


def _look(task: int, new: bool) -> dict[str, Any]:
    """The look of a task's points: old tasks light, the new one strong; where looks repeat, the second time hollow."""
    again, place = divmod(task - 1, len(style.LOOKS))
    colour, marker = style.LOOKS[place]["color"], style.LOOKS[place]["marker"]
    if new:
        return {"marker": marker, "c": colour, "s": 26, "edgecolors": "black", "linewidths": 0.6, "zorder": 3}
    if again:
        return {"marker": marker, "facecolors": "none", "edgecolors": colour, "s": 12, "alpha": 0.5, "linewidths": 0.7}
    return {"marker": marker, "c": colour, "s": 12, "alpha": 0.4, "linewidths": 0}
