"""A second queue of work for a GPU: few members leave much of it idle, and many its last programs.

Work that is queued `beside` begins after all that was queued before, and runs next to what is queued later, until
`join`. Memory goes back to the queue that asked for it as soon as nobody refers to it: whoever queues work beside keeps
what that work reads until it has joined.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_queues: dict[torch.device, torch.cuda.Stream] = {}
_busy: set[torch.device] = set()  # that have not joined since work was queued beside


@contextlib.contextmanager
def beside(like: Tensor) -> Iterator[None]:
    """Queue what is launched in this context beside the rest; on a CPU, do it at once."""
    if not like.is_cuda:
        yield
        return
    if like.device not in _queues:
        _queues[like.device] = torch.cuda.Stream(like.device)
    queue = _queues[like.device]
    queue.wait_stream(torch.cuda.current_stream(like.device))
    _busy.add(like.device)
    with torch.cuda.stream(queue):
        yield


def join(like: Tensor) -> None:
    """Let whatever is queued from now on wait for what was queued beside."""
    if like.device in _busy:
        _busy.remove(like.device)
        torch.cuda.current_stream(like.device).wait_stream(_queues[like.device])
