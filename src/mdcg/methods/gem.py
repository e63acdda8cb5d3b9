"""GEM (Lopez-Paz and Ranzato, 2017): a step that would harm a past task's memory is turned away from it.

With g the gradient of the current images and the rows of G those of each past task's memory, a g with G g ≥ 0 is
followed as it is. Any other is replaced by g + Gᵀv, where v solves the dual of "the nearest to g with G g̃ ≥ 0":

    min ½ vᵀ(G Gᵀ + ε) v + (G g)ᵀ v   over   v ≥ γ.

γ = 0 gives that projection; more favours the past. A step sees the whole memory of every past task, each a batch of its
own: with M images for T tasks, batch + (t − 1) M / T images in task t. On a GPU past tasks with equally many images
share one forward and backward pass (`mdcg.train.past_tasks`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from mdcg.methods.base import METHODS, Method, Step, cross_entropy
from mdcg.models import kernels

RIDGE = 1e-3  # ε: keeps the programme well posed where gradients are parallel or vanish
LARGEST = 64  # tasks whose programme a fused kernel can hold
PIECE = 512  # numbers of a gradient that are multiplied at a time


@METHODS.register("gem")
class Gem(Method):
    """Gradients are projected so as not to contradict those of any past task's memory."""

    uses_memory: ClassVar[bool] = True
    gradient_per_task: ClassVar[bool] = True
    forks: ClassVar[bool] = True

    strength: float = Field(0.5, ge=0, description="least weight of every past task in a projected gradient (γ)")

    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step.logits, step.labels, step.smoothing)

    def combine(self, gradient: Tensor, past: Tensor) -> Tensor:
        weights = past_weights(gradient, past, self.strength)  # (K, tasks)
        return gradient + (weights[..., None] * past).sum(1)


def past_weights(g: Tensor, G: Tensor, strength: Tensor | float) -> Tensor:
    """The v of each member: (K, P), (K, tasks, P) → (K, tasks); zero where no past task is harmed."""
    if g.is_cuda:
        along, gram = _products(g, G)
    else:  # one member after the other: a sum may be taken apart differently in company
        each = [_products(g[k : k + 1], G[k : k + 1]) for k in range(len(g))]
        along, gram = (torch.cat(parts) for parts in zip(*each, strict=True))
    least = torch.as_tensor(strength, dtype=torch.float64, device=g.device).expand(len(g))[:, None]
    gram = gram + RIDGE * torch.eye(G.shape[1], dtype=torch.float64, device=g.device)
    # v = γ + z: a linear complementarity problem for z ≥ 0.
    z = complementary(gram, along + (gram * least[:, :, None]).sum(2))
    harmed = (along < 0).any(1, keepdim=True)
    return torch.where(harmed, least + z, 0).to(g.dtype)


def complementary(M: Tensor, q: Tensor) -> Tensor:
    """Find z ≥ 0 with M z + q ≥ 0 and zᵀ(M z + q) = 0, for positive definite M: (K, n, n), (K, n) → (K, n).

    Murty's least-index principal pivoting: while an entry of q is negative, exchange the first such variable with its
    slack. It ends for every such M: no set of exchanged variables comes twice, so that there are fewer than 2ⁿ pivots,
    seldom more than 2n. For a CUDA graph every member makes the same number of them, unless a fused kernel makes them;
    one that is at its end changes nothing any more.
    """
    n = q.shape[1]
    limit = min(2**n - 1, 8 * n)
    if kernels.in_use() and n <= LARGEST:
        from mdcg.models.kernels.pivot import complementary as fused

        return fused(M, q, limit)
    tableau = torch.cat([M, q[..., None]], 2)
    basic = torch.zeros_like(q, dtype=torch.bool)
    first = torch.arange(n, 0, -1, device=q.device)
    for _ in range(limit):
        negative = tableau[..., -1] < 0
        if q.device.type == "cpu" and not negative.any():  # there is no waiting for a CPU
            break
        # One for the first negative entry, zero elsewhere; zero everywhere when there is none.
        rank = first * negative
        chosen = negative & (rank == rank.amax(1, keepdim=True))
        e = chosen.to(q.dtype)
        row = (e[..., None] * tableau).sum(1)  # (K, n + 1)
        column = (tableau[..., :-1] * e[:, None]).sum(2) + e
        pivot = torch.where(chosen.any(1), (row[:, :-1] * e).sum(1), 1)
        row = torch.cat([row[:, :-1] - e, row[:, -1:]], 1) / pivot[:, None]
        tableau = tableau - column[..., None] * row[:, None]
        basic = basic ^ chosen
    return torch.where(basic, tableau[..., -1], 0).clamp_min(0)


def _products(g: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """The products G g (K, tasks) and G Gᵀ (K, tasks, tasks), of pieces first: libraries are slow at few long rows."""
    rows = torch.cat([g[:, None], G], 1)
    whole = F.pad(rows, (0, -rows.shape[2] % PIECE))
    pieces = whole.unflatten(2, (-1, PIECE)).transpose(1, 2).flatten(0, 1)  # (K·pieces, 1 + tasks, PIECE)
    with _full_precision():
        products = pieces @ pieces.mT
    sums = products.unflatten(0, (len(g), -1)).sum(1, dtype=torch.float64)
    return sums[:, 1:, 0], sums[:, 1:, 1:]


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Switch TF32 off: whether a task is harmed may hang on the last digits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
