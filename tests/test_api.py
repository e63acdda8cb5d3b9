"""`mdcg.run`, what it returns, and the learner one takes away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mdcg
from mdcg.data import load
from mdcg.tensors import pack


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> mdcg.Result:
    out = tmp_path_factory.mktemp("runs")
    return mdcg.run(scenario="digits-2", method="md-cg", memory=40, seeds=range(2), epochs=3, out=out)


def test_result(result: mdcg.Result) -> None:
    assert result.R.shape == (2, 2, 2)
    assert np.isnan(result.R[:, 0, 1]).all()
    np.testing.assert_allclose(result.ACC, result.R[:, 1].mean(1))
    np.testing.assert_allclose(result.BWT, result.R[:, 1, 0] - result.R[:, 0, 0])
    assert result.mean["ACC"] == pytest.approx(result.ACC.mean())
    assert result.std["ACC"] == pytest.approx(result.ACC.std(ddof=1))
    assert result.forgetting.shape == result.BWT_final.shape == (2,)


def test_learner_predicts_what_the_run_measured(result: mdcg.Result) -> None:
    digits = load("digits")
    for record, learner in zip(result.records, result.learners, strict=True):
        predicted = learner.predict(digits.test.images).astype(int)
        for task, size in enumerate(record.sizes):
            start = sum(record.sizes[:task])
            own = np.isin(digits.test.labels, record.order[start : start + size])
            accuracy = 100 * (predicted[own] == digits.test.labels[own]).mean()
            assert accuracy == pytest.approx(record.R[-1, task])
    learner = result.learner
    right = learner.predict(digits.test.images).astype(int) == digits.test.labels
    assert learner.score(digits.test.images, digits.test.labels.astype(str)) == right.mean()
    probabilities = learner.predict_proba(digits.test.images[:7].numpy()[..., 0])
    assert probabilities.shape == (7, 10)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert learner.predict(digits.test.images[:0]).shape == (0,)


def test_learner_outlives_its_dataset(result: mdcg.Result, tmp_path: Path) -> None:
    digits = load("digits")
    learner = result.learner
    path = tmp_path / "kept.safetensors"
    learner.save(path)
    again = mdcg.Learner.load(path)
    assert again.classes_.tolist() == learner.classes_.tolist()
    assert (again.predict(digits.test.images) == learner.predict(digits.test.images)).all()
    assert again.saved_.kept is not None
    memory = again.saved_.kept.memory
    assert len(memory.images) == 40
    for image, position in zip(memory.images, memory.positions, strict=True):
        same = (digits.train.images == image).flatten(1).all(1).numpy()
        assert str(digits.train.labels[same][0]) == again.classes_[int(position)]


def test_learner_refuses_what_it_cannot_use(result: mdcg.Result, tmp_path: Path) -> None:
    for images in (np.zeros((2, 9, 9, 1), np.uint8), np.zeros((2, 8, 8, 1), np.float32), np.zeros((8, 8), np.uint8)):
        with pytest.raises(mdcg.MdcgError, match=r"images must .*shape \(n, 8, 8, 1\)"):
            result.learner.predict(images)
    path = tmp_path / "model.safetensors"
    with pytest.raises(mdcg.MdcgError, match="cannot read"):
        mdcg.Learner.load(path)
    result.learner.save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(mdcg.MdcgError, match="not a model saved by mdcg, or is damaged"):
        mdcg.Learner.load(path)
    for tensors, header in (({}, {"version": 1}), ({"a": torch.zeros(1)}, {"version": 1, "sizes": "x"})):
        path.write_bytes(pack(tensors, header))
        with pytest.raises(mdcg.MdcgError, match="not a model saved by mdcg"):
            mdcg.Learner.load(path)
    path.write_bytes(b"")
    with pytest.raises(mdcg.MdcgError, match="not a model saved by mdcg"):
        mdcg.Learner.load(path)


def test_a_model_that_is_gone(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"scenario": "digits-2", "method": "naive", "epochs": 1, "out": tmp_path}
    assert mdcg.run(**asked).learner
    next(tmp_path.glob("*/model.safetensors")).unlink()
    with pytest.raises(mdcg.MdcgError, match="is gone; repeat the run"):
        assert mdcg.run(**asked).learner
    assert mdcg.run(**asked, fresh=True).learner


def test_mistakes_in_python() -> None:
    with pytest.raises(mdcg.MdcgError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        mdcg.run(scenario="digits-2", method="naive", epoch=3)  # type: ignore[call-arg]
    with pytest.raises(mdcg.MdcgError, match="'seeds' is wrong"):
        mdcg.run(scenario="digits-2", method="naive", seeds=[])
    with pytest.raises(mdcg.MdcgError, match="for several see"):
        mdcg.run(scenario="digits-2", method="naive, replay", memory=30)


@pytest.mark.usefixtures("all_digits")
def test_methods_learn(tmp_path: Path) -> None:
    """On digits in five tasks: naive forgets nearly everything, MD-CG keeps most, cumulative is the upper bound."""
    accuracy = {
        name: mdcg.run(scenario="digits-5", method=name, memory=100, epochs=3, out=tmp_path).mean["ACC"]
        for name in ("naive", "replay", "md", "md-cg", "cumulative")
    }
    assert accuracy["naive"] < 25
    assert min(accuracy[name] for name in ("replay", "md", "md-cg")) > accuracy["naive"] + 40
    assert accuracy["cumulative"] > max(accuracy["replay"], accuracy["md"], accuracy["md-cg"])
