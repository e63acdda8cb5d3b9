"""Tensors and plain values in one file: safetensors with a JSON header. Nothing is ever unpickled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

Pieces = Mapping[str, tuple[tuple[int, ...], torch.dtype, Iterable[npt.NDArray[Any]]]]  # shape, kind, and the content
KINDS = {torch.uint8: "U8", torch.int64: "I64"}  # as safetensors calls them

HEADER = "mdcg"  # the only key of safetensors' own header, whose order of keys is not fixed


def header_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Write plain values as a safetensors header."""
    return {HEADER: json.dumps(values)}


def values_of(header: Mapping[str, str] | None) -> dict[str, Any]:
    """Read what `header_of` wrote; ValueError where it did not."""
    if not header or HEADER not in header:
        raise ValueError("it was not written by mdcg")
    values = json.loads(header[HEADER])
    if not isinstance(values, dict):
        raise ValueError("its header is damaged")
    return values


def pack(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> bytes:
    """Write tensors and values to bytes; equal ones always give the same bytes."""
    return save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, header_of(values))


def write_pieces(path: Path, tensors: Pieces, values: Mapping[str, Any]) -> None:
    """Write tensors that come piece by piece, and values: no more than a piece is in memory."""
    header: dict[str, Any] = {"__metadata__": header_of(values)}
    end = 0
    for name, (shape, dtype, _) in tensors.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": KINDS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors begin where numbers of eight bytes may
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, pieces in tensors.values():
            for piece in pieces:
                file.write(np.ascontiguousarray(piece).data)


def unpack(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `pack` made; ValueError where the content is damaged or foreign."""
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        return tensors, values_of(json.loads(content[8 : 8 + length]).get("__metadata__"))
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name starts with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
