"""The grid of a recipe, from its axes to the settings that it means: every combination of their values.

scenario: c10-5
seeds: 0-4
axes:
  memory: [200, 500]            # a key of recipes, or set.NAME, and its values
  variant:                      # or a name, and for each of its values what that sets
    MD-CG: {method: md-cg}
    S-CG: {method: md-cg, head: single-gate}

A list beside the axes is one more of them, so `mdcg compare --methods naive,replay --memory 50,100` is a grid as well.
What stands beside the axes and is no list is the base, the same for all combinations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mdcg.data import Dataset
from mdcg.errors import MdcgError, unknown
from mdcg.methods import METHODS
from mdcg.recipes.document import Document, Place, key_name, written
from mdcg.recipes.parsing import read_value
from mdcg.recipes.recipe import TABLE, Recipe, make_recipe
from mdcg.runs.spec import SETTINGS, RunSpec
from mdcg.scenario import Stream

NOT_AXES = {"title", "seeds", "methods", "set", "out", "data", "device", "tasks", "order", "sizes"}  # of the base
OUTERMOST = ("method", "memory")  # of lists beside the axes: what a table is read by
MEMORY = "memory"
MOST, MOST_RUNS = 10_000, 100_000  # combinations, and runs of all of them: what can still be planned


@dataclass(frozen=True)
class AxisValue:
    """One value of an axis: its name, what it sets, and where that is written."""

    label: str
    sets: Mapping[str, Any]  # keys as `memory` or `set.lam`
    places: Mapping[str, Place]


@dataclass(frozen=True)
class Combination:
    """A combination of one value of each axis: the recipe that they make with the base."""

    recipe: Recipe
    labels: Mapping[str, str]  # by axis
    document: Document
    places: Mapping[str, Place]

    def located(self, error: MdcgError) -> MdcgError:
        """Add file and line to an error, where it is about something that is written there."""
        place = _written_at(self.places, error.about or "")
        return self.document.error(place, str(error)) if place else error


@dataclass(frozen=True)
class GridCell:
    """The runs of one setting, which differ in nothing but the seed."""

    labels: Mapping[str, str]  # its value on each axis
    specs: Sequence[RunSpec]
    aliases: Sequence[Mapping[str, str]] = ()  # the labels of other combinations that mean the same runs


def label(cell: GridCell, without: Collection[str] = ()) -> str:
    """The label that tells a cell from the others of its grid: its value on every axis, numbers with what they are.

    >>> label(GridCell({"method": "md", "memory": "50", "set.lam": "0.1", "batch-size": "8"}, []))
    'md, memory 50, lam 0.1, batch-size 8'
    """
    parts = []
    for axis, value in cell.labels.items():
        key = key_name(axis)
        known = key in RunSpec.model_fields and isinstance(read_value(value), int | float)
        known = known or key in Stream.model_fields
        if axis not in without:
            parts.append(f"{axis.removeprefix('set.')} {value}" if known or axis.startswith("set.") else value)
    return ", ".join(parts) or cell.specs[0].method


def merged(document: Document, given: Mapping[str, Any]) -> dict[str, Any]:
    """The base with what is given besides, settings as `set.NAME` and several methods as `method`."""
    return {**_base(document), **_given(given)}


def expand(document: Document, given: Mapping[str, Any] | None = None) -> list[Combination]:
    """Make all combinations, the last axis changing fastest; what is `given` besides overrides the base."""
    base, extra = _base(document), _given(given or {})
    axes = {name: list(_values(document, name, values)) for name, values in _axes(document).items()}
    _refuse_collisions(document, {key: _place_in_base(key) for key in base}, axes)
    for name, values in axes.items():
        for key in set(extra) & {key for value in values for key in value.sets}:
            raise MdcgError(f"'{key}' is an axis of {document.path}; choose among its values with --only {name}=….")
    places = {key: _place_in_base(key) for key in base if key not in extra}
    base |= extra
    lists = [key for key, value in base.items() if isinstance(value, list) and key not in NOT_AXES]
    for key in sorted(lists, key=lambda key: OUTERMOST.index(key) if key in OUTERMOST else len(OUTERMOST)):
        source = Document(base) if key in extra else document
        axes[key] = list(_values(source, key, base.pop(key), places.pop(key, (key,))))
    found = []
    if (combinations := math.prod(map(len, axes.values()))) > MOST:
        advice = "divide them among recipes" if "axes" in document.content else "give fewer values at once"
        raise MdcgError(f"the values have {combinations:,} combinations, of at most {MOST:,}; {advice}.")
    for chosen in itertools.product(*axes.values()):
        keys, where = dict(base), dict(places)
        for value in chosen:
            keys |= value.sets
            where |= {key: place for key, place in value.places.items() if key not in extra}
        labels = {axis: value.label for axis, value in zip(axes, chosen, strict=True)}
        found.append(_Keys(keys, where, labels))
    _check_settings(document, found)
    combined = [one.combined(document) for one in found]
    if (runs := sum(len(one.recipe.seeds) for one in combined)) > MOST_RUNS:
        raise MdcgError(f"that would be {runs:,} runs, of at most {MOST_RUNS:,}; leave out seeds or values.")
    return combined


def axis_labels(document: Document) -> dict[str, list[str]]:
    """The names of each axis's values."""
    return {name: [one.label for one in _values(document, name, values)] for name, values in _axes(document).items()}


def grid_cells(combinations: Sequence[Combination], load: Callable[[Recipe], Dataset]) -> list[GridCell]:
    """The runs of every combination; one that others mean as well (Naive has no memory) is the first one's."""
    found: list[GridCell] = []
    seen: dict[str, int] = {}  # runs, and the cell of each
    for combination in combinations:
        recipe = combination.recipe
        try:
            specs = recipe.resolve(load(recipe))
        except MdcgError as error:
            raise combination.located(error) from error
        settings = specs[0].settings()
        apply = {
            axis: label
            for axis, label in combination.labels.items()
            if (axis in settings or not axis.startswith("set."))
            and (axis != MEMORY or METHODS[specs[0].method].uses_memory)
        }
        new = [spec for spec in specs if spec.name not in seen]
        if not new:
            first = seen[specs[0].name]
            found[first] = replace(found[first], aliases=[*found[first].aliases, apply])
            continue
        if any(cell.labels == apply for cell in found):  # memory's values set more, which no table could tell apart
            told = f"{new[0].method} has no memory to tell its settings apart; leave it out."
            raise combination.located(MdcgError(told, about=MEMORY))
        seen |= {spec.name: len(found) for spec in new}
        found.append(GridCell(apply, new))
    return found


def choose(
    combinations: Sequence[Combination], load: Callable[[Recipe], Dataset], wanted: Mapping[str, Sequence[str]]
) -> list[GridCell]:
    """The runs that have one of the values wanted, of each axis or setting named."""
    labels = {axis: {one.labels[axis] for one in combinations} for axis in combinations[0].labels}
    known = {*labels, *SETTINGS, *(f"set.{name}" for one in combinations for name in one.recipe.settings())}
    for key, values in wanted.items():  # before a dataset is asked for
        if key not in known:
            raise unknown("axis or setting", key, known)
        if key not in SETTINGS and key in labels:
            _refuse_unknown(key, values, labels[key])
    # By label first: datasets of what is not wanted need not be there.
    likely = [one for one in combinations if _may_be(one, wanted)]
    return _only(grid_cells(likely or combinations, load), wanted, labels)


def _refuse_unknown(key: str, values: Sequence[str], named: Collection[str]) -> None:
    for value in values:
        if value not in named:
            raise unknown(f"value of {key} in this recipe", value, named)


def _may_be(one: Combination, wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(one.labels[key] in values for key, values in wanted.items() if key in one.labels)


def _only(
    found: Sequence[GridCell], wanted: Mapping[str, Sequence[str]], labels: Mapping[str, set[str]]
) -> list[GridCell]:
    for key, values in wanted.items():
        named = {value for cell in found for spec in cell.specs for value in _known(cell, spec, key)}
        named |= labels.get(key, set())
        if named:
            _refuse_unknown(key, values, named)
    kept = []
    for cell in found:
        specs = [
            spec
            for spec in cell.specs
            # A method without a memory is the same whatever its size: no size leaves it out.
            if all(
                set(values) & _known(cell, spec, key) or (key == MEMORY and not spec.memory)
                for key, values in wanted.items()
            )
        ]
        if specs:
            kept.append(replace(cell, specs=specs))
    if not kept:
        raise MdcgError("no run has all of these values; give fewer of them with --only.")
    return kept


def _known(cell: GridCell, spec: RunSpec, key: str) -> set[str]:
    """The values of a run under a name: its label on that axis, and its own setting."""
    settings = spec.settings()
    if key == MEMORY and not spec.memory:
        return set()
    own = {str(settings[key])} if key in settings else set()
    return own | ({cell.labels[key]} if key in cell.labels else set())


def _base(document: Document) -> dict[str, Any]:
    """The keys beside the axes, settings as `set.NAME`, several methods as `method`."""
    base = {key: value for key, value in document.content.items() if key != "axes"}
    for key in base:
        if key.startswith("set."):
            raise document.error((key,), f"'{key}' belongs under set, as set: {{{key.removeprefix('set.')}: …}}.")
    settings = base.pop("set", None)
    if settings is not None and not isinstance(settings, Mapping):
        raise document.error(("set",), "'set' must be 'name: value' lines, for instance set: {lam: 0.5}.")
    if "methods" in base:
        if "method" in base:
            where = f", in line {document.line(('method',))}" if document.path else ""
            raise document.error(("methods",), f"'method' is given too{where}; keep one.")
        document.lines["method",] = document.line(("methods",))
        base = {"method" if key == "methods" else key: value for key, value in base.items()}
    for key in ("method", MEMORY):
        if isinstance(base.get(key), str) and "," in base[key]:
            base[key] = [read_value(part.strip()) for part in base[key].split(",")]
    base = {key: list(value) if isinstance(value, tuple | range) else value for key, value in base.items()}
    return {**base, **{f"set.{name}": value for name, value in (settings or {}).items()}}


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a command line or of Python: a list counts each value once, and one of a single value is no axis."""
    found = {}
    for key, value in _base(written(keys)).items():
        once = _once(value) if isinstance(value, list) and key not in NOT_AXES else value
        found[key] = once[0] if isinstance(once, list) and key not in NOT_AXES and len(once) == 1 else once
    return found


def _once(values: list[Any]) -> list[Any]:
    """Each value once; with what is none, all of them, to be refused."""
    plain = all(isinstance(value, bool | int | float | str) for value in values)
    return list(dict.fromkeys(values)) if plain else values


def _check_settings(document: Document, found: Sequence[_Keys]) -> None:
    """Refuse a setting that none of the methods it is written for has; it means nothing to those without it."""
    methods: dict[tuple[str, Place], dict[str, list[str]]] = {}  # by setting and place: methods, and what each has
    for one in found:
        try:
            recipe = make_recipe(**one.plain())
            known = {recipe.named_method(): recipe.settings()}
        except MdcgError:  # it is said when the combination is made
            return
        for name in one.settings():
            methods.setdefault((name, one.places.get(f"set.{name}", ())), {}).update(known)
    for (name, place), known in methods.items():
        if not any(name in own for own in known.values()):
            every = sorted({setting for own in known.values() for setting in own})
            error = unknown(f"setting of {', '.join(known)}", name, every, about=f"set.{name}")
            raise document.error(place, str(error)) if place else error


@dataclass(frozen=True)
class _Keys:
    """The keys of one combination, not yet a recipe."""

    keys: Mapping[str, Any]
    places: Mapping[str, Place]
    labels: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        return {key: value for key, value in self.keys.items() if not key.startswith("set.")}

    def settings(self) -> dict[str, Any]:
        return {key.removeprefix("set."): value for key, value in self.keys.items() if key.startswith("set.")}

    def combined(self, document: Document) -> Combination:
        """Make the recipe, with the settings that its method has."""
        try:
            known = make_recipe(**self.plain()).settings()
            own = {name: value for name, value in self.settings().items() if name in known}
            recipe = make_recipe(**self.plain(), set=own)
            _refuse_several(recipe)
            recipe.check_names()
        except MdcgError as error:
            about = error.about or ""
            within = (place for key, place in self.places.items() if key.startswith(f"{about}."))
            place = _written_at(self.places, about) or next(within, None)
            if place and about:
                raise document.error(place, str(error)) from error
            if about in self.keys or document.path is None:  # it was given on the command line
                raise
            raise MdcgError(f"{document.path}: {error}") from error
        return Combination(recipe, self.labels, document, self.places)


def _refuse_several(recipe: Recipe) -> None:
    """Refuse a combination of more than one setting: its runs would be taken for seeds of the same."""
    several = [f"set.{key}" for key, value in recipe.set.items() if isinstance(value, list)]
    for key in ["memory"] * (len(recipe.memory) > 1) + several:
        raise MdcgError(f"'{key}' has several values here; make it an axis, as {key}: [1, 2].", about=key)


def _written_at(places: Mapping[str, Place], about: str) -> Place | None:
    """Where a key is written: by itself, or in a scenario that is a table."""
    return places.get(about) or (places.get("scenario") if about in TABLE else None)


def _place_in_base(key: str) -> Place:
    return ("set", key.removeprefix("set.")) if key.startswith("set.") else (key,)


def _axes(document: Document) -> dict[str, Any]:
    axes = document.content.get("axes")
    if axes is None:
        return {}
    if not isinstance(axes, dict):
        raise document.error(("axes",), "'axes' must be 'name: [values]' lines, for instance memory: [200, 500].")
    return axes


def _values(document: Document, name: str, values: Any, base: Place | None = None) -> Iterator[AxisValue]:
    """The values of one axis, named by its key or, where its values set several keys, by any other word."""
    place: Place = base or ("axes", name)
    key = key_name(name)
    if key in NOT_AXES:
        hint = "one axis for each, as set.lam: [0.1, 1]" if key == "set" else f"write '{name}' beside 'axes'"
        raise document.error(place, f"'{name}' cannot be an axis; {hint}.")
    if not values and not isinstance(values, int | float):
        raise document.error(place, f"'{name}' is empty; give at least one value, or remove it.")
    if isinstance(values, dict):
        yield from _variants(document, name, values)
        return
    if key not in Recipe.model_fields and not key.startswith("set."):
        keys = [*(set(Recipe.model_fields) - NOT_AXES), "set.NAME"]
        raise document.error(place, str(unknown("axis", name, keys)))
    if not isinstance(values, list):
        raise document.error(place, f"axis '{name}' must be a list of values, for instance [{values}].")
    for index, value in enumerate(values):
        if isinstance(value, list | dict) or value is None:
            raise document.error((*place, index), f"a value of '{name}' must be a number or a word, not {value!r}.")
        if value in values[:index]:
            raise document.error((*place, index), f"'{name}' has the value {value} twice; keep one.")
        yield AxisValue(
            str(value).strip(), {key: value.strip() if isinstance(value, str) else value}, {key: (*place, index)}
        )


def _variants(document: Document, name: str, values: Mapping[Any, Any]) -> Iterator[AxisValue]:
    """The values of an axis that sets several keys; of one that is named by a key, they are this key's and set more."""
    own = key_name(name)
    is_key = own in Recipe.model_fields or own.startswith("set.")
    for label, sets in values.items():
        here: Place = ("axes", name, label)
        if not isinstance(sets, dict) or not (sets or is_key):
            example = "{weight_decay: 0}" if is_key else "{method: md-cg}"
            raise document.error(here, f"'{label}' must say what it sets, for instance {example}.")
        flat: dict[str, Any] = {own: read_value(str(label).strip())} if is_key else {}
        places: dict[str, Place] = dict.fromkeys(flat, here)
        for key, value in sets.items():
            plain = key_name(str(key))
            if plain == "set" and isinstance(value, dict | None):
                flat |= {f"set.{setting}": one for setting, one in (value or {}).items()}
                places |= {f"set.{setting}": (*here, key, setting) for setting in value or {}}
                continue
            if plain in flat:
                raise document.error((*here, key), f"'{key}' is given twice for '{label}'; keep one.")
            if plain not in Recipe.model_fields or plain in NOT_AXES:
                known = set(Recipe.model_fields) - NOT_AXES | {"set"}
                raise document.error((*here, key), str(unknown("key", str(key), known)))
            flat[plain], places[plain] = value, (*here, key)
        yield AxisValue(str(label), flat, places)


def _refuse_collisions(document: Document, base: Mapping[str, Place], axes: Mapping[str, list[AxisValue]]) -> None:
    """Refuse two that set one key: which of them counts would be anybody's guess."""
    owner: dict[str, Place] = dict(base)
    for name, values in axes.items():
        mine = {key: place for value in values for key, place in value.places.items()}
        for key, place in mine.items():
            if key in owner:
                raise document.error(
                    place, f"axis '{name}' sets '{key}', which line {document.line(owner[key])} sets too; keep one."
                )
        owner |= mine
