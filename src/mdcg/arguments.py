"""What a person gives in Python, brought to plain values, or refused in a sentence.

Anything can be given: what numpy and pandas have, objects whose methods raise, lists without an end. Whoever takes such
a value brings it to plain ones first, and trusts it from then on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np

from mdcg.errors import InputError, reason_of, said
from mdcg.files import path_of

MOST = 100_000  # values of a list
DEEPEST = 4  # lists in each other


def plain(given: Any, what: str, deepest: int = DEEPEST) -> Any:
    """The value as numbers, texts, paths, lists and dictionaries of them; `what` names it, should it be refused.

    >>> plain({"lam": np.float64(0.5), "seeds": range(3)}, "set")
    {'lam': 0.5, 'seeds': [0, 1, 2]}
    """
    if given is None or isinstance(given, bool | int | float | str):
        return _exact(given)
    if isinstance(given, os.PathLike):
        return path_of(given)
    if deepest and isinstance(given, Mapping):
        pairs = _listed(given.items(), what)
        return {_key(key, what): plain(value, f"{key} of {what}", deepest - 1) for key, value in pairs}
    if isinstance(given, np.generic | np.ndarray) or hasattr(type(given), "__array__"):
        return _plain_array(given, what)
    if deepest and isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | memoryview | Mapping):
        return [plain(value, what, deepest - 1) for value in _listed(given, what)]
    raise _refusal(given, what)


def texts(given: Any, what: str) -> list[str]:
    """A list of texts; of one that was given by itself, a list of one."""
    found = plain(given, what)
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InputError(f"{what} must be a list of texts, not {said(given)}.")
    return found


def flag(given: Any, what: str) -> bool:
    """True or False."""
    if not isinstance(given, bool | np.bool_):
        raise InputError(f"{what} must be True or False, not {said(given)}.")
    return bool(given)


def refuse_endless(given: Any, what: str) -> None:
    """Refuse what gives its values one by one, and may not end: a generator, a file, a map."""
    if isinstance(given, Iterator):
        raise InputError(f"{what} come one by one from a {type(given).__name__}; give a list, as list(…) makes one.")


def refuse_larger_than_memory(size: int, what: str) -> None:
    """Refuse what could not be in memory at once, in bytes: an array may be a view that says more than it holds."""
    try:
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # as on Windows, where it is said when it is copied
        return
    if size > room:
        raise InputError(
            f"{what} take {size / 2**30:,.0f} GiB, and this machine has {room / 2**30:,.0f}; give fewer at a time."
        )


def _exact(given: Any) -> Any:
    """The value by Python's own type: others inherit from these, with ideas of their own of equality and text."""
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, str):
        return str.__str__(given)
    return int.__int__(given) if isinstance(given, int) else float.__float__(given)


def _key(key: Any, what: str) -> Any:
    """The key of a dictionary: a text; numbers are left to whoever knows which keys there are."""
    if not isinstance(key, str | int | float):
        raise InputError(f"the keys of {what} must be texts, and one is {said(key)}.")
    return _exact(key)


def _listed(given: Iterable[Any], what: str) -> list[Any]:
    try:
        if isinstance(given, Sized) and len(given) > MOST:
            found = [None] * (MOST + 1)
        else:
            found = list(islice(iter(given), MOST + 1))
    except Exception as error:  # anybody's object
        raise InputError(f"{what} cannot be read ({reason_of(error)}); give a list.") from error
    if len(found) > MOST:
        raise InputError(f"{what} has more than {MOST:,} values; give fewer.")
    return found


def _plain_array(given: Any, what: str) -> Any:
    try:
        array = np.asarray(given)
        values = array.tolist() if array.size <= MOST and array.dtype.kind in "biufUO" else None
    except Exception as error:  # a tensor without values, anybody's object
        raise InputError(f"{what} cannot be read ({reason_of(error)}); give numbers or texts.") from error
    if array.size > MOST:
        raise InputError(f"{what} has more than {MOST:,} values; give fewer.")
    if values is None or values is given or (array.dtype == object and array.ndim == 0):
        raise _refusal(given, what)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        values = array.astype(np.float64).tolist()
    return plain(values, what, max(array.ndim, 1)) if array.dtype == object else values


def _refusal(given: Any, what: str) -> InputError:
    if isinstance(given, Enum):
        return InputError(f"{what} is an Enum; give its value.")
    kind, text = type(given).__name__, said(given)
    found = f"cannot be of the type {kind}" if text == kind else f"is {text}"
    return InputError(f"{what} {found}; give a number, a text or a list.")
