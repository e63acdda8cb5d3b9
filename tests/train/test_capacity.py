"""How many members fit into a GPU's memory: a rough count, and a trial where that is too much."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mdcg.data.dataset import Split
from mdcg.data.registry import record_of
from mdcg.data.stand_in import stand_in
from mdcg.execute.cost import group_of
from mdcg.methods import METHODS
from mdcg.models import build_model
from mdcg.models.backbones import MEMBERED, has_kernels
from mdcg.models.layers import BatchNorm2d, Conv2d
from mdcg.runs.archive import read_archive
from mdcg.runs.record import Record
from mdcg.scenario import parse
from mdcg.train.capacity import USABLE, Meter, forget_peak, members_that_fit, release_memory, rough_bytes, surely_fit
from mdcg.train.group import Group
from mdcg.train.precision import Compute, compute
from tests.conftest import Cli, toy_dataset, toy_group

RESULTS = Path(__file__).parents[2] / "results"
BF16 = Compute(torch.device("cuda"), "bf16")


class Fake(Meter):
    """A GPU with so much memory, of which a member takes 700 bytes."""

    def __init__(self, free: int) -> None:
        self._free = free

    def free(self) -> int:
        return self._free

    def used(self) -> int:
        return 1_000

    def restart(self) -> None:
        pass

    def peak(self) -> int:
        return 1_700


@pytest.mark.parametrize("method", METHODS.names())
def test_as_many_members_as_fit(method: str) -> None:
    """One member is tried; what it took divides what is free."""
    tuned: dict[str, Any] = {"lam": 0.1} if "md" in method else {}
    group = toy_group(toy_dataset([17, 24, 33, 20, 29, 18]), method, [(0, 20, tuned), (1, 20, tuned)])
    machine = compute("cpu", "fp32")
    assert members_that_fit(group, machine, Fake(7_000)) == 7  # 0.7 · 7,000 / 700
    assert members_that_fit(group, machine, Fake(100)) == 1


@pytest.mark.parametrize("name", [name for name in MEMBERED if has_kernels(name)])
@pytest.mark.parametrize("side", [13, 32])
def test_maps_of_an_image(name: str, side: int) -> None:
    """As many numbers as its convolutions and its BatchNorms give when it passes."""
    model = build_model(name, "cascaded-gates", (3, side, side), seeds=[0]).eval()
    found = 0

    def add(module: nn.Module, given: tuple[Tensor], made: Tensor) -> None:
        nonlocal found
        found += made.numel()

    for module in model.backbone.modules():
        if isinstance(module, Conv2d | BatchNorm2d):
            module.register_forward_hook(add)
    model.backbone(torch.zeros(1, 1, 3, side, side))
    resnet = model.resnet()
    assert resnet is not None
    assert resnet.map_elements(side) == found


def measured() -> list[Record]:
    """A run of each kind that was trained on a GPU with the fused kernels, and whose memory was measured there."""
    found: dict[tuple[object, ...], Record] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        for record in read_archive(path).records:
            spec, around = record.spec, record.environment
            if around.peak_memory and around.hardware.gpu and around.precision == "bf16" and has_kernels(spec.backbone):
                found.setdefault((spec.scenario, spec.method, spec.training(), record.members), record)
    return list(found.values())


def test_groups_took_far_less_than_the_rough_count() -> None:
    """By what was measured of those in `results/`, without the images, which are there once; GEM's are not counted."""
    ratios = []
    for run in measured():
        blank = stand_in(record_of(parse(run.spec.scenario)[0]))
        assert blank is not None
        few = replace(blank, test=Split(blank.test.images[:1], blank.test.labels[:1]))  # which counts less
        count = rough_bytes(group_of([run.spec] * run.members, few), BF16)
        assert (count is None) == METHODS[run.spec.method].gradient_per_task, run.spec.name
        if count is not None and run.environment.peak_memory is not None:
            images = few.train.images.nbytes
            ratios.append((count - images) / (run.environment.peak_memory - images))
    assert len(ratios) > 50
    assert min(ratios) > 2


def test_garbage_is_collected_only_where_a_gpus_memory_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collected"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("emptied"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    release_memory(BF16)
    assert done == []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 1)
    release_memory(BF16)
    assert done == ["collected", "emptied"]
    release_memory(compute("cpu", "fp32"))
    assert done == ["collected", "emptied", "collected"]


def resnets(method: str, members: int = 3, backbone: str = "resnet20", classes: int = 6) -> Group:
    uses = METHODS[method].uses_memory
    dataset = toy_dataset([16] * classes, side=8, channels=3)
    return toy_group(dataset, method, [(0, 12 * uses, {})] * members, backbone=backbone, batch_size=8)


def test_all_that_surely_fit_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compute, "fused", True)
    group = resnets("md-cg")
    enough = int((rough_bytes(group, BF16) or 0) / USABLE) + 1
    assert surely_fit(group, BF16, Fake(enough))
    assert not surely_fit(group, BF16, Fake(enough - 2))
    for larger in (
        resnets("md-cg", members=4),
        resnets("md-cg", backbone="resnet18"),
        resnets("md-cg", classes=60),
        replace(group, training=replace(group.training, head="simplex")),
    ):
        assert not surely_fit(larger, BF16, Fake(enough))
    assert not surely_fit(group, replace(BF16, precision="tf32"), Fake(enough))


def test_what_cannot_be_counted_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that bring a batch for each past task, other networks, optimisers and kernels, and large images."""
    monkeypatch.setattr(Compute, "fused", True)
    group, wide = resnets("md-cg"), toy_dataset([4] * 6, side=136, channels=3)
    for other in (
        resnets("gem"),
        resnets("md-cg", backbone="smallconv"),
        resnets("md-cg", backbone="resnet18-1000"),
        replace(group, training=replace(group.training, optimizer="adamw")),
        replace(group, dataset=wide),
    ):
        assert not surely_fit(other, BF16, Fake(10**15))
    assert surely_fit(group, BF16, Fake(10**15))
    monkeypatch.setattr(Compute, "fused", False)
    assert not surely_fit(group, BF16, Fake(10**15))


def test_the_peak_of_memory_is_each_groups_own(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Meter, "restart", lambda self: told.append("restarted"))
    forget_peak(compute("cpu", "fp32"))
    assert not told
    forget_peak(BF16)
    assert told == ["restarted"]
    groups: list[object] = []
    monkeypatch.setattr("mdcg.execute.group.forget_peak", groups.append)
    words = ["compare", "--methods", "naive,replay", "--scenario", "digits-2", "--memory", "20", "--epochs", "1"]
    assert cli(*words, "--batch-size", "128", "--out", runs).code == 0
    assert len(groups) == 2
