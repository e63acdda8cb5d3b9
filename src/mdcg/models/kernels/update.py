"""The update of SGD: all tensors of all members, and the copies that are kept of them, in one pass over memory.

A program moves BLOCK numbers of one member. Where its tensor lies it finds in a table on the device, which is written
anew for each update, since gradients lie elsewhere each time. The addresses come there as arguments of a kernel: a CUDA
graph keeps these, and replays need nothing from the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdcg.models.kernels.launch import begin, launch

BLOCK = 2048  # numbers, for four warps
MOST = 480  # addresses that fit into the 4 KiB of a kernel's arguments
FAR = tl.constexpr(2**62)  # added to each, so that Triton takes all for 64 bits, also where there is none


@dataclass(frozen=True)
class Plan:
    """What stays the same from update to update of the same parameters."""

    layout: Tensor  # (3, tensors): the first of its programs, the numbers of a member, which of the rates
    programs: int
    rates: Tensor  # (rates, K) float64
    momentum: Tensor  # (K,) float64
    decay: Tensor  # (K,) float64


def plan(
    parameters: Sequence[Tensor], rates: Sequence[tuple[Tensor, Sequence[int]]], momentum: Tensor, decay: Tensor
) -> Plan:
    """Share out the parameters (K, …), each rate (K,) being that of the parameters in some places."""
    sizes = [parameter.numel() // len(parameter) for parameter in parameters]
    programs = [triton.cdiv(size, BLOCK) * len(own) for size, own in zip(sizes, parameters, strict=True)]
    *firsts, total = itertools.accumulate(programs, initial=0)
    rate_of = {place: number for number, (_, places) in enumerate(rates) for place in places}
    layout = torch.tensor([firsts, sizes, [rate_of[place] for place in range(len(sizes))]], dtype=torch.int32)
    return Plan(layout.to(momentum.device), total, torch.stack([rate for rate, _ in rates]), momentum, decay)


def move(
    plan: Plan, parameters: Sequence[Tensor], gradients: Sequence[Tensor], velocities: Sequence[Tensor],
    copies: Sequence[Tensor | None], factor: Tensor | None, active: Tensor | None,
) -> None:  # fmt: skip
    """Compute v ← μ v + g + λ p and p ← p − η v, and round p to its copy, for all members or those that are active.

    The four tensors of a place lie in memory in the same order, one member after the other without gaps.
    """
    count = len(parameters)
    addresses = [own.data_ptr() for own in (*parameters, *gradients, *velocities)]
    addresses += [0 if own is None else own.data_ptr() for own in copies]
    table = torch.empty(4, count, dtype=torch.int64, device=plan.layout.device)
    for start in range(0, len(addresses), MOST):
        some = tuple(address + FAR.value for address in addresses[start : start + MOST])
        launch(_note, (1,), table.view(-1)[start:], some, num_warps=1)
    launch(
        _move, (plan.programs,), table, plan.layout, plan.rates, plan.momentum, plan.decay,
        None if factor is None else factor.contiguous(), None if active is None else active.contiguous(),
        count, plan.rates.shape[1],
        FACTOR=factor is not None, ACTIVE=active is not None, TENSORS=triton.next_power_of_2(count), SIZE=BLOCK,
    )  # fmt: skip
    torch.autograd.graph.increment_version([*parameters, *velocities])


@triton.jit
def _note(table, addresses):
    begin()
    for i in tl.static_range(len(addresses)):
        tl.store(table + i, addresses[i] - FAR)


@triton.jit(do_not_specialize=["factor", "active", "tensors", "members"])
def _move(
    table, layout, rates, momentum, decay, factor, active, tensors, members,
    FACTOR: tl.constexpr, ACTIVE: tl.constexpr, TENSORS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Numbers of members are read as float64, and rounded when they are complete."""
    program = tl.program_id(0)
    i = tl.arange(0, TENSORS)
    begin()
    firsts = tl.load(layout + i, i < tensors, other=2**31 - 1)
    own = tl.sum((firsts <= program).to(tl.int32), 0) - 1
    size = tl.load(layout + tensors + own)
    chunks = (size + SIZE - 1) // SIZE
    place = program - tl.load(layout + own)
    k = place // chunks
    rate = tl.load(rates + tl.load(layout + 2 * tensors + own) * members + k)
    if FACTOR:
        rate *= tl.load(factor + k)
    end = size
    if ACTIVE:
        end = tl.where(tl.load(active + k) != 0, size, 0)
    p = tl.load(table + own)
    g = tl.load(table + tensors + own)
    v = tl.load(table + 2 * tensors + own)
    copy = tl.load(table + 3 * tensors + own)
    first = k.to(tl.int64) * size
    start = place % chunks * SIZE
    mu = tl.load(momentum + k).to(tl.float32)
    lam = tl.load(decay + k).to(tl.float32)
    if ((p | g | v | copy) % 16 == 0) & (size % 4 == 0):
        _move_some(p, g, v, copy, first, start, end // 4 * 4, rate.to(tl.float32), mu, lam, True, SIZE)
    else:
        _move_some(p, g, v, copy, first, start, end, rate.to(tl.float32), mu, lam, False, SIZE)


@triton.jit
def _move_some(p, g, v, copy, first, start, end, rate, momentum, decay, FOURS: tl.constexpr, SIZE: tl.constexpr):
    """Move the numbers of a member from `start` on; with FOURS they can be loaded four at a time."""
    i = start + tl.arange(0, SIZE)
    inside = i < end
    at_p = p.to(tl.pointer_type(tl.float32)) + first + i
    at_g = g.to(tl.pointer_type(tl.float32)) + first + i
    at_v = v.to(tl.pointer_type(tl.float32)) + first + i
    at_copy = copy.to(tl.pointer_type(tl.bfloat16)) + first + i
    if FOURS:
        at_p = tl.multiple_of(at_p, 16)
        at_g = tl.multiple_of(at_g, 16)
        at_v = tl.multiple_of(at_v, 16)
        at_copy = tl.multiple_of(at_copy, 8)
    value = tl.load(at_p, inside, other=0)
    gradient = tl.load(at_g, inside, other=0) + decay * value
    velocity = momentum * tl.load(at_v, inside, other=0) + gradient
    value -= rate * velocity
    tl.store(at_v, velocity, inside)
    tl.store(at_p, value, inside)
    if copy != 0:
        tl.store(at_copy, value.to(tl.bfloat16), inside)
