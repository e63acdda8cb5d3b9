"""Markdown tables, and words for the types and bounds of settings."""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

WORDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    type(None): "",
}
MANY = {"whole number": "whole numbers", "number": "numbers", "text": "texts", "path": "paths"}


def cell(text: str) -> str:
    """A text as one cell of a table.

    >>> cell("a | b\\nc")
    'a \\\\| b c'
    """
    return " ".join(text.replace("|", "\\|").split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells."""
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def kind_of(field: FieldInfo) -> str:
    """Say in words what a setting may be.

    >>> from pydantic import BaseModel, Field
    >>> class Model(BaseModel):
    ...     a: int | None = Field(None, ge=1)
    ...     b: list[float] = []
    ...     c: Literal["x", "y"] = "x"
    ...     d: list[list[str]] = []
    >>> [kind_of(field) for field in Model.model_fields.values()]
    ['whole number from 1', 'numbers', '`x`, `y`', 'lists of texts']
    """
    return " ".join([_kind(field.annotation), *_bounds(field.metadata)]).strip()


def default_of(field: FieldInfo) -> str:
    """The default as it is written in a recipe; empty where nothing is said."""
    value = field.default
    if value is PydanticUndefined:
        return "must be given"
    return "" if value in (None, [], {}) else f"`{written(value)}`"


def written(value: Any) -> str:
    """Write a value as YAML does."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in WORDS:
        return WORDS[annotation]
    if origin is Annotated:
        return " ".join([_kind(inner[0]), *_bounds(inner[1:])])
    if origin is Literal:
        return ", ".join(f"`{written(value)}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(word for one in inner if (word := _kind(one)))
    if origin in (list, tuple):
        first = _kind(inner[0])
        if get_origin(inner[0]) is list:
            return f"lists of {first}"
        return next((many + first.removeprefix(one) for one, many in MANY.items() if first.startswith(one)), first)
    return "table" if origin is dict or annotation is dict else "value"


def _bounds(metadata: Iterable[Any]) -> list[str]:
    found = []
    for bound in metadata:
        if isinstance(bound, FieldInfo):
            found += _bounds(bound.metadata)
        for kind, word in ((Ge, "from"), (Gt, "above"), (Le, "up to"), (Lt, "below")):
            if isinstance(bound, kind):
                found.append(f"{word} {getattr(bound, kind.__name__.lower()):,}")
    return found
