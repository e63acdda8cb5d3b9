"""What only a GPU can show. The same paths run on the CPU in the other tests."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg.data import load
from mdcg.methods.gem import past_weights
from mdcg.probes import ProbeSet
from mdcg.tensors import pack, unpack
from mdcg.train import state as states
from mdcg.train.capacity import USABLE, forget_peak, members_that_fit, rough_bytes
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.optimizer import SGD
from mdcg.train.precision import Compute, compute
from mdcg.train.recolour import OPERATIONS, draw_operations, operate
from mdcg.train.signals import Stopped
from mdcg.train.state import PlainValues, State
from tests.conftest import Cli, published_settings, toy_dataset, toy_group
from tests.probes.test_probes import probes_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PASSES = [(2, 11), (1, 10)]  # tasks and images of each pass over past tasks' memories, in `gem`


def images(members: int, method: str = "md-cg", backbone: str = "resnet20", side: int = 32) -> Group:
    """MD-CG with a ResNet-20 on images of CIFAR's shape, or another method with another network."""
    dataset = toy_dataset([320] * 4, side=side, channels=3)
    who = [(seed, 40 + 20 * (seed % 3), {"lam": 0.25 + seed % 2}) for seed in range(members)]
    return toy_group(dataset, method, who, tasks=2, backbone=backbone, batch_size=32, epochs=1, lr=0.01)


def gem(members: int, memory: int = 42) -> Group:
    """GEM with a ResNet-20 on such images; in the last of four tasks two past ones have 11 images and one has 10."""
    who: list[tuple[int, int, dict[str, float]]] = [(seed, memory, {"strength": 0.5 * seed}) for seed in range(members)]
    dataset = toy_dataset([320] * 8, side=32, channels=3)
    return toy_group(dataset, "gem", who, tasks=4, backbone="resnet20", batch_size=32, epochs=1, lr=0.01)


def steps(precision: str, count: int, lead: bool) -> tuple[list[float], list[float]]:
    """Losses of the first steps of a member on the CPU and on the GPU; with `lead`, each from the CPU's state."""
    group = images(1)
    cpu, gpu = compute("cpu", precision), compute("cuda", precision)
    here, there = Trainer(group, cpu), Trainer(group, gpu)
    state, followed = states.fresh(group, cpu), states.fresh(group, gpu)
    states.begin_task(state, group)
    states.begin_task(followed, group)
    draws = draw_epoch(group, state.memories, 0, 0)
    losses: tuple[list[float], list[float]] = ([], [])
    for step in range(count):
        if lead:
            followed = states.restore(*states.dump(state), group, gpu)
        for found, trainer, own, device in ((losses[0], here, state, "cpu"), (losses[1], there, followed, "cuda")):
            own.model.train()
            own.loss_sum.zero_()
            with trainer.compute.settings():
                trainer.train_step(own, draws.to(torch.device(device)), step)
            found.append(float(own.loss_sum))
    return losses


def test_the_same_losses_as_on_the_cpu() -> None:
    """In float32 rounding grows some threefold with every step, on one device too, so each starts from the same
    state; in float64 20 steps go their own ways."""
    for precision, lead, tolerance in (("fp32", True, 1e-4), ("fp64", False, 1e-4)):
        here, there = steps(precision, 20, lead)
        assert np.abs(np.array(here) - there).max() < tolerance, precision


def begun(group: Group, machine: Compute, last: int) -> State:
    """In a task, counted from 0, of members that have not learned anything yet."""
    state = states.fresh(group, machine)
    for task in range(last + 1):
        state.task = task
        states.begin_task(state, group)
        if task < last:
            states.end_task(state, group)
    state.model.train()
    return state


def gradients(group: Group, precision: str) -> dict[str, torch.Tensor]:
    """Of the first step of task 2."""
    machine = compute("cuda", precision)
    trainer, state = Trainer(group, machine), begun(group, machine, 1)
    with machine.settings():
        trainer.train_step(state, draw_epoch(group, state.memories, 1, 0).to(machine.device), 0)
    return {name: value.double() for name, value in state.optimizer.memory["velocity"].items()}


@pytest.mark.parametrize("what", [("md-cg", "resnet20", 32), ("md-replay", "resnet18", 64)])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_fused_gradients_are_as_good_as_those_of_plain_kernels(
    what: tuple[str, str, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first step's velocity is its gradient: both are compared with float64, parameter by parameter.

    The fused kernels may be worse than cuDNN's by 2%, about what rounding comes to after some 20 layers.
    """
    group = images(2, *what)
    reference, fused = gradients(group, "fp64"), gradients(group, precision)
    monkeypatch.setenv("MDCG_KERNELS", "plain")
    plain = gradients(group, precision)
    for name, value in reference.items():
        errors = [float((found[name] - value).norm() / value.norm()) for found in (fused, plain)]
        assert errors[0] < 2 * errors[1] + 0.02, (name, errors)


def of_past_tasks(precision: str, passes: list[tuple[int, int]] = PASSES) -> dict[tuple[int, str], torch.Tensor]:
    """Gradients by past task and parameter, in task 4 of two members."""
    group, machine = gem(2), compute("cuda", precision)
    trainer, state = Trainer(group, machine), begun(group, machine, 3)
    with machine.settings():
        batch = trainer.batch(draw_epoch(group, state.memories, 3, 0).to(machine.device), 0)
        memory = batch.part(32, batch.images.shape[1])
        found = trainer.past(state).gradients(memory.images, memory.labels, None)
        assert trainer.past(state).passes == passes
    named = state.optimizer.memory["velocity"]  # has the parameters' names, and their shapes
    split = found.double().split([value[0].numel() for value in named.values()], 2)
    return {(task, name): part[:, task] for name, part in zip(named, split, strict=True) for task in range(3)}


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_gradients_of_past_tasks_too(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks in one pass; those in float64 are of a pass for each."""
    fused = of_past_tasks(precision)
    with monkeypatch.context() as patch:
        patch.setenv("MDCG_KERNELS", "plain")
        plain = of_past_tasks(precision)
    together = of_past_tasks("fp64")
    monkeypatch.setattr("mdcg.train.past_tasks.AT_ONCE", 11)
    reference = of_past_tasks("fp64", [(1, 11), (1, 11), (1, 10)])
    for name, value in reference.items():
        torch.testing.assert_close(together[name], value, rtol=1e-6, atol=1e-9)
        errors = [float((found[name] - value).norm() / value.norm()) for found in (fused, plain)]
        assert errors[0] < 2 * errors[1] + 0.02, (name, errors)


def test_gems_programme_is_not_solved_in_tf32() -> None:
    generator = torch.Generator().manual_seed(0)
    g, G = torch.randn(2, 40_000, generator=generator), torch.randn(2, 9, 40_000, generator=generator)
    wanted = past_weights(g.double(), G.double(), 0.5)
    with compute("cuda", "tf32").settings():
        found = past_weights(g.cuda(), G.cuda(), torch.full((2,), 0.5, device="cuda"))
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-5, atol=1e-6)
    assert wanted.any()


def test_gems_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PastTasks tasks that share a pass need more of it than one after the other."""
    group, machine = gem(1, 1_000), compute("cuda", "tf32")
    together = members_that_fit(group, machine)
    monkeypatch.setattr("mdcg.train.past_tasks.AT_ONCE", 1)
    assert 1 < together < 0.6 * members_that_fit(group, machine)


def test_images_are_there_once() -> None:
    group, machine = images(2), compute("cuda", "fp32")
    size = group.dataset.train.images.numel() + group.dataset.test.images.numel()
    before = torch.cuda.memory_allocated()
    trainers = [Trainer(group, machine) for _ in range(3)]
    assert size <= torch.cuda.memory_allocated() - before < 1.5 * size
    assert trainers[0].images.dtype == torch.uint8
    trainers.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 0.5 * size


def test_as_many_fit_whether_images_are_there_or_not() -> None:
    group, machine = images(1), compute("cuda", "tf32")
    members_that_fit(group, machine)  # libraries take their workspaces
    without = members_that_fit(group, machine)
    trainer = Trainer(group, machine)
    assert members_that_fit(group, machine) == pytest.approx(without, rel=0.02)
    assert trainer.images.is_cuda


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_training_takes_less_than_the_rough_count(precision: str) -> None:
    """With graphs, a teacher, evaluations and a checkpoint, in two tasks."""
    group, machine = images(8), compute("cuda", precision)
    count = rough_bytes(group, machine)
    assert count is not None
    before = torch.cuda.memory_allocated()
    forget_peak(machine)
    Trainer(group, machine).train(states.fresh(group, machine))
    assert torch.cuda.max_memory_allocated() - before < count / 1.5


def graphs_change_nothing(group: Group, machine: Compute) -> None:
    plain, graphed = Trainer(group, machine), Trainer(group, machine)
    plain.graphs = False
    wanted, got = plain.train(states.fresh(group, machine)), graphed.train(states.fresh(group, machine))
    same = {name: torch.equal(got.model.state_dict()[name], value) for name, value in wanted.model.state_dict().items()}
    assert all(same.values()), [name for name, equal in same.items() if not equal]
    assert got.history == wanted.history


@pytest.mark.parametrize("method", ["md-cg", "gem"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_graphs_give_the_bits_of_plain_steps(method: str, precision: str) -> None:
    """Of the fused kernels, that is: cuDNN may add in another order each time."""
    group, machine = images(3) if method == "md-cg" else gem(3), compute("cuda", precision)
    graphs_change_nothing(group, machine)


@pytest.mark.parametrize("method", ["er-ace", "er-lode", "ss-il", "ld"])
def test_graphs_give_the_bits_of_plain_steps_with_two_passes(method: str) -> None:
    """Memory images in forward passes of their own, of other sizes than the current ones', as published."""
    who = [(seed, 40 + 20 * seed, published_settings(method)) for seed in range(3)]
    dataset = toy_dataset([320] * 4, side=32, channels=3)
    words: dict[str, Any] = {"tasks": 2, "backbone": "resnet20", "batch_size": 32, "epochs": 2, "lr": 0.01}
    group, machine = toy_group(dataset, method, who, passes="separate", **words), compute("cuda", "bf16")
    graphs_change_nothing(group, machine)


def test_graphs_give_the_bits_of_plain_steps_with_randaugment() -> None:
    group = images(3)
    augmented = replace(group.training, augment=("crop", "flip", "randaugment"))
    graphs_change_nothing(replace(group, training=augmented), compute("cuda", "bf16"))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [32, 64])
def test_a_fused_round_of_randaugment_gives_the_pixels_of_tensor_code(side: int, channels: int) -> None:
    """Of the batches of 20 members; where pixels are a power of two, both find the same mean."""
    from mdcg.models.kernels.recolour import operate as fused

    generator = torch.Generator("cuda").manual_seed(side)
    x = torch.randint(256, (20 * 64, channels, side, side), generator=generator, device="cuda").float()
    x[::2] = (0.4 * x[::2] + 50).round()
    one = torch.ones(channels, device="cuda")
    for magnitude in (0, 9, 30):
        drawn = draw_operations(np.random.default_rng(magnitude), (len(x),), magnitude, (side, side))
        code, amount, place = (torch.from_numpy(part).cuda() for part in drawn)
        wanted = operate(x, code, amount, place)
        found = fused(x, code, amount, place, OPERATIONS, one, torch.zeros_like(one), torch.float32)
        differ = (found != wanted).flatten(1).any(1)
        assert not differ.any(), {OPERATIONS[number] for number in code[differ].tolist()}


def searched(members: int) -> Group:
    """Replay with a ResNet-20, and a schedule, of members that differ in their numbers and in how long they rest."""
    numbers: list[dict[str, float]] = [
        {"lr": 0.02},
        {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.01, "clip": 1.0, "warmup": 0.2},
        {"lr": 0.005, "backbone_lr": 0.01, "head_lr": 0.02},
    ]
    who: list[tuple[int, int, dict[str, float]]] = [(seed, 40 + 20 * seed, {}) for seed in range(members)]
    dataset = toy_dataset([320, 280, 340, 300], side=32, channels=3)
    words: dict[str, Any] = {"backbone": "resnet20", "batch_size": 32, "epochs": 2, "schedule": "cosine"}
    return toy_group(dataset, "replay", who, tasks=2, numbers=numbers[:members], **words)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_graphs_give_the_bits_of_plain_steps_with_numbers_of_each_member(precision: str, members: int) -> None:
    """Whose update is one kernel, that moves the weights' copies along."""
    machine = compute("cuda", precision)
    graphs_change_nothing(searched(members), machine)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_the_fused_update_is_the_plain_one(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one and the same gradient, and then the copies are those of the weights."""
    group, machine = searched(3), compute("cuda", precision)
    found = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(SGD, "_by_kernel", lambda *arguments: False)
        trainer, state = Trainer(group, machine), begun(group, machine, 1)
        with machine.settings():
            trainer.train_step(state, draw_epoch(group, state.memories, 1, 0).to(machine.device), 0)
            backbone = state.model.resnet()
            assert backbone is not None
            for conv in backbone.convolutions():
                if conv.copy is not None:
                    wanted = conv.taps().bfloat16() if precision == "bf16" else conv.taps().mT
                    assert torch.equal(conv.copy[1], wanted)
        assert isinstance(state.optimizer, SGD)
        assert (state.optimizer._plan is not None) == fused  # it was made with the kernel
        found.append(state)
    for ours, theirs in zip(*(state.optimizer.parameters for state in found), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-7)
    for name, value in found[1].optimizer.memory["velocity"].items():
        torch.testing.assert_close(found[0].optimizer.memory["velocity"][name], value, rtol=2e-6, atol=1e-7)


def test_copies_are_those_of_the_weights_after_replays() -> None:
    group, machine = searched(3), compute("cuda", "bf16")
    backbone = Trainer(group, machine).train(states.fresh(group, machine)).model.resnet()
    assert backbone is not None
    for conv in backbone.convolutions():
        assert conv.copy is not None
        assert torch.equal(conv.copy[1], conv.taps().bfloat16())


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_stopped_and_resumed_it_is_the_same_to_the_bit(precision: str) -> None:
    group, machine = searched(3), compute("cuda", precision)
    saved: list[tuple[dict[str, torch.Tensor], PlainValues]] = []
    whole = Trainer(group, machine).train(states.fresh(group, machine))
    left = iter([False] * 12 + [True])
    with pytest.raises(Stopped):
        Trainer(group, machine, lambda *state: saved.append(state), left.__next__).train(states.fresh(group, machine))
    resumed = Trainer(group, machine).train(states.restore(*unpack(pack(*saved[-1])), group, machine))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_company_changes_a_fused_member_by_rounding_only(precision: str) -> None:
    """How many rows a program sums depends on the number of members."""
    machine = compute("cuda", precision)
    found = []
    for members in (3, 1):
        group = images(3)
        group = replace(group, members=group.members[:members])
        trainer, state = Trainer(group, machine), states.fresh(group, machine)
        with machine.settings():
            states.begin_task(state, group)
            state.model.train()
            trainer.train_step(state, draw_epoch(group, state.memories, 0, 0).to(machine.device), 0)
        kept = {name: value[:1].double() for name, value in state.optimizer.memory["velocity"].items() if value.numel()}
        found.append(kept)
    together, alone = found
    for name, value in alone.items():
        assert float((together[name] - value).norm() / value.norm()) < 0.02, name


def test_begun_on_the_cpu_and_gone_on_with_on_the_gpu() -> None:
    group = toy_group(toy_dataset([90] * 6), "md-cg", [(0, 30, {"lam": 0.5}), (1, 60, {"lam": 1.0})])
    saved: list[tuple[dict[str, torch.Tensor], PlainValues]] = []
    cpu, gpu = compute("cpu", "fp64"), compute("cuda", "fp64")
    left = iter([False] * 17 + [True])
    with pytest.raises(Stopped):
        Trainer(group, cpu, lambda *state: saved.append(state), left.__next__).train(states.fresh(group, cpu))

    def go_on(machine_name: str) -> State:
        machine = cpu if machine_name == "cpu" else gpu
        return Trainer(group, machine).train(states.restore(*unpack(pack(*saved[-1])), group, machine))

    here, there = go_on("cpu"), go_on("gpu")
    for name, value in here.model.state_dict().items():
        torch.testing.assert_close(there.model.state_dict()[name].cpu(), value, rtol=0, atol=1e-8)
    assert (here.correct == there.correct).all()


@pytest.mark.parametrize("head", ["fitted-gates", "fitted-classifier"])
def test_a_head_is_fitted_as_on_the_cpu(head: str) -> None:
    """Of all members at once, whose memories differ in size; and in bf16, with features of the fused kernels."""
    who: list[tuple[int, int, dict[str, float]]] = [(seed, 12 + 13 * (seed % 2), {}) for seed in range(3)]
    group = toy_group(toy_dataset([90] * 6), "md-cg", who, head=head)
    here, there = (
        Trainer(group, machine).train(states.fresh(group, machine)).model.state_dict()
        for machine in (compute("cpu", "fp64"), compute("cuda", "fp64"))
    )
    for name, value in here.items():
        torch.testing.assert_close(there[name].cpu(), value, rtol=1e-5, atol=1e-6)
    fused = toy_group(toy_dataset([60] * 4, side=32, channels=3), "md-cg", who, tasks=2, head=head, backbone="resnet20")
    machine = compute("cuda", "bf16")
    state = Trainer(fused, machine).train(states.fresh(fused, machine))
    assert not state.failures(fused)
    assert all(torch.isfinite(value).all() for value in state.model.state_dict().values())


def test_a_shortage_of_memory_is_met_with_fewer_members(cli: Cli, runs: Path) -> None:
    """Room for about three of eight: halved, and halved again."""
    machine = compute("cuda", "tf32")
    members: list[tuple[int, int, dict[str, float]]] = [(seed, 20, {}) for seed in range(8)]
    group = toy_group(load("digits"), "replay", members, tasks=2, backbone="resnet20", batch_size=400)
    fit = members_that_fit(group, machine)
    free, total = torch.cuda.mem_get_info()
    room = torch.cuda.memory_reserved() + 3 * USABLE * free / fit
    torch.cuda.set_per_process_memory_fraction(room / total)  # of which nobody asking for free memory is told
    try:
        words = ["run", "--scenario", "digits-2", "--method", "replay", "--memory", "20", "--epochs", "1", "--json"]
        answer = cli(*words, "--backbone", "resnet20", "--batch-size", "400", "--seeds", "0-7", "--out", runs)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert fit > 8
    assert "too small for 8 runs together; going on with 4" in answer.err
    assert len(json.loads(answer.out)["runs"]) == 8


@pytest.mark.parametrize(("method", "precision"), [("md-cg", "bf16"), ("md-cg", "tf32"), ("der", "bf16")])
def test_a_watched_run_is_the_same_to_the_bit(method: str, precision: str) -> None:
    """In graphs and fused kernels too, with a probe that looks in the middle of an epoch."""
    machine = compute("cuda", precision)
    group = toy_group(
        toy_dataset([320] * 4, side=32, channels=3),
        method,
        [(seed, 40 + 20 * seed, {}) for seed in range(3)],
        tasks=2,
        backbone="resnet20",
        batch_size=32,
        epochs=2,
        lr=0.01,
    )
    probes = probes_for(group)
    alone, _ = states.dump(Trainer(group, machine).train(states.fresh(group, machine)))
    state = Trainer(group, machine, probes=ProbeSet(probes, check=True)).train(states.fresh(group, machine))
    watched, _ = states.dump(state)
    assert all(torch.equal(alone[name], watched[name]) for name in alone if not name.startswith("measured."))
    assert {row["probe"] for row in state.measured[0]} == set(probes)
    assert any(row["step"] for row in state.measured[0])


@pytest.mark.parametrize("augment", [("jitter", "mixup"), ("jitter", "randaugment", "cutmix")])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_numbers_of_each_member(optimizer: str, augment: tuple[str, ...]) -> None:
    """Schedules, clipping, smoothing and augmentations: as graphs and without, and close to the CPU.

    RandAugment takes the nearest pixel, and which that is may hang on the last digit: it is not compared with the CPU.
    """
    numbers: list[dict[str, float]] = [
        {"lr": 0.01},
        {"lr": 0.002, "weight_decay": 0.01, "clip": 1.0, "warmup": 0.2, "label_smoothing": 0.1, "mix_alpha": 0.4},
    ]
    who: list[tuple[int, int, dict[str, float]]] = [(0, 40, {}), (1, 60, {})]
    dataset = toy_dataset([320, 280, 320, 300], side=8, channels=3)  # larger ones would keep the CPU for minutes
    words: dict[str, Any] = {"backbone": "resnet20", "batch_size": 32, "epochs": 1, "schedule": "cosine"}
    group = toy_group(dataset, "replay", who, tasks=2, numbers=numbers, optimizer=optimizer, augment=augment, **words)
    gpu, cpu = compute("cuda", "fp64"), compute("cpu", "fp64")
    plain, graphed = Trainer(group, gpu), Trainer(group, gpu)
    plain.graphs = False
    wanted, found = plain.train(states.fresh(group, gpu)), graphed.train(states.fresh(group, gpu))
    for name, value in wanted.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], value, rtol=1e-6, atol=1e-7)
    if "randaugment" not in augment:
        here = Trainer(group, cpu).train(states.fresh(group, cpu))
        assert [rows[0]["loss"] for rows in found.history] == pytest.approx(
            [rows[0]["loss"] for rows in here.history], rel=1e-3
        )
