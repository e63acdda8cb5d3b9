"""Tensors and plain values in one file: safetensors with a JSON header. No file is ever unpickled."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

Pieces = Mapping[str, tuple[tuple[int, ...], torch.dtype, Iterable[npt.NDArray[Any]]]]  # shape, kind, and the content
KINDS = {torch.uint8: "U8", torch.int64: "I64"}  # as safetensors calls them

HEADER = "mdcg"  # the only key of safetensors' own header, whose order of keys is not fixed


class Damaged(ValueError):
    """Content that cannot be what it should be; its text is a reason that a person may read."""


def header_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Write plain values as a safetensors header."""
    return {HEADER: json.dumps(values)}


def values_of(header: Mapping[str, str] | None) -> dict[str, Any]:
    """Read what `header_of` wrote; ValueError where it did not."""
    if not header or HEADER not in header:
        raise Damaged("it was not written by mdcg")
    values = _json(header[HEADER])
    if not isinstance(values, dict):
        raise Damaged("its header is damaged")
    return values


def pack(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> bytes:
    """Write tensors and values to bytes; equal ones always give the same bytes."""
    return save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, header_of(values))


def write_pieces(
    file: BinaryIO, tensors: Pieces, values: Mapping[str, Any], final: Callable[[], Mapping[str, Any]] | None = None
) -> None:
    """Write tensors that come piece by piece, and values: no more than a piece is in memory.

    What `final` returns once they are written takes the place of the values; written as JSON it must be as long.
    """
    layout: dict[str, Any] = {}
    end = 0
    for name, (shape, dtype, _) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        layout[name] = {"dtype": KINDS[dtype], "shape": list(shape), "data_offsets": [start, end]}

    def head(values: Mapping[str, Any]) -> bytes:
        text = json.dumps({"__metadata__": header_of(values), **layout}).encode()
        text += b" " * (-len(text) % 8)  # so that the tensors begin where numbers of eight bytes may
        return len(text).to_bytes(8, "little") + text

    file.write(before := head(values))
    for _, _, pieces in tensors.values():
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).data)
    if final:
        after = head(final())
        assert len(after) == len(before)
        file.seek(0)
        file.write(after)


def content_of(file: BinaryIO) -> bytes:
    """The content of a safetensors file; ValueError where it does not begin as one, however long it is."""
    if file.read(9)[8:] != b"{":  # the length of its header, and the header
        raise Damaged("it does not begin as a safetensors file does")
    file.seek(0)
    return file.read()


def unpack(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `pack` made; ValueError where the content is damaged or foreign."""
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        return tensors, values_of(_json(content[8 : 8 + length]).get("__metadata__"))
    except SafetensorError as error:
        raise Damaged("it is cut short, or its header is damaged") from error


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
    """What `unpack` gives of a file, with tensors that stay on the disk and are gone with this context."""
    try:
        with safe_open(path, "pt") as file:
            yield {name: file.get_tensor(name) for name in file.keys()}, values_of(file.metadata())  # noqa: SIM118
    except SafetensorError as error:
        raise Damaged("it is cut short, or its header is damaged") from error


def _json(text: str | bytes) -> Any:
    """Read JSON as we write it, with NaN and halves of letters."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise Damaged("its header is damaged") from error


def check_kinds(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse with a ValueError whole numbers where floats are wanted, or floats where whole numbers are."""
    for name, tensor in tensors.items():
        if name in wanted and tensor.is_floating_point() != wanted[name].is_floating_point():
            raise ValueError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}")


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name starts with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
