"""A rehearsal: it asks for kernels and leaves everything as it was. That it asks for all is in test_kernels."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mdcg
from mdcg import compiler
from mdcg.data import Arrays
from mdcg.data.cache import cache_folder
from mdcg.data.cifar import CIFAR10, Cifar
from mdcg.data.stand_in import stand_in
from mdcg.errors import MdcgError
from mdcg.execute import group as groups
from mdcg.execute.context import Context
from mdcg.execute.sweep import Sweep
from mdcg.learner import training
from mdcg.methods import METHODS
from mdcg.methods.replay import Replay
from mdcg.models.backbones import MEMBERED
from mdcg.models.resnet import ResNet
from mdcg.recipes.document import written
from mdcg.train import rehearsal
from mdcg.train.loop import Trainer
from mdcg.train.precision import Compute, compute
from mdcg.train.rehearsal import rehearse, rehearse_task
from tests.conftest import toy_dataset, toy_group
from tests.data.conftest import replaced, write_cifar

pytest.importorskip("triton")
from mdcg.models.kernels import launch


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are asked for, as if there were a GPU; `tiny` is a backbone that has some."""
    found: list[str] = []
    monkeypatch.setattr(launch, "_ask", lambda kernel, *_: found.append(kernel.fn.__name__))
    monkeypatch.setattr(launch, "_asked", {})
    monkeypatch.setattr(rehearsal, "_played", [])
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


@pytest.mark.parametrize(
    ("method", "tasks", "wanted"),
    [("gem", 2, {0, 1}), ("gem", 6, {0, 1, 2}), ("md-cg", 2, {0, 1}), ("md-cg", 6, {0, 1, 3, 5})],
)
def test_which_tasks_are_rehearsed(
    method: str, tasks: int, wanted: set[int], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of GEM one with no past task, one with one, one with several; of others one for each doubling, and the last."""
    played: list[set[int]] = []
    monkeypatch.setattr(rehearsal, "_rehearse", lambda group, compute, begin, tasks: played.append(tasks))
    dataset = toy_dataset([16] * 12, side=4, channels=3)
    rehearse(toy_group(dataset, method, [(0, 12, {})], tasks, backbone="tiny"), compute("cpu", "fp32"))
    assert played == [wanted]


def test_others_are_not_rehearsed(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rehearse(group_of("md-cg", "smallconv"), compute("cpu", "fp32"))
    monkeypatch.setattr(Compute, "fused", False)
    rehearse(group_of("md-cg"), compute("cpu", "fp32"))
    assert not asked


def test_where_images_lie_makes_no_difference(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPU they are where its allocator puts them, whatever their place in a file: Triton goes by addresses."""
    group, keys = group_of("md-cg"), []
    moved = torch.empty(group.dataset.train.images.numel() + 1, dtype=torch.uint8)[1:]
    moved = moved.view(group.dataset.train.images.shape).copy_(group.dataset.train.images)
    assert group.dataset.train.images.data_ptr() % 16 == 0
    elsewhere = replace(group.dataset, train=replace(group.dataset.train, images=moved))
    for dataset in (group.dataset, elsewhere):
        monkeypatch.setattr(launch, "_asked", {})
        monkeypatch.setattr(rehearsal, "_played", [])
        rehearse(replace(group, dataset=dataset), compute("cpu", "fp32"))
        keys.append(set(launch._asked))
    assert keys[0] == keys[1]
    assert asked.count("_view") == 2


def test_what_was_rehearsed_is_not_again(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    group, cpu, begun = group_of("md-cg"), compute("cpu", "fp32"), []
    real = Trainer.begin_task

    def noted(*args: Any) -> None:
        begun.append(True)
        real(*args)

    monkeypatch.setattr(Trainer, "begin_task", noted)
    rehearse(group, cpu)
    once = len(begun)
    assert once
    rehearse(group_of("md-cg"), cpu)
    assert len(begun) == once
    more_classes = toy_group(
        toy_dataset([16] * 9, side=4, channels=3), "md-cg", [(0, 12, {})], backbone="tiny", batch_size=8
    )
    for other in (
        replace(group, dataset=replace(group.dataset, flip=not group.dataset.flip)),
        group_of("md"),
        replace(more_classes, members=group.members),
    ):
        rehearse(other, cpu)
    assert len(begun) == 4 * once


def test_what_could_not_be_rehearsed_is_tried_again(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "begin_task", lambda *_: 1 / 0)
        rehearse(group_of("md-cg"), compute("cpu", "fp32"))
    assert not asked
    rehearse(group_of("md-cg"), compute("cpu", "fp32"))
    assert asked


def test_a_command_asks_for_kernels_before_it_reads_images(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It knows them from the record alone; once images are in the cache there is nothing to hurry for."""
    record, _ = write_cifar(tmp_path, CIFAR10, 10, per_file=20)
    replaced(replace(record, images=20 * len(record.train)), monkeypatch)
    before, read = list[int](), Cifar.read

    def noted(*args: Any) -> Arrays:
        before.append(len(asked))
        return read(*args)

    monkeypatch.setattr(Cifar, "read", noted)
    keys = {"scenario": "c10-5", "method": "md-cg", "memory": 20, "backbone": "tiny", "batch_size": 8}

    def made() -> Sweep:
        return Sweep.of(written(keys), data=tmp_path, out=tmp_path / "runs")

    monkeypatch.setattr(compiler, "is_started", lambda: True)
    sweep = made()
    assert before == [len(asked)]
    assert asked
    known = set(launch._asked)
    monkeypatch.setattr(rehearsal, "_played", [])
    rehearse(groups._group(sweep.specs, sweep.context), sweep.context.compute(sweep.specs[0]))
    assert set(launch._asked) == known
    monkeypatch.setattr(launch, "_asked", {})
    monkeypatch.setattr(rehearsal, "_played", [])
    made()
    assert len(before) == 1
    assert not launch._asked
    monkeypatch.setattr(compiler, "is_started", lambda: False)  # nothing will be trained
    shutil.rmtree(cache_folder())
    made()
    assert len(before) == 2
    assert not launch._asked


def test_nothing_is_asked_for_in_vain(asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not where files are not where they should be, and of a folder, whose record tells nothing, not even these."""
    monkeypatch.setattr(compiler, "is_started", lambda: True)
    keys = {"method": "naive", "backbone": "tiny", "out": tmp_path / "runs"}
    with pytest.raises(MdcgError, match="there is no file or folder"):
        Sweep.of(written({"scenario": "c10-5", **keys}), data=tmp_path / "nowhere")
    with pytest.raises(MdcgError, match="data get cifar10"):
        Sweep.of(written({"scenario": "c10-5", **keys}), data=tmp_path)
    monkeypatch.setattr(Cifar, "fetch", lambda *_: tmp_path)
    with pytest.raises(MdcgError, match="lacks"):  # what was downloaded
        Sweep.of(written({"scenario": "c10-5", **keys}))
    monkeypatch.setattr(Context, "must_read", lambda *_: pytest.fail("looked twice"))
    with pytest.raises(MdcgError, match="folder"):
        Sweep.of(written({"scenario": f"folder:{tmp_path}-2", **keys}))
    assert not asked


def test_records_that_tell_too_little_have_no_stand_in() -> None:
    made = stand_in(CIFAR10)
    assert made is not None
    assert (len(made.train), made.classes, made.shape) == (50_000, 10, (3, 32, 32))
    assert made.counts().tolist() == [5000] * 10
    assert made.train.images.untyped_storage().nbytes() == 3 * 32 * 32
    for lacks in ({"shape": None}, {"images": 0}, {"classes": 0}):
        assert stand_in(replace(CIFAR10, **lacks)) is None


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
