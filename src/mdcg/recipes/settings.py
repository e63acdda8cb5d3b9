"""The settings of a method and of its head: which there are, what they are if nobody chooses, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mdcg.errors import MdcgError, said, unknown
from mdcg.methods import METHODS
from mdcg.methods.base import Value
from mdcg.models import HEADS
from mdcg.recipes.parsing import number
from mdcg.stored import HUGE, LARGEST


def check_settings(method: str, head: str, chosen: Mapping[str, Any]) -> None:
    """Refuse a setting that neither the method nor the head has."""
    known = [*METHODS[method].model_fields, *HEADS[head].settings]
    for key in chosen:
        if key not in known:
            raise unknown(f"setting of {method}", key, known, about=f"set.{key}")


def check_head(method: str, head: str, asked: bool) -> None:
    """Refuse a head that the method cannot take, whether it was `asked` for or is the method's own."""
    wanted = METHODS[method].needs_head
    if wanted == ("fixed" if HEADS[head].grows else "growing"):
        which = {"growing": "that grows with the classes", "fixed": "that has all classes from the start"}
        advice = "leave --head out" if asked else "give one with --head"
        raise MdcgError(f"{method} needs a head {which[wanted]}, and '{head}' is none; {advice}.", about="head")
    if HEADS[head].fitted_layer and not METHODS[method].uses_memory:
        raise MdcgError(
            f"the head '{head}' is fitted to the memory, and {method} has none; take another one with --head.",
            about="head",
        )


def resolve_settings(
    method: str, head: str, chosen: Mapping[str, Any], usual: Mapping[str, Value]
) -> tuple[dict[str, Value], dict[str, float]]:
    """The settings of method and head: those that were chosen, the `usual` ones of the method, the head's defaults."""
    check_settings(method, head, chosen)
    for key, value in chosen.items():
        _check_size(key, value)
    kind = METHODS[method]
    given = {key: value for key, value in chosen.items() if key in kind.model_fields}
    try:
        built = kind(**{**usual, **given})
    except ValidationError as error:
        field = error.errors()[0]["loc"]
        raise MdcgError(f"method {method}: {explain(error)}", about=f"set.{field[0]}" if field else "method") from error
    own = {key: default for key, (default, _) in HEADS[head].settings.items()}
    own |= {key: number(key, value) for key, value in chosen.items() if key in own}
    HEADS[head].check(own)
    return built.model_dump(), own


def _check_size(key: str, value: Any) -> None:
    """Refuse a number that no file gives back, see `stored.plain`."""
    whole = isinstance(value, int)
    if isinstance(value, int | float) and (LARGEST if whole else HUGE) < abs(value) < math.inf:
        most = f"{LARGEST:,}" if whole else f"{HUGE:g}"
        raise MdcgError(f"'{key}' is too large a number; give one up to {most}.", about=f"set.{key}")


def explain(error: ValidationError) -> str:
    """Turn the first complaint of a validation into one sentence."""
    first = error.errors()[0]
    where = ".".join(part for part in first["loc"] if isinstance(part, str) and "[" not in part)  # no kinds of a union
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    given = first["input"]
    told = said(given)
    value = f", not {told}" if isinstance(given, str | int | float) and told.strip("'") not in message else ""
    return (f"'{where}' is wrong: " if where else "") + f"{message[0].lower()}{message[1:]}{value}."
