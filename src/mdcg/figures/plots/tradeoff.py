"""Fig. "tradeoff_heatmaps": ACC and BWT over the memory size and the weight of the margin loss (Section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mdcg.figures.base import FIGURES, Row, memories, recipe_of
from mdcg.figures.plots import single
from mdcg.figures.plots.maps import Maps
from mdcg.methods import METHODS
from mdcg.recipes.recipe import Recipe

METHOD = "md-cg"


@FIGURES.register("tradeoff")
class Tradeoff(Maps):
    """ACC and BWT over memory size and λ, the weight of the margin loss."""

    seeds: ClassVar[str] = "0"  # each of them is a whole grid of runs
    several: ClassVar[tuple[str, ...]] = ("memory", "lam")
    down: ClassVar[str] = "lam"
    across: ClassVar[str] = "memory"
    labels: ClassVar[dict[str, str]] = {"lam": "margin weight, λ", "memory": "memory size (images)"}
    frames: ClassVar[bool] = True

    def wanted(self, asked: Recipe) -> list[Recipe]:
        (method,) = single.one_method("tradeoff", asked, METHOD)
        if "lam" not in METHODS[method].grid:
            raise single.without("tradeoff", method, "lam")
        return [recipe_of(asked, [method], memories(asked), lam=list(METHODS[method].grid["lam"]))]

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            f"ACC (A) and BWT (B) of {rows[0]['method']} with each memory size and each weight λ of the margin loss. "
            f"Frames mark the best ACC of each memory size, in both panels. {self.averaged(rows)}"
        )
