"""A training step as a CUDA graph.

At batch 32 a GPU waits for its launches most of the time; a graph launches a whole step at once. The draws lie in
fixed buffers and the number of the step is counted on the device, so that every replay is the next step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mdcg.train.epoch import EpochDraws

WARM_UP = 3  # plain steps of a task before its capture: libraries choose their kernels and workspaces there


class GraphedStep:
    """Captured once per task and shape; `load` before an epoch, `replay` for each step."""

    def __init__(self, train_step: Callable[[EpochDraws, Tensor], None], draws: EpochDraws) -> None:
        fixed = {name: tensor.clone() for name, tensor in draws.tensors().items()}
        self.draws = EpochDraws(**fixed, steps=draws.steps)
        self.step = torch.zeros(1, dtype=torch.int64, device=draws.index.device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):  # records, does not run
            train_step(self.draws, self.step)
            self.step += 1

    def load(self, draws: EpochDraws, step: int) -> None:
        """Make `step` of these draws the next one to be replayed."""
        for name, tensor in draws.tensors().items():
            self.draws.tensors()[name].copy_(tensor)
        self.step.fill_(step)

    def replay(self) -> None:
        self.graph.replay()
