"""Confusion and features against plain calculations, image by image."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from mdcg.probes import ProbeSet
from mdcg.probes import features as probe
from mdcg.probes.confusion import Confusion
from mdcg.probes.features import Features
from mdcg.train import state as states
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from tests.conftest import toy_dataset, toy_group

CPU = compute("cpu", "fp32")
DATASET = toy_dataset([20, 12, 16, 9, 14, 11, 13], seed=3)  # tasks of three, two and two classes
MEMBERS: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (1, 40, {}), (2, 12, {})]


def one_image(index: int, members: int) -> torch.Tensor:
    """A test image as every member's input, alone in its batch."""
    pixels = (DATASET.test.images[index].float() / 255 - 0.5) / 0.3
    return pixels.permute(2, 0, 1).expand(members, 1, -1, -1, -1)


def test_confusion_agrees_with_what_counts_as_correct() -> None:
    group = toy_group(DATASET, "replay", MEMBERS, epochs=1)
    state = Trainer(group, CPU, probes=ProbeSet({"confusion": Confusion()})).train(states.fresh(group, CPU))
    for k, view in enumerate(group.views):
        assert [(row["task"], row["epoch"]) for row in state.measured[k]] == [(1, 1), (2, 1), (3, 1)]
        for task, row in enumerate(state.measured[k]):
            counts = np.array(row["counts"])
            seen = sum(group.sizes[: task + 1])
            assert counts.shape == (seen, seen)
            assert np.diag(counts).tolist() == state.correct[k, task, :seen].tolist()
            assert counts.sum(1).tolist() == view.eval_total[:seen].tolist()
    pairs: list[Counter[tuple[int, int]]] = [Counter() for _ in MEMBERS]
    state.model.eval()
    with torch.no_grad():
        for index, label in enumerate(DATASET.test.labels):
            answers = state.model.logits(one_image(index, len(MEMBERS)))
            for k, view in enumerate(group.views):
                true = int(view.scenario.position_of_label(10)[label])
                pairs[k][true, int(answers[k, 0].argmax())] += 1
    for k, expected in enumerate(pairs):
        found = np.array(state.measured[k][-1]["counts"])
        assert {(int(i), int(j)): int(found[i, j]) for i, j in zip(*found.nonzero(), strict=True)} == dict(expected)
        assert found.sum() > np.trace(found)  # something is mistaken, or nothing was tested


def test_features_are_the_backbones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PER_CLASS", 4)
    group = toy_group(DATASET, "md-cg", MEMBERS)
    state = Trainer(group, CPU, probes=ProbeSet({"features": Features()})).train(states.fresh(group, CPU))
    state.model.eval()
    with torch.no_grad():
        everything = torch.cat([state.model.features(one_image(i, 3)) for i in range(len(DATASET.test))], 1)
    for k, view in enumerate(group.views):
        rows = state.measured[k]
        assert [(row["task"], row["epoch"]) for row in rows] == [(2, 0), (2, 2), (3, 0), (3, 2)]
        positions = view.scenario.position_of_label(10)[DATASET.test.labels]
        assert rows[2]["classes"] == rows[3]["classes"] == np.repeat(np.arange(7), 4).tolist()
        assert rows[2]["features"] != rows[3]["features"]
        for position in range(7):
            n = int((positions == position).sum())
            own = everything[k][torch.from_numpy(positions == position)].numpy()
            expected = own[[math.floor(i * n / 4) for i in range(4)]]
            found = np.array(rows[3]["features"])[4 * position : 4 * position + 4]
            np.testing.assert_allclose(found, expected, rtol=6e-4, atol=1e-6)
