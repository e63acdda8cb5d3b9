"""Tiny-ImageNet from small files in the official layout, and what is said when they are bad."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mdcg.data import DATASETS, load, verify
from mdcg.data.tinyimagenet import TINYIMAGENET, TinyImageNet
from mdcg.errors import MdcgError
from mdcg.pixels import processes
from mdcg.testing import check_dataset
from tests.data.conftest import digest_below, published, replaced


def publish(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = DATASETS["tinyimagenet"]
    assert isinstance(known, TinyImageNet)
    published(known, archive, monkeypatch)


def zip_folder(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted(folder.rglob("*")):
            out.write(file, file.relative_to(folder.parent))


@pytest.mark.parametrize("as_zip", [False, True])
def test_tinyimagenet(small_tiny: Path, as_zip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    where = small_tiny
    if as_zip:
        where = small_tiny / "tiny-imagenet-200.zip"
        zip_folder(small_tiny / "tiny-imagenet-200", where)
        publish(where, monkeypatch)
    dataset = load("tinyimagenet", where)
    assert dataset.shape == (3, 64, 64)
    assert dataset.class_names == ("bus", "goldfish", "bee")
    assert dataset.counts().tolist() == [4, 4, 4]
    assert np.bincount(dataset.test.labels).tolist() == [2, 2, 2]
    for image, label in zip(dataset.train.images, dataset.train.labels, strict=True):
        assert abs(int(image.float().mean()) - (60 * label + 20)) <= 2
    assert (dataset.padding, dataset.mean) == (8, (0.4802, 0.4481, 0.3975))
    assert "is whole" in verify("tinyimagenet", where)


@pytest.fixture(params=["threads", "processes"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images decoded as few are, or as many."""
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setattr(processes, "EACH", 1 if request.param == "processes" else 100)


@pytest.mark.parametrize("as_zip", [False, True])
def test_processes_read_the_same(small_tiny: Path, monkeypatch: pytest.MonkeyPatch, as_zip: bool) -> None:
    where = small_tiny
    if as_zip:
        where = small_tiny / "tiny-imagenet-200.zip"
        zip_folder(small_tiny / "tiny-imagenet-200", where)
        publish(where, monkeypatch)
    by_threads = load("tinyimagenet", where)
    monkeypatch.setenv("MDCG_CACHE", str(small_tiny / "another"))
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setattr(processes, "EACH", 1)
    by_processes = load("tinyimagenet", where)
    assert by_processes.fingerprint == by_threads.fingerprint
    assert (by_processes.train.images == by_threads.train.images).all()
    assert (by_processes.test.images == by_threads.test.images).all()


@pytest.mark.usefixtures("way")
def test_an_image_that_cannot_be_decoded_is_named(small_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is as published: another is told by the checksum."""
    broken = small_tiny / "tiny-imagenet-200/val/images/val_10.JPEG"
    broken.write_bytes(broken.read_bytes()[:-400])
    with pytest.raises(MdcgError, match="incomplete or altered"):
        load("tinyimagenet", small_tiny)
    replaced(dataclasses.replace(TINYIMAGENET, digest=digest_below(small_tiny)), monkeypatch)
    with pytest.raises(MdcgError, match=r"val_10\.JPEG is not a readable image"):
        load("tinyimagenet", small_tiny)


@pytest.mark.usefixtures("way")
def test_incomplete_tinyimagenet(small_tiny: Path) -> None:
    folder = small_tiny / "tiny-imagenet-200"
    (folder / "train/n01/images/n01_2.JPEG").unlink()
    with pytest.raises(MdcgError, match="incomplete or altered"):
        load("tinyimagenet", small_tiny)
    (folder / "train/n01/images/n01_2.JPEG").write_bytes(b"")
    with pytest.raises(MdcgError, match="incomplete or altered"):
        load("tinyimagenet", small_tiny)
    (folder / "words.txt").unlink()
    with pytest.raises(MdcgError, match=r"lacks words.txt"):
        load("tinyimagenet", small_tiny)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wnids.txt", "n01\nn02\nn03"),  # another order: other class numbers
        ("wnids.txt", "n01\nn02"),
        ("val/val_annotations.txt", "val_00.JPEG\tn03\n"),
        ("val/val_annotations.txt", "val_00.JPEG\n\n"),
    ],
)
def test_altered_labels_of_tinyimagenet(small_tiny: Path, name: str, text: str) -> None:
    (small_tiny / "tiny-imagenet-200" / name).write_text(text)
    with pytest.raises(MdcgError, match="incomplete or altered"):
        load("tinyimagenet", small_tiny)


def test_encrypted_zip(small_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = small_tiny / "tiny-imagenet-200.zip"
    zip_folder(small_tiny / "tiny-imagenet-200", archive)
    content = bytearray(archive.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # set the flag that says "encrypted"
        start = content.find(mark)
        while start >= 0:
            content[start + offset] |= 1
            start = content.find(mark, start + 4)
    archive.write_bytes(content)
    publish(archive, monkeypatch)
    with pytest.raises(MdcgError, match="damaged or cut short"):
        load("tinyimagenet", archive)


@pytest.mark.parametrize("kind", ["up", "link"])
def test_hostile_zip(small_tiny: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = small_tiny / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as out:
        entry = zipfile.ZipInfo("tiny/../../escaped" if kind == "up" else "tiny/wnids.txt")
        if kind == "link":
            entry.external_attr = 0o120777 << 16
        out.writestr(entry, "/etc/passwd")
    publish(archive, monkeypatch)
    with pytest.raises(MdcgError, match=r"leads outside|link or device"):
        load("tinyimagenet", archive)
    archive.write_bytes(archive.read_bytes()[:20])
    publish(archive, monkeypatch)
    with pytest.raises(MdcgError, match="damaged or cut short"):
        load("tinyimagenet", archive)


@pytest.mark.slow
def test_small_tinyimagenet_passes_the_check(small_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(dataclasses.replace(DATASETS["tinyimagenet"], tasks=(1,)), monkeypatch)  # it has 3 classes here, not 200
    check_dataset("tinyimagenet", small_tiny)
