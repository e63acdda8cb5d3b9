"""The fused kernels of losses against the plain formulas in float64: values, and gradients for any that comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.methods.base import cross_entropies, kl_divergences
from mdcg.methods.md import margin_loss
from mdcg.models import kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

sizes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(2, 70))  # members, images, classes
seeds = st.integers(0, 1000)


def drawn(seed: int, *shape: int, spread: float = 4.0) -> Tensor:
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def labels_of(seed: int, members: int, images: int, classes: int, first: int = 0) -> Tensor:
    """Labels as a step has them: a part of a wider row."""
    chosen = torch.randint(first, classes, (members, 2 * images), generator=torch.Generator().manual_seed(seed))
    return chosen.to(DEVICE)[:, images:]


def check(loss: Callable[..., Tensor], *logits: Tensor, tolerance: float = 2e-6) -> None:
    """Compare a loss of logits, and what comes back to each of these, with the plain formula in float64."""
    found = []
    for fused, dtype in ((True, torch.float32), (False, torch.float64)):
        own = [x.detach().to(dtype).requires_grad_(x.requires_grad) for x in logits]
        with kernels.use(fused):
            assert kernels.take(*own) == fused
            result = loss(*own)
        back = drawn(1, *result.shape).to(dtype)
        asked = [x for x in own if x.requires_grad]
        found.append([result.detach(), *torch.autograd.grad(result, asked, back)])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=10 * tolerance)


@settings(deadline=None)
@given(sizes, seeds, st.data())
def test_cross_entropy_of_all_or_of_some_classes(size: tuple[int, int, int], seed: int, data: st.DataObject) -> None:
    members, images, classes = size
    first = data.draw(st.integers(0, classes - 1))
    labels = labels_of(seed, members, images, classes, first) - first
    check(lambda x: cross_entropies(x[..., first:], labels), drawn(seed, *size).requires_grad_())


@settings(deadline=None)
@given(sizes, seeds, st.sampled_from([(True, False), (False, True), (True, True)]), st.data())
def test_divergence_by_either_side(
    size: tuple[int, int, int], seed: int, learns: tuple[bool, bool], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, size[2]))
    one, other = (drawn(seed + i, *size).requires_grad_(own) for i, own in enumerate(learns))
    check(lambda p, q: kl_divergences(p[..., :count], q[..., :count]), one, other)


@settings(deadline=None)
@given(sizes, seeds, st.data())
def test_margin(size: tuple[int, int, int], seed: int, data: st.DataObject) -> None:
    members, images, classes = size
    old = data.draw(st.integers(1, classes - 1))
    labels = labels_of(seed, members, images, classes, old)
    check(lambda x: margin_loss(x, labels, old), drawn(seed, *size, spread=1.0).requires_grad_())


def test_classes_that_are_equally_likely_share_the_margins_gradient() -> None:
    logits = torch.zeros(1, 2, 5, device=DEVICE)
    logits[0, 1, 3] = 9  # beyond the margin: no loss
    labels = torch.tensor([[4, 3]], device=DEVICE)
    check(lambda x: margin_loss(x, labels, 3), logits.requires_grad_())
    with kernels.use(True):
        loss = margin_loss(logits, labels, 3)
    assert loss[0, 0].item() == pytest.approx(1 / 4)
    assert loss[0, 1].item() == 0


def test_classes_left_out_by_minus_infinity() -> None:
    logits = drawn(0, 2, 3, 7)
    logits[..., 2] = -torch.inf
    labels = torch.full((2, 3), 5, device=DEVICE)
    check(lambda x: cross_entropies(x, labels), logits.requires_grad_())


def test_what_is_no_number_is_not_hidden() -> None:
    logits = drawn(0, 1, 2, 4)
    logits[0, 1, 0] = torch.nan
    labels = torch.tensor([[3, 3]], device=DEVICE)
    logits.requires_grad_()
    with kernels.use(True):
        found = [cross_entropies(logits, labels), kl_divergences(logits, logits), margin_loss(logits, labels, 2)]
    for loss in found:
        assert loss.isnan().tolist() == [[False, True]]
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert gradient.isnan().any(-1).tolist() == [[False, True]]


@pytest.mark.parametrize("label", [-1, 4, 7, -100])
def test_labels_that_are_no_class(label: int) -> None:
    """A mistake, which must not train on; but for the label that torch ignores."""
    logits = drawn(0, 1, 2, 4).requires_grad_()
    labels = torch.tensor([[2, label]], device=DEVICE)
    with kernels.use(True):
        entropy, margin = cross_entropies(logits, labels), margin_loss(logits, labels, 2)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert margin.isnan().tolist() == [[False, True]]
    if label == -100:
        torch.testing.assert_close(entropy, cross_entropies(logits.double(), labels).float())
        assert entropy[0, 1] == 0
        assert not gradient[0, 1].any()
    else:
        assert entropy.isnan().tolist() == [[False, True]]
        assert gradient.isnan().any(-1).tolist() == [[False, True]]


def test_a_derivative_of_a_derivative_is_refused() -> None:
    """It would be that of a constant."""
    logits = drawn(0, 1, 2, 4).requires_grad_()
    with kernels.use(True):
        loss = cross_entropies(logits, torch.zeros(1, 2, dtype=torch.int64, device=DEVICE))
    with pytest.raises(MdcgError, match="no second derivatives; set MDCG_KERNELS=plain"):
        torch.autograd.grad(loss.sum(), logits, create_graph=True)


def test_others_are_left_to_plain_code() -> None:
    rows = torch.zeros(1, 2, 4, device=DEVICE)
    with kernels.use(True):
        assert kernels.take(rows)
        assert not kernels.take(rows, rows.double())
        assert not kernels.take(rows.transpose(1, 2))
        assert not kernels.take(rows, rows[:, :1])
        assert not kernels.take(rows[0])
        assert not kernels.take(rows, labels=torch.zeros(2, 2))
        assert not kernels.take(torch.zeros(1, 1, kernels.MOST + 1, device=DEVICE))
    assert not kernels.take(rows)
