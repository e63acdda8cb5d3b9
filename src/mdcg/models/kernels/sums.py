"""BatchNorm's statistics and gradients, and those of weights, from partial sums that a kernel's programs leave behind.

The last of the programs adds them up, always in the same order, so that results do not depend on how the GPU schedules
its work. Sums for BatchNorm are (2, parts, K, channels). What is found is for each member and channel:

    moments     mean, rstd, scale, shift: x̂ = (x − mean)·rstd, and BatchNorm gives x·scale + shift
    slopes      the gradients of BatchNorm's weight and bias, and the a, b, c with which dx = a·g + b·x + c

Those of a weight's gradient are (parts, K, taps, inputs, outputs), far more than one program should read while all
others are done: parts are added up in groups, by the last program of each, and the groups by the last of all.
"""

from __future__ import annotations

import triton
import triton.language as tl

AT_ONCE = tl.constexpr(2048)  # partial sums that a program of four warps adds up at a time


@triton.jit
def relu(x):
    """max(x, 0), but what is no number stays so: a plain maximum of a GPU would make it 0."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def leave(sums, part, parts, column, width, first, second):
    """Store the two partial sums of one program."""
    tl.store(sums + part * width + column, first)
    tl.store(sums + (parts + part) * width + column, second)


@triton.jit
def is_last(ticket, programs):
    """Whether all others that share a ticket have stored what they had to."""
    tl.debug_barrier()
    return tl.atomic_add(ticket, 1, sem="acq_rel") == programs - 1


@triton.jit
def _added_up(sums, parts, column, width, AT_ONCE: tl.constexpr, COLUMNS: tl.constexpr):
    first = tl.zeros((AT_ONCE, COLUMNS), tl.float32)
    second = tl.zeros((AT_ONCE, COLUMNS), tl.float32)
    for start in range(0, parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        at = sums + part[:, None] * width + column[None, :]
        first += tl.load(at, (part < parts)[:, None], other=0)
        second += tl.load(at + parts * width, (part < parts)[:, None], other=0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def finish_moments(
    sums, moments, weight, bias, running_mean, running_var, parts, rows, column, width, eps, momentum,
    AT_ONCE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and variance from partial sums around the running mean; then the running statistics move on."""
    off, square = _added_up(sums, parts, column, width, AT_ONCE, COLUMNS)
    off /= rows
    variance = relu(square / rows - off * off)
    old_mean = tl.load(running_mean + column)
    old_var = tl.load(running_var + column)
    mean = old_mean + off
    rstd = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight + column) * rstd
    tl.store(moments + column, mean)
    tl.store(moments + width + column, rstd)
    tl.store(moments + 2 * width + column, scale)
    tl.store(moments + 3 * width + column, tl.load(bias + column) - mean * scale)
    unbiased = variance * (rows / (rows - 1.0))
    tl.store(running_mean + column, old_mean + momentum * off)
    tl.store(running_var + column, old_var + momentum * (unbiased - old_var))


@triton.jit
def running_affine(weight, bias, running_mean, running_var, column, eps):
    """The scale and shift of BatchNorm by its running statistics."""
    scale = tl.load(weight + column) / tl.sqrt(tl.load(running_var + column) + eps)
    return scale[None, :], (tl.load(bias + column) - tl.load(running_mean + column) * scale)[None, :]


@triton.jit
def finish_gradient(
    sums, slopes, moments, weight, parts, rows, column, width, AT_ONCE: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """dx = w·rstd·(g − mean(g) − x̂·mean(g·x̂)) is linear in g and x: its slopes, and w's and b's gradients."""
    total, product = _added_up(sums, parts, column, width, AT_ONCE, COLUMNS)
    rstd = tl.load(moments + width + column)
    a = tl.load(weight + column) * rstd
    b = -a * rstd * product / rows
    tl.store(slopes + column, product)
    tl.store(slopes + width + column, total)
    tl.store(slopes + 2 * width + column, a)
    tl.store(slopes + 3 * width + column, b)
    tl.store(slopes + 4 * width + column, -a * total / rows - b * tl.load(moments + column))


@triton.jit
def _add_up(
    sums, to, count, apart, row, column,
    TAPS: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sum of `count` blocks that lie `apart`, in their order."""
    o = column + tl.arange(0, COLUMNS)
    for start in range(0, TAPS * DEEP, ROWS):
        r = start + tl.arange(0, ROWS)
        at = (row + r // DEEP * INPUTS + r % DEEP)[:, None] * OUTPUTS + o[None, :]
        inside = (r < TAPS * DEEP)[:, None]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for part in tl.range(0, count, loop_unroll_factor=4):  # loads in flight
            total += tl.load(sums + part * apart + at, inside, other=0)
        tl.store(to + at, total, inside)


@triton.jit
def finish_weight(
    sums, dw, tickets, part, parts, span, place, row, column,
    TAPS: tl.constexpr, DEEP: tl.constexpr, COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, WEIGHT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A block of a weight's gradient, from its `parts` in groups of `span`.

    A member's gradient is a matrix of taps · inputs rows. From `row` and `column` on, the block number `place` has DEEP
    rows of each of TAPS taps, and COLUMNS columns. ROWS of them are added up at a time.
    """
    groups = (parts + span - 1) // span
    group = part // span
    tickets += place * (groups + 1)
    if is_last(tickets + group, tl.minimum(span, parts - group * span)):
        apart = tl.num_programs(1).to(tl.int64) * WEIGHT
        member = tl.program_id(1).to(tl.int64) * WEIGHT
        first = sums + group * span * apart + member
        to = dw + member if groups == 1 else first
        _add_up(
            first, to, tl.minimum(span, parts - group * span), apart, row, column,
            TAPS, DEEP, COLUMNS, INPUTS, OUTPUTS, ROWS,
        )  # fmt: skip
        if groups > 1:  # noqa: SIM102 (Triton asks for both sides of an `and`)
            if is_last(tickets + groups, groups):
                _add_up(
                    sums + member, dw + member, groups, span * apart, row, column,
                    TAPS, DEEP, COLUMNS, INPUTS, OUTPUTS, ROWS,
                )  # fmt: skip
