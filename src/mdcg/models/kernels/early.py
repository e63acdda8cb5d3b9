"""Gradients that are handed over before the backward pass is over, so that weights are moved beside the rest of it.

Most weights of a network lie in its last layers, whose gradients come first. To move them is a pass over memory; what
the backward pass still has to do is mostly arithmetic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar

from torch import Tensor

MANY = 2**20  # numbers of a member: fewer are not worth kernels of their own

Take = Callable[[Mapping[Tensor, Tensor]], None]  # moves parameters, given their gradients

_take: ContextVar[Take | None] = ContextVar("take", default=None)


@contextlib.contextmanager
def handed_over(take: Take | None) -> Iterator[None]:
    """Let the backward pass of what is computed in this context hand over gradients as they come.

    A network is passed through no more than once in it: else a gradient would be only a part of the sum.
    """
    token = _take.set(take)
    try:
        yield
    finally:
        _take.reset(token)


def taker() -> Take | None:
    """Whoever takes gradients early, as the forward pass finds it: the backward pass may be another thread's."""
    return _take.get()


def are_many(parameters: Iterable[Tensor]) -> bool:
    """Whether it is worth to move these before the others."""
    return sum(parameter.numel() // len(parameter) for parameter in parameters) >= MANY
