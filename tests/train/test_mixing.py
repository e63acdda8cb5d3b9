"""Mixup and CutMix against loops over images and pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdcg.train.mixing import Mix, cut_mixed, draw_boxes, draw_partners, draw_weights, mixed_up, partners_of

K, PLACES, SIDE = 2, 5, (6, 8)


def images() -> torch.Tensor:
    return torch.randn(K, PLACES, 3, *SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_mixup_against_a_loop() -> None:
    x, rng = images(), np.random.default_rng(0)
    partner = torch.from_numpy(draw_partners(rng, K, 0, PLACES))
    weight = torch.tensor([0.3, 0.9], dtype=torch.float64)
    found = mixed_up(x, partner, weight)
    for k in range(K):
        for n in range(PLACES):
            share = weight[k].item()
            wanted = share * x[k, n] + (1 - share) * x[k, int(partner[k, n])]
            torch.testing.assert_close(found[k, n], wanted, rtol=1e-14, atol=1e-14)


@given(st.integers(0, 2**20), st.floats(0.05, 5))
def test_cutmix_against_a_loop(seed: int, alpha: float) -> None:
    x, rng = images(), np.random.default_rng(seed)
    partner = torch.from_numpy(draw_partners(rng, K, 0, PLACES))
    boxes, weights = draw_boxes(rng, draw_weights(rng, K, alpha), SIDE)
    found = cut_mixed(x, partner, torch.from_numpy(boxes))
    for k, (top, bottom, left, right) in enumerate(boxes.tolist()):
        own = 0
        for row in range(SIDE[0]):
            for column in range(SIDE[1]):
                inside = top <= row < bottom and left <= column < right
                own += not inside
                for n in range(PLACES):
                    source = int(partner[k, n]) if inside else n
                    assert torch.equal(found[k, n, :, row, column], x[k, source, :, row, column])
        assert weights[k] == pytest.approx(own / (SIDE[0] * SIDE[1]))


def test_boxes_cover_what_they_should() -> None:
    """1 − λ of the image, if they lie within it, up to whole pixels."""
    rng = np.random.default_rng(1)
    asked = draw_weights(rng, 4000, 1.0)
    assert abs(asked.mean() - 0.5) < 0.02
    boxes, weights = draw_boxes(rng, asked, (32, 32))
    inside = (boxes[:, ::2] > 0).all(1) & (boxes[:, 1::2] < 32).all(1)
    assert np.abs(weights - asked)[inside].max() < 2 * 32 / 32**2 + 1e-9
    assert (weights >= asked - 2 * 32 / 32**2).all()


def test_partners_stay_among_their_own() -> None:
    rng = np.random.default_rng(0)
    found = draw_partners(rng, 50, 16, 8)
    assert (np.sort(found, 1) == np.arange(16, 24)).all()
    assert len(np.unique(found, axis=0)) > 40
    labels = torch.arange(20).view(2, 10)
    partner = torch.tensor([[1, 0, 2, 3, 4, 5, 6, 7, 8, 9], list(range(9, -1, -1))])
    assert partners_of(labels, partner).tolist() == [[1, 0, *range(2, 10)], list(range(19, 9, -1))]


def test_the_larger_part_counts() -> None:
    mix = Mix(torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[7], [8]]), torch.tensor([0.4, 0.6]))
    assert mix.mostly(torch.tensor([[1], [2]])).tolist() == [[7], [2]]
