"""Figures of one method with one setting, through its training from task 2 on: which runs, and how to lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mdcg.errors import MdcgError
from mdcg.figures import style
from mdcg.figures.base import Row
from mdcg.metrics import Matrix
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun


def one_method(figure: str, asked: Recipe, usual: str) -> list[str]:
    """The method asked for, or the usual one."""
    if len(asked.methods) > 1:
        raise MdcgError(f"the figure {figure} shows one method, not {len(asked.methods)}; name one.", about="methods")
    return asked.methods or [usual]


def without(figure: str, method: str, *settings: str) -> MdcgError:
    """The error for a method that lacks the settings a figure varies."""
    return MdcgError(
        f"the figure {figure} varies {' and '.join(settings)}, which {method} does not have; name another method.",
        about="methods",
    )


def moments(run: FinishedRun, row: Row) -> Row:
    """The columns that say which run a row is of, and when its probe looked."""
    length = {"epochs": run.spec.epochs, "tasks": len(run.record.sizes)}
    return {**run.named(), "task": row["task"], "epoch": row["epoch"], **length}


def through_training(rows: Sequence[Row], key: str) -> tuple[list[float], Matrix]:
    """The x axis and the values (seeds, x) of one quantity. A task's end and the beginning of the next are two values
    at one x, with more classes and perhaps another memory: between them is NaN, and the line breaks."""
    values = {(row["seed"], row["task"], row["epoch"]): row[key] for row in rows}
    seeds, epochs = sorted({row["seed"] for row in rows}), rows[0]["epochs"]
    x: list[float] = []
    places: list[tuple[int, int]] = []
    for task in sorted({row["task"] for row in rows}):
        x += [(task - 1) * epochs + epoch for epoch in (*range(epochs + 1), epochs)]
        places += [(task, epoch) for epoch in (*range(epochs + 1), -1)]
    table = [[values.get((seed, *place)) for place in places] for seed in seeds]
    return x, np.array(table, float)  # None, of what is not there, is NaN


def line(ax: Axes, rows: Sequence[Row], key: str, label: str, look: dict[str, Any], marks: Sequence[float]) -> None:
    """Draw mean and band of one quantity; in each task markers stand at these parts of its epochs."""
    x, values = through_training(rows, key)
    style.band(ax, x, values, label, look)
    epochs = rows[0]["epochs"]
    ax.lines[-1].set_markevery(
        [start + round(part * epochs) for start in range(0, len(x), epochs + 2) for part in marks]
    )


def title_pad(tasks: int) -> float:
    """The points below a panel's title: room for the names of the tasks, where they stand there."""
    return 14 if tasks <= style.MANY else 6
