"""The fused kernels against the plain modules in float64. Without a GPU, Triton's interpreter runs them."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mdcg.errors import MdcgError
from mdcg.methods.gem import complementary
from mdcg.models import Model, kernels
from mdcg.models.backbones import MEMBERED
from mdcg.models.layers import BatchNorm2d, Conv2d
from mdcg.models.resnet import ResNet
from mdcg.train import state as states
from mdcg.train.augment import Pixels
from mdcg.train.epoch import draw_epoch
from mdcg.train.evaluate import evaluate
from mdcg.train.loop import Trainer
from mdcg.train.precision import Compute, compute
from mdcg.train.rehearsal import rehearse
from tests.conftest import toy_dataset, toy_group

pytest.importorskip("triton")
from triton.runtime.errors import PTXASError

from mdcg.models.kernels import (
    conv,
    copies,
    images,
    launch,
    layer,
    losses,
    norm,
    patch,
    pivot,
    pool,
    tiles,
    update,
    walk,
)
from mdcg.models.kernels.copies import copied, follow
from mdcg.models.kernels.launch import compile_ahead
from mdcg.models.kernels.layer import Layer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def resnet(
    members: int,
    seed: int,
    dtype: torch.dtype,
    widths: tuple[int, ...] = (16, 32),
    blocks: int = 2,
    large_stem: bool = False,
) -> ResNet:
    """Weights and statistics as if it had been trained a little."""
    torch.manual_seed(seed)
    net = ResNet(members, 3, widths, blocks, large_stem, fan="in").double()
    for value in net.state_dict().values():
        value.copy_(torch.rand_like(value) + 0.5 if value.ndim == 2 else 0.1 * torch.randn_like(value))
    return net.to(DEVICE, dtype)


def relative(ours: Tensor, reference: Tensor) -> float:
    return float(((ours.double() - reference).norm() / reference.norm()).detach())


@pytest.mark.parametrize(
    ("members", "images", "side", "blocks", "widths", "large_stem"),
    [
        (1, 3, 8, 2, (16, 32), False),
        (2, 3, 7, 1, (16, 32), False),
        (2, 3, 15, 1, (16, 32), True),
        (1, 3, 16, 1, (64, 128), True),
        pytest.param(1, 5, 64, 2, (64, 128, 256, 512), True, marks=pytest.mark.slow),
    ],
)
def test_training_pass_is_that_of_the_modules(
    members: int, images: int, side: int, blocks: int, widths: tuple[int, ...], large_stem: bool
) -> None:
    """Features, gradients of every parameter, and running statistics.

    With odd sides, and sides of several strips; narrow layers, and wide ones down to maps of one pixel; both stems.
    """
    fused, plain = (
        resnet(members, side, dtype, widths, blocks, large_stem) for dtype in (torch.float32, torch.float64)
    )
    x = torch.randn(members, images, 3, side, side, device=DEVICE)
    with kernels.use(True):
        features = fused(x)
    reference = plain(x.double())
    assert relative(features, reference) < 1e-5
    towards = torch.randn_like(features)
    gradients = torch.autograd.grad(features, list(fused.parameters()), towards)
    references = torch.autograd.grad(reference, list(plain.parameters()), towards.double())
    for (name, parameter), ours, theirs in zip(fused.named_parameters(), gradients, references, strict=True):
        assert relative(ours, theirs) < 2e-4, name
        assert ours.stride() == parameter.stride(), name  # or the optimizer's loops over all tensors would be slow
    for (name, ours), theirs in zip(fused.named_buffers(), plain.buffers(), strict=True):
        assert relative(ours, theirs) < 1e-5, name


@pytest.mark.parametrize(("widths", "large_stem"), [((16, 32), False), ((64, 128), True)])
@pytest.mark.parametrize("training", [True, False])
def test_what_is_no_number_reaches_the_features(training: bool, widths: tuple[int, ...], large_stem: bool) -> None:
    """Through every ReLU and the pooling, from the first convolution of one member, and to that member alone."""
    net = resnet(2, 0, torch.float32, widths, 1, large_stem).train(training)
    with torch.no_grad():
        net.conv.weight[1] = torch.nan
    with kernels.use(True), torch.no_grad():
        features = net(torch.randn(2, 3, 3, 8, 8, device=DEVICE))
    assert features[0].isfinite().all()
    assert features[1].isnan().all()


@pytest.mark.slow
@pytest.mark.parametrize("taps", [1, 3])
def test_a_weight_gradient_in_few_parts(monkeypatch: pytest.MonkeyPatch, taps: int) -> None:
    """With many members each program sums over several tiles or walks: here all of them do; of one tap, or of three."""
    usual = tiles.weight_tile

    def chosen(own: Layer) -> tiles.Tile:
        return usual(own)._replace(programs=2, taps=taps if own.conv.kernel == 3 else 1)

    monkeypatch.setattr(layer, "weight_tile", chosen)
    fused, plain = resnet(1, 3, torch.float32, blocks=1), resnet(1, 3, torch.float64, blocks=1)
    x = torch.randn(1, 9, 3, 8, 8, device=DEVICE)
    with kernels.use(True):
        features = fused(x)
    towards = torch.randn_like(features)
    gradients = torch.autograd.grad(features, list(fused.parameters()), towards)
    references = torch.autograd.grad(plain(x.double()), list(plain.parameters()), towards.double())
    for (name, _), ours, theirs in zip(fused.named_parameters(), gradients, references, strict=True):
        assert relative(ours, theirs) < 2e-4, name


@pytest.mark.parametrize(
    ("inputs", "side", "stride", "chosen", "parts"),
    [
        (3, 8, 1, {"programs": 36}, 18),  # `patch`
        (3, 8, 1, {"programs": 8}, 4),
        (16, 16, 1, {"programs": 20}, 10),  # `walk`
        (16, 16, 1, {"programs": 8}, 4),
        (32, 8, 2, {"programs": 192, "rows": 16, "taps": 3, "columns": 8}, 16),  # `conv`, in blocks of the weight
        (32, 8, 2, {"programs": 108, "deep": 16}, 3),
        (32, 8, 2, {"programs": 54, "adds": False}, 3),
    ],
)
def test_parts_of_a_weight_gradient_are_added_up(
    monkeypatch: pytest.MonkeyPatch, inputs: int, side: int, stride: int, chosen: dict[str, Any], parts: int
) -> None:
    """In groups or, if they are few, all at once; and on a GPU to the same bits the next time."""
    usual, span = tiles.weight_tile, layer._span
    counts: list[int] = []

    def noted_span(parts: int) -> int:
        counts.append(parts)
        return span(parts)

    monkeypatch.setattr(layer, "weight_tile", lambda own: usual(own)._replace(**chosen))
    monkeypatch.setattr(layer, "_span", noted_span)
    members, images, outputs = 2, 9, 16
    torch.manual_seed(side)
    module, norms = Conv2d(members, inputs, outputs, 3, stride).to(DEVICE), BatchNorm2d(members, outputs).to(DEVICE)
    x = torch.randn(members, images, side, side, inputs, device=DEVICE)
    dy = torch.randn(members, images, side // stride, side // stride, outputs, device=DEVICE)
    found = []
    for _ in range(2 if DEVICE.type == "cuda" else 1):  # the interpreter has an order
        tickets = torch.zeros(3, tiles.PROGRAMS, dtype=torch.int32, device=DEVICE)
        found.append(Layer(module, norms, module.taps(), None, "ieee", tickets).weight_gradient(x, dy))
    assert set(counts) == {parts}
    assert all(torch.equal(found[0], again) for again in found[1:])
    for k in range(members):
        weight = torch.zeros(module.weight.shape[1:], dtype=torch.float64, device=DEVICE, requires_grad=True)
        y = F.conv2d(x[k].permute(0, 3, 1, 2).double(), weight, stride=stride, padding=1)
        (wanted,) = torch.autograd.grad(y, weight, dy[k].permute(0, 3, 1, 2).double())
        assert relative(found[0][k], wanted) < 1e-6


def test_variance_survives_a_large_mean() -> None:
    """Sums of squares lose all digits when the mean is large; sums around the running mean do not."""
    fused, plain = resnet(1, 0, torch.float32, blocks=1), resnet(1, 0, torch.float64, blocks=1)
    x = torch.randn(1, 4, 3, 6, 6, device=DEVICE) + 1000
    with torch.no_grad():
        for _ in range(80):  # the running mean finds the mean
            plain(x.double())
        fused.load_state_dict(plain.state_dict())
        with kernels.use(True):
            features = fused(x)
        assert relative(features, plain(x.double())) < 1e-3


def test_inference_is_that_of_the_modules() -> None:
    fused, plain = resnet(2, 1, torch.float32).eval(), resnet(2, 1, torch.float64).eval()
    x = torch.randn(2, 9, 3, 8, 8, device=DEVICE)
    with kernels.use(True), torch.no_grad():
        features = fused(x[:, 4:])  # a part of a batch, as teachers see it
    assert relative(features, plain(x[:, 4:].double())) < 1e-5
    for ours, theirs in zip(fused.buffers(), plain.buffers(), strict=True):
        assert relative(ours, theirs) < 1e-6  # untouched


def test_views_are_those_of_plain_code() -> None:
    dataset = toy_dataset([8, 8], side=6, channels=3)
    pixels = Pixels.of(dataset, DEVICE, torch.float32, padding=2)
    images = dataset.train.images.to(DEVICE)
    index = torch.tensor([3, 3, 15, 0, 7], device=DEVICE)
    corner = torch.tensor([[0, 0], [4, 4], [2, 2], [1, 3], [3, 0]], device=DEVICE)
    flipped = torch.tensor([False, True, True, False, True], device=DEVICE)
    plain = pixels.view(images, index, corner, flipped)
    with kernels.use(True):
        fused = pixels.view(images, index, corner, flipped)
    torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-6)


def test_members_do_not_depend_on_company() -> None:
    """A member's features are the same, alone or among others; how sums are cut into parts may differ."""
    together = resnet(3, 2, torch.float32, blocks=1)
    x = torch.randn(3, 2, 3, 8, 8, device=DEVICE)
    alone = ResNet(1, 3, (16, 32), 1, large_stem=False, fan="in").to(DEVICE)
    alone.load_state_dict({name: value[1:2] for name, value in together.state_dict().items()})
    with kernels.use(True), torch.no_grad():
        torch.testing.assert_close(together(x)[1:2], alone(x[1:2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 19, 49, 64, 65])
def test_pivots_are_those_of_plain_code(n: int) -> None:
    """Of well and ill conditioned matrices, where nothing is to be done, and of more tasks than the kernel holds."""
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(6, n, n + 3, generator=generator, dtype=torch.float64)
    A[1:3] = 0.02 * A[1:3] + A[1:3, :1]
    M, q = A @ A.mT + 1e-3 * torch.eye(n), torch.randn(6, n, generator=generator, dtype=torch.float64)
    q[5].abs_()
    M, q = M.to(DEVICE), q.to(DEVICE)
    plain = complementary(M, q)
    with kernels.use(True):
        fused = complementary(M, q)
    torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-12)
    assert not fused[5].any()


def test_what_is_out_of_reach_stays_plain() -> None:
    assert kernels.fit(256 * 32 * 32 * 16, 32)
    assert not kernels.fit(256 * 32 * 32 * 16, 129)  # rows are held whole
    assert not kernels.fit(2**31, 32)  # offsets within a member are of 32 bits


def test_other_threads_launch_while_kernels_are_compiled() -> None:
    net, x = resnet(1, 4, torch.float32, blocks=1), torch.randn(1, 2, 3, 6, 6, device=DEVICE)

    def features() -> Tensor:
        with kernels.use(True), torch.no_grad():
            result: Tensor = net.eval()(x)
            return result

    expected, seen = features(), []
    with ThreadPoolExecutor(1) as thread, compile_ahead():
        seen.append(thread.submit(features).result())
    assert torch.equal(seen[0], expected)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PTXASError("no such file.\nMore of it."), "PTXAS error: no such file"),
        (RuntimeError("Failed to find C compiler."), "Failed to find C compiler"),
        (PermissionError(13, "Permission denied"), "[Errno 13] Permission denied"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), ""),
    ],
)
def test_kernels_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    """One sentence; but a GPU's own trouble is told elsewhere."""

    class Broken:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def run(*args: object, **constants: object) -> None:
                raise error

            return run

    monkeypatch.setattr(norm, "apply", Broken())
    with kernels.use(True), pytest.raises(MdcgError if reason else type(error)) as told:
        resnet(1, 4, torch.float32, blocks=1)(torch.randn(1, 2, 3, 6, 6, device=DEVICE))
    expected = f"the fused kernels cannot be used here ({reason}); set MDCG_KERNELS=plain to do without them."
    assert str(told.value) == (expected if reason else str(error))


def test_kernels_that_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_KERNELS", "plian")
    with pytest.raises(MdcgError, match="unknown value of MDCG_KERNELS 'plian'; did you mean 'plain'"):
        kernels.available()
    monkeypatch.setenv("MDCG_KERNELS", "plain")
    assert not kernels.available()
    monkeypatch.delenv("MDCG_KERNELS")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    assert not kernels.available()


def test_inference_with_a_large_stem() -> None:
    fused = resnet(1, 5, torch.float32, (64, 128), 1, large_stem=True).eval()
    plain = resnet(1, 5, torch.float64, (64, 128), 1, large_stem=True).eval()
    x = torch.randn(1, 2, 3, 18, 18, device=DEVICE)
    with kernels.use(True), torch.no_grad():
        features = fused(x)
    assert relative(features, plain(x.double())) < 1e-5


@pytest.mark.parametrize("half", [True, False])
def test_copies_follow_their_weights(half: bool) -> None:
    """Made once, and again by whoever needs them after a weight has changed."""
    conv = Conv2d(2, 16, 32, 3)
    conv.initialise([np.random.default_rng(seed) for seed in range(2)])
    conv.to(DEVICE)

    def wanted() -> Tensor:
        return conv.taps().bfloat16() if half else conv.taps().mT

    (first,) = copied([conv], half)
    assert torch.equal(first, wanted())
    (again,) = copied([conv], half)
    assert again is first
    with torch.no_grad():
        conv.weight.add_(1)
    assert not torch.equal(first, wanted())
    follow([conv])
    assert torch.equal(first, wanted())
    conv.weight.data.mul_(2)  # as a replayed graph does it, with the copy
    follow([conv])
    assert not torch.equal(first, wanted())
    with torch.no_grad():
        conv.weight.sub_(3)
    (after,) = copied([conv], half)
    assert after is first
    assert torch.equal(first, wanted())
    conv.weight = torch.nn.Parameter(conv.as_weight(torch.randn(5, 9, 16, 32)))
    assert torch.equal(copied([conv], half)[0], wanted())


@pytest.mark.parametrize("half", [True, False])
def test_no_copies_where_none_are_used(monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    """Nor of what is only compiled, where nothing would fill them."""
    asked, launched = noted(monkeypatch)
    conv = Conv2d(2, 16, 32, 3)
    follow([conv])
    seen: list[Tensor] = []
    with compile_ahead():
        seen.extend(copied([conv], half))
    assert [copy.shape for copy in seen] == [(2, 9, 16, 32) if half else (2, 9, 32, 16)]
    assert len(asked) == (0 if half else 1)
    assert not launched
    assert conv.copy is None


@pytest.mark.slow
def test_kernels_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a step launches has been asked for before, each variant once, and nothing was computed."""
    asked, launched = noted(monkeypatch)
    net = resnet(1, 1, torch.float32)
    x = torch.randn(1, 16, 3, 4, 4, device=DEVICE)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with kernels.use(True):
        for ahead in (compile_ahead(), contextlib.nullcontext()):
            assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
            assert not launched
            with ahead:
                net.train()(x).sum().backward()
                with torch.no_grad():
                    net.eval()(x[:, 8:])
    assert len(asked) == len(set(asked))
    assert set(launched) == set(asked)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_a_rehearsal_asks_for_all_that_a_run_launches(monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    """In both tasks: images, network, loss, update and evaluation, also where members rest; and it launches nothing."""
    monkeypatch.setitem(MEMBERED, "tiny", lambda members, channels: ResNet(members, channels, (16,), 1, False, "in"))
    monkeypatch.setattr(Model, "logits", Model.forward)
    monkeypatch.setattr(Compute, "fused", True)
    asked, launched = noted(monkeypatch)
    numbers: list[dict[str, float]] = [{"backbone_lr": 0.0} if frozen else {}] * 2
    group = toy_group(
        toy_dataset([24] * 4, side=4, channels=3),
        "md-cg",
        [(0, 12, {}), (1, 12, {})],
        tasks=2,
        backbone="tiny",
        batch_size=8,
        numbers=numbers,
    )
    machine = compute(DEVICE.type, "fp32")
    rehearse(group, machine)
    early = set(asked)
    assert len({name for name, *_ in early}) > (6 if frozen else 12)
    assert not launched
    trainer, state = Trainer(group, machine), states.fresh(group, machine)
    with kernels.use(True):
        for task in range(2):
            state.task = task
            states.begin_task(state, group)
            state.model.train()
            draws = draw_epoch(group, state.memories, task, 0).to(DEVICE)
            for resting in (False, True):
                trainer.train_step(state, draws, 0, resting)
            evaluate(state.model, trainer.eval_images, group, trainer.pixels, machine)
            states.end_task(state, group)
    assert set(launched) == early


@pytest.mark.slow
def test_past_tasks_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """GEM's: the gradients and statistics of separate passes in float64, with all kernels compiled ahead."""
    monkeypatch.setitem(MEMBERED, "tiny", lambda members, channels: ResNet(members, channels, (16,), 1, False, "in"))
    monkeypatch.setattr(Model, "logits", Model.forward)
    monkeypatch.setattr("mdcg.train.past_tasks.together", lambda model, compute: True)
    dataset = toy_dataset([12] * 6, side=4, channels=3)
    group = toy_group(dataset, "gem", [(0, 12, {}), (1, 12, {})], backbone="tiny", batch_size=8)
    found = []
    for precision, fused in (("fp32", True), ("fp64", False)):
        machine = compute(DEVICE.type, precision)
        trainer, state = Trainer(group, machine), states.fresh(group, machine)
        for task in range(3):
            state.task = task
            states.begin_task(state, group)
            if task < 2:
                states.end_task(state, group)
        draws = draw_epoch(group, state.memories, 2, 0).to(DEVICE)
        with kernels.use(fused):
            memory = trainer.batch(draws, 0).part(8, 16)
        if fused:
            asked, launched = noted(monkeypatch)
            with monkeypatch.context() as patched:
                patched.setattr(Compute, "fused", True)
                rehearse(group, machine)
            with kernels.use(True):
                assert not launched
                gradients = trainer.past(state).gradients(memory.images, memory.labels, None)
                before = [buffer.clone() for buffer in state.model.statistics()]
                trainer.train_step(state, draws, 0)
            assert trainer.past(state).passes == [(2, 4)]
            assert set(launched) <= set(asked)
        else:
            each = [trainer._gradient(state, memory.part(start, start + 4))[2] for start in (0, 4)]
            gradients = torch.stack([torch.cat([part.flatten(1) for part in own], 1) for own in each], 1)
            before = list(state.model.statistics())
        found.append((gradients, before))
    (ours, moved), (theirs, wanted) = found
    for k, task in itertools.product(range(2), range(2)):
        assert relative(ours[k, task], theirs[k, task]) < 2e-4
    for statistic, reference in zip(moved, wanted, strict=True):
        assert relative(statistic, reference) < 1e-5


def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """From now on, the variants of kernels that are asked for ahead, and those that are launched."""
    asked: list[tuple[object, ...]] = []
    launched: list[tuple[object, ...]] = []
    alone = {(images, "_view"), (losses, "_cross_entropy"), (losses, "_divergence"), (losses, "_margin")}
    alone |= {(update, "_note"), (update, "_move"), (copies, "_turn_tile"), (pivot, "_pivots")}
    for module in (conv, norm, patch, pool, walk):
        for name, kernel in list(vars(module).items()):
            own = getattr(getattr(kernel, "fn", None), "__module__", None) == module.__name__
            if own and not name.startswith("_"):
                alone.add((module, name))
    for module, name in alone:
        full = f"{module.__name__}.{name}"
        monkeypatch.setattr(module, name, Noting(full, getattr(module, name), launched))

    def ask(kernel: Noting, grid: tuple[int, ...], args: tuple[object, ...], constants: dict[str, object]) -> None:
        asked.append(kernel.variant(args, constants))

    monkeypatch.setattr(launch, "_ask", ask)
    monkeypatch.setattr(launch, "_asked", {})
    return asked, launched


class Noting:
    """A kernel that notes with which arguments it is launched, as far as they make a difference to Triton."""

    def __init__(self, name: str, kernel: Any, launched: list[tuple[object, ...]]) -> None:
        self.name, self.kernel, self.launched = name, kernel, launched

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: object, **constants: object) -> None:
            self.launched.append(self.variant(args, constants))
            self.kernel[grid](*args, **constants)

        return run

    def variant(self, args: tuple[object, ...], constants: dict[str, object]) -> tuple[object, ...]:
        parameters = inspect.signature(self.kernel.fn).parameters
        plain = getattr(self.kernel, "kwargs", {}).get("do_not_specialize") or ()
        kinds = [self._kind(own, name not in plain) for name, own in zip(parameters, args, strict=False)]
        return (self.name, *kinds, *sorted(constants.items()))

    def _kind(self, argument: object, special: bool) -> object:
        if isinstance(argument, tuple):
            return tuple(self._kind(own, special) for own in argument)
        if isinstance(argument, Tensor):
            return argument.dtype
        if isinstance(argument, int):
            return int, abs(argument) >= 2**31, special and (argument == 1, argument % 16 == 0)
        return type(argument)


# Compiles the kernels of two methods as for a GPU of a compute capability. Prints how many there are, the most
# memory that one shares, and how many are launched before the one before them is done and wait for it before they
# touch memory.
COMPILER = textwrap.dedent(
    """
    import logging, re, sys, torch
    from triton.runtime import driver

    name, side, precision, capability = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)
    from mdcg.models.kernels import launch
    from mdcg.models.kernels.compile_worker import Absent
    from mdcg.train.precision import Compute
    from mdcg.train.rehearsal import rehearse
    from tests.conftest import toy_dataset, toy_group

    compiled = []
    def ask(kernel, grid, args, constants):
        compiled.append(kernel.warmup(*args, grid=grid, **constants))

    driver.set_active(Absent(capability))
    launch._ask = ask
    Compute.fused = True
    dataset = toy_dataset([64] * 6, side=side, channels=3)
    logging.getLogger("mdcg.train.rehearsal").debug = sys.exit  # that it failed
    for method, augment in (("md-replay", ("crop", "flip", "randaugment")), ("gem", ())):
        group = toy_group(dataset, method, [(0, 64, {})], backbone=name, batch_size=32, augment=augment)
        rehearse(group, Compute(torch.device("cpu"), precision))

    def waits(kernel):
        first = re.search(r"griddepcontrol.wait|ld.global|st.global|cp.async|atom", kernel.asm["ptx"]).group()
        return kernel.metadata.launch_pdl and first == "griddepcontrol.wait"

    print(len(compiled), max(own.metadata.shared for own in compiled), sum(map(waits, compiled)))
    """
)


@pytest.mark.slow  # a minute, unless it is cached
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(("backbone", "side"), [("resnet20", 32), ("resnet18", 64)])
@pytest.mark.parametrize("capability", [86, 90])
def test_kernels_compile_without_a_gpu(
    backbone: str, side: int, precision: str, capability: int, cache: pytest.Cache
) -> None:
    """For real, not as the interpreter sees them; and they fit into what a smaller GPU shares, 99 KiB.

    Where kernels begin while others end, none touches memory before it has waited for them.

    Triton keeps what it has compiled, and knows when kernels, options or itself have changed.
    """
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache.mkdir("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILER, backbone, str(side), precision, str(capability)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kernels_compiled, most_shared, waiting = map(int, done.stdout.split())
    assert kernels_compiled > 60
    assert most_shared <= (99 if capability == 86 else 227) * 1024
    assert waiting == (0 if capability == 86 else kernels_compiled)
