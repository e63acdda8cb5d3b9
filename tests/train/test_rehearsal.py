"""A rehearsal: it asks for kernels and leaves everything as it was. That it asks for all is in test_kernels."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

import mdcg
from mdcg.execute import group as groups
from mdcg.learner import training
from mdcg.methods import METHODS
from mdcg.methods.replay import Replay
from mdcg.models.backbones import MEMBERED
from mdcg.models.resnet import ResNet
from mdcg.train.precision import Compute, compute
from mdcg.train.rehearsal import rehearse, rehearse_task
from tests.conftest import toy_dataset, toy_group

pytest.importorskip("triton")
from mdcg.models.kernels import launch


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are asked for, as if there were a GPU; `tiny` is a backbone that has some."""
    found: list[str] = []
    monkeypatch.setattr(launch, "_ask", lambda kernel, *_: found.append(kernel.fn.__name__))
    monkeypatch.setattr(launch, "_asked", {})
    monkeypatch.setattr(Compute, "fused", True)
    monkeypatch.setitem(MEMBERED, "tiny", lambda members, channels: ResNet(members, channels, (16,), 1, False, "in"))
    return found


def group_of(method: str, backbone: str = "tiny") -> Any:
    uses = METHODS[method].uses_memory
    dataset = toy_dataset([16] * 6, side=4, channels=3)
    return toy_group(dataset, method, [(0, 12 * uses, {}), (1, 12 * uses, {})], backbone=backbone, batch_size=8)


@pytest.mark.parametrize("method", [name for name in METHODS.names() if METHODS[name].__module__.startswith("mdcg.")])
def test_every_method_can_be_rehearsed(
    method: str, asked: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "mdcg.train.rehearsal")
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # in this process tests share them
    before = torch.get_rng_state()
    rehearse(group_of(method), compute("cpu", "fp32"))
    assert not caplog.records
    assert {"forward", "input_gradient", "weight_gradient", "_move"} <= set(asked)
    assert torch.equal(torch.get_rng_state(), before)


def test_others_are_not_rehearsed(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rehearse(group_of("md-cg", "smallconv"), compute("cpu", "fp32"))
    monkeypatch.setattr(Compute, "fused", False)
    rehearse(group_of("md-cg"), compute("cpu", "fp32"))
    assert not asked


def test_a_method_that_cannot_be_rehearsed_is_trained_all_the_same(
    asked: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Replay):
        def loss(self, step: Any) -> Any:
            raise RuntimeError("this needs a GPU")

    monkeypatch.setitem(METHODS._known, "odd", Odd)
    caplog.set_level(logging.DEBUG, "mdcg.train.rehearsal")
    rehearse(group_of("odd"), compute("cpu", "fp32"))
    assert [record.getMessage() for record in caplog.records] == ["could not be rehearsed: this needs a GPU"]
    assert "forward" in asked


def test_runs_and_learners_are_rehearsed(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And train no otherwise for it: the kernels are not used here."""
    caplog.set_level(logging.DEBUG, "mdcg.train.rehearsal")
    rehearsed = []

    def only_rehearse(real: Any) -> Any:
        def noted(*args: Any) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Compute, "fused", True)
                real(*args)
            rehearsed.append(len(asked))

        return noted

    monkeypatch.setattr(Compute, "fused", False)
    monkeypatch.setattr(groups, "rehearse", only_rehearse(rehearse))
    monkeypatch.setattr(training, "rehearse_task", only_rehearse(rehearse_task))
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3), dtype=np.uint8)
    labels = np.repeat(np.arange(4), 8)
    own = mdcg.Dataset.from_arrays((images, labels), name="mine")
    keys: dict[str, Any] = {"scenario": "mine-2", "method": "md", "memory": 8, "seeds": 0, "epochs": 1, "quiet": True}
    mdcg.run(data=own, backbone="tiny", out=tmp_path, **keys)
    assert len(rehearsed) == 1
    learner = mdcg.Learner("md", memory=8, backbone="tiny", epochs=1, hold_out=0, quiet=True)
    for part in (labels < 2, labels >= 2):
        learner.learn(images[part], labels[part])
    assert len(rehearsed) == 3
    assert rehearsed[0] > 0
    assert not caplog.records
