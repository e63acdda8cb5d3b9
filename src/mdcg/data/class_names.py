"""Names of classes that a person hardly meant to be two."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable

from mdcg.errors import warn_once
from mdcg.files import shown

logger = logging.getLogger(__name__)
NAMED = 3  # pairs that a warning names


def look_alikes(names: Iterable[str], known: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Pairs of names that differ only by case or by Unicode's form, each with the first such name; one of them is new.

    >>> look_alikes(["lamp", "Lamp", "cup"]), look_alikes(["LAMP"], known=["lamp", "Lamp"])
    ([('lamp', 'Lamp')], [('lamp', 'LAMP')])
    """
    first: dict[str, str] = {}
    for name in known:
        first.setdefault(_folded(name), name)
    return [(one, name) for name in names if (one := first.setdefault(_folded(name), name)) != name]


def warn_of_look_alikes(names: Iterable[str], known: Iterable[str] = ()) -> None:
    """Say, once, which classes are two by their names and may be one."""
    pairs = look_alikes(names, known)
    told = [f"'{shown(one, 60)}' and '{shown(other, 60)}' ({_difference(one, other)})" for one, other in pairs[:NAMED]]
    more = f" and {len(pairs) - NAMED} more pairs" if len(pairs) > NAMED else ""
    sentence = f"classes whose names hardly differ: {', '.join(told)}{more}; if they are one, give them the same name."
    if pairs:
        warn_once(logger, sentence)


def _difference(one: str, other: str) -> str:
    return "case" if one.casefold() == other.casefold() else "the Unicode form of their letters"


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
