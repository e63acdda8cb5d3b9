"""The fused update of SGD against the plain one. Without a GPU, Triton's interpreter runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mdcg.models import kernels
from mdcg.models.layers import Conv2d
from mdcg.testing import groups, toy_dataset
from mdcg.train.epoch import steps_per_epoch
from mdcg.train.optimizer import SGD, AdamW, Optimizer
from mdcg.train.precision import Compute

pytest.importorskip("triton")
from mdcg.models.kernels import copies, update

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = {
    "backbone.wide": (2, 1500),  # of several programs
    "backbone.odd": (4097,),
    "backbone.frozen": (6,),
    "backbone.none": (3, 0),
    "head.weight": (7, 3),
    "head.bias": (1,),
}
STEPS = 3


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=DEVICE)


ALIKE: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}
DECAYING: dict[str, Any] = {"lr": 0.03, "momentum": 0.5, "lr_below": {"head.": 0.7}, "weight_decay": 0.2}
DIFFERENT: dict[str, Any] = {
    "lr": numbers(0.1, 0.03, 0.2),
    "momentum": numbers(0.9, 0.0, 0.7),
    "lr_below": {"head.": numbers(0.01, 0.5, 0.3)},
    "weight_decay": numbers(0.0, 0.1, 0.01),
    "clip": torch.tensor([1e9, 5.0, torch.inf], device=DEVICE),
}


def alone(number: Any, k: int) -> Any:
    """What the only member of a group has for what member k has."""
    if isinstance(number, dict):
        return {name: alone(own, k) for name, own in number.items()}
    return (
        number if isinstance(number, float) else float(number[k]) if number.dtype == torch.float64 else number[k, None]
    )


class Trained:
    """A convolution, of which a copy is kept, and other parameters, of K members."""

    def __init__(self, members: Sequence[int], make: type[Optimizer] = SGD, half: bool = True, **words: Any) -> None:
        self.members = list(members)
        self.conv = Conv2d(len(members), 16, 16, 3).to(DEVICE)
        self.conv.initialise([np.random.default_rng(k) for k in members])
        self.named: dict[str, nn.Parameter] = {"backbone.conv": self.conv.weight}
        for name, size in SIZES.items():
            self.named[name] = nn.Parameter(self.draw(name, size), requires_grad=name != "backbone.frozen")
        (self.copy,) = copies.copied([self.conv], half)
        self.optimizer = make(**words)
        self.optimizer.follow(self.named.items(), [self.conv])

    def draw(self, what: object, size: Sequence[int]) -> Tensor:
        seeds = [[k, *str(what).encode()] for k in self.members]
        drawn = np.stack([np.random.default_rng(seed).standard_normal(tuple(size), np.float32) for seed in seeds])
        return torch.from_numpy(drawn).to(DEVICE)

    def gradients(self, step: int) -> list[Tensor]:
        """In memory as their parameters."""
        return [
            torch.empty_like(one).copy_(self.draw((step, place), one.shape[1:]))
            for place, one in enumerate(self.optimizer.parameters)
        ]

    def step(self, step: int, active: Tensor | None = None, factor: Tensor | None = None, fused: bool = True) -> None:
        with kernels.use(fused):
            self.optimizer.step(self.gradients(step), active, factor)

    def state(self) -> dict[str, Tensor]:
        velocities = self.optimizer.memory["velocity"]
        return {**{n: p.detach() for n, p in self.named.items()}, **{f"v.{n}": v for n, v in velocities.items()}}


def rounded(values: Tensor) -> Tensor:
    """To bf16; Triton's interpreter cuts off where a GPU rounds."""
    if values.is_cuda:
        return values.bfloat16()
    return (values.contiguous().view(torch.int32) & -(2**16)).view(torch.float32).bfloat16()


@pytest.mark.parametrize(
    ("members", "words", "factor"),
    [
        (1, ALIKE, None),
        (3, ALIKE, None),
        (3, DECAYING, None),
        (1, DECAYING, [0.3]),
        (3, ALIKE, [1.0, 0.25, 0.1]),
        (3, DIFFERENT, None),
        (3, DIFFERENT, [1.0, 0.25, 0.1]),
    ],
)
def test_the_fused_update_is_the_plain_one(
    members: int, words: dict[str, Any], factor: list[float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the copy, which `follow` does not make again; and what is frozen stays as it is."""
    fused, plain = Trained(range(members), **words), Trained(range(members), **words)
    rate = None if factor is None else numbers(*factor)
    for step in range(STEPS):
        fused.step(step, factor=rate)
        plain.step(step, factor=rate, fused=False)
    for name, wanted in plain.state().items():
        torch.testing.assert_close(fused.state()[name], wanted, rtol=2e-6, atol=1e-6, msg=name)
    assert torch.equal(fused.named["backbone.frozen"], fused.draw("backbone.frozen", (6,)))
    assert torch.equal(fused.copy, rounded(fused.conv.taps()))
    monkeypatch.setattr(copies, "_fill", lambda convs, own, half: pytest.fail("copied again") if own else None)
    copies.follow([fused.conv])
    assert copies.copied([fused.conv], half=True)[0] is fused.copy


@pytest.mark.parametrize("factor", [None, [1.0, 0.25, 0.1]])
@pytest.mark.parametrize("words", [ALIKE, DIFFERENT])
def test_company_changes_no_bit(words: dict[str, Any], factor: list[float] | None) -> None:
    """Nor does it whether numbers are the same for all members."""
    words = {name: own for name, own in words.items() if name != "clip"}  # whose norms are sums, see `clipped`
    together = Trained(range(3), **words)
    for step in range(STEPS):
        together.step(step, factor=None if factor is None else numbers(*factor))
    for k in range(3):
        single = Trained([k], **alone(words, k))
        for step in range(STEPS):
            single.step(step, factor=None if factor is None else numbers(factor[k]))
        for name, value in single.state().items():
            assert torch.equal(together.state()[name][k], value[0]), name


def test_members_that_rest_stay_to_the_bit() -> None:
    awake, resting = (Trained(range(3), **DIFFERENT) for _ in range(2))
    before = {name: value.clone() for name, value in resting.state().items()}
    copy = resting.copy.clone()
    awake.step(0)
    resting.step(0, active=torch.tensor([True, False, True], device=DEVICE))
    for name, value in resting.state().items():
        assert torch.equal(value[1], before[name][1]), name
        assert torch.equal(value[::2], awake.state()[name][::2]), name
    assert torch.equal(resting.copy[1], copy[1])
    assert torch.equal(resting.copy[::2], awake.copy[::2])


def test_gradients_in_another_order() -> None:
    """As GEM's are: one vector for each member, cut into parameters."""
    alike, other = (Trained(range(2), **DECAYING) for _ in range(2))
    alike.step(0)
    found = other.gradients(0)
    vector = torch.cat([own.flatten(1) for own in found], 1)
    cut = vector.split([own[0].numel() for own in found], 1)
    with kernels.use(True):
        other.optimizer.step([part.view(own.shape) for part, own in zip(cut, found, strict=True)])
    for name, value in other.state().items():
        assert torch.equal(value, alike.state()[name]), name


def test_other_copies_follow_later() -> None:
    """Those that are turned, for TF32; and one that a checkpoint has outdated."""
    for half in (False, True):
        trained = Trained(range(2), half=half, **ALIKE)
        with torch.no_grad():
            trained.conv.weight.mul_(2)
        trained.step(0)
        wanted = trained.conv.taps().bfloat16() if half else trained.conv.taps().mT
        assert not torch.equal(trained.copy, wanted)
        copies.follow([trained.conv])
        assert torch.equal(trained.copy, wanted)


def test_more_tensors_than_arguments() -> None:
    count = update.MOST // 4 + 9
    both = []
    for fused in (True, False):
        torch.manual_seed(0)
        named = {str(i): nn.Parameter(torch.randn(2, i % 5 + 1, device=DEVICE)) for i in range(count)}
        optimizer = SGD(0.1, 0.9)
        optimizer.follow(named.items())
        with kernels.use(fused):
            for _ in range(2):
                optimizer.step([torch.randn_like(one) for one in named.values()])
        both.append(torch.cat([one.detach().flatten() for one in named.values()]))
    torch.testing.assert_close(*both, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "dtype", "every"), [(AdamW, torch.float32, 1), (SGD, torch.float64, 1), (SGD, torch.float32, 2)]
)
def test_what_has_no_kernel_is_updated_as_before(make: type[Optimizer], dtype: torch.dtype, every: int) -> None:
    """AdamW; numbers of another format, or with gaps between them in memory."""
    found = []
    for fused in (True, False):
        torch.manual_seed(0)
        own = nn.Parameter(torch.randn(2, 3, 8, dtype=dtype, device=DEVICE)[..., ::every])
        optimizer = make(0.1) if make is AdamW else SGD(0.1, 0.9)
        optimizer.follow([("p", own)])
        with kernels.use(fused):
            optimizer.step([torch.randn_like(own)])
        found.append(own.detach())
    assert torch.equal(*found)


def test_a_head_that_grows() -> None:
    fused, plain = SGD(0.1, 0.9), SGD(0.1, 0.9)
    for optimizer, use in ((fused, True), (plain, False)):
        torch.manual_seed(0)
        weight = torch.randn(2, 4, 3, device=DEVICE)
        for columns in (3, 5):
            weight = torch.cat([weight, torch.randn(2, 4, columns - weight.shape[2], device=DEVICE)], 2)
            parameter = nn.Parameter(weight)
            optimizer.follow([("head.weight", parameter)])
            with kernels.use(use):
                optimizer.step([torch.randn_like(parameter)])
            weight = parameter.detach()
    torch.testing.assert_close(fused.parameters[0], plain.parameters[0], rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(fused.velocity["head.weight"], plain.velocity["head.weight"], rtol=2e-6, atol=1e-6)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the interpreter's; for GPUs see `test_gpu`")
def test_whole_runs_alone_in_company_and_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, with members that rest, a head that grows and a schedule; and close to those of the plain update."""
    group = groups.toy_group(
        toy_dataset([4, 12, 5, 9]),  # few: the interpreter takes programs one by one, of which each image needs some
        "replay",
        [(0, 4, {}), (1, 4, {})],
        tasks=2,
        epochs=1,
        batch_size=5,
        numbers=[{"lr": 0.1}, {"lr": 0.02, "momentum": 0.5, "weight_decay": 0.01, "clip": 1.0, "head_lr": 0.05}],
        schedule="cosine",
    )
    assert all(len(set(steps_per_epoch(group, task).tolist())) == 2 for task in range(2))  # so that one rests
    plain = groups.trained(group)
    monkeypatch.setattr(update, "BLOCK", 2**14)
    monkeypatch.setattr(Compute, "fused", True)
    monkeypatch.setattr(SGD, "_update", lambda *arguments: pytest.fail("not fused"))
    fused = groups.trained(group)
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(fused.model.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)
    groups.check_company(group, fused)
    groups.check_resumed(group, fused)
