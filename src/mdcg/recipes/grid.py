"""A recipe with axes: every combination of their values with what stands beside them, the base.

scenario: c10-5
seeds: 0-4
axes:
  memory: [200, 500]            # a key of recipes, or set.NAME, and its values
  variant:                      # or a name, and for each of its values what that sets
    MD-CG: {method: md-cg}
    S-CG: {method: md-cg, head: single-gate}
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mdcg.errors import MdcgError, unknown
from mdcg.recipes.document import Place, Written
from mdcg.recipes.recipe import Recipe, make_recipe

NOT_AXES = {"title", "seeds", "methods", "set", "out", "data", "device"}  # they belong to the base


@dataclass(frozen=True)
class Value:
    """One value of an axis: its name, what it sets, and where that is written."""

    label: str
    sets: Mapping[str, Any]  # keys as `memory` or `set.lam`
    places: Mapping[str, Place]


@dataclass(frozen=True)
class Combination:
    """One value of each axis: the recipe that they make with the base."""

    recipe: Recipe
    labels: Mapping[str, str]  # by axis
    written: Written
    places: Mapping[str, Place]

    def located(self, error: MdcgError) -> MdcgError:
        """The same error with file and line, where it is about something that is written there."""
        place = self.places.get(error.about or "")
        return self.written.wrong(place, str(error)) if place else error


def combinations(written: Written, given: Mapping[str, Any]) -> list[Combination]:
    """All of them, the last axis changing fastest; `given` (from the command line) overrules the base."""
    base = _base(written)
    places = {key: _place_in_base(key) for key in base}
    axes = {name: list(_values(written, name, values)) for name, values in _axes(written).items()}
    _refuse_collisions(written, places, axes)
    for key in [key for key, value in base.items() if isinstance(value, list) and key not in NOT_AXES]:
        axes[key] = list(_values(written, key, base.pop(key), places.pop(key)))  # a list beside the axes is one too
    for name, values in axes.items():
        for key in set(given) & {key for value in values for key in value.sets}:
            raise MdcgError(f"'{key}' is an axis of {written.path}; choose among its values with --only {name}=….")
    found = []
    for chosen in itertools.product(*axes.values()):
        keys, where = dict(base), dict(places)
        for value in chosen:
            keys |= value.sets
            where |= value.places
        keys |= given
        where = {key: place for key, place in where.items() if key not in given}
        labels = {axis: value.label for axis, value in zip(axes, chosen, strict=True)}
        found.append(_combined(written, keys, where, labels))
    return found


def _base(written: Written) -> dict[str, Any]:
    """What stands beside the axes, settings as `set.NAME`, several methods as `method`."""
    base = {key: value for key, value in written.content.items() if key != "axes"}
    for key in base:
        if key.startswith("set."):
            raise written.wrong((key,), f"'{key}' belongs under set, as set: {{{key.removeprefix('set.')}: …}}.")
    settings = base.pop("set", None)
    if settings is not None and not isinstance(settings, dict):
        raise written.wrong(("set",), "'set' must be 'name: value' lines, for instance set: {lam: 0.5}.")
    if "methods" in base:
        if "method" in base:
            raise written.wrong(("methods",), f"'method' is given too, in line {written.line(('method',))}; keep one.")
        several = base["methods"]
        written.lines["method",] = written.line(("methods",))
        methods = several.split(",") if isinstance(several, str) else several
        base = {"method" if key == "methods" else key: value for key, value in base.items()} | {"method": methods}
    return {**base, **{f"set.{name}": value for name, value in (settings or {}).items()}}


def _combined(
    written: Written, keys: Mapping[str, Any], places: Mapping[str, Place], labels: Mapping[str, str]
) -> Combination:
    settings = {key.removeprefix("set."): value for key, value in keys.items() if key.startswith("set.")}
    plain = {key: value for key, value in keys.items() if not key.startswith("set.")}
    try:
        recipe = make_recipe(**plain, set=settings)
        _refuse_several(recipe)
        recipe.check_names()
    except MdcgError as error:
        about = error.about or ""
        place = places.get(about) or next((places[key] for key in places if key.startswith(f"{about}.")), None)
        if place and about:
            raise written.wrong(place, str(error)) from error
        if about in keys:  # it was given on the command line
            raise
        raise MdcgError(f"{written.path}: {error}") from error
    return Combination(recipe, labels, written, places)


def _refuse_several(recipe: Recipe) -> None:
    """A combination is one setting: what differs in more than the seed would be taken for the same."""
    several = [f"set.{key}" for key, value in recipe.set.items() if isinstance(value, list)]
    for key in ["memory"] * (len(recipe.memory) > 1) + several:
        raise MdcgError(f"'{key}' has several values here; make it an axis, as {key}: [1, 2].", about=key)


def _place_in_base(key: str) -> Place:
    return ("set", key.removeprefix("set.")) if key.startswith("set.") else (key,)


def _axes(written: Written) -> dict[str, Any]:
    axes = written.content.get("axes")
    if axes is None:
        return {}
    if not isinstance(axes, dict):
        raise written.wrong(("axes",), "'axes' must be 'name: [values]' lines, for instance memory: [200, 500].")
    return axes


def _values(written: Written, name: str, values: Any, base: Place | None = None) -> Iterator[Value]:
    """Of one axis, named by its key or, where its values set several keys, by any other word."""
    place: Place = base or ("axes", name)
    key = name.replace("-", "_")
    if key in NOT_AXES:
        hint = "one axis for each, as set.lam: [0.1, 1]" if key == "set" else f"write '{name}' beside 'axes'"
        raise written.wrong(place, f"'{name}' cannot be an axis; {hint}.")
    if not values and not isinstance(values, int | float):
        raise written.wrong(place, f"'{name}' is empty; give at least one value, or remove it.")
    if isinstance(values, dict):
        yield from _variants(written, name, values)
        return
    if key not in Recipe.model_fields and not key.startswith("set."):
        keys = [*(set(Recipe.model_fields) - NOT_AXES), "set.NAME"]
        raise written.wrong(place, str(unknown("axis", name, keys)))
    if not isinstance(values, list):
        raise written.wrong(place, f"axis '{name}' must be a list of values, for instance [{values}].")
    for index, value in enumerate(values):
        if isinstance(value, list | dict) or value is None:
            raise written.wrong((*place, index), f"a value of '{name}' must be a number or a word, not {value!r}.")
        if value in values[:index]:
            raise written.wrong((*place, index), f"'{name}' has the value {value} twice; keep one.")
        yield Value(
            str(value).strip(), {key: value.strip() if isinstance(value, str) else value}, {key: (*place, index)}
        )


def _variants(written: Written, name: str, values: Mapping[Any, Any]) -> Iterator[Value]:
    if name.replace("-", "_") in Recipe.model_fields:
        raise written.wrong(
            ("axes", name),
            f"axis '{name}' must be a list of values; an axis that sets several keys needs another name.",
        )
    for label, sets in values.items():
        here: Place = ("axes", name, label)
        if not isinstance(sets, dict) or not sets:
            raise written.wrong(here, f"'{label}' must say what it sets, for instance {{method: md-cg}}.")
        flat: dict[str, Any] = {}
        places: dict[str, Place] = {}
        for key, value in sets.items():
            plain = str(key).replace("-", "_")
            if plain == "set" and isinstance(value, dict | None):
                flat |= {f"set.{setting}": one for setting, one in (value or {}).items()}
                places |= {f"set.{setting}": (*here, key, setting) for setting in value or {}}
                continue
            if plain in flat:
                raise written.wrong((*here, key), f"'{key}' is given twice for '{label}'; keep one.")
            if plain not in Recipe.model_fields or plain in NOT_AXES:
                known = set(Recipe.model_fields) - NOT_AXES | {"set"}
                raise written.wrong((*here, key), str(unknown("key", str(key), known)))
            flat[plain], places[plain] = value, (*here, key)
        yield Value(str(label), flat, places)


def _refuse_collisions(written: Written, base: Mapping[str, Place], axes: Mapping[str, list[Value]]) -> None:
    """Where two would set one key, which of them counts would be anybody's guess."""
    owner: dict[str, Place] = dict(base)
    for name, values in axes.items():
        mine = {key: place for value in values for key, place in value.places.items()}
        for key, place in mine.items():
            if key in owner:
                raise written.wrong(
                    place, f"axis '{name}' sets '{key}', which line {written.line(owner[key])} sets too; keep one."
                )
        owner |= mine
