"""Datasets by their names, and what their room may know."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mdcg.data import load
from mdcg.errors import MdcgError


@pytest.mark.usefixtures("all_digits")
def test_digits() -> None:
    digits = load("digits")
    assert len(digits.train) + len(digits.test) == 1797
    assert digits.shape == (1, 8, 8)
    assert digits.classes == 10
    assert digits.train.images.dtype == torch.uint8
    assert int(digits.train.images.max()) == 255
    share = np.bincount(digits.test.labels) / (np.bincount(digits.test.labels) + digits.counts())
    assert share.min() > 0.19
    assert share.max() < 0.21
    pixels = digits.train.images.double() / 255
    assert digits.mean[0] == pytest.approx(pixels.mean().item())
    assert digits.std[0] == pytest.approx(pixels.std(correction=0).item())
    assert load("digits").fingerprint == digits.fingerprint


def test_unknown_dataset_and_size() -> None:
    with pytest.raises(MdcgError, match="did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(MdcgError, match="image size of digits is fixed"):
        load("digits", size=16)


def test_the_room_of_data_knows_nothing_above_it() -> None:
    below = {
        "arguments",
        "data",
        "draws",
        "errors",
        "files",
        "folders",
        "outputs",
        "pixels",
        "registry",
        "stored",
        "tensors",
    }
    for file in (Path(sys.modules["mdcg"].__file__ or "").parent / "data").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mdcg"):
                assert (node.module or "").split(".")[1] in below, (file.name, node.module)
