"""A stream learned call by call is the same, to the bit, as `mdcg run` on it: with every method, saved in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mdcg
from mdcg.methods import METHODS
from mdcg.saved import SavedModel
from tests.learner.streams import NAME, SEED, TASKS, assert_same, learner_like, task_images, toys

OURS = [
    "cumulative",
    "der",
    "er-ace",
    "er-lode",
    "gdumb",
    "gem",
    "ld",
    "md",
    "md-cg",
    "md-replay",
    "naive",
    "replay",
    "rpc",
    "ss-il",
]


def test_all_of_our_methods_are_here() -> None:
    assert {name for name in METHODS.names() if METHODS[name].__module__.startswith("mdcg.methods")} == {*OURS}


@pytest.mark.parametrize("preset", ["paper", "published"])
@pytest.mark.parametrize("method", OURS)
def test_learn_is_run(method: str, preset: Any, tmp_path: Path) -> None:
    if preset == "published" and not (METHODS[method].published or METHODS[method].published_passes != "joint"):
        pytest.skip("the published code does the same")
    memory = 60 if method == "md-replay" else 20  # what suits fewer depends on classes that `learn` does not know yet
    check_learn_is_run(tmp_path, method=method, memory=memory, preset=preset)


@pytest.mark.parametrize("head", ["fitted-gates", "fitted-classifier"])
def test_learn_is_run_with_a_head_that_is_fitted(head: str, tmp_path: Path) -> None:
    """To pixels that were kept in a file, or to those of a dataset."""
    check_learn_is_run(tmp_path, method="md", memory=20, head=head)


def check_learn_is_run(tmp_path: Path, **asked: Any) -> None:
    result = mdcg.run(scenario=f"{NAME}-{TASKS}", out=tmp_path / "runs", seeds=SEED, epochs=2, quiet=True, **asked)
    file, dataset = tmp_path / "model.safetensors", toys()
    learner = learner_like(result)
    for task in range(TASKS):
        images, names, order = task_images(dataset, task)
        learner.learn(images, names, order=order)
        learner.save(file)
        learner = mdcg.Learner.load(file).set_params(quiet=True)
    assert_same(SavedModel.load(result.setting.runs[0].folder / "model.safetensors"), learner.saved_)
    truth = np.array(dataset.class_names)[dataset.test.labels]
    by_task = [np.isin(truth, learner.classes_[2 * task : 2 * task + 2]) for task in range(TASKS)]
    scores = [learner.score(dataset.test.images[torch.from_numpy(own)], truth[own]) for own in by_task]
    np.testing.assert_allclose(100 * np.array(scores), result.R[0, -1])


def test_a_run_is_taken_up(tmp_path: Path) -> None:
    """The first two tasks by `run`, the third by `learn`: as if `learn` had learned all three."""
    dataset = toys()
    result = mdcg.run(
        scenario=f"{NAME}-{TASKS}", method="md-cg", memory=20, seeds=SEED, out=tmp_path / "runs", quiet=True
    )
    alone = learner_like(result)
    for task in range(TASKS):
        images, names, order = task_images(dataset, task)
        alone.learn(images, names, order=order)
    file = result.setting.runs[0].folder / "model.safetensors"
    for learner in (mdcg.Learner.load(file), alone):
        more = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8)
        learner.set_params(hold_out=0, epochs=2, quiet=True).learn(more, ["new"] * 30)
    assert_same(
        mdcg.Learner.load(file).set_params(hold_out=0, epochs=2, quiet=True).learn(more, ["new"] * 30).saved_,
        alone.saved_,
    )
