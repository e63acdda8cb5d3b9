"""What only a GPU can show. The same paths run on the CPU in the other tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mdcg.data import load
from mdcg.tensors import pack, unpack
from mdcg.train import state as states
from mdcg.train.capacity import USABLE, members_that_fit
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.signals import Stopped
from mdcg.train.state import Row, State
from tests.conftest import Cli, toy_dataset, toy_group

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def images(members: int) -> Group:
    """MD-CG with a ResNet-20 on images of CIFAR's shape."""
    dataset = toy_dataset([320] * 4, side=32, channels=3)
    who = [(seed, 40 + 20 * (seed % 3), {"lam": 0.25 + seed % 2}) for seed in range(members)]
    return toy_group(dataset, "md-cg", who, tasks=2, backbone="resnet20", batch_size=32, epochs=1, rate=0.01)


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
            followed = states.revive(*states.dump(state), group, gpu)
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


@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 2e-3), ("bf16", 2e-2)])
def test_fused_losses_are_near_those_of_plain_kernels(
    precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fused = steps(precision, 3, lead=True)
    monkeypatch.setenv("MDCG_KERNELS", "plain")
    _, plain = steps(precision, 3, lead=True)
    assert np.abs(np.array(fused) - plain).max() < tolerance


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_graphs_give_the_bits_of_plain_steps(precision: str) -> None:
    """Of the fused kernels, that is: cuDNN may add in another order each time."""
    group, machine = images(3), compute("cuda", precision)
    plain, graphed = Trainer(group, machine), Trainer(group, machine)
    plain.graphs = False
    wanted, got = plain.train(states.fresh(group, machine)), graphed.train(states.fresh(group, machine))
    same = {name: torch.equal(got.model.state_dict()[name], value) for name, value in wanted.model.state_dict().items()}
    assert all(same.values()), [name for name, equal in same.items() if not equal]
    assert got.history == wanted.history


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_company_does_not_change_a_fused_member(precision: str) -> None:
    """The backbone's kernels compute each member by itself; the head's products are batched, to rounding."""
    group, machine = images(3), compute("cuda", precision)
    alone = toy_group(
        group.dataset,
        "md-cg",
        [(1, 60, {"lam": 1.25})],
        tasks=2,
        backbone="resnet20",
        batch_size=32,
        epochs=1,
        rate=0.01,
    )
    first = [Trainer(g, machine).train(states.fresh(g, machine), tasks=1) for g in (group, alone)]
    together, lone = (state.model.state_dict() for state in first)
    for name, value in lone.items():
        torch.testing.assert_close(together[name][1:2], value, rtol=0.05, atol=0.01)


def test_begun_on_the_cpu_and_gone_on_with_on_the_gpu() -> None:
    group = toy_group(toy_dataset([90] * 6), "md-cg", [(0, 30, {"lam": 0.5}), (1, 60, {"lam": 1.0})])
    saved: list[tuple[dict[str, torch.Tensor], Row]] = []
    cpu, gpu = compute("cpu", "fp64"), compute("cuda", "fp64")
    left = iter([False] * 17 + [True])
    with pytest.raises(Stopped):
        Trainer(group, cpu, lambda *state: saved.append(state), left.__next__).train(states.fresh(group, cpu))

    def go_on(machine_name: str) -> State:
        machine = cpu if machine_name == "cpu" else gpu
        return Trainer(group, machine).train(states.revive(*unpack(pack(*saved[-1])), group, machine))

    here, there = go_on("cpu"), go_on("gpu")
    for name, value in here.model.state_dict().items():
        torch.testing.assert_close(there.model.state_dict()[name].cpu(), value, rtol=0, atol=1e-8)
    assert (here.correct == there.correct).all()


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
