"""Confusion and the map of features, against plain calculations."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mdcg
from mdcg.figures.plots.confusion import Confusion as ConfusionFigure
from mdcg.figures.plots.confusion import percent
from mdcg.figures.plots.embedding import Embedding, principal
from mdcg.metrics import Matrix
from mdcg.probes import ProbeSet
from mdcg.probes import features as probe
from mdcg.probes.confusion import Confusion
from mdcg.probes.features import Features
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.finished import FinishedRun
from mdcg.runs.store import read_record
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
                true = int(view.scenario.position_of_label()[label])
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
        positions = view.scenario.position_of_label()[DATASET.test.labels]
        assert rows[2]["classes"] == rows[3]["classes"] == np.repeat(np.arange(7), 4).tolist()
        assert rows[2]["features"] != rows[3]["features"]
        for position in range(7):
            n = int((positions == position).sum())
            own = everything[k][torch.from_numpy(positions == position)].numpy()
            expected = own[[math.floor(i * n / 4) for i in range(4)]]
            found = np.array(rows[3]["features"])[4 * position : 4 * position + 4]
            np.testing.assert_allclose(found, expected, rtol=6e-4, atol=1e-6)


def by_eigenvectors(points: Matrix) -> tuple[Matrix, list[float]]:
    """Principal components from the covariance matrix, each axis with its largest entry positive."""
    mean = points.mean(0)
    covariance = sum(np.outer(p - mean, p - mean) for p in points) / (len(points) - 1)
    values, vectors = np.linalg.eigh(covariance)
    axes = [vectors[:, -1], vectors[:, -2]]
    axes = [axis if axis[np.abs(axis).argmax()] > 0 else -axis for axis in axes]
    places = np.array([[float((p - mean) @ axis) for axis in axes] for p in points])
    return places, [100 * values[-1] / values.sum(), 100 * values[-2] / values.sum()]


@pytest.mark.parametrize("seed", range(4))
def test_principal_axes_are_those_of_the_covariance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6)) + rng.normal(size=6)
    places, shares = principal(points)
    expected, percents = by_eigenvectors(points)
    np.testing.assert_allclose(places, expected, atol=1e-9)
    np.testing.assert_allclose(shares, percents)


def test_figures(runs: Path) -> None:
    small: dict[str, Any] = {"scenario": "digits-2", "memory": 50, "epochs": 1, "batch_size": 128, "seeds": [3, 4]}
    mdcg.run(method="md-cg", **small, out=runs, probes=["confusion", "features"], quiet=True)
    found = [FinishedRun(path.parent, read_record(path.parent)) for path in sorted(runs.glob("*/result.json"))]

    table = ConfusionFigure().numbers(ConfusionFigure().pick(found))
    shares = []
    for run in found:
        own = [row for row in table if row["seed"] == run.spec.seed]
        counts = np.zeros((10, 10))
        for row in own:
            counts[row["true"], row["predicted"]] += row["count"]
            assert row["task_true"] == (1 if row["true"] < 5 else 2)
            assert row["task_predicted"] == (1 if row["predicted"] < 5 else 2)
        assert len(own) == 100
        assert np.diag(counts).tolist() == run.record.correct[-1]
        assert counts.sum(1).tolist() == run.record.total
        shares.append(100 * counts / np.array(run.record.total)[:, None])
    np.testing.assert_allclose(percent(table), (shares[0] + shares[1]) / 2)

    (run,) = Embedding().pick(found)
    assert run.spec.seed == 3  # maps cannot be averaged
    table = Embedding().numbers([run])
    before, after = json.loads((run.folder / "measured" / "features.json").read_text())["rows"]
    # The same axes for both moments: those of all points together.
    expected, percents = by_eigenvectors(np.array(before["features"] + after["features"]))
    np.testing.assert_allclose([(row["x"], row["y"]) for row in table], expected, rtol=1e-5, atol=1e-5)
    assert [row["moment"] for row in table] == ["before"] * len(before["classes"]) + ["after"] * len(after["classes"])
    assert [row["class"] for row in table] == before["classes"] + after["classes"]
    assert {(row["class"] // 5 + 1, row["task"]) for row in table} == {(1, 1), (2, 2)}
    assert table[0]["share_x"] == pytest.approx(percents[0], abs=0.006)
    left, right = Embedding().draw(table).axes
    assert left.get_xlim() == right.get_xlim()
    assert left.get_ylim() == right.get_ylim()


def test_a_map_is_of_one_seed() -> None:
    (asked,) = Embedding().wanted(make_recipe(scenario="digits-5", seeds=[3, 4], methods="replay,md-cg"))
    assert (asked.seeds, asked.methods) == ([3], ["replay", "md-cg"])
