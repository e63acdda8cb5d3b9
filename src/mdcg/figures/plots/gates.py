"""The figure of the gates: how far they close, how far their weights move, and how many predictions depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots import single
from mdcg.figures.selection import one_setting
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun

METHOD = "md-cg"
MEAN, LARGEST, PRODUCT = "gates, on average", "gates, largest", "a class's product of gates, largest"
CLASSIFIER, ITS_LARGEST, CHANGED = "classifier, on average", "classifier, largest", "predictions"
LOOKS = dict(zip((MEAN, LARGEST, PRODUCT, CLASSIFIER, ITS_LARGEST, CHANGED), style.LOOKS, strict=False))
#: Of each panel the title, the label of its axis, and the names of its lines.
PANELS: list[tuple[str, str, dict[str, str]]] = [
    (
        "A  How far closed",
        "1 − opening",
        {"closed_mean": MEAN, "closed_largest": LARGEST, "closed_product": PRODUCT},
    ),
    (
        "B  How far moved",
        "change of weights",
        {
            "gates_moved_rms": MEAN,
            "gates_moved_largest": LARGEST,
            "classifier_moved_rms": CLASSIFIER,
            "classifier_moved_largest": ITS_LARGEST,
        },
    ),
    ("C  Predictions changed", "% of images", {"changed_percent": CHANGED}),
]
MEASURED = [key for _, _, lines in PANELS[:2] for key in lines] + ["changed", "images", "accuracy", "accuracy_without"]
NUMBERS = 6  # which stand side by side below a panel


@FIGURES.register("gates")
class Gates(RunFigure):
    """How far gates close (by default MD-CG's), how far their weights move, and how many predictions they change."""

    probes: ClassVar[tuple[str, ...]] = ("gates",)
    several: ClassVar[tuple[str, ...]] = ("memory",)
    tasks: ClassVar[int] = 2

    def wanted(self, asked: Recipe) -> list[Recipe]:
        return [recipe_of(asked, single.one_method("gates", asked, METHOD), memory(asked))]

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        return one_setting(super().pick(runs), METHOD)

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        return [
            {
                **run.named(),
                "task": row["task"],
                **{key: row[key] for key in MEASURED},
                "changed_percent": round(100 * row["changed"] / row["images"], 5),
            }
            for run in runs
            for row in run.measured("gates")
        ]

    def draw(self, rows: Sequence[Row]) -> Drawing:
        sizes, last = sorted({row["memory"] for row in rows}), max(row["task"] for row in rows)
        drawing, axes = style.panels(len(sizes), len(PANELS), height=2.5, sharex=True, sharey="col")
        for column, (title, label, lines) in enumerate(PANELS):
            own = axes[column :: len(PANELS)]
            for ax, size in zip(own, sizes, strict=True):
                for key, name in lines.items():
                    _line(ax, [row for row in rows if row["memory"] == size], key, name)
                ax.set_ylabel(f"memory {size:,}\n{label}" if len(sizes) > 1 and not column else label)
            own[0].set_title(title)
            own[-1].set_xlabel("tasks learned")
            values = [row[key] for row in rows for key in lines]
            if CHANGED in lines.values():  # it may be that none is
                own[0].set_ylim(0, 1.1 * max(values) or 1)
            elif min(values) >= 0:  # else gates that may open further than 1 did so
                style.powers_of_ten(own[0], values)
        axes[0].set_xlim(1.7, last + 0.3)
        axes[0].set_xticks(range(2, last + 1, -(-(last - 1) // NUMBERS)))
        style.legend(drawing, axes, columns=3)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        changed, images = (sum(row[key] for row in rows) for key in ("changed", "images"))
        apart = max(abs(row["accuracy"] - row["accuracy_without"]) for row in rows)
        further = " (below 0: open further than 1)" if min(row["closed_mean"] for row in rows) < 0 else ""
        return (
            "After each task from the second on, with the evaluated images of all classes seen. A: how far gates are "
            "closed, 1 − opening (the paper's: 1 − sigmoid(γ g + β)), on average over gates and images and at most"
            f"{further}; and at most, how much of a class's logit the product of its gates takes away. B: how far "
            "weights and biases have moved since they were initialised, on average (root mean square) and at most. C: "
            "predictions that become others when all gates are set to 1, in percent; of all runs and tasks together "
            f"{changed:,} of {images:,}. With gates and without, the accuracy differs by at most {apart:.2g} "
            "percentage points. "
            f"{captions.averaged(rows, 'each seed as a thin line')}"
        )


def _line(ax: Axes, rows: Sequence[Row], key: str, label: str) -> None:
    """Draw the mean over seeds and, where there are several, each of them: a band would go below a scale of powers."""
    found = {(row["seed"], row["task"]): row[key] for row in rows}
    tasks, seeds = (sorted({moment[place] for moment in found}) for place in (1, 0))
    values = np.array([[found.get((seed, task)) for task in tasks] for seed in seeds], float)
    look: dict[str, Any] = LOOKS[label]
    ax.plot(tasks, values.mean(0), label=label, markevery=max(1, len(tasks) // 8), clip_on=False, **look)
    for own in values if len(seeds) > 1 else ():
        ax.plot(tasks, own, color=look["color"], linewidth=0.5, alpha=0.5, marker=".", markersize=2, zorder=1.5)
