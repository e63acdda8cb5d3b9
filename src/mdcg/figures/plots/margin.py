"""Fig. "margin_loss": probabilities and margin loss of the current images, as a task is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from matplotlib.figure import Figure as Drawing

from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots import single
from mdcg.figures.selection import one_setting
from mdcg.probes.margin import MOST
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun

METHOD = "md-cg"
PROBABILITIES = {"truth": "probability of the truth", "past": "largest probability of a past class"}
MARKS = [0.2, 0.4, 0.6, 0.8]


@FIGURES.register("margin")
class Margin(RunFigure):
    """MD-CG's probabilities of the truth and of past classes on current images, and their margin loss."""

    probes: ClassVar[tuple[str, ...]] = ("margin",)
    tasks: ClassVar[int] = 2

    def wanted(self, asked: Recipe) -> list[Recipe]:
        return [recipe_of(asked, single.one_method("margin", asked, METHOD), memory(asked))]

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        return one_setting(super().pick(runs), METHOD)

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        return [
            {**single.moments(run, row), **{key: row[key] for key in ("truth", "past", "loss", "above_zero")}}
            for run in runs
            for row in run.measured("margin")
        ]

    def draw(self, rows: Sequence[Row]) -> Drawing:
        epochs, tasks = rows[0]["epochs"], rows[0]["tasks"]
        drawing, (upper, lower) = style.panels(2, height=2.2, sharex=True)
        marks, pad = MARKS if tasks <= style.MANY else [0.5], single.title_pad(tasks)
        for (key, label), look in zip(PROBABILITIES.items(), style.LOOKS, strict=False):
            single.line(upper, rows, key, label, look, marks)
        single.line(lower, rows, "loss", "margin loss", style.LOOKS[2], marks)
        for ax in (upper, lower):
            style.training_axis(ax, tasks, epochs, first=2)
            ax.label_outer()
        upper.set_title("A  Probabilities of the current task's training images", pad=pad)
        upper.set_ylabel("mean probability")
        upper.set_ylim(0, 1)
        lower.set_title("B  Margin loss of the same images", pad=pad)
        lower.set_ylabel("mean margin loss")
        lower.set_ylim(bottom=0)
        drawing.align_ylabels([upper, lower])
        style.legend(drawing, [upper, lower])
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            "A: probability of the truth, and the largest probability of any past class, among all classes seen. "
            "B: the margin loss, max(0, largest past probability − probability of the truth + 1 / (|Y| − 1)) with |Y| "
            "classes seen (Eq. 4), not weighted. All are means over training images of the current task (at "
            f"most {MOST:,}, evenly spaced, not augmented), when it begins and after each of its epochs; lines break "
            f"where a task begins. {captions.averaged(rows)}"
        )
