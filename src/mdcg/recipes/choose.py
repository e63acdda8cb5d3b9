"""From combinations to the runs that they mean, all or some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mdcg.errors import MdcgError, unknown
from mdcg.execute.sweep import Cell, Site, loaded
from mdcg.methods import METHODS
from mdcg.recipes.grid import Combination
from mdcg.runs.spec import RunSpec
from mdcg.scenario import parse

MEMORY = "memory"


def choose(combinations: Sequence[Combination], site: Site, wanted: Mapping[str, Sequence[str]]) -> list[Cell]:
    """The runs of every combination that have one of the values wanted, of each axis or setting named."""
    # By label first: datasets of what is not wanted need not be there.
    likely = [one for one in combinations if _may_be(one, wanted)]
    return _only(resolve(likely or combinations, site), wanted)


def _may_be(one: Combination, wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(one.labels[key] in values for key, values in wanted.items() if key in one.labels)


def resolve(combinations: Sequence[Combination], site: Site) -> list[Cell]:
    """The runs of every combination; one that others mean as well (Naive has no memory) is the first one's."""
    cells, seen = [], set()
    for combination in combinations:
        recipe = combination.recipe
        try:
            specs = recipe.resolve(loaded(parse(recipe.scenario)[0], site.data, recipe.image_size))
        except MdcgError as error:
            raise combination.located(error) from error
        new = [spec for spec in specs if spec.name not in seen]
        seen |= {spec.name for spec in new}
        if new:
            used = METHODS[new[0].method].uses_memory
            labels = {axis: label for axis, label in combination.labels.items() if used or axis != MEMORY}
            cells.append(Cell(labels, new))
    return cells


def _only(cells: Sequence[Cell], wanted: Mapping[str, Sequence[str]]) -> list[Cell]:
    for key, values in wanted.items():
        found = {value for cell in cells for spec in cell.specs for value in _values(cell, spec, key)}
        if not found:
            names = {name for cell in cells for spec in cell.specs for name in spec.settings()}
            raise unknown("axis or setting", key, names | {axis for cell in cells for axis in cell.labels})
        for value in values:
            if value not in found:
                raise unknown(f"value of {key} in this recipe", value, found)
    kept = []
    for cell in cells:
        specs = [
            spec for spec in cell.specs if all(set(values) & _values(cell, spec, key) for key, values in wanted.items())
        ]
        if specs:
            kept.append(Cell(cell.labels, specs))
    if not kept:
        raise MdcgError("no run has all of these values; give fewer of them with --only.")
    return kept


def _values(cell: Cell, spec: RunSpec, key: str) -> set[str]:
    """What a run has under a name: its label on that axis, and its own setting."""
    named = spec.settings()
    own = {str(named[key])} if key in named else set()
    return own | ({cell.labels[key]} if key in cell.labels else set())
