"""The kernel for GEM's pivots in one launch: a program for each member, which stops when it is at its end."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdcg.models.kernels.launch import begin, launch


@triton.jit
def _pivots(M, q, z, n, limit, N: tl.constexpr):
    k = tl.program_id(0)
    i = tl.arange(0, N)
    inside = i < n
    there = inside[:, None] & inside[None, :]
    begin()
    tableau = tl.load(M + (k * n + i[:, None]) * n + i[None, :], there, other=0.0)
    last = tl.load(q + k * n + i, inside, other=0.0)
    basic = tl.zeros((N,), tl.int32)
    first = tl.min(tl.where(last < 0, i, N), 0)
    made = 0
    while (first < N) & (made < limit):
        chosen = i == first
        e = chosen.to(tl.float64)
        row = tl.sum(tl.where(chosen[:, None], tableau, 0.0), 0)
        column = tl.sum(tl.where(chosen[None, :], tableau, 0.0), 1) + e
        pivot = tl.sum(tl.where(chosen, row, 0.0), 0)
        end = tl.sum(tl.where(chosen, last, 0.0), 0) / pivot
        tableau -= column[:, None] * ((row - e) / pivot)[None, :]
        last -= column * end
        basic = tl.where(chosen, 1 - basic, basic)
        first = tl.min(tl.where(last < 0, i, N), 0)
        made += 1
    tl.store(z + k * n + i, tl.where((basic == 1) & (last > 0), last, 0.0), inside)


def complementary(M: Tensor, q: Tensor, limit: int) -> Tensor:
    """Compute `mdcg.methods.gem.complementary` with at most `limit` pivots, in float64."""
    n = q.shape[1]
    z = torch.empty_like(q)
    side = max(2, int(triton.next_power_of_2(n)))
    launch(_pivots, (len(q),), M.contiguous(), q.contiguous(), z, n, limit, N=side, num_warps=8 if side > 32 else 1)
    return z
