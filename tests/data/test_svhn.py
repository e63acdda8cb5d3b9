"""SVHN from small MATLAB files in the official layout."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from mdcg.data import load, verify
from mdcg.data.svhn import SVHN, TEST, TRAIN
from mdcg.errors import MdcgError
from mdcg.testing import check_dataset
from tests.data.conftest import replaced


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    digits = {TRAIN: np.arange(40) % 10, TEST: np.arange(20)[::-1] % 10}
    images = {name: rng.integers(0, 256, (len(own), 32, 32, 3), np.uint8) for name, own in digits.items()}
    (tmp_path / "svhn").mkdir()
    for name, own in digits.items():
        y = np.where(own == 0, 10, own)[:, None].astype(np.uint8)  # as the files have it
        savemat(tmp_path / "svhn" / name, {"X": images[name].transpose(1, 2, 3, 0), "y": y}, do_compression=True)
    sums = {name: hashlib.md5((tmp_path / "svhn" / name).read_bytes()).hexdigest() for name in digits}
    replaced(dataclasses.replace(SVHN, files=sums), monkeypatch)
    dataset = load("svhn", tmp_path)
    assert (dataset.train.images.numpy() == images[TRAIN]).all()
    assert (dataset.test.images.numpy() == images[TEST]).all()
    assert dataset.train.labels.tolist() == digits[TRAIN].tolist()
    assert dataset.test.labels.tolist() == digits[TEST].tolist()
    assert dataset.class_names == tuple("0123456789")
    assert not dataset.flip
    check_dataset("svhn", tmp_path)
    assert "is whole, 60 images, and so is its cache" in verify("svhn", tmp_path)
    (tmp_path / "svhn" / TEST).write_bytes(b"no MATLAB file")
    with pytest.raises(MdcgError, match=r"test_32x32.mat is altered or cut short"):
        load("svhn", tmp_path)
