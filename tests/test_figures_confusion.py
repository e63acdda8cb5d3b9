"""Confusion and the map of features, against plain calculations."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg.experiments.store import read_record
from mdcg.figures import Run
from mdcg.figures.confusion import Confusion as ConfusionFigure
from mdcg.figures.confusion import percent
from mdcg.figures.embedding import Embedding, principal
from mdcg.metrics import Matrix
from mdcg.probes import features as probe
from mdcg.probes.confusion import Confusion
from mdcg.probes.features import Features
from mdcg.train import state as states
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute

from .conftest import Cli, toy_dataset, toy_group

CPU = compute("cpu", "fp32")
DATASET = toy_dataset([20, 12, 16, 9, 14, 11, 13], seed=3)  # tasks of three, two and two classes
MEMBERS: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (1, 40, {}), (2, 12, {})]


def one_image(index: int, members: int) -> torch.Tensor:
    """A test image as every member's input, alone in its batch."""
    pixels = (DATASET.test.images[index].float() / 255 - 0.5) / 0.3
    return pixels.permute(2, 0, 1).expand(members, 1, -1, -1, -1)


def test_confusion_agrees_with_what_counts_as_correct() -> None:
    group = toy_group(DATASET, "replay", MEMBERS, epochs=1)
    state = Trainer(group, CPU, probes={"confusion": Confusion()}).train(states.fresh(group, CPU))
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
    state = Trainer(group, CPU, probes={"features": Features()}).train(states.fresh(group, CPU))
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


def test_figures(cli: Cli, runs: Path, tmp_path: Path) -> None:
    words = ("--scenario", "digits-2", "--epochs", 1, "--memory", 50, "--runs", runs, "--out", tmp_path)
    assert cli("figure", "confusion", "embedding", *words, "--seeds", "3-4").code == 0
    found = [Run(path.parent, read_record(path.parent)) for path in sorted(runs.glob("*/result.json"))]
    records = {(run.spec.method, run.spec.seed): run.record for run in found}
    assert set(records) == {(method, seed) for method in ("replay", "md-cg") for seed in (3, 4)}

    with (tmp_path / "confusion-digits-2.csv").open() as file:
        table = list(csv.DictReader(file))
    shares: dict[str, list[Matrix]] = {"replay": [], "md-cg": []}
    for (method, seed), record in records.items():
        own = [row for row in table if (row["method"], row["seed"]) == (method, str(seed))]
        counts = np.zeros((10, 10))
        for row in own:
            counts[int(row["true"]), int(row["predicted"])] += int(row["count"])
            assert row["task_true"] == ("1" if int(row["true"]) < 5 else "2")
            assert row["task_predicted"] == ("1" if int(row["predicted"]) < 5 else "2")
        assert len(own) == 100
        assert np.diag(counts).tolist() == record.correct[-1]
        assert counts.sum(1).tolist() == record.total
        shares[method].append(100 * counts / np.array(record.total)[:, None])
    rows = ConfusionFigure().numbers(ConfusionFigure().pick(found))
    for method, both in shares.items():
        drawn = percent([row for row in rows if row["method"] == method])
        np.testing.assert_allclose(drawn, (both[0] + both[1]) / 2)

    with (tmp_path / "embedding-digits-2.csv").open() as file:
        table = list(csv.DictReader(file))
    (run,) = Embedding().pick(found)
    assert (run.spec.method, run.spec.seed) == ("md-cg", 3)
    assert {(row["method"], row["seed"]) for row in table} == {("md-cg", "3")}
    before, after = json.loads((run.folder / "measured" / "features.json").read_text())["rows"]
    # The same axes for both moments: those of all points together.
    expected, percents = by_eigenvectors(np.array(before["features"] + after["features"]))
    places = np.array([[float(row["x"]), float(row["y"])] for row in table])
    np.testing.assert_allclose(places, expected, rtol=1e-5, atol=1e-5)
    assert [row["moment"] for row in table] == ["before"] * len(before["classes"]) + ["after"] * len(after["classes"])
    assert [int(row["class"]) for row in table] == before["classes"] + after["classes"]
    assert {(int(row["class"]) // 5 + 1, int(row["task"])) for row in table} == {(1, 1), (2, 2)}
    assert float(table[0]["share_x"]) == pytest.approx(percents[0], abs=0.006)
    left, right = Embedding().draw(Embedding().numbers([run])).axes
    assert left.get_xlim() == right.get_xlim()
    assert left.get_ylim() == right.get_ylim()
