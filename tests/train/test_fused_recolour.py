"""A round of RandAugment as one kernel, against the tensor code. Without a GPU, Triton's interpreter runs it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mdcg.models import kernels
from mdcg.train import state as states
from mdcg.train.augment import Pixels
from mdcg.train.epoch import draw_epoch
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from mdcg.train.recolour import AMOUNT, OPERATION, OPERATIONS, PLACE, STRONGEST, amounts, operate, recoloured
from tests.conftest import toy_dataset, toy_group

pytest.importorskip("triton")
from mdcg.models.kernels.recolour import operate as fused

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def photographs(seed: int, count: int, channels: int, side: tuple[int, int]) -> Tensor:
    """Each with a range of values of its own, the last with a single one: (n, C, H, W)."""
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.integers(0, 256, (2, count, channels, 1, 1)), 0)
    images = low + np.floor(rng.random((count, channels, *side)) * (high + 1 - low))
    images[-1] = 77
    return torch.from_numpy(images.astype(np.float32))


def drawn(code: list[int], sign: list[float], magnitude: float, side: tuple[int, int]) -> list[Tensor]:
    """The codes, amounts and maps of one image each."""
    codes = np.array(code, np.uint8)
    found = codes, *amounts(codes, np.array(sign), magnitude / STRONGEST, side)
    return [torch.from_numpy(part) for part in found]


def differing(x: Tensor, *drawn: Tensor) -> list[str]:
    """The operations of images of which some pixel is not the tensor code's."""
    wanted = operate(x, *drawn)  # on the CPU, where a mean is a quotient
    code, amount, place = (part.to(DEVICE) for part in drawn)
    one = torch.ones(x.shape[1], device=DEVICE)
    found = fused(x.to(DEVICE), code, amount, place, OPERATIONS, one, torch.zeros_like(one), torch.float32)
    differ = (found.cpu() != wanted).flatten(1).any(1)
    return [OPERATIONS[number] for number in drawn[0][differ].tolist()]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("side", "magnitudes"), [((8, 8), (0, 9, 30)), ((32, 32), (0, 9, 30)), ((33, 31), (0, 9, 30)), ((64, 64), (9,))]
)
def test_every_operation_gives_the_pixels_of_tensor_code(
    side: tuple[int, int], magnitudes: tuple[float, ...], channels: int
) -> None:
    """Of less than a tile, of one, and of several, the last of which may not be full."""
    every = list(range(len(OPERATIONS)))
    signs = [1.0, -1.0] * (len(every) // 2)
    rounds = [drawn(every, [sign * (-1) ** number for sign in signs], m, side) for number, m in enumerate(magnitudes)]
    together = [torch.cat(parts) for parts in zip(*rounds, strict=True)]
    x = photographs(sum(side), len(every), channels, side).repeat(len(magnitudes), 1, 1, 1)
    assert not differing(x, *together)


@given(
    st.integers(0, 2**20),
    st.integers(1, 4),
    st.tuples(st.integers(1, 40), st.integers(1, 12)),
    st.lists(st.tuples(st.integers(0, len(OPERATIONS) - 1), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=3),
    st.floats(0, STRONGEST),
)
@settings(max_examples=25)
def test_any_image_and_any_magnitude(
    seed: int, channels: int, side: tuple[int, int], operations: list[tuple[int, float]], magnitude: float
) -> None:
    code, sign = map(list, zip(*operations, strict=True))
    x = photographs(seed, len(code) + 1, channels, side)[:-1]
    assert not differing(x, *drawn(code, sign, magnitude, side))


@pytest.mark.parametrize("views", [torch.float32, torch.bfloat16])
def test_the_last_round_normalises(views: torch.dtype) -> None:
    """As the tensor code does, and as the networks' kernels want it: a pixel's channels filled up with zeros."""
    pixels = Pixels.of(toy_dataset([8, 8], channels=3), DEVICE, torch.float32, views=views)
    first, second = (drawn([3, 9, 12], [1.0, -1.0, 1.0], m, (8, 8)) for m in (20, 9))
    stacked = [torch.stack(parts, 1)[None].to(DEVICE) for parts in zip(first, second, strict=True)]
    more = dict(zip((OPERATION, AMOUNT, PLACE), stacked, strict=True))
    x = photographs(0, 3, 3, (8, 8)).to(DEVICE)
    wanted = recoloured(x, more, pixels.raw(), pixels)
    with kernels.use(True):
        found = recoloured(x, more, pixels.raw(), pixels)
    assert found.dtype == views
    cut_off = views == torch.bfloat16 and DEVICE.type == "cpu"  # by the interpreter, where a GPU rounds
    torch.testing.assert_close(found, wanted, rtol=2**-7 if cut_off else 0, atol=0)
    assert found.stride() == (256, 1, 32, 4)
    assert not found.as_strided((3, 8, 8), (256, 32, 4), 3).any()


@pytest.mark.parametrize(
    ("augment", "graphed"), [(("crop", "flip", "randaugment"), False), (("jitter", "randaugment", "cutmix"), True)]
)
def test_the_batch_of_a_step_is_that_of_tensor_code(augment: tuple[str, ...], graphed: bool) -> None:
    """Whether the step is counted by the host or, as in a graph, on the device."""
    members: list[tuple[int, int, dict[str, float]]] = [(0, 12, {}), (1, 12, {})]
    group = toy_group(toy_dataset([20, 33, 25, 28], channels=3), "replay", members, tasks=2, augment=augment)
    machine = compute(DEVICE.type, "fp32")
    trainer, state = Trainer(group, machine), states.fresh(group, machine)
    states.begin_task(state, group)
    draws = draw_epoch(group, state.memories, 0, 0).to(DEVICE)
    step = torch.tensor([1], device=DEVICE) if graphed else 1
    wanted = trainer.batch(draws, step).images
    with kernels.use(True):
        found = trainer.batch(draws, step).images
    assert torch.equal(found, wanted)
