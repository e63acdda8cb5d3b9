"""Fig. "tradeoff_heatmaps": ACC and BWT over the memory size and the weight of the margin loss (Section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mdcg.experiments.recipe import Recipe
from mdcg.figures.base import FIGURES, Row, memories, recipe_of
from mdcg.figures.maps import Maps
from mdcg.methods import METHODS

METHOD = "md-cg"


@FIGURES.register("tradeoff")
class Tradeoff(Maps):
    """ACC and BWT over memory size and λ, the weight of the margin loss."""

    seeds: ClassVar[str] = "0-1"  # each of them is a whole grid of runs
    several: ClassVar[tuple[str, ...]] = ("memory", "lam")
    down: ClassVar[str] = "lam"
    across: ClassVar[str] = "memory"
    labels: ClassVar[dict[str, str]] = {"lam": "margin weight, λ", "memory": "memory size (images)"}
    frames: ClassVar[bool] = True

    def wanted(self, asked: Recipe) -> list[Recipe]:
        """Of the first method named that has a λ, else of MD-CG."""
        method = next((name for name in asked.methods if "lam" in METHODS[name].grid), METHOD)
        return [recipe_of(asked, [method], memories(asked), lam=list(METHODS[method].grid["lam"]))]

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            f"ACC (A) and BWT (B) of {rows[0]['method']} with each memory size and each weight λ of the margin loss: "
            "mean over seeds. Frames mark the best ACC of each memory size, in both panels."
        )
