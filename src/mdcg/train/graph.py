"""Training steps as CUDA graphs.

At batch 32 a GPU waits for its launches most of the time; a graph launches whole steps at once. The draws lie in
fixed buffers and the number of the step is counted on the device, so that every replay is the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mdcg.train.epoch import EpochDraws

WARM_UP = 3  # plain steps of a task before its capture: libraries choose their kernels and workspaces there
AT_ONCE = 4  # steps of one replay, where so many are left


class TrainStep(Protocol):
    """A function that makes one training step."""

    def __call__(self, draws: EpochDraws, step: Tensor, resting: bool) -> None: ...


class GraphedSteps:
    """The steps of one task, captured once each: `load` before an epoch, then `run` until it is over."""

    def __init__(self, train_step: TrainStep, draws: EpochDraws) -> None:
        self.train_step = train_step
        self.draws = draws.clone()
        self.step = torch.zeros(1, dtype=torch.int64, device=draws.index.device)
        self._replays: dict[tuple[int, bool], Callable[[], None]] = {}
        self._pool: list[Any] = []  # of memory: only one graph runs at a time, so all of them can share it

    def load(self, draws: EpochDraws, step: int) -> None:
        """Make `step` of these draws the next one to be replayed."""
        self.draws.copy_(draws)
        self.step.fill_(step)

    def run(self, left: int, resting: bool) -> int:
        """Make up to `left` steps, all with members that rest or all without; return how many were made."""
        count = AT_ONCE if left >= AT_ONCE else 1
        kind = (count, resting)
        if kind not in self._replays:
            self._replays[kind] = capture(lambda: self._steps(count, resting), self._pool)
        self._replays[kind]()
        return count

    def _steps(self, count: int, resting: bool) -> None:
        for _ in range(count):
            self.train_step(self.draws, self.step, resting)
            self.step += 1


def capture(work: Callable[[], None], pool: list[Any]) -> Callable[[], None]:
    """Record what `work` launches, without running it; each call of the result does it all."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, *pool):
        work()
    pool[:] = [graph.pool()]
    return graph.replay
