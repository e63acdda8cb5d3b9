"""The search for a method's hyperparameters as in the paper (Section 4.1).

A tenth of every class's training images is held out, each point of the method's grid is trained once on the rest, and
the best ACC on the held-out images decides. The test images are never looked at.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from mdcg.data import Dataset
from mdcg.errors import MdcgError
from mdcg.execute.plan import Undone
from mdcg.execute.sweep import Sweep, as_given
from mdcg.methods import METHODS
from mdcg.methods.base import Value
from mdcg.models import HEADS
from mdcg.outputs import Kind, Output
from mdcg.recipes.document import Document, key_name
from mdcg.recipes.grid import MEMORY, NOT_AXES, GridCell, merged
from mdcg.recipes.parsing import read_value
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.record import Record

HELD_OUT = 0.1
MARK = "# Chosen by mdcg search"  # the beginning of the files that it writes
LARGEST = 2**20  # bytes of such a file

logger = logging.getLogger(__name__)


def search_sweep(document: Document, given: Mapping[str, Any], **how: Any) -> tuple[Sweep, dict[str, Any]]:
    """Make the sweep of a search, and the keys that were asked for; arguments are those of `Sweep.of`."""
    given = as_given(given)
    keys = merged(document, given)
    name, more = keys.get("method"), dict[str, Any]()
    if isinstance(name, list):
        raise MdcgError(f"a search is for one method, not for {', '.join(map(str, name))}; name it with --method.")
    if name is not None:
        settings = {key.removeprefix("set."): value for key, value in keys.items() if key.startswith("set.")}
        more["set"] = grid_of(name, settings, others=bool(searched(keys)))
    more["hold_out"] = keys.get("hold_out") or HELD_OUT
    return Sweep.of(document, **how, **{**given, **more}), keys


def grid_of(method: str, asked: Mapping[str, Any], others: bool = False) -> dict[str, Any]:
    """The settings that a search tries: those given as lists, else the method's own grid; the rest stays as given.

    Where `others` than settings are to be chosen, a learning rate for instance, the method's own grid is left alone.
    """
    if others:
        return dict(asked)
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
class SearchResult:
    """A searched grid of one memory size: ACC on the held-out images at every point."""

    memory: int
    axes: Mapping[str, list[Value]]  # the settings with several values
    scores: Mapping[tuple[Value, ...], float]  # by the values of the axes, mean over the seeds; no failed ones

    @property
    def ranked(self) -> list[tuple[Value, ...]]:
        """The points of the grid, best first; of equal ones the first of the grid."""
        return sorted(self.scores, key=lambda point: -self.scores[point])

    @property
    def best(self) -> dict[str, Value]:
        """The best point of the grid, by the names of its settings."""
        return dict(zip(self.axes, self.ranked[0], strict=True))

    @property
    def margin(self) -> float:
        """The ACC of the best point less that of the second; NaN for a grid of one point."""
        first, *others = self.ranked
        return self.scores[first] - self.scores[others[0]] if others else math.nan

    @property
    def grid(self) -> list[dict[str, Value]]:
        """The points as rows: the value of each setting, and the ACC."""
        return [{**dict(zip(self.axes, point, strict=True)), "ACC": score} for point, score in self.scores.items()]

    def as_json(self) -> dict[str, Any]:
        """The grid and the choice as plain values for JSON."""
        margin = None if math.isnan(self.margin) else self.margin
        return {"memory": self.memory, "best": self.best, "margin": margin, "grid": self.grid}


def read_search(sweep: Sweep, undone: Undone) -> list[SearchResult]:
    """Read the scores of a sweep that was run, and tell of the points that are left out."""
    for reason in dict.fromkeys([*undone.failed.values(), *undone.left.values()]):
        logger.warning("left out of the grid: %s", reason)
    found = read_grid(sweep.cells, sweep.records())
    if not all(one.scores for one in found):
        raise MdcgError("no point of the grid could be trained, so there is nothing to choose.")
    return found


def read_grid(cells: Sequence[GridCell], records: Mapping[str, Record]) -> list[SearchResult]:
    """Read the scores of a search, memory by memory. A point none of whose runs is finished has no score."""
    axes: dict[str, list[Value]] = {}
    for cell in cells:
        for name, value in _point(cell).items():
            own = axes.setdefault(name, [])
            if value not in own:
                own.append(value)
    found: dict[int, dict[tuple[Value, ...], float]] = {}
    for cell in cells:
        first = cell.specs[0]
        scores = found.setdefault(first.memory, {})
        accs = [records[spec.name].metrics["ACC"] for spec in cell.specs if spec.name in records]
        if accs:
            scores[tuple(_point(cell).values())] = sum(accs) / len(accs)
    return [SearchResult(memory, axes, scores) for memory, scores in found.items()]


def _point(cell: GridCell) -> dict[str, Value]:
    """The values of a cell as they were asked for, by axis: what a run makes of them may be called otherwise."""
    named = {key_name(axis).removeprefix("set."): label for axis, label in cell.labels.items()}
    return {axis: read_value(label) for axis, label in named.items() if axis != MEMORY}


def searched(keys: Mapping[str, Any]) -> list[str]:
    """The keys of a recipe, settings of method and head apart, that have several values to choose from."""
    several = [key_name(key) for key, value in keys.items() if isinstance(value, list) and not key.startswith("set.")]
    return [key for key in several if key not in {"method", MEMORY, *NOT_AXES}]


def chosen_recipe(keys: Mapping[str, Any], found: Sequence[SearchResult]) -> dict[str, Any]:
    """A recipe with what was chosen, for `run` and `sweep`: on the test images, with the paper's seeds."""
    own = searched(keys)
    left_out = {"hold_out", "memory", "seeds", "out", *own} | (
        {"data"} if isinstance(keys.get("data"), Dataset) else set()
    )
    plain = {key: value for key, value in keys.items() if key_name(key) not in left_out and not key.startswith("set.")}
    asked = make_recipe(**plain).model_dump(exclude_unset=True, mode="json")
    fixed = {
        key.removeprefix("set."): value
        for key, value in keys.items()
        if key.startswith("set.") and not isinstance(value, list)
    }
    base = {**asked, "seeds": "0-4"}

    def chosen(one: SearchResult, settings: Mapping[str, Any]) -> dict[str, Any]:
        memory = {"memory": one.memory} if one.memory else {}
        best = {key: value for key, value in one.best.items() if key in own}
        settings = {**settings, **{key: value for key, value in one.best.items() if key not in own}}
        return {**memory, **best, **({"set": settings} if settings else {})}

    if len(found) == 1:
        return {**base, **chosen(found[0], fixed)}
    points = {f"memory {one.memory}": chosen(one, {}) for one in found}
    return {**base, **({"set": fixed} if fixed else {}), "axes": {"choice": points}}


def recipe_file(path: Path, force: bool = False, inputs: Sequence[Path] = ()) -> Output:
    """The file of a recipe with what was chosen."""
    return Output(path, RECIPE, force, inputs)


def recipe_text(recipe: Mapping[str, Any]) -> bytes:
    """The content of such a file."""
    text = yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True)
    return f"{MARK} on training images held out.\n{text}".encode()


def _is_chosen(file: BinaryIO) -> bool:
    """Whether a search wrote this, and nobody has changed how it is written since, or noted anything in it."""
    content = file.read(LARGEST)
    return content.startswith(MARK.encode()) and recipe_text(yaml.safe_load(content)) == content


RECIPE = Kind.told_by("a recipe that a search wrote", _is_chosen)
