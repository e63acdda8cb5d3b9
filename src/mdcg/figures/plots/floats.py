"""Fig. "floats": accuracy against what a method keeps in addition to its model (Section 4.2, "Memory overhead")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import ClassVar

from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from mdcg import metrics
from mdcg.errors import MdcgError
from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memories, recipe_of
from mdcg.figures.plots.overhead import can_be_counted, overhead
from mdcg.figures.selection import usual
from mdcg.methods import METHODS
from mdcg.recipes.recipe import Recipe
from mdcg.results.settings import alike
from mdcg.runs.finished import FinishedRun

SHOWN = ("replay", "der", "er-ace", "er-lode", "md-cg")


@FIGURES.register("floats")
class Floats(RunFigure):
    """ACC against the additional floats that a method keeps, per method over memory sizes."""

    seeds: ClassVar[str] = "0-2"
    several: ClassVar[tuple[str, ...]] = ("memory",)

    def wanted(self, asked: Recipe) -> list[Recipe]:
        methods = asked.methods or SHOWN
        if without := [name for name in methods if not METHODS[name].uses_memory]:
            raise MdcgError(
                f"the figure floats compares memories: leave out {', '.join(without)}, without any.", about="methods"
            )
        return [recipe_of(asked, methods, memories(asked))]

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        rows = []
        for run in runs:
            kept = overhead(run.spec, run.record.sizes)
            found = {"floats": kept.floats, "ACC": round(run.record.metrics["ACC"], 4)}
            rows.append({**run.named(), **asdict(kept), **found})
        return rows

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        """The setting with most seeds of each method and memory size; there must be at least two sizes."""
        cells: dict[tuple[str, int], list[FinishedRun]] = {}
        for run in super().pick(runs):
            if METHODS[run.spec.method].uses_memory and can_be_counted(run.spec):
                cells.setdefault((run.spec.method, run.spec.memory), []).append(run)
        chosen = [max(alike(own, {"seed"}), key=lambda same: (len(same), usual(same[0]))) for own in cells.values()]
        return [run for own in chosen for run in own] if len({memory for _, memory in cells}) > 1 else []

    def draw(self, rows: Sequence[Row]) -> Drawing:
        drawing, (ax,) = style.panels(height=3)
        methods = list(dict.fromkeys(row["method"] for row in rows))
        for method in methods:
            cells: dict[int, list[float]] = {}
            for row in rows:
                if row["method"] == method:
                    cells.setdefault(row["floats"], []).append(row["ACC"])
            x = sorted(cells)
            means, spreads = zip(*(metrics.mean_std(cells[floats]) for floats in x), strict=True)
            bars = None if all(len(own) == 1 for own in cells.values()) else spreads
            look = style.look_of(method, methods)
            ax.errorbar(x, means, bars, label=method, capsize=2.5, elinewidth=0.8, capthick=0.8, **look)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.set_xlabel("additional floats")
        ax.set_ylabel("ACC (%)")
        style.legend(drawing, [ax], columns=6)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            "ACC against the numbers that a method keeps beyond the model and the tasks' head, one point for each "
            "memory size: the pixels of all images that the memory may hold, the weights of gates and projections "
            f"in the head, and logits kept with the images. {captions.averaged(rows)}"
        )
