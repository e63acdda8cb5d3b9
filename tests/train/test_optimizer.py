"""Optimisers, schedules, warm-up and clipping against torch.optim, members of one group against one of torch's each."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mdcg.testing.groups import check_company, check_resumed, same_member, trained
from mdcg.testing.methods import check_fork
from mdcg.train import optimizer as optimizers
from mdcg.train import state as states
from mdcg.train.fork import founders
from mdcg.train.group import Group, Numbers, OptimizerName, ScheduleName
from mdcg.train.loop import Trainer
from mdcg.train.optimizer import AdamW, clipped, make_optimizer
from mdcg.train.precision import compute
from mdcg.train.schedule import factors
from tests.conftest import toy_dataset, toy_group

CPU64 = compute("cpu", "fp64")
STEPS = 50
SHAPES = [(4, 3), (5,), (2, 1, 3)]
NUMBERS = [
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "warmup": 0.2, "clip": 0.5},
    {"lr": 0.03, "momentum": 0.0, "weight_decay": 0.0, "warmup": 0.0, "clip": 0.0},
    {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.3, "warmup": 0.5, "clip": 3.0, "backbone_lr": 0.02, "head_lr": 0.2},
]


def group_with(numbers: list[dict[str, Any]], **training: Any) -> Group:
    members: list[tuple[int, int, dict[str, Any]]] = [(seed, 0, {}) for seed in range(len(numbers))]
    return toy_group(toy_dataset([8] * 4), "naive", members, numbers=numbers, **training)


def torchs(numbers: Numbers, training: Any, parameters: list[nn.Parameter]) -> tuple[Any, Any]:
    """Torch's optimiser and schedule of one member: the backbone's parameter, the head's, one of neither."""
    rates = (numbers.backbone_lr, numbers.head_lr, numbers.lr)
    groups = [
        {"params": [one], "lr": numbers.lr if lr is None else lr} for one, lr in zip(parameters, rates, strict=True)
    ]
    decay: dict[str, Any] = {"lr": numbers.lr, "weight_decay": numbers.weight_decay}
    optimizer: Any = (
        torch.optim.SGD(groups, momentum=numbers.momentum, **decay)
        if training.optimizer == "sgd"
        else torch.optim.AdamW(groups, **decay)
    )
    rising = round(numbers.warmup * STEPS)
    later: Any = {
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - rising),
        "step": lambda: torch.optim.lr_scheduler.MultiStepLR(
            optimizer, [-(-STEPS // 2) - rising, -(-3 * STEPS // 4) - rising]
        ),
    }[training.schedule]
    if not rising:
        return optimizer, later()
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / rising))
    return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, later()], [rising])


@pytest.mark.parametrize("by_member", [True, False])  # as on a CPU, as on a GPU
@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_against_torch(
    optimizer: OptimizerName, schedule: ScheduleName, by_member: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty steps in float64: three members in one group, with other numbers each, against one of torch's each."""
    monkeypatch.setattr(optimizers, "by_member", lambda like: by_member)
    group = group_with(NUMBERS, optimizer=optimizer, schedule=schedule)
    ours = make_optimizer(group, CPU64)
    torch.manual_seed(0)
    names = ("backbone.a", "head.b", "c")
    parameters = [nn.Parameter(torch.randn(3, *shape, dtype=torch.float64)) for shape in SHAPES]
    ours.follow(zip(names, parameters, strict=True))
    theirs = [[nn.Parameter(one[k].detach().clone()) for one in parameters] for k in range(3)]
    references = [
        torchs(member.numbers, group.training, own) for member, own in zip(group.members, theirs, strict=True)
    ]
    tables = [factors(schedule, member.numbers.warmup, STEPS, range(STEPS)) for member in group.members]
    for step in range(STEPS):
        gradients = [torch.randn_like(one) for one in parameters]
        ours.step(gradients, factor=torch.tensor([table[step] for table in tables], dtype=torch.float64))
        for k, (own, (reference, scheduler)) in enumerate(zip(theirs, references, strict=True)):
            for one, gradient in zip(own, gradients, strict=True):
                one.grad = gradient[k].clone()
            if clip := group.members[k].numbers.clip:
                nn.utils.clip_grad_norm_(own, clip)
            reference.step()
            scheduler.step()
    for k, own in enumerate(theirs):
        for mine, other in zip(parameters, own, strict=True):
            torch.testing.assert_close(mine[k], other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_one_number_for_all(optimizer: OptimizerName) -> None:
    """Plain floats and foreach loops where members agree: the same as members that are told apart."""
    agree = make_optimizer(group_with([NUMBERS[0]] * 2, optimizer=optimizer), CPU64)
    apart = make_optimizer(group_with([NUMBERS[0], {**NUMBERS[2], "backbone_lr": None}], optimizer=optimizer), CPU64)
    assert isinstance(agree.lr, float)
    assert isinstance(apart.lr, Tensor)
    one = nn.Parameter(torch.randn(2, 7, 3))
    other = nn.Parameter(one.detach().clone())
    agree.follow([("p", one)])
    apart.follow([("p", other)])
    for _ in range(STEPS):
        gradient = torch.randn(2, 7, 3)
        agree.step([gradient])
        apart.step([gradient])
    assert torch.equal(one[0], other[0])


class Operations(TorchDispatchMode):
    """Notes what is launched, views apart."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not function.is_view:
            self.names.append(str(function).removeprefix("aten."))
        return function(*args, **(kwargs or {}))


def test_the_papers_step_is_three_loops_over_all_parameters() -> None:
    """Where nothing else is asked for: no number on the device, nothing for each member or parameter."""
    ours = make_optimizer(group_with([{}] * 3), CPU64)
    ours.follow((f"backbone.{i}", nn.Parameter(torch.randn(3, 4, dtype=torch.float64))) for i in range(5))
    with Operations() as launched:
        ours.step([torch.randn_like(one) for one in ours.parameters])
    names = [name for name in launched.names if "rand" not in name]
    assert names == ["_foreach_mul_.Scalar", "_foreach_add_.List", "_foreach_add_.List"]


@given(
    gradients=st.lists(st.floats(-100, 100), min_size=4, max_size=4),
    most=st.lists(st.floats(0.01, 100), min_size=2, max_size=2),
)
def test_clipping_is_torchs(gradients: list[float], most: list[float]) -> None:
    whole = torch.tensor(gradients, dtype=torch.float64).view(2, 2)
    parts = [whole[:, :1].clone(), whole[:, 1:].clone()]
    found = clipped(parts, torch.tensor(most, dtype=torch.float64))
    for k in range(2):
        theirs = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in parts]
        for one, part in zip(theirs, parts, strict=True):
            one.grad = part[k].clone()
        nn.utils.clip_grad_norm_(theirs, most[k])
        for mine, one in zip(found, theirs, strict=True):
            torch.testing.assert_close(mine[k], one.grad, rtol=1e-12, atol=1e-12)


@given(
    st.sampled_from(["constant", "cosine", "step"]),
    st.floats(0, 0.99),
    st.integers(1, 60),
    st.data(),
)
def test_schedules_do_not_depend_on_the_epochs(
    schedule: ScheduleName, warmup: float, total: int, data: st.DataObject
) -> None:
    """Whatever the parts in which they are asked for, the factors are the same; all lie between 0 and 1."""
    whole = factors(schedule, warmup, total, range(total))
    cut = data.draw(st.integers(0, total))
    parts = [*factors(schedule, warmup, total, range(cut)), *factors(schedule, warmup, total, range(cut, total))]
    assert whole.tolist() == parts
    assert (whole >= 0).all()
    assert (whole <= 1).all()


def test_new_columns_start_as_all_others_did() -> None:
    """A head that grows: its old columns as torch's, its new ones as a new parameter of torch's."""
    torch.manual_seed(1)
    old, new = torch.randn(1, 3, 2, dtype=torch.float64), torch.randn(1, 3, 2, dtype=torch.float64)
    ours = AdamW(0.1)
    ours.follow([("head.weight", nn.Parameter(old.clone()))])
    first = nn.Parameter(old[0].clone())
    reference = torch.optim.AdamW([first], lr=0.1, weight_decay=0.0)
    for _ in range(5):
        gradient = torch.randn_like(old)
        ours.step([gradient])
        first.grad = gradient[0].clone()
        reference.step()
    grown = nn.Parameter(torch.cat([ours.parameters[0].detach(), new], 2))
    dumped = copy.deepcopy(ours.dump())
    ours = AdamW(0.1)  # as after an interruption
    ours.load(dumped, CPU64.device)
    ours.follow([("head.weight", grown)])
    second = nn.Parameter(new[0].clone())
    reference.add_param_group({"params": [second], "lr": 0.1, "weight_decay": 0.0})
    for _ in range(5):
        gradient = torch.randn_like(grown)
        ours.step([gradient])
        first.grad, second.grad = gradient[0, :, :2].clone(), gradient[0, :, 2:].clone()
        reference.step()
    torch.testing.assert_close(grown[0], torch.cat([first, second], 1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_members_at_rest_stay_to_the_bit(optimizer: OptimizerName) -> None:
    """Their weights, and all that is remembered of them."""
    ours = make_optimizer(group_with(NUMBERS[:2], optimizer=optimizer), CPU64)
    parameter = nn.Parameter(torch.randn(2, 3, dtype=torch.float64))
    ours.follow([("p", parameter)])
    ours.step([torch.randn_like(parameter)])
    before = {"p": parameter.detach().clone(), **copy.deepcopy(ours.dump())}
    ours.step([torch.randn_like(parameter)], active=torch.tensor([True, False]))
    for name, value in {"p": parameter, **ours.dump()}.items():
        assert torch.equal(value[1], before[name][1]), name
        assert not torch.equal(value[0], before[name][0]), name


COUNTS = [20, 33, 25, 28, 22, 31]
SEARCHED = [
    {"lr": 0.05, "weight_decay": 0.0},
    {"lr": 0.01, "weight_decay": 0.01, "warmup": 0.3, "clip": 1.0, "head_lr": 0.1},
    {"lr": 0.05, "weight_decay": 0.05, "momentum": 0.5},
]


def searched(method: str, **training: Any) -> Group:
    size = 20
    members: list[tuple[int, int, dict[str, Any]]] = [(0, size, {}), (1, size, {}), (1, size, {})]
    return toy_group(toy_dataset(COUNTS), method, members, numbers=SEARCHED, **training)


@pytest.mark.parametrize(
    ("method", "optimizer", "schedule"),
    [
        ("md-cg", "adamw", "cosine"),
        pytest.param("md-cg", "sgd", "constant", marks=pytest.mark.slow),
        pytest.param("gem", "adamw", "step", marks=pytest.mark.slow),
        pytest.param("gdumb", "sgd", "cosine", marks=pytest.mark.slow),
    ],
)
def test_alone_in_company_and_resumed(method: str, optimizer: str, schedule: str) -> None:
    """To the bit, for members that differ in their numbers: heads that grow, networks made anew, members that rest."""
    group = searched(method, optimizer=optimizer, schedule=schedule)
    together = trained(group)
    check_company(group, together)
    check_resumed(group, together)
    check_fork(group, together)


@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "adamw"])
def test_the_path_of_graphs(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps counted on the device, and learning rates looked up there; without a GPU, work is not captured but done."""
    monkeypatch.setattr("mdcg.train.graph.capture", lambda work, pool: work)
    counts = [70, 95, 60, 90, 80, 75]
    members: list[tuple[int, int, dict[str, Any]]] = [(0, 60, {}), (1, 60, {}), (1, 60, {})]
    group = toy_group(toy_dataset(counts), "replay", members, numbers=SEARCHED, optimizer=optimizer, schedule="cosine")
    plain, graphed = Trainer(group, CPU64), Trainer(group, CPU64)
    plain.graphs, graphed.graphs = False, True
    wanted, found = plain.train(states.fresh(group, CPU64)), graphed.train(states.fresh(group, CPU64))
    assert all(same_member(wanted, k, found, k) for k in range(3))


def test_who_shares_the_first_task() -> None:
    """Members that differ in a number do not."""
    group = searched("md-cg")
    assert founders(group)[1] == [0, 1, 2]
    alike = dataclasses.replace(group.members[2], memory=47)
    assert founders(dataclasses.replace(group, members=(*group.members, alike)))[1] == [0, 1, 2, 2]


def test_a_failure_is_told_with_the_numbers_that_differ() -> None:
    group = toy_group(
        toy_dataset([20] * 4), "naive", [(4, 0, {}), (4, 0, {})], tasks=2, numbers=[{"lr": 0.01}, {"lr": 1e30}]
    )
    state = trained(group)
    assert list(state.failures(group)) == [1]
    assert "the loss of seed 4, lr 1e+30 is not finite in task 1" in state.failures(group)[1]
