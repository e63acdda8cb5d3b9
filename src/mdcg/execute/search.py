"""The search for a method's hyperparameters as in the paper (Section 4.1).

A tenth of every class's training images is held out, each point of the method's grid is trained once on the rest, and
the best ACC on the held-out images decides. The test images are never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mdcg.errors import MdcgError
from mdcg.methods import METHODS
from mdcg.methods.base import Value
from mdcg.models import HEADS
from mdcg.recipes.recipe import Recipe
from mdcg.runs.record import Record

HELD_OUT = 0.1


def grid_of(method: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a search tries: those given as lists, else the method's own grid; others stay as given."""
    own = {key: list(values) for key, values in METHODS[method].grid.items() if key not in asked}
    lists = {key: value for key, value in asked.items() if isinstance(value, list)}
    grid = {**({} if lists else own), **asked}
    if not any(isinstance(value, list) for value in grid.values()):
        if METHODS[method].grid:
            key = next(iter(METHODS[method].grid))
            raise MdcgError(f"nothing is left to choose for {method}; give several values, as --set {key}=0.1,1.")
        known = [name for name in METHODS.names() if METHODS[name].grid]
        fields = list(METHODS[method].model_fields) + list(HEADS[METHODS[method].head].settings)
        advice = (
            f"give the values to try with --set, for instance --set {fields[0]}=…,…"
            if fields
            else f"there is nothing to choose; methods with a grid are {', '.join(known)}"
        )
        raise MdcgError(f"{method} has no grid of its own; {advice}.")
    return grid


@dataclass(frozen=True)
class Found:
    """A searched grid of one memory size: ACC on the held-out images at every point."""

    memory: int
    axes: Mapping[str, list[Value]]  # the settings with several values
    scores: Mapping[tuple[Value, ...], float]  # by the values of the axes, mean over the seeds; no failed ones

    @property
    def ranked(self) -> list[tuple[Value, ...]]:
        """Best first; of equal ones the first of the grid."""
        return sorted(self.scores, key=lambda point: -self.scores[point])

    @property
    def best(self) -> dict[str, Value]:
        return dict(zip(self.axes, self.ranked[0], strict=True))

    @property
    def margin(self) -> float:
        """ACC of the best less that of the second; NaN for a grid of one point."""
        first, *others = self.ranked
        return self.scores[first] - self.scores[others[0]] if others else math.nan


def read_grid(recipe: Recipe, records: Sequence[Record]) -> list[Found]:
    """What a search's runs say, memory by memory."""
    axes = {key: [_same(v) for v in value] for key, value in recipe.set.items() if isinstance(value, list)}
    found = []
    for memory in recipe.memory if METHODS[recipe.method or ""].uses_memory else [0]:
        scores: dict[tuple[Value, ...], list[float]] = {}
        for record in records:
            if record.spec.memory == memory:
                values = {**record.spec.hyperparameters, **record.spec.head_settings}
                scores.setdefault(tuple(_same(values[key]) for key in axes), []).append(record.metrics["ACC"])
        found.append(Found(memory, axes, {point: sum(own) / len(own) for point, own in scores.items()}))
    return found


def _same(value: Value) -> Value:
    """1 and 1.0 are one point."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def chosen_recipe(recipe: Recipe, found: Sequence[Found]) -> dict[str, Any]:
    """A recipe with what was chosen, for `run` and `sweep`: on the test images, with the paper's seeds."""
    asked = recipe.model_dump(
        exclude_unset=True, mode="json", exclude={"hold_out", "set", "memory", "seeds", "out", "methods"}
    )
    fixed = {key: value for key, value in recipe.set.items() if not isinstance(value, list)}
    base = {**asked, "seeds": "0-4"}
    if len(found) == 1:
        memory = {"memory": found[0].memory} if found[0].memory else {}
        return {**base, **memory, "set": {**fixed, **found[0].best}}
    points = {f"memory {one.memory}": {"memory": one.memory, "set": one.best} for one in found}
    return {**base, **({"set": fixed} if fixed else {}), "axes": {"choice": points}}
