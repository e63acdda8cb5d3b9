"""Choosing among runs: `method=md-cg,replay`, `memory>=500`, `set.lam<0.5`. Pure functions of rows.

A row is what is known of one run, by name. It need not have every name that another one has: settings are the
method's own.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mdcg.errors import MdcgError, unknown
from mdcg.runs.spec import OLDER

RunRow = Mapping[str, Any]
ORDER = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
DATES = {"finished"}  # texts that have an order
SHAPE = re.compile(r"\s*([^<>=!\s]+)\s*(>=|<=|!=|==|=|>|<)\s*([^<>=!].*?)\s*")


@dataclass(frozen=True)
class Filter:
    """A condition on runs. A run that has no such value is unequal to everything, and neither more nor less."""

    key: str
    sign: str  # =, !=, or one of ORDER
    words: tuple[str, ...]  # for = and !=: any of them

    def accepts(self, row: RunRow) -> bool:
        """Whether a row meets the condition."""
        value = row.get(self.key)
        if self.sign in ORDER:
            return self._in_order(value)
        return any(_equal(value, word) for word in self.words) == (self.sign == "=")

    def _in_order(self, value: Any) -> bool:
        (word,) = self.words
        number = _number(word)
        if _is_number(value) and number is not None:
            return bool(ORDER[self.sign](value, number))
        return isinstance(value, str) and self.key in DATES and bool(ORDER[self.sign](value, word))


def parse_filter(text: str, rows: Sequence[RunRow], names: Iterable[str] = ()) -> Filter:
    """Parse a condition as a person writes it, held against the rows; `names` are those that rows may have."""
    match = SHAPE.fullmatch(text)
    if not match:
        raise MdcgError(f"'{text}' is no filter; write for instance method=md-cg, memory>=500 or seed!=3,4.")
    asked, sign, rest = match.groups()
    sign = "=" if sign == "==" else sign
    words = tuple(word.strip() for word in rest.split(","))
    if not all(words):
        raise MdcgError(f"'{text}' has an empty value; write for instance method=md-cg,replay.")
    if sign in ORDER and len(words) > 1:
        raise MdcgError(f"'{text}' asks for {sign} several values; only = and != take more than one.")
    if not rows:
        return Filter(asked, sign, words)
    key = find_key(asked, rows, names)
    values = [row[key] for row in rows if row.get(key) is not None]
    for word in words if values else ():
        _check(text, key, sign, word, values)
    return Filter(key, sign, words)


def _check(text: str, key: str, sign: str, word: str, values: Sequence[object]) -> None:
    """Refuse a word that cannot be meant for values of this kind."""
    numbers, texts = any(map(_is_number, values)), any(isinstance(value, str) for value in values)
    if sign in ORDER:
        if key in DATES:
            return
        if not numbers:
            raise MdcgError(f"'{text}' asks for an order, but {key} is not a number; use = or !=.")
        if _number(word) is None:
            raise MdcgError(f"'{text}' does not fit: {key} is a number, '{word}' is not.")
    elif texts:
        return
    elif numbers and _number(word) is None:
        raise MdcgError(f"'{text}' does not fit: {key} is a number, '{word}' is not.")
    elif not numbers and word.lower() not in ("true", "false"):
        raise MdcgError(f"'{text}' does not fit: {key} is true or false, not '{word}'.")


def select(rows: Sequence[RunRow], filters: Iterable[Filter]) -> list[int]:
    """The places of the rows that all filters accept, in order."""
    conditions = list(filters)
    return [place for place, row in enumerate(rows) if all(condition.accepts(row) for condition in conditions)]


def in_order(rows: Sequence[RunRow], key: str, down: bool = False) -> list[int]:
    """The rows' places, ordered by one value: numbers before texts, and those that have none always last."""
    ranks = [_rank(row.get(key)) for row in rows]
    have = [place for place, rank in enumerate(ranks) if rank is not None]
    return sorted(have, key=lambda place: ranks[place] or (0, 0), reverse=down) + [
        place for place, rank in enumerate(ranks) if rank is None
    ]


def _rank(value: object) -> tuple[int, Any] | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def find_key(asked: str, rows: Sequence[RunRow], names: Iterable[str] = ()) -> str:
    """Find the name that is meant: case does not matter, nor whether its words are joined by - or _.

    >>> find_key("Batch-Size", [{"batch_size": 32, "lr": 0.01}]), find_key("rate", [{"lr": 0.01}])
    ('batch_size', 'lr')
    """
    known = dict.fromkeys([*names, *(name for row in rows for name in row)])
    if asked in known:
        return asked
    older = {before: now for now, before in OLDER.items()}
    for name in known:
        if _plain(name) == older.get(_plain(asked), _plain(asked)):
            return name
    raise unknown("column", asked, known)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(word: str) -> int | float | None:
    """Read a text as a number; None where it is none.

    >>> _number("500"), _number("1e-3"), _number("nan"), _number("big")
    (500, 0.001, None, None)
    """
    for kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            continue
        return None if math.isnan(number) else number
    return None


def _equal(value: object, word: str) -> bool:
    if isinstance(value, bool):
        return word.lower() == str(value).lower()
    if _is_number(value):
        return value == _number(word)
    return value == word
