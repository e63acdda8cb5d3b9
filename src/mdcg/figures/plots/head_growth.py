"""Fig. "growing": weights of the gates against the number of tasks, beside a memory (Appendix "… growing law")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import EngFormatter, NullFormatter

from mdcg.figures import style
from mdcg.figures.base import FIGURES, ModelFigure, Row
from mdcg.figures.plots.models import features, given
from mdcg.models.heads import CascadedGates, SingleOpenGate
from mdcg.recipes.recipe import Recipe

CLASSES = 2  # of each task
COUNTED = (1, 2, 3, 4, 5, 7, 10, 14, 20, 30, 40, 65, 100)  # numbers of tasks for which a real head is grown
FAR = (200, 350, 500)  # the same for one that grows linearly
MEMORIES = (200, 500, 1000, 2000)
FORMULA, COUNT = "cascaded gates", "cascaded, counted"
LINEAR, LINEAR_COUNT = "one gate per class", "one per class, counted"
MEMORY = "memory"
LOOKS = {
    FORMULA: style.LOOKS[0] | {"marker": ""},
    COUNT: style.LOOKS[1] | {"linestyle": "", "markerfacecolor": "white"},
    LINEAR: style.LOOKS[2] | {"marker": ""},
    LINEAR_COUNT: style.LOOKS[3] | {"linestyle": "", "markerfacecolor": "white"},
}


@FIGURES.register("head-growth")
class HeadGrowth(ModelFigure):
    """Weights of cascaded gates, and of one gate per class, against the number of tasks, beside a memory's pixels."""

    begins = ("what", "tasks", "floats")

    def measure(self, asked: Recipe) -> list[Row]:
        """Count the weights; `tasks` of a memory is the first number of tasks whose gates take more than it."""
        shape, backbone = given(asked)
        inputs, pixels = features(backbone, shape), math.prod(shape)
        memories: list[Row] = [
            {"what": MEMORY, "tasks": passing(size * pixels, inputs), "floats": size * pixels, "memory": size}
            for size in sorted(asked.memory or MEMORIES)
        ]
        last = max(FAR[-1], *(math.ceil(1.1 * row["tasks"]) for row in memories))
        cascade = counted(CascadedGates(1, inputs, gamma=[1.0], beta=[10.0]), COUNTED[-1])
        single = counted(SingleOpenGate(1, inputs, gamma=[1.0], cap=[1.0]), FAR[-1])
        rows = [
            *({"what": FORMULA, "tasks": tasks, "floats": formula(tasks, inputs)} for tasks in range(1, last + 1)),
            *({"what": COUNT, "tasks": tasks, "floats": cascade[tasks - 1]} for tasks in COUNTED),
            *({"what": LINEAR, "tasks": tasks, "floats": linear(tasks, inputs)} for tasks in range(1, last + 1)),
            *({"what": LINEAR_COUNT, "tasks": tasks, "floats": single[tasks - 1]} for tasks in (*COUNTED, *FAR)),
            *memories,
        ]
        about = {"backbone": backbone, "features": inputs, "image": "×".join(map(str, shape))}
        return [{**row, **about} for row in rows]

    def draw(self, rows: Sequence[Row]) -> Drawing:
        drawing, (ax,) = style.panels(height=3.4)
        for what, look in LOOKS.items():
            own = [row for row in rows if row["what"] == what and row["floats"]]  # one task has no gates
            ax.plot([row["tasks"] for row in own], [row["floats"] for row in own], label=what, **look)
        ax.set_xlim(0, 1.02 * max(row["tasks"] for row in rows))
        for row in (row for row in rows if row["what"] == MEMORY):
            ax.axhline(row["floats"], color=style.GREY, linewidth=0.9, zorder=1)
            ax.plot(row["tasks"], row["floats"], "o", color="black", markersize=4.5)
            _write(ax, f"{row['memory']:,} images", (1.01, row["floats"]), (0, 0), "left", ax.get_yaxis_transform())
            _write(ax, f"{row['tasks']} tasks", (row["tasks"], row["floats"]), (-3, 5), "right")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(EngFormatter(sep=""))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel(f"tasks learned, {CLASSES} classes each")
        ax.set_ylabel("additional floats")
        style.legend(drawing, [ax])
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            f"Weights of all gates after so many tasks of {CLASSES} classes: cascaded, by the formula "
            f"t (t − 1) / 2 · {CLASSES} · features, or one for each past class, (t − 1) · {CLASSES} · features, and "
            "counted in heads that were grown so far; horizontal lines: pixels of a memory of so many images. Points "
            "mark the first number of tasks whose cascaded gates take more than that memory."
        )

    def source(self, rows: Sequence[Row]) -> str:
        return f"{rows[0]['backbone']}, {rows[0]['features']:,} features; images of {rows[0]['image']}."


def _write(
    ax: Axes, text: str, place: tuple[float, float], away: tuple[float, float], side: str, within: Any = "data"
) -> None:
    """Write a text beside a place, so many points away."""
    ax.annotate(text, place, away, within, "offset points", ha=side, va="center", fontsize=8)


def formula(tasks: int, features: int) -> int:
    """The number of gate weights after so many tasks: G(t) = t(t−1)/2 small layers, one for each pair of tasks, that is
    Σ_i (i−1)·|Y^i| where all tasks have as many classes.

    >>> formula(5, 64)
    1280
    """
    return tasks * (tasks - 1) // 2 * CLASSES * features


def linear(tasks: int, features: int) -> int:
    """The number of weights of one gate for each past class, after so many tasks.

    >>> linear(5, 64)
    512
    """
    return (tasks - 1) * CLASSES * features


def counted(head: CascadedGates, tasks: int) -> list[int]:
    """The number of gate weights in a head that is grown, after each task."""
    rngs = [np.random.default_rng(0)]
    found = []
    for _ in range(tasks):
        head.grow(CLASSES, rngs, rngs)
        found.append(head.gates.weight.numel())
    return found


def passing(floats: int, features: int) -> int:
    """The first number of tasks whose gates take more than so many floats."""
    tasks = 1
    while formula(tasks, features) <= floats:
        tasks += 1
    return tasks
