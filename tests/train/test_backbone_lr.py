"""A learning rate of the backbone's own, or none at all, against loops in plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mdcg
from mdcg.models import Model, build_model, kernels
from mdcg.models.backbones import BACKBONES, MEMBERED
from mdcg.models.resnet import ResNet
from mdcg.probes import PROBES, ProbeSet
from mdcg.recipes.presets import preset_of
from mdcg.recipes.recipe import make_recipe
from mdcg.saved import SavedModel
from mdcg.testing.groups import check_company, check_resumed, same_member, trained
from mdcg.train import past_tasks
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.optimizer import SGD
from mdcg.train.precision import compute
from tests.conftest import Cli, toy_dataset, toy_group

CPU64 = compute("cpu", "fp64")
COUNTS = [20, 26, 31, 24, 22, 28]


def net(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 9)
    )


@pytest.fixture(autouse=True)
def _a_backbone() -> Iterator[None]:
    with BACKBONES.temporary("net", net):
        yield


class Plain(nn.Module):
    """One member in plain PyTorch, as it is in a state."""

    def __init__(self, state: states.State, k: int) -> None:
        super().__init__()
        self.backbone, self.classifier = net(1).double(), nn.Linear(9, state.model.head.classes).double()
        ours = state.model.backbone.state_dict()
        self.backbone.load_state_dict({key: ours[key.replace(".", "__")][k] for key in self.backbone.state_dict()})
        with torch.no_grad():
            self.classifier.weight.copy_(state.model.head.classifier.weight[k].T)
            self.classifier.bias.copy_(state.model.head.classifier.bias[k])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.backbone(x))
        return logits


@pytest.mark.parametrize("backbone_lr", [None, 0.2, 0.003, 0.0])
def test_against_plain_pytorch(backbone_lr: float | None) -> None:
    """Torch's SGD with a group for each rate; frozen: gradients off, BatchNorm in evaluation mode. In two tasks."""
    members: list[tuple[int, int, dict[str, Any]]] = [(0, 0, {}), (3, 0, {})]
    group = toy_group(toy_dataset(COUNTS), "naive", members, tasks=3, backbone="net", backbone_lr=backbone_lr)
    lr, momentum = group.members[0].numbers.lr, group.members[0].numbers.momentum
    trainer, state = Trainer(group, CPU64), states.fresh(group, CPU64)
    velocities: list[dict[str, Tensor]] = [{}, {}]
    for task in range(2):
        state.task = task
        trainer.begin_task(state)
        draws = draw_epoch(group, state.memories, task, 0)
        plain = [Plain(state, k) for k in range(2)]
        before = copy.deepcopy(plain[0].backbone.state_dict())
        for k, one in enumerate(plain):
            one.train()
            groups: list[dict[str, Any]] = [{"params": one.classifier.parameters()}]
            if backbone_lr == 0:
                one.backbone.requires_grad_(False).eval()
            else:
                rate = lr if backbone_lr is None else backbone_lr
                groups.append({"params": one.backbone.parameters(), "lr": rate})
            optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum)
            for name, parameter in one.backbone.named_parameters():
                if name in velocities[k]:  # those of the classifier grow, which is tested elsewhere
                    optimizer.state[parameter]["momentum_buffer"] = velocities[k][name]
            for step in range(4):
                batch = trainer.batch(draws, step)
                loss = nn.functional.cross_entropy(one(batch.images[k]), batch.labels[k])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for name, parameter in one.backbone.named_parameters():
                if backbone_lr != 0:
                    velocities[k][name] = optimizer.state[parameter]["momentum_buffer"]
        for name in [name for name in state.optimizer.memory["velocity"] if name.startswith("head")]:
            state.optimizer.memory["velocity"][name].zero_()
        state.model.train()
        for step in range(4):
            trainer.train_step(state, draws, step)
        for k, one in enumerate(plain):
            ours = Plain(state, k).state_dict()
            for name, value in one.state_dict().items():
                torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-12, msg=name)
        if backbone_lr == 0:
            after = Plain(state, 0).backbone.state_dict()
            assert all(torch.equal(after[name], value) for name, value in before.items())
            assert not [name for name in state.optimizer.memory["velocity"] if name.startswith("backbone")]
        states.end_task(state, group)


def test_a_rate_of_its_own_that_is_the_same() -> None:
    """To the bit as without it, with members that rest: the step is the same, in two parts."""
    members: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (1, 18, {})]
    plain = toy_group(toy_dataset(COUNTS), "replay", members)
    split = toy_group(toy_dataset(COUNTS), "replay", members, backbone_lr=0.05)
    one, other = trained(plain), trained(split)
    assert all(same_member(one, k, other, k) for k in range(2))


def test_members_at_rest_stay_to_the_bit() -> None:
    model = build_model("smallconv", "incremental", (1, 8, 8), [0, 1], dtype=torch.float64)
    model.grow(3)
    whole, masked = copy.deepcopy(model), copy.deepcopy(model)
    one, other = (SGD(0.1, 0.8, {"backbone.": 0.01}) for _ in range(2))
    one.follow(whole.named_parameters())
    other.follow(masked.named_parameters())
    for number in range(3):
        gradients = [torch.full_like(value, number + 0.5) for value in one.parameters]
        one.step(gradients)
        other.step(gradients, torch.tensor([True, False]))
    for name, value in masked.named_parameters():
        assert torch.equal(value[1], dict(model.named_parameters())[name][1])
        torch.testing.assert_close(value[0], dict(whole.named_parameters())[name][0], rtol=1e-14, atol=0)


def some(method: str, backbone: str, backbone_lr: float) -> Group:
    members: list[tuple[int, int, dict[str, Any]]] = [(0, 12, {}), (1, 12 if method == "gem" else 18, {})]
    return toy_group(toy_dataset(COUNTS), method, members, backbone=backbone, backbone_lr=backbone_lr, epochs=1)


@pytest.mark.parametrize("backbone_lr", [0.0, 0.004])
@pytest.mark.parametrize(
    ("method", "backbone"),
    [
        ("md-cg", "net"),
        pytest.param("gem", "smallconv", marks=pytest.mark.slow),
        pytest.param("gdumb", "net", marks=pytest.mark.slow),
    ],
)
def test_alone_in_company_and_resumed(method: str, backbone: str, backbone_lr: float) -> None:
    """To the bit: a teacher, gradients of past tasks, a network made anew with every task."""
    group = some(method, backbone, backbone_lr)
    together = trained(group)
    check_company(group, together)
    check_resumed(group, together)


@pytest.mark.parametrize(("method", "backbone_lr"), [("gem", 0.0), ("md-cg", 0.004)])
def test_the_path_of_graphs(method: str, backbone_lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of past tasks in one pass, as on a GPU; without one, work is not captured but done."""
    monkeypatch.setattr("mdcg.train.graph.capture", lambda work, pool: work)
    monkeypatch.setattr(past_tasks, "together", lambda model, compute: True)
    group = toy_group(
        toy_dataset([70, 95, 60, 90, 80, 75]), method, [(0, 60, {}), (1, 60, {})], backbone_lr=backbone_lr
    )
    plain, graphed = Trainer(group, CPU64), Trainer(group, CPU64)
    plain.graphs, graphed.graphs = False, True
    wanted, found = plain.train(states.fresh(group, CPU64)), graphed.train(states.fresh(group, CPU64))
    assert all(same_member(wanted, k, found, k) for k in range(2))


def test_a_frozen_backbone_stays_whatever_looks_and_trains() -> None:
    """With probes the run ends with the same bits; the teacher, of the same features, differs in the head alone."""
    group = some("der", "smallconv", 0.0)
    suited = {name: PROBES[name]() for name in ("drift", "features", "gradients", "margin")}
    watched = Trainer(group, CPU64, probes=ProbeSet(suited)).train(states.fresh(group, CPU64))
    alone = Trainer(group, CPU64).train(states.fresh(group, CPU64))
    assert all(same_member(watched, k, alone, k) for k in range(2))
    before = states.fresh(group, CPU64).model.backbone.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in alone.model.backbone.state_dict().items())
    layers = [row["layers"] for row in watched.measured[0] if row["probe"] == "gradients"]
    assert layers
    assert all(names == ["classifier"] for names in layers)  # nothing else learns


def test_fused_kernels_of_a_frozen_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """They infer in a training step too, compiled ahead; the head learns what it learns from the plain modules."""
    pytest.importorskip("triton")
    monkeypatch.setitem(MEMBERED, "tiny", lambda members, channels: ResNet(members, channels, (16,), 1, False, "in"))
    monkeypatch.setattr(Model, "logits", Model.forward)
    monkeypatch.setattr(past_tasks, "together", lambda model, compute: True)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    words: dict[str, Any] = {"tasks": 2, "backbone": "tiny", "batch_size": 8, "backbone_lr": 0.0}
    group = toy_group(toy_dataset([12] * 4, side=4, channels=3), "gem", [(0, 12, {}), (1, 12, {})], **words)
    ended = []
    for precision, fused in (("fp32", True), ("fp64", False)):
        machine = compute(where, precision)
        trainer, state = Trainer(group, machine), states.fresh(group, machine)
        trainer.begin_task(state)
        states.end_task(state, group)
        state.task = 1
        trainer.begin_task(state)
        state.model.train()
        before = {name: value.clone() for name, value in state.model.backbone.state_dict().items()}
        draws = draw_epoch(group, state.memories, 1, 0).to(machine.device)
        with machine.settings(), kernels.use(fused):  # on a GPU too: no products in tf32
            trainer.train_step(state, draws, 0)
        assert all(torch.equal(value, before[name]) for name, value in state.model.backbone.state_dict().items())
        ended.append(state.model.head.classifier.weight.detach().double())
    torch.testing.assert_close(*ended, rtol=1e-3, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp64", "tf32", "bf16"])
@pytest.mark.parametrize("method", ["md-cg", "gem"])
@pytest.mark.parametrize("backbone_lr", [0.0, 0.002])
def test_on_a_gpu(method: str, backbone_lr: float, precision: str) -> None:
    """Graphs and, but for float64, fused kernels: close to the CPU; a frozen backbone stays to the bit."""
    dataset = toy_dataset([200] * 6, side=32, channels=3)
    words: dict[str, Any] = {"backbone": "resnet20", "batch_size": 32, "epochs": 1, "lr": 0.01}
    group = toy_group(dataset, method, [(0, 60, {}), (1, 60, {})], backbone_lr=backbone_lr, **words)
    gpu = compute("cuda", precision)
    state = Trainer(group, gpu).train(states.fresh(group, gpu))
    assert not state.failures(group)
    before, after = states.fresh(group, gpu).model.backbone.state_dict(), state.model.backbone.state_dict()
    same = [torch.equal(value, before[name]) for name, value in after.items()]
    assert all(same) if backbone_lr == 0 else not any(same)
    if precision == "fp64":
        here = Trainer(group, CPU64).train(states.fresh(group, CPU64))
        for name, value in here.model.state_dict().items():
            torch.testing.assert_close(state.model.state_dict()[name].cpu(), value, rtol=1e-4, atol=1e-5)
    elif backbone_lr == 0:  # what the fused kernels infer is what the head learns from
        x = torch.randn(2, 8, 3, 32, 32)
        with torch.no_grad(), gpu.settings(), gpu.autocast():
            found = state.model.backbone(x.cuda()).float().cpu()
        plain = copy.deepcopy(state.model.backbone).cpu()
        with torch.no_grad():
            torch.testing.assert_close(found, plain(x), rtol=0.1, atol=0.05)


def test_dropout_is_for_frozen_backbones_only() -> None:
    def dropping(channels: int) -> nn.Module:
        return nn.Sequential(net(channels), nn.Dropout(0.5))

    with BACKBONES.temporary("dropping", dropping):
        frozen = some("md-cg", "dropping", 0.0)
        state = trained(frozen)
        check_company(frozen, state)
        answers = SavedModel.of(frozen, state, 0).probabilities(frozen.dataset.test.images)
        assert answers.shape == (len(frozen.dataset.test), frozen.dataset.classes)
        with pytest.raises(mdcg.MdcgError, match=r"a run would depend on which others train beside it.*backbone_lr=0"):
            states.fresh(some("md-cg", "dropping", 0.1), CPU64)
    with BACKBONES.temporary("p=0", lambda channels: nn.Sequential(net(channels), nn.Dropout(0.0))):
        trained(some("md-cg", "p=0", 0.1))


def test_runs_with_a_rate_of_the_backbones_own(cli: Cli, runs: Path) -> None:
    words = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", 1, "--out", runs]
    asked: dict[str, Any] = {"scenario": "digits-2", "method": "naive", "epochs": 1, "out": runs, "quiet": True}
    names = {mdcg.run(**asked, **more).records[0].spec.name for more in ({}, {"backbone_lr": 0}, {"backbone_lr": 1e-3})}
    assert len(names) == 3
    assert mdcg.run(**asked, lr=0.02, backbone_lr=0.02).records[0].spec.backbone_lr is None  # as lr: no other run
    told = cli(*words, "--backbone-lr", 0.001)
    assert "1 of 1 runs were already finished" in told.err
    assert "'backbone_lr' is wrong" in cli(*words, "--backbone-lr", -1).sentence()
    page = cli("report", runs, "--out", runs / "page")
    assert page.code == 0, page.err
    assert "backbone lr 0.001" in (runs / "page" / "table.md").read_text()


@pytest.mark.parametrize("more", [{"backbone_lr": 0.0}, {"normalise": "imagenet"}])
def test_they_are_not_the_papers(more: dict[str, Any]) -> None:
    dataset = toy_dataset([4] * 10, side=32, channels=3)
    (usual,) = make_recipe(scenario="c10-5", method="replay", memory=500).resolve(dataset)
    (other,) = make_recipe(scenario="c10-5", method="replay", memory=500, **more).resolve(dataset)
    assert (preset_of(usual), preset_of(other)) == ("paper", None)
    assert usual.name != other.name
