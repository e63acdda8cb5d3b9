"""EuroSAT from small files in the official layout, packed and unpacked."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mdcg.data import Protocol, load, verify
from mdcg.data.eurosat import EUROSAT
from mdcg.draws import Purpose, hold_out
from mdcg.errors import MdcgError
from mdcg.testing import check_dataset
from tests.data.conftest import replaced


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five images of each class, each of one shade, in a folder and in an archive beside it."""
    counts = dict.fromkeys(EUROSAT.counts, 5)
    for number, name in enumerate(counts):
        (tmp_path / "2750" / name).mkdir(parents=True)
        for i in range(5):
            shade = Image.new("RGB", (64, 64), (20 * number, 40 * i, 100))
            shade.save(tmp_path / "2750" / name / f"{name}_{i + 1}.jpg", quality=100, subsampling=0)
    (tmp_path / "2750" / "notes.txt").write_text("not an image")
    (tmp_path / "packed").mkdir()
    archive = tmp_path / "packed" / EUROSAT.archive
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted((tmp_path / "2750").rglob("*.*")):
            packed.write(file, file.relative_to(tmp_path))
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    quick = Protocol("smallconv", epochs=1, batch_size=4)
    replaced(dataclasses.replace(EUROSAT, counts=counts, md5=md5, protocol=quick), monkeypatch)
    return tmp_path


def test_folder_and_archive(small: Path) -> None:
    dataset = load("eurosat", small)
    labels = np.repeat(np.arange(10), 5)
    rows, held = hold_out(labels, 0.2, 0, Purpose.TEST_SPLIT)
    assert dataset.train.labels.tolist() == labels[rows].tolist()
    assert dataset.test.labels.tolist() == labels[held].tolist()
    expected = np.stack([20 * labels, 40 * (np.arange(50) % 5), np.full(50, 100)], axis=1)
    shown = dataset.test.images.numpy().astype(int)
    assert abs(shown - expected[held][:, None, None]).max() <= 2  # JPEG
    assert dataset.class_names == tuple(EUROSAT.counts)
    assert dataset.shape == (3, 64, 64)
    for place in (small / "2750", small / "packed", small / "packed" / EUROSAT.archive):
        assert load("eurosat", place).fingerprint == dataset.fingerprint
    assert "is whole, 50 images" in verify("eurosat", small / "packed")


def test_it_can_be_trained_on(small: Path) -> None:
    check_dataset("eurosat", small)


def test_missing_images_and_an_altered_archive(small: Path) -> None:
    (small / "2750" / "River" / "River_3.jpg").unlink()
    with pytest.raises(MdcgError, match=r"has 4 images of River in place of 5; unpack EuroSAT.zip again"):
        load("eurosat", small)
    archive = small / "packed" / EUROSAT.archive
    archive.write_bytes(archive.read_bytes()[:-9])
    with pytest.raises(MdcgError, match=r"EuroSAT.zip is altered or cut short"):
        load("eurosat", archive)


def test_the_counts_are_those_of_the_dataset() -> None:
    assert sum(EUROSAT.counts.values()) == 27_000
