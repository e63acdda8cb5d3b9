"""Colour jitter and the operations of RandAugment, against PIL and loops over single pixels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from mdcg.draws import Purpose, stream
from mdcg.train.recolour import (
    CODE,
    OPERATIONS,
    amounts,
    draw_jitter,
    draw_operations,
    equalized,
    grey,
    jitter,
    mean_grey,
    operate,
)

Pixels = npt.NDArray[np.uint8]
SIDE = 23, 27  # an odd size, so that the middle is a pixel; enough pixels to be equalized


def photographs(count: int, channels: int = 3) -> Pixels:
    """Smooth ones with few values, noisy ones, and one of a single colour: (n, H, W, C)."""
    rng = np.random.default_rng(0)
    high, wide = SIDE
    slope = np.add.outer(np.arange(high) * 4, np.arange(wide) * 3)[..., None]
    slope = slope + rng.integers(0, 90, (count, 1, 1, channels))
    noise = rng.integers(0, 256, (count, high, wide, channels))
    images = np.where(np.arange(count)[:, None, None, None] % 2, noise, slope)
    images[-1] = 77
    return images.clip(0, 255).astype(np.uint8)


def batch(images: Pixels) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).float()


def done(name: str, images: Pixels, sign: float, strength: float) -> Pixels:
    """One operation with all images, in a batch whose every other image has another operation."""
    code = np.full(2 * len(images), CODE[name])
    code[1::2] = CODE["identity"]
    amount, place = amounts(code, np.full(len(code), sign), strength, SIDE)
    twice = batch(np.repeat(images, 2, axis=0))
    found = operate(twice, torch.from_numpy(code), torch.from_numpy(amount), torch.from_numpy(place))
    assert torch.equal(found[1::2], twice[1::2])
    assert torch.equal(found, found.round().clamp(0, 255))
    return found[::2].permute(0, 2, 3, 1).numpy().astype(np.uint8)


Enhance = Callable[[Image.Image], Image.Image]


@pytest.mark.parametrize("strength", [0.3, 1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name[:5] not in ("shear", "trans", "rotat")])
def test_colours_against_pil(name: str, sign: float, strength: float) -> None:
    """PIL cuts off what is behind the point, and here it is rounded: one step apart at most."""
    factor, bits = 1 + sign * 0.9 * strength, 8 - round(4 * strength)
    theirs: dict[str, Enhance] = {
        "identity": lambda image: image,
        "brightness": lambda image: ImageEnhance.Brightness(image).enhance(factor),
        "colour": lambda image: ImageEnhance.Color(image).enhance(factor),
        "contrast": lambda image: ImageEnhance.Contrast(image).enhance(factor),
        "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(factor),
        "posterize": lambda image: ImageOps.posterize(image, bits),
        "solarize": lambda image: ImageOps.solarize(image, math.ceil(255 * (1 - strength))),
        "autocontrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
    }
    images = photographs(6)
    wanted = np.stack([np.asarray(theirs[name](Image.fromarray(image))) for image in images]).astype(int)
    found = done(name, images, sign, strength).astype(int)
    apart = 0 if name in ("identity", "posterize", "solarize", "equalize") else 2 if name == "sharpness" else 1
    assert np.abs(found - wanted).max() <= apart


@pytest.mark.parametrize("strength", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", ["shear-x", "shear-y", "translate-x", "translate-y", "rotate"])
def test_shapes_against_a_loop(name: str, sign: float, strength: float) -> None:
    """Every pixel from the one in which its centre lands, about the middle of the image."""
    images, (high, wide) = photographs(4), SIDE
    found, amount = done(name, images, sign, strength), sign * strength
    angle = math.radians(30) * amount
    for y in range(high):
        for x in range(wide):
            across, down = x + 0.5 - wide / 2, y + 0.5 - high / 2
            to = {
                "shear-x": (across + 0.3 * amount * down, down),
                "shear-y": (across, down + 0.3 * amount * across),
                "translate-x": (across + 150 / 331 * amount * wide, down),
                "translate-y": (across, down + 150 / 331 * amount * high),
                "rotate": (
                    math.cos(angle) * across - math.sin(angle) * down,
                    math.sin(angle) * across + math.cos(angle) * down,
                ),
            }[name]
            column, row = math.floor(to[0] + wide / 2), math.floor(to[1] + high / 2)
            inside = 0 <= column < wide and 0 <= row < high
            wanted = images[:, row, column] if inside else np.zeros_like(images[:, 0, 0])
            assert (found[:, y, x] == wanted).all(), (y, x)
    if strength == 0:
        assert (found == images).all()


def test_rotation_against_pil() -> None:
    images = photographs(4)
    found = done("rotate", images, 1.0, 0.5)
    wanted = np.stack([np.asarray(Image.fromarray(image).rotate(15)) for image in images])
    assert (found == wanted).all(-1).mean() > 0.95  # it computes with fixed-point numbers


def test_grey_is_pils() -> None:
    images = photographs(6)
    wanted = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    assert np.abs(grey(batch(images))[:, 0].numpy() - wanted).max() <= 1
    assert mean_grey(batch(images)).shape == (6, 1, 1, 1)
    single = batch(photographs(2, channels=1))
    assert torch.equal(grey(single), single)


def test_equalize_of_one_value_is_nothing() -> None:
    single = torch.full((1, 1, 4, 4), 9.0)
    assert torch.equal(equalized(single), single)


def test_jitter_against_pil() -> None:
    images = photographs(6)
    factors = draw_jitter(np.random.default_rng(3), (6,), 0.4)
    found = jitter(batch(images), torch.from_numpy(factors)).permute(0, 2, 3, 1).numpy()
    for image, own, (brightness, contrast, saturation) in zip(images, found, factors.tolist(), strict=True):
        step = ImageEnhance.Brightness(Image.fromarray(image)).enhance(brightness)
        step = ImageEnhance.Color(ImageEnhance.Contrast(step).enhance(contrast)).enhance(saturation)
        assert (
            np.abs(own - np.asarray(step)).max() <= 5
        )  # each step is rounded in another way, and the next enlarges it


def test_what_is_drawn() -> None:
    factors = draw_jitter(stream(0, Purpose.JITTER), (200, 5), 0.3)
    assert factors.min() >= 0.7
    assert factors.max() <= 1.3
    assert abs(factors.mean() - 1) < 0.02
    code, amount, place = draw_operations(stream(0, Purpose.RAND_AUGMENT), (300, 7, 2), 30, SIDE)
    counts = np.bincount(code.ravel(), minlength=len(OPERATIONS))
    assert counts.min() > 0.8 * code.size / len(OPERATIONS)
    assert amount.shape == code.shape
    assert place.shape == (*code.shape, 2, 3)
    for name in ("brightness", "contrast"):  # both signs
        assert {round(float(one), 3) for one in amount[code == CODE[name]]} == {0.1, 1.9}
