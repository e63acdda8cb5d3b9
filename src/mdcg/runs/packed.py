"""Lists as JSON has them, held in a fraction of their memory: the runs of a large archive are all held at once.

Numbers are in arrays, the rows of a history are columns, and what many runs have in common is there once. Nothing is
rounded, and a whole number stays one: what is taken out equals what was put in.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, overload

from pydantic import BaseModel

T = TypeVar("T")
Numbers: TypeAlias = "array[float] | array[int]"


class Packed(Sequence[Any]):
    """A list: of numbers, of such lists, or of anything else."""

    __slots__ = ("_held",)

    def __init__(self, values: Sequence[Any]) -> None:
        self._held = _packed(values)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return _unpacked(self._held)[place] if isinstance(place, slice) else _unpacked(self._held[place])

    def __iter__(self) -> Iterator[Any]:
        return map(_unpacked, self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Packed | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(list(self))


class Columns(Sequence[dict[str, Any]]):
    """Rows, by their columns. Where a column is None, the row has no such value."""

    __slots__ = ("_columns", "_length")

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise ValueError("columns have different lengths")
        self._columns = {name: Packed(values) for name, values in columns.items()}
        self._length = lengths.pop() if lengths else 0

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Columns:
        """The columns of rows.

        >>> Columns.of([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "accuracy": [90.0]}])[1]
        {'epoch': 2, 'loss': 0.25, 'accuracy': [90.0]}
        """
        return cls(columns_of(list(rows)))

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> Any:
        return list(self)[place]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for values in zip(*self._columns.values(), strict=True):
            yield {name: value for name, value in zip(self._columns, values, strict=True) if value is not None}

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Columns | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(list(self))


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A column for each key of any row, None where a row has none."""
    return {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}


def _packed(values: Sequence[Any]) -> Numbers | tuple[Any, ...]:
    kinds = set(map(type, values))
    if kinds == {float}:
        return array("d", values)
    if kinds == {int}:
        return _whole(tuple(values))
    return tuple(_packed(value) if type(value) is list else value for value in values)


@lru_cache(maxsize=4096)
def _whole(values: tuple[int, ...]) -> Numbers | tuple[int, ...]:
    """Whole numbers; many runs have the same, of their tasks and epochs for instance."""
    try:
        return array("i", values)
    except OverflowError:
        return values


def _unpacked(value: Any) -> Any:
    """What was packed; tuples and arrays were lists."""
    if isinstance(value, array):
        return value.tolist()
    return list(map(_unpacked, value)) if isinstance(value, tuple) else value


MOST_SHARED = 2**14
_known: dict[tuple[type, object], Any] = {}


def shared(value: T) -> T:
    """The first of equal values: those that nobody changes can be held once."""
    if isinstance(value, set):
        key: object = frozenset(value)
    else:  # as text, which tells 1 from 1.0 and from true
        key = repr(value.__dict__ if isinstance(value, BaseModel) else value)
    if len(_known) >= MOST_SHARED:
        _known.clear()
    found: T = _known.setdefault((type(value), key), value)
    return found


def share_fields_set(model: BaseModel) -> None:
    """Let a model hold the names of its fields together with all that were given the same: they take more room than
    the values."""
    object.__setattr__(model, "__pydantic_fields_set__", shared(model.__pydantic_fields_set__))
