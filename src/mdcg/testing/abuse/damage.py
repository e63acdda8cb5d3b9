"""Damage to files, drawn at random and told in words: to find out what a reader makes of them.

A file is damaged by a few edits. JSON is edited as what it means (a number that is huge, a key that is missing, a list
that is too long), the header of a safetensors file likewise, and any file byte by byte. Whoever reads it must take it
for what it is, or say what is wrong in an `MdcgError`; all else is a failure, told by the fewest edits that lead to it.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mdcg.errors import MdcgError
from mdcg.tensors import HEADER
from mdcg.testing.abuse.campaign import Failure

SECONDS = 20.0  # after which a reader counts as one that does not end
MOST_EDITS = 3  # of one file
MOST_WEIGHT = 40
MISSING = object()  # in place of a value: the key or entry is removed
DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**400, -(10**400), 0.5, -0.5, 1e-320, 1e16, 1e38,
    1e308, -1e308, math.inf, -math.inf, math.nan,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, "", "zz", "1", "nan", "\x00", "\ud800", "é" * 300, "../" * 40, "digits-99", [], {}, [[]], [None],
    {"": None}, [1, 2], ["x"], DEEP,
)  # fmt: skip
RETYPED = {"F32": ("I32", "U32"), "F64": ("I64", "U64"), "I64": ("F64", "U64"), "U8": ("I8", "BOOL"), "BOOL": ("U8",)}
Place = tuple[str | int, ...]  # the keys and numbers of entries that lead to a value


@dataclass(frozen=True)
class Edit:
    """A value of a JSON tree that is replaced, or removed."""

    place: Place
    value: Any

    def __str__(self) -> str:
        where = ".".join(map(str, self.place)) or "all of it"
        return f"{where} removed" if self.value is MISSING else f"{where} = {_short(self.value)}"


@dataclass(frozen=True)
class ByteEdit:
    """A replacement of some bytes of a file by others."""

    start: int
    length: int
    by: bytes

    def __str__(self) -> str:
        return f"bytes {self.start}:{self.start + self.length} = {_short(self.by)}"


@dataclass(frozen=True)
class Edited:
    """A file that can be damaged: its content, and whether that is JSON, safetensors or just bytes."""

    content: bytes
    kind: str = "bytes"  # or "json", "lines" (JSON, one per line), "safetensors"
    lies: tuple[tuple[Edit, ...], ...] = ()  # edits that fit together, as somebody would make them who knows the format

    def draw(self, rng: random.Random) -> tuple[Edit | ByteEdit, ...]:
        """Draw a few edits."""
        if self.lies and rng.random() < 0.3:
            return rng.choice(self.lies)
        count = rng.choice((1, 1, 1, 2, MOST_EDITS))
        if self.kind == "bytes" or rng.random() < 0.15:
            return tuple(_byte_edit(len(self.content), rng) for _ in range(count))
        tree = self._tree()
        return tuple(_edit(tree, rng) for _ in range(count))

    def damaged(self, edits: Sequence[Edit | ByteEdit]) -> bytes:
        """The content after these edits: those of values first, then those of bytes."""
        content, values = self.content, [edit for edit in edits if isinstance(edit, Edit)]
        if values:
            tree = self._tree()
            for one in values:
                tree = _edited(tree, one)
            content = self._whole(tree)
        for edit in edits:
            if isinstance(edit, ByteEdit):
                content = content[: edit.start] + edit.by + content[edit.start + edit.length :]
        return content

    def _tree(self) -> Any:
        if self.kind == "json":
            return json.loads(self.content)
        if self.kind == "lines":
            return [json.loads(line) for line in self.content.splitlines()]
        header = json.loads(self.content[8 : 8 + self._header])
        if HEADER in header.get("__metadata__", {}):
            header["__metadata__"][HEADER] = json.loads(header["__metadata__"][HEADER])
        return header

    def _whole(self, tree: Any) -> bytes:
        if self.kind == "json":
            return _text(tree)
        if self.kind == "lines":
            return b"\n".join(map(_text, tree if isinstance(tree, list) else [tree])) + b"\n"
        about = tree.get("__metadata__") if isinstance(tree, dict) else None
        if isinstance(about, dict) and HEADER in about:
            tree = {**tree, "__metadata__": {**about, HEADER: _text(about[HEADER]).decode()}}
        text = _text(tree)
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + self.content[8 + self._header :]

    @property
    def _header(self) -> int:
        return int.from_bytes(self.content[:8], "little")


def read_damaged(file: Edited, read: Callable[[bytes], object], rng: random.Random) -> Failure | None:
    """Let `read` read the file, damaged at random; return how it stumbled, if it did. An `MdcgError` is an answer.

    >>> read_damaged(Edited(b"[1]", "json"), lambda content: int(content), random.Random(0)).error[:10]
    'ValueError'
    """
    edits = file.draw(rng)
    error = _answer(file, edits, read)
    return None if error is None else _shortest(edits, error, file, read)


def _answer(file: Edited, edits: Sequence[Edit | ByteEdit], read: Callable[[bytes], object]) -> str | None:
    """What a reader stumbled over, if it did."""
    content = file.damaged(edits)
    try:
        with _limited():
            read(content)
    except MdcgError as error:
        return None if "\n" not in str(error) and str(error) else f"its sentence is {str(error)!r}"
    except Exception as error:
        return f"{type(error).__name__}: {_short(str(error))}{_place_of(error)}"
    return None


def _shortest(edits: Sequence[Edit | ByteEdit], error: str, file: Edited, read: Callable[[bytes], object]) -> Failure:
    """The failure without the edits that it does not need."""
    for edit in edits if len(edits) > 1 else ():
        fewer = [other for other in edits if other is not edit]
        found = _answer(file, fewer, read)
        if found is not None:
            return _shortest(fewer, found, file, read)
    return Failure("; ".join(map(str, edits)), error)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """End what does not end, where the system can."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"it does not end within {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _edit(tree: Any, rng: random.Random) -> Edit:
    """One edit of a JSON tree."""
    place = _some_place(tree, rng)
    value = _at(tree, place)
    if isinstance(value, dict) and {"dtype", "shape"} <= value.keys() and rng.random() < 0.7:  # a tensor of safetensors
        return Edit(place, _other_tensor(value, rng))
    if isinstance(value, list) and value and rng.random() < 0.5:
        other = rng.choice((value[:-1], value[1:], value * 2, [*value, value[0]], value[::-1], [*value, None]))
        return Edit(place, other)
    if isinstance(value, dict) and rng.random() < 0.3:
        return Edit((*place, rng.choice(("zz", "", "0", "-1"))), rng.choice(NUMBERS + OTHERS))
    if place and rng.random() < 0.15:
        return Edit(place, MISSING)
    if type(value) in (int, float) and rng.random() < 0.8:
        near = (value + 1, value - 1, -value, value * 2, float(value), str(value))
        return Edit(place, rng.choice(near if rng.random() < 0.4 else NUMBERS))
    return Edit(place, rng.choice(NUMBERS + OTHERS))


def _other_tensor(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A tensor of the same bytes, taken for one of another type or shape."""
    shape, kinds = list(value["shape"]), RETYPED.get(value["dtype"], ())
    if kinds and rng.random() < 0.4:
        return {**value, "dtype": rng.choice(kinds)}
    return {**value, "shape": rng.choice((shape[::-1], [math.prod(shape)], [1, *shape], [*shape, 1]))}


def _some_place(tree: Any, rng: random.Random) -> Place:
    """A place in the tree: what has many values of its own is likelier than what has few, long lists apart."""
    place: Place = ()
    while isinstance(tree, dict | list) and tree and rng.random() < 0.9:
        keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        weights = [len(tree) if key == "__metadata__" else 1 + min(_size(tree[key]), MOST_WEIGHT) for key in keys]
        (key,) = rng.choices(keys, weights)
        place, tree = (*place, key), tree[key]
    return place


def _size(tree: Any) -> int:
    """The number of values in a tree, a list counting as one."""
    return sum(map(_size, tree.values())) if isinstance(tree, dict) else 1


def _at(tree: Any, place: Place) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def _edited(tree: Any, edit: Edit) -> Any:
    """The tree after an edit; one whose place is gone by another edit changes nothing."""
    if not edit.place:
        return tree if edit.value is MISSING else edit.value
    first, rest = edit.place[0], Edit(edit.place[1:], edit.value)
    if isinstance(tree, dict):
        if not rest.place:
            others = {key: value for key, value in tree.items() if key != first}
            return others if edit.value is MISSING else {**tree, first: edit.value}
        return {key: _edited(value, rest) if key == first else value for key, value in tree.items()}
    if isinstance(tree, list) and isinstance(first, int) and first < len(tree):
        gone = not rest.place and edit.value is MISSING
        return [*tree[:first], *([] if gone else [_edited(tree[first], rest)]), *tree[first + 1 :]]
    return tree


def _byte_edit(size: int, rng: random.Random) -> ByteEdit:
    """One edit of a file's bytes; the first ones, where headers are, are as likely as all others together."""
    start = rng.randrange(max(1, min(size, rng.choice((16, 400, size)))))
    length = rng.choice((0, 1, 1, 1, 8, 64))
    kind = rng.random()
    if kind < 0.15:
        return ByteEdit(start, size - start, b"")  # cut short
    if kind < 0.3:
        return ByteEdit(start, length, b"")
    return ByteEdit(start, length, rng.choice((rng.randbytes(max(1, length)), bytes(length), b"\xff" * length)))


def _text(tree: Any) -> bytes:
    """JSON as other programs may write it: numbers that are none, and halves of letters, among it."""
    return json.dumps(tree).encode("utf-8", "replace")


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, str | int) or isinstance(value, bool) else _printable(value)
    return text if len(text) <= 60 else f"{text[:50]}… ({len(text)} letters)"


def _printable(value: str | int) -> str:
    if isinstance(value, int) and abs(value) > 10**30:
        return f"{'-' if value < 0 else ''}10^{math.floor(math.log10(abs(value)))}"
    return ascii(value) if isinstance(value, str) and not value.isprintable() else str(value)


def _place_of(error: BaseException) -> str:
    """Where in mdcg it was raised."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "mdcg" in file and "abuse" not in file:
            found = f" ({file.rpartition('mdcg/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found
