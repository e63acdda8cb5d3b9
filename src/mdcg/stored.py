"""What is read back from disk: JSON within bounds, and one warning for each file that is damaged.

Every kind of file has one schema, a pydantic model beside what writes it, whose numbers are of the types here: finite,
and no larger than anything of ours can be. So nothing that was read can overflow, or ask for memory without end.
"""

from __future__ import annotations

import logging
import stat
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import from_json

logger = logging.getLogger(__name__)

LARGEST = 2**53  # whole numbers up to here are exact wherever they may be written to
HUGE = 1e100  # numbers up to here can be squared and summed
DEEPEST = 12  # lists of lists, in what has no schema of its own
MOST_BYTES = 2**30  # of a file that is read as a whole
MOST = 10**9  # of things that can be counted

Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Counted = Annotated[int, Field(ge=1, le=MOST)]  # of which there is at least one
Number = Annotated[float, Field(ge=-HUGE, le=HUGE, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=HUGE, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


def plain(value: Any, deepest: int = DEEPEST, finite: bool = True) -> Any:
    """The value, if it is words, lists and numbers within bounds; else a ValueError. NaN and ∞ may be allowed.

    >>> plain({"loss": [0.5, None]})
    {'loss': [0.5, None]}
    """
    if isinstance(value, dict | list | tuple):
        if deepest < 1:
            raise ValueError("lists lie too deep in each other")
        for one in value.values() if isinstance(value, dict) else value:
            if type(one) not in (int, float) or not -LARGEST <= one <= LARGEST:  # of a history nearly all are
                plain(one, deepest - 1, finite)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("a number is too large")
    elif isinstance(value, float) and not abs(value) <= HUGE and finite:
        raise ValueError("a number is not finite, or too large")
    return value


Plain = Annotated[Any, AfterValidator(plain)]
Rows = Annotated[list[dict[str, Any]], AfterValidator(partial(plain, deepest=DEEPEST + 1))]  # at once: they are many
Schema = TypeVar("Schema", bound=BaseModel)


def read_bytes(path: Path) -> bytes:
    """The content of a file, if it is one and not endless; an OSError or ValueError else."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # a pipe would never answer
        raise ValueError("it is no file")
    if about.st_size > MOST_BYTES:
        raise ValueError(f"it has {about.st_size:,} bytes")
    return path.read_bytes()


def json_of(content: bytes) -> Any:
    """The value of JSON; a ValueError where it is none, or has numbers that are none."""
    return from_json(content, allow_inf_nan=False)


def read_as(schema: type[Schema], path: Path) -> Schema:
    """Read a JSON file by its schema; an OSError or ValueError where that cannot be."""
    return schema.model_validate(json_of(read_bytes(path)))


_told: set[tuple[Path, int]] = set()


def warn_of(path: Path, sentence: str) -> None:
    """Say that a file cannot be used: once, however many ask for it, unless it changes."""
    try:
        key = path, path.stat().st_mtime_ns
    except (OSError, ValueError):
        key = path, 0
    if key not in _told:
        _told.add(key)
        logger.warning("%s", sentence)
