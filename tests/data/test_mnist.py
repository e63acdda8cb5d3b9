"""MNIST and Fashion-MNIST from small files in the official layout; several files of one dataset, found and fetched."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from mdcg.data import cache, load, verify
from mdcg.data.mnist import FASHION_MNIST, MNIST, TEST, TRAIN, Mnist
from mdcg.errors import MdcgError
from mdcg.testing import check_dataset
from tests.conftest import Cli
from tests.data.conftest import replaced


def write_mnist(folder: Path, original: Mnist, seed: int = 0) -> tuple[Mnist, np.ndarray, np.ndarray]:
    """Four files, and the record that knows their checksums: 28×28 pixels, 40 training and 20 test images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (60, 28, 28), np.uint8)
    labels = (rng.permutation(60) % 10).astype(np.uint8)
    labels[:10] = labels[40:50] = np.arange(10)
    for (image_file, label_file), part in ((TRAIN, slice(0, 40)), (TEST, slice(40, 60))):
        pixels = struct.pack(">HBBIII", 0, 8, 3, len(images[part]), 28, 28) + images[part].tobytes()
        (folder / image_file).write_bytes(gzip.compress(pixels))
        numbers = struct.pack(">HBBI", 0, 8, 1, len(labels[part])) + labels[part].tobytes()
        (folder / label_file).write_bytes(gzip.compress(numbers))
    sums = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in original.files}
    return dataclasses.replace(original, files=sums), images, labels


@pytest.fixture(params=["mnist", "fashion-mnist"])
def small(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Mnist, Path]:
    original = {"mnist": MNIST, "fashion-mnist": FASHION_MNIST}[request.param]
    made, *_ = write_mnist(tmp_path / original.folder, original)
    replaced(made, monkeypatch)
    return made, tmp_path


def test_pixels_and_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, images, labels = write_mnist(tmp_path / "any", MNIST)
    replaced(made, monkeypatch)
    dataset = load("mnist", tmp_path / "any")
    assert (dataset.train.images.numpy()[..., 0] == images[:40]).all()
    assert (dataset.test.images.numpy()[..., 0] == images[40:]).all()
    assert dataset.train.labels.tolist() == labels[:40].tolist()
    assert dataset.test.labels.tolist() == labels[40:].tolist()
    assert dataset.class_names == tuple("0123456789")
    assert (dataset.shape, dataset.flip) == ((1, 28, 28), False)


def test_found_verified_and_trained_on(small: tuple[Mnist, Path], cli: Cli) -> None:
    made, root = small
    check_dataset(made.name, root)
    assert load(made.name, root / made.folder).fingerprint == load(made.name, root).fingerprint
    assert cli("data", "verify", made.name, "--data", root).out.endswith("is whole, 60 images, and so is its cache.\n")
    assert made.summary.split(":")[0] in cli("list", "datasets").out
    assert f"{made.name} in 5 tasks" in cli("list", "scenarios").out


def test_damaged_and_missing_files(small: tuple[Mnist, Path]) -> None:
    made, root = small
    victim = root / made.folder / TEST[0]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1])
    with pytest.raises(MdcgError, match=f"{TEST[0]} is altered or cut short .* run 'mdcg data get'"):
        load(made.name, root)
    victim.unlink()
    for named in (root, root / made.folder):
        with pytest.raises(
            MdcgError, match=f"{TEST[0]} is not in .*{made.folder}; run 'mdcg data get {made.name} --data"
        ):
            load(made.name, named)
    with pytest.raises(
        MdcgError, match=f"{TRAIN[0]} is not in {cache.cache_folder()}; run 'mdcg data get {made.name}' "
    ):
        verify(made.name)


def test_files_of_the_other_dataset_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are the same, their checksums are not."""
    mnist, *_ = write_mnist(tmp_path / "mnist", MNIST)
    fashion, *_ = write_mnist(tmp_path / "fashion-mnist", FASHION_MNIST, seed=1)
    replaced(mnist, monkeypatch)
    replaced(fashion, monkeypatch)
    assert load("mnist", tmp_path).fingerprint != load("fashion-mnist", tmp_path).fingerprint
    with pytest.raises(MdcgError, match="is altered or cut short"):
        load("mnist", tmp_path / "fashion-mnist")


def test_a_file_of_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, *_ = write_mnist(tmp_path / "mnist", MNIST)
    shutil.copy(tmp_path / "mnist" / TRAIN[1], tmp_path / "mnist" / TRAIN[0])
    sums = {name: hashlib.md5((tmp_path / "mnist" / name).read_bytes()).hexdigest() for name in made.files}
    replaced(dataclasses.replace(made, files=sums), monkeypatch)
    with pytest.raises(MdcgError, match=r"train-images-idx3-ubyte.gz is no IDX file of 3 axes"):
        load("mnist", tmp_path)


def test_download(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    made, *_ = write_mnist(tmp_path / "web" / "files", MNIST)
    online = dataclasses.replace(made, url=f"{server}/files/")
    replaced(dataclasses.replace(online, files={**made.files, TEST[1]: "0" * 32}), monkeypatch)
    target = tmp_path / "fetched"
    told = cli("data", "get", "mnist", "--data", target)
    assert told.code == 2
    assert told.err.splitlines()[-1].startswith("mdcg: cannot download ")
    assert not (target / "mnist" / TEST[1]).exists()  # nothing wrong is left
    replaced(online, monkeypatch)
    told = cli("data", "get", "mnist", "--data", target)
    assert told.out == "mnist: 40 training and 20 test images of 10 classes, ready.\n"
    assert told.err.count("downloading") == 1  # what was there already is not fetched again
    assert sorted(file.name for file in (target / "mnist").iterdir()) == sorted(made.files)
    assert cli("data", "get", "mnist").code == 0  # into the cache folder
    shown = cli("cache").out
    assert f"mnist/{TRAIN[0]}  " in shown
    assert "  a file of mnist\n" in shown
    assert cli("cache", f"mnist/{TRAIN[0]}", "--clear").out.splitlines()[-1].startswith("1 file, ")
    assert cli("cache", "--clear").code == 0
    assert not list(cache.cache_folder().iterdir())


@pytest.mark.parametrize(
    "change", [{"url": "https://example.org/x"}, {"files": {}}, {"files": {"a.gz": "12"}}, {"folder": ""}]
)
def test_records_that_cannot_be_downloaded(change: dict[str, object]) -> None:
    with pytest.raises(MdcgError, match="mnist cannot be downloaded from") as told:
        dataclasses.replace(MNIST, **change)  # type: ignore[arg-type]
    assert "\n" not in str(told.value)
