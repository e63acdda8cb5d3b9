"""The parsing of values as people write them on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mdcg.errors import MdcgError
from mdcg.methods.base import Value


def parse_seeds(text: str) -> list[int]:
    """Parse seeds as people write them.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,12})(?:\s*-\s*([0-9]{1,12}))?\s*", part)
        if not match:
            raise MdcgError(f"'{text}' is not a list of seeds; write for instance 0-4 or 0,2,5.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= 10_000:
            raise MdcgError(f"'{part.strip()}' is not a usable range of at most 10,000 seeds; write for instance 0-4.")
        seeds += range(first, last + 1)
    return seeds


def spell_seeds(seeds: Iterable[int]) -> str:
    """Write seeds as people do, the reverse of `parse_seeds`.

    >>> spell_seeds([0, 1, 2, 7, 9, 8])
    '0-2,7-9'
    """
    runs: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def parse_settings(texts: list[str]) -> dict[str, Value | list[Value]]:
    """Parse `--set key=value` options; several values make a list.

    >>> parse_settings(["lam=1e-1,1", "flag=true", "kind=fast"])
    {'lam': [0.1, 1], 'flag': True, 'kind': 'fast'}
    """
    settings: dict[str, Value | list[Value]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        values = [part.strip() for part in value.split(",")]
        if not equals or not key or not all(values):
            raise MdcgError(f"'--set {text}' is not of the form key=value, for instance --set lam=0.1.")
        if key in settings:
            raise MdcgError(f"'{key}' is set twice; give each setting once.")
        settings[key] = read_values(value)
    return settings


def read_values(text: str) -> Value | list[Value]:
    """Read a value, or several that commas divide.

    >>> read_values("0.1"), read_values("sgd, adamw")
    (0.1, ['sgd', 'adamw'])
    """
    values = [read_value(part.strip()) for part in text.split(",")]
    return values if len(values) > 1 else values[0]


def read_value(text: str) -> Value:
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)


def number(key: str, value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise MdcgError(f"'{key}' must be a number, not {value!r}.", about=f"set.{key}")
    return float(value)
