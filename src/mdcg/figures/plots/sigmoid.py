"""Fig. "simgoid": ACC and BWT over slope and offset of the gates' sigmoid (Appendix "On scaling the Sigmoid")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mdcg.figures.base import FIGURES, Row, memory, recipe_of
from mdcg.figures.plots import single
from mdcg.figures.plots.maps import Maps
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.recipes.recipe import Recipe

METHOD = "md-cg"
GAMMA = (0.25, 0.5, 1.0, 2.0, 4.0)
BETA = (0.0, 1.0, 2.5, 5.0, 10.0, 20.0)  # the appendix speaks of 2.5 and below, of 10 and of 20


@FIGURES.register("sigmoid")
class Sigmoid(Maps):
    """ACC and BWT over the slope γ and the offset β of the gates' sigmoid."""

    seeds: ClassVar[str] = "0"  # each of them is a whole grid of runs
    several: ClassVar[tuple[str, ...]] = ("gamma", "beta")
    down: ClassVar[str] = "gamma"
    across: ClassVar[str] = "beta"
    labels: ClassVar[dict[str, str]] = {"gamma": "slope, γ", "beta": "offset, β"}

    def wanted(self, asked: Recipe) -> list[Recipe]:
        (method,) = single.one_method("sigmoid", asked, METHOD)
        known = HEADS[asked.head or METHODS[method].head].settings
        if missing := [name for name in (self.down, self.across) if name not in known]:
            raise single.without("sigmoid", method, *missing)
        return [recipe_of(asked, [method], memory(asked), gamma=list(GAMMA), beta=list(BETA))]

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            f"ACC (A) and BWT (B) of {rows[0]['method']} when each gate is sigmoid(γ g + β) of its linear layer's "
            f"answer g. {self.averaged(rows)}"
        )
