"""What the published code does otherwise: each switch against the same written out, and the preset with all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mdcg.data import load
from mdcg.errors import MdcgError
from mdcg.memory import Draw
from mdcg.methods import METHODS, Step
from mdcg.methods.ingredients import Distilling
from mdcg.models import HEADS, build_model
from mdcg.models.backbones import build_backbone
from mdcg.models.heads import CascadedGatesWithOwn
from mdcg.models.resnet import Projected
from mdcg.recipes.presets import augmented
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.spec import RunSpec
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from tests.conftest import Cli, toy_dataset, toy_group
from tests.methods.test_methods import SHAPES, a_step, plain_divergence, softmax


def published(method: str, **words: object) -> RunSpec:
    recipe = make_recipe(scenario="digits-5", method=method, memory=100, preset="published", **words)
    return recipe.resolve(load("digits"))[0]


def test_gates_for_the_tasks_own_classes() -> None:
    """Row 1: on C10-5 four more gate layers than the paper's ten, 2 + … classes each."""
    model = build_model("smallconv", "cascaded-gates-with-own", (1, 8, 8), seeds=[0])
    for _ in range(5):
        model.grow(2)
    assert isinstance(model.head, CascadedGatesWithOwn)
    gates = model.head.gates
    assert gates.outputs == sum(2 * task for task in range(2, 6)) == 20 + 8
    incidence = model.head.incidence
    # Task t, counted from 0, has a gate for each class of tasks 0..t: so a class of task i ≥ 1 is scaled by tasks i..4.
    assert incidence.sum(0).tolist() == [4, 4, 4, 4, 3, 3, 2, 2, 1, 1]
    features = torch.randn(1, 3, 64)
    logits = features[0] @ model.head.classifier.weight[0] + model.head.classifier.bias[0]
    opened = torch.sigmoid(features[0] @ gates.weight[0] + gates.bias[0] + 10)
    for gate in range(gates.outputs):
        (scaled,) = incidence[gate].nonzero()[:, 0].tolist()
        logits = torch.cat([logits[:, :scaled], logits[:, [scaled]] * opened[:, [gate]], logits[:, scaled + 1 :]], 1)
    torch.testing.assert_close(model.head(features)[0], logits)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_divergence_turned_round(shape: tuple[int, int, int, int]) -> None:
    """Row 4: KL(student ‖ teacher), as the paper writes it, against the default."""
    step = a_step(*shape)
    turned = METHODS["md"]().loss(step) - METHODS["md"](**{"divergence": "student-teacher"}).loss(step)
    for k in range(shape[0]):
        total = 0.0
        for row, taught in zip(step.memory[0][k].tolist(), step.teacher[k].tolist(), strict=True):
            p, q = softmax(row), softmax(taught)
            total += plain_divergence(q, p) - plain_divergence(p, q)
        assert math.isclose(float(turned[k]), total / shape[1], rel_tol=1e-9, abs_tol=1e-12)


def test_a_memory_batch_with_every_class() -> None:
    """Row 8: 106 images for a batch of 16 with 90 past classes, as the published code draws in the end of C100-10."""
    method = METHODS["md-cg"](**{"memory_batch": "each-class"})
    assert method.memory_draws(16, [10] * 9) == [Draw(106, odd_to_one=True)]
    assert method.memory_draws(32, [2, 2, 2]) == [Draw(32, odd_to_one=True)]
    assert method.memory_draws(32, []) == []
    group = toy_group(toy_dataset([30] * 6), "md", [(0, 24, {})], batch_size=3)
    group = replace(group, members=(replace(group.members[0], method=METHODS["md"](**{"memory_batch": "each-class"})),))
    state = Trainer(group, compute("cpu", "fp32")).train(states.fresh(group, compute("cpu", "fp32")), 2)
    draws = draw_epoch(group, state.memories, 2, 0)
    assert draws.index.shape[2] == 3 + 4 + 3  # four past classes and the three that are left over
    for labels in draws.labels[0, :, 3:]:
        assert sorted(np.bincount(labels.numpy(), minlength=4)[:4]) == [1, 1, 1, 4]


def test_a_memory_that_takes_the_current_task_first() -> None:
    """Row 17: ER-ACE with the current task's images in memory, from the first task on, or without them."""
    group = toy_group(toy_dataset([30] * 6), "er-ace", [(0, 24, {})])
    machine = compute("cpu", "fp32")
    state = states.fresh(group, machine)
    states.begin_task(state, group)
    assert list(state.memories[0].by_class) == [0, 1]
    assert draw_epoch(group, state.memories, 0, 0).index.shape[2] == 16 + 16
    trained = Trainer(group, machine).train(states.fresh(group, machine))
    assert sorted(trained.memories[0].by_class) == list(range(6))
    step = a_step(2, 4, 0, 3)
    first = Step(step.logits, step.labels, 0, step.memory[0], step.labels)
    present = [sorted(set(step.labels[k].tolist())) for k in range(2)]
    for k in range(2):
        among = step.logits[k][:, present[k]]
        mine = F.cross_entropy(among, torch.tensor([present[k].index(int(y)) for y in step.labels[k]]))
        expected = mine + F.cross_entropy(step.memory[0][k], step.labels[k])
        torch.testing.assert_close(METHODS["er-ace"]().loss(first)[k], expected)
    without = toy_group(toy_dataset([30] * 6), "er-ace", [(0, 24, {"current_in_memory": False})])
    state = states.fresh(without, machine)
    states.begin_task(state, without)
    assert not state.memories[0].by_class
    assert without.memory_draws(0) == []


def test_tiny_imagenet_as_cifar() -> None:
    """Row 26: no crop, CIFAR's normalisation; other datasets stay as they are."""
    tiny = replace(toy_dataset([4] * 4, side=8, channels=3), name="tinyimagenet", padding=8)
    other = augmented(tiny, "published")
    assert (other.padding, other.flip) == (0, True)
    assert (other.mean, other.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert augmented(tiny, "paper") is tiny
    digits = load("digits")
    assert augmented(digits, "published") is digits
    cifar = replace(tiny, name="cifar10")
    assert augmented(cifar, "published") is cifar


def test_a_thousand_outputs_as_features() -> None:
    """Row 27: ResNet-18 and its last linear layer, K members of it."""
    rngs = [np.random.default_rng(seed) for seed in (0, 1)]
    net = build_backbone("resnet18-1000", (3, 32, 32), rngs).eval()
    assert isinstance(net, Projected)
    assert net.features == 1000
    images = torch.randn(2, 3, 3, 32, 32)
    features = net(images)
    assert features.shape == (2, 3, 1000)
    inner = net.resnet(images)
    torch.testing.assert_close(features[1], inner[1] @ net.linear.weight[1] + net.linear.bias[1])
    assert net.linear.weight.abs().max() <= 1 / math.sqrt(512)
    assert not torch.equal(net.linear.weight[0], net.linear.weight[1])


def test_the_preset_turns_all_of_them_on() -> None:
    md = published("md-cg")
    assert (md.head, md.passes, md.epochs) == ("cascaded-gates-with-own", "joint", 10)
    settings = {"lam": 1.0, "divergence": "teacher-student", "memory_batch": "each-class", "look_ahead": 0}
    assert md.hyperparameters == settings
    ld = published("ld")
    assert (ld.passes, ld.epochs) == ("separate", 10)
    own = {"divergence": "teacher-student", "second_memory": 200, "distilled": "twice"}
    assert ld.hyperparameters == {"alpha": 0.1, **own}
    ss_il = published("ss-il")
    assert (ss_il.passes, ss_il.epochs) == ("separate", 10)
    for name, epochs in (("cifar10", 100), ("cifar100", 100), ("tinyimagenet", 30)):  # by the published scripts
        dataset = replace(toy_dataset([4] * 20, side=64, channels=3), name=name)
        scenario = {"cifar10": "c10-5", "cifar100": "c100-10", "tinyimagenet": "tym-10"}[name]
        recipe = make_recipe(scenario=scenario, method="ss-il", memory=100, preset="published")
        assert recipe.resolve(dataset)[0].epochs == epochs
    assert ss_il.hyperparameters == {
        "temperature": 2.0,
        "weight": 1.0,
        "divided": True,
        "memory_among": "all",
        "distilled": "memory",
        "current_in_memory": True,
        "memory_batches": "once",
    }
    ace = published("er-ace")
    assert (ace.passes, ace.epochs) == ("separate", 10)
    assert ace.hyperparameters == {
        "memory_batch": 10,
        "current_in_memory": True,
        "replay_in_task_1": False,
        "halved": True,
        **Distilling.added,  # of which the published code knows nothing
    }
    assert (published("er-lode").passes, published("er-lode").hyperparameters["halved"]) == ("separate", True)
    assert (published("replay").hyperparameters, published("replay").passes) == ({}, "joint")
    # Table 3's variants: the published code's S-CG, and ER-ACE with its gates.
    assert published("md-cg", head="single-gate").head == "scalar-gates"
    assert published("er-ace", head="cascaded-gates").head == "cascaded-gates-with-own"


def test_what_is_asked_for_by_name_still_counts() -> None:
    spec = published("md-cg", head="incremental", set={"divergence": "student-teacher"}, backbone="resnet20")
    assert (spec.head, spec.backbone) == ("incremental", "resnet20")
    assert spec.hyperparameters["divergence"] == "student-teacher"
    assert spec.hyperparameters["memory_batch"] == "each-class"
    asked = published("ss-il", passes="joint", epochs=3, set={"divided": False})
    assert (asked.passes, asked.epochs, asked.hyperparameters["divided"]) == ("joint", 3, False)


def test_passes_are_for_methods_that_replay() -> None:
    """Where they change nothing, a run is the same whether they are asked for or not."""
    for method, expected in (("replay", "separate"), ("naive", "joint"), ("gem", "joint"), ("gdumb", "joint")):
        recipe = make_recipe(scenario="digits-5", method=method, memory=100, passes="separate")
        assert recipe.resolve(load("digits"))[0].passes == expected


def test_the_preset_with_tiny_imagenet() -> None:
    tiny = replace(toy_dataset([4] * 20, side=64, channels=3), name="tinyimagenet")
    words = {"scenario": "tym-10", "method": "md-cg", "memory": 2000}
    (paper,) = make_recipe(**words).resolve(tiny)
    (spec,) = make_recipe(**words, preset="published").resolve(tiny)
    (mixed,) = make_recipe(**words, preset="published", augmentation="paper").resolve(tiny)
    assert (paper.backbone, paper.augmentation) == ("resnet18", "paper")
    assert (spec.backbone, spec.augmentation) == ("resnet18-1000", "published")
    assert (mixed.backbone, mixed.augmentation) == ("resnet18-1000", "paper")
    assert len({paper.group_key(), spec.group_key(), mixed.group_key()}) == 3
    assert make_recipe(**spec.as_recipe()).resolve(tiny) == [spec]


def test_published_runs_from_the_command_line(cli: Cli, tmp_path: object) -> None:
    words = ["compare", "--scenario", "digits-3", "--memory", 60, "--epochs", 1, "--preset", "published", "--json"]
    assert cli(*words, "--methods", "md-cg,ld,ss-il,er-ace,er-lode", "--out", tmp_path).code == 0
    told = cli("run", "--scenario", "digits-3", "--method", "replay", "--memory", 60, "--passes", "two").sentence()
    assert "'passes' is wrong: input should be 'joint' or 'separate'" in told
    told = cli(*words, "--methods", "ss-il", "--set", "memory_among=old").sentence()
    assert "memory has new classes too; give memory_among=all as well" in told
    assert "input should be 'paper' or 'published'" in cli(*words, "--methods", "md", "--preset", "old").sentence()


@pytest.mark.parametrize("head", HEADS.names())
@pytest.mark.parametrize("method", METHODS.names())
def test_any_head_with_any_method_that_can_take_it(method: str, head: str) -> None:
    """Accepted, which `check_method` trains, or refused with a sentence."""
    words = {"scenario": "digits-5", "method": method, "memory": 100, "head": head}
    needs, grows = METHODS[method].needs_head, HEADS[head].grows
    if HEADS[head].fitted_layer and not METHODS[method].uses_memory:
        with pytest.raises(MdcgError, match=f"the head '{head}' is fitted to the memory, and {method} has none; take"):
            make_recipe(**words).check_names()
    elif needs == "any" or grows == (needs == "growing"):
        make_recipe(**words).check_names()
    else:
        with pytest.raises(MdcgError, match=f"{method} needs a head that .* and '{head}' is none; leave --head out"):
            make_recipe(**words).check_names()
