"""Small datasets as files in the official layouts."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mdcg.data import DATASETS, DatasetRecord, Published
from mdcg.data.cifar import CIFAR10, CIFAR100, Cifar
from mdcg.data.tinyimagenet import TINYIMAGENET, TinyImageNet, _digest


def replaced(record: DatasetRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another record under the name of one that is registered, for the length of a test."""
    monkeypatch.setitem(DATASETS._known, record.name, record)


def published(record: Published, archive: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    """The record as if this archive were the published one."""
    made = dataclasses.replace(record, md5=hashlib.md5(archive.read_bytes()).hexdigest())
    replaced(made, monkeypatch)
    return made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address at which the files in tmp_path/web can be had."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    web = tmp_path / "web"
    web.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(web))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


# ------------------------------------------------------------------ CIFAR


def write_cifar(root: Path, original: Cifar, classes: int, per_file: int, seed: int = 0) -> tuple[Cifar, np.ndarray]:
    """Files in the official layout, and the description that knows their checksums."""
    rng = np.random.default_rng(seed)
    folder = root / original.folder
    folder.mkdir(parents=True)
    sha1, records = {}, {}
    for name in (*original.train, *original.test):
        record = rng.integers(0, 256, (per_file, original.label_bytes + 3072), dtype=np.uint8)
        record[:, original.label_bytes - 1] = np.arange(per_file) % classes
        (folder / name).write_bytes(record.tobytes())
        sha1[name] = hashlib.sha1(record.tobytes()).hexdigest()
        records[name] = record
    (folder / original.names).write_text("".join(f"name{c}\n" for c in range(classes)) + "\n")
    made = dataclasses.replace(
        original, train={n: sha1[n] for n in original.train}, test={n: sha1[n] for n in original.test}
    )
    return made, np.concatenate([records[name] for name in original.train])


@pytest.fixture(params=["cifar10", "cifar100"])
def small_cifar(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Cifar, np.ndarray, Path]:
    name = request.param
    original, classes = (CIFAR10, 10) if name == "cifar10" else (CIFAR100, 100)
    made, train = write_cifar(tmp_path, original, classes, 2 * classes)
    replaced(made, monkeypatch)
    return name, made, train, tmp_path


Small = tuple[str, Cifar, "np.ndarray", Path]


# ------------------------------------------------------------------ Tiny-ImageNet


def write_tiny(root: Path) -> TinyImageNet:
    """Three classes of four training images and two labelled val images."""
    folder = root / "tiny-imagenet-200"
    rng = np.random.default_rng(0)
    wnids = ["n03", "n01", "n02"]  # the file's order, not the alphabet's, numbers the classes
    annotations = []
    for number, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(4):
            shade = Image.fromarray(np.full((64, 64, 3), 60 * number + 20, np.uint8))
            (shade.convert("L") if i == 0 else shade).save(images / f"{wnid}_{i}.JPEG")
        (images.parent / f"{wnid}_boxes.txt").write_text("ignored")
        for i in range(2):
            annotations.append(f"val_{number}{i}.JPEG\t{wnid}\t0\t0\t62\t62\n")
            (folder / "val/images").mkdir(parents=True, exist_ok=True)
            noise = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / "val/images" / f"val_{number}{i}.JPEG")
    (folder / "val/val_annotations.txt").write_text("".join(annotations))
    (folder / "wnids.txt").write_text("\n".join(wnids))
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbee\nn03\tbus\nn99\tother\n")
    return dataclasses.replace(TINYIMAGENET, digest=digest_below(root))


def digest_below(root: Path) -> str:
    """The digest of what is in the folder, as if it were published."""
    folder = root / "tiny-imagenet-200"
    images = [*folder.glob("train/*/images/*"), *folder.glob("val/images/*")]
    sha1s = {file.relative_to(folder).as_posix(): hashlib.sha1(file.read_bytes()).hexdigest() for file in images}
    lines = (folder / "val/val_annotations.txt").read_text().splitlines()
    return _digest(sha1s, (folder / "wnids.txt").read_text().split(), [tuple(line.split("\t")[:2]) for line in lines])


@pytest.fixture
def small_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    replaced(write_tiny(tmp_path), monkeypatch)
    return tmp_path


# ------------------------------------------------------------------ folders


def save_image(path: Path, mode: str = "RGB", size: tuple[int, int] = (20, 12), shade: int = 200) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "I;16":
        Image.fromarray(np.full(size[::-1], shade * 257, np.uint16)).save(path)
    else:
        bands = len(Image.new(mode, (1, 1)).getbands())
        colour: int | tuple[int, ...] = shade if bands == 1 else (shade,) * bands
        if mode == "CMYK":
            colour = (0, 0, 0, 255 - shade)
        Image.new(mode, size, colour).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of unequal size, all kinds of images, train and test apart."""
    root = tmp_path / "photos"
    kinds = [
        ("RGB", "png"),
        ("L", "png"),
        ("CMYK", "jpg"),
        ("I;16", "png"),
        ("RGBA", "png"),
        ("P", "gif"),
        ("1", "png"),
    ]
    for c, name in enumerate(["cat", "dog", "<b>eel"]):
        for i, (mode, suffix) in enumerate(kinds[: 7 - c]):
            save_image(root / "train" / name / f"{i}.{suffix}", mode, (20 + i, 12 + c))
        for i in range(2 + c):
            save_image(root / "test" / name / f"{i}.JPEG")
        (root / "train" / name / "notes.txt").write_text("not an image")
        (root / "train" / name / ".DS_Store").write_bytes(b"\0")
    return root
