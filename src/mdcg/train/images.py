"""The images of datasets on a device: one copy of each, for all who use it and no longer than they do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Copies = WeakValueDictionary[torch.device, Tensor]

# By the images they were made of: neither these nor their copies live longer for being here.
_copies: MutableMapping[Tensor, Copies] = WeakTensorKeyDictionary()
_kept: ContextVar[list[Tensor] | None] = ContextVar("kept", default=None)


def on_device(images: Tensor, device: torch.device) -> Tensor:
    """The images on a device: the same tensor for all who ask while anybody has it, and themselves if they are there.

    They are copied as they are, uint8.
    """
    here = torch.empty(0, device=device).device  # which GPU it is, where just "cuda" is asked for
    copies = _copies.setdefault(images, WeakValueDictionary())
    copy = copies.get(here)
    if copy is None:
        copy = copies[here] = images.to(here)
    if (kept := _kept.get()) is not None:
        kept.append(copy)
    return copy


@contextlib.contextmanager
def kept_on_device() -> Iterator[None]:
    """Keep all that goes to a device in here, also while nobody has it, between one trainer and the next."""
    before = _kept.set([])
    try:
        yield
    finally:
        _kept.reset(before)
