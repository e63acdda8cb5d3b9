"""Fig. "der_reg": whether DER's two losses on memory images pull the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots import single
from mdcg.figures.selection import one_setting
from mdcg.metrics import Matrix
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun


@FIGURES.register("gradients")
class Gradients(RunFigure):
    """DER: cosine between the gradients of its two losses on memory images, per layer, during training."""

    probes: ClassVar[tuple[str, ...]] = ("gradients",)
    tasks: ClassVar[int] = 2

    def wanted(self, asked: Recipe) -> list[Recipe]:
        return [recipe_of(asked, single.one_method("gradients", asked, "der"), memory(asked))]

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        return [
            {**single.moments(run, row), "layer": layer, "cosine": cosine}
            for run in runs
            for row in run.measured("gradients")
            for layer, cosine in zip(row["layers"], row["cosine"], strict=True)
        ]

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        return one_setting(super().pick(runs), "der")

    def draw(self, rows: Sequence[Row]) -> Drawing:
        epochs, tasks = rows[0]["epochs"], rows[0]["tasks"]
        layers = list(dict.fromkeys(row["layer"] for row in rows))
        seeds = sorted({row["seed"] for row in rows})
        looks = [(task, epoch) for task in range(2, tasks + 1) for epoch in range(epochs + 1)]
        found = {(row["seed"], row["layer"], row["task"], row["epoch"]): row["cosine"] for row in rows}
        cosines = np.array(
            [[[found.get((seed, layer, *look)) for look in looks] for layer in layers] for seed in seeds], float
        )
        high = 0.7 + 0.16 * max(9, len(layers))
        drawing, (ax, below) = style.panels(
            2, height=(high + 1.7) / 2, sharex=True, gridspec_kw={"height_ratios": [high, 1.7]}
        )
        self._map(ax, cosines, layers, tasks, epochs)
        self._line(below, cosines[:, -1], layers[-1], tasks, epochs)
        return drawing

    def _map(self, ax: Axes, cosines: Matrix, layers: Sequence[str], tasks: int, epochs: int) -> None:
        mean = np.ma.masked_invalid(cosines).mean(0).filled(np.nan)  # over seeds that have any
        # A task's looks, one before its first epoch and one after each, share the width of its epochs.
        inner = [(task - 1) * epochs + np.arange(epochs + 1) * epochs / (epochs + 1) for task in range(2, tasks + 1)]
        edges = np.append(np.concatenate(inner), tasks * epochs)
        image = style.diverging_map(ax, edges, mean, layers)
        style.training_axis(ax, tasks, epochs, first=2)
        for task in range(3, tasks + 1):
            ax.axvline((task - 1) * epochs, color="black", linewidth=0.5)
        ax.set_xlabel("")
        ax.set_ylabel("layer")
        ax.set_title("A  all layers", pad=16)
        bar = ax.figure.colorbar(image, ax=ax, pad=0.02, label="cosine")
        bar.outline.set_visible(False)

    def _line(self, ax: Axes, cosines: Matrix, layer: str, tasks: int, epochs: int) -> None:
        """The values of one layer: (seeds, looks)."""
        look = {"color": style.look_of("der", ["der"])["color"]}
        for task in range(2, tasks + 1):  # a line for each: when a task begins, the memory is another one
            own = cosines[:, (task - 2) * (epochs + 1) : (task - 1) * (epochs + 1)]
            style.band(ax, [(task - 1) * epochs + epoch for epoch in range(epochs + 1)], own, layer, look)
        ax.axhline(0, color="black", linewidth=0.8)
        style.training_axis(ax, tasks, epochs, first=2)
        ax.set_ylabel("cosine")
        ax.set_title(f"B  {layer}", pad=16)

    def caption(self, rows: Sequence[Row]) -> str:
        last = rows[-1]["layer"]
        return (
            "Two gradients of the same memory images, that of the cross-entropy with their labels and that of the "
            "mean squared distance to the logits kept of them: their cosine, per output channel, averaged over the "
            "channels of each layer, when a task begins and after each of its epochs, from task 2 on. Below 0, "
            "hatched, the two losses pull a layer in opposite directions. A: every layer, the input at the top. B: the "
            f"last row, {last}. Vertical lines part the tasks. "
            f"{captions.averaged(rows, 'in B one standard deviation on either side')}"
        )
