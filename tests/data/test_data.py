"""Every data source on small files in the official layout, and what is said when they are bad."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import http.server
import io
import os
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mdcg.data import (
    DATASETS,
    Arrays,
    Bundled,
    DatasetRecord,
    Preprocessing,
    Protocol,
    arrays,
    cache,
    load,
    record_of,
    register_dataset,
    verify,
)
from mdcg.data.cifar import CIFAR10, CIFAR100, Cifar
from mdcg.data.tinyimagenet import TINYIMAGENET, TinyImageNet, _digest, _wanted
from mdcg.errors import MdcgError
from mdcg.figures.base import memories, memory, usual_memory
from mdcg.figures.plots.models import given as given_models
from mdcg.recipes.recipe import make_recipe
from mdcg.scenario import canonical, listed, parse
from mdcg.testing import check_dataset
from tests.conftest import Cli

needs_ordinary_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


def replaced(record: DatasetRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another record under the name of one that is registered, for the length of a test."""
    monkeypatch.setitem(DATASETS._known, record.name, record)


# ------------------------------------------------------------------ digits


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


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)


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


def check_cifar(name: str, made: Cifar, train: np.ndarray, where: Path) -> None:
    dataset = load(name, where)
    skip = made.label_bytes
    assert dataset.train.labels.tolist() == train[:, skip - 1].tolist()  # CIFAR-100: the fine label
    for number in (0, 7, len(train) - 1):
        planes = train[number, skip:].reshape(3, 32, 32)
        assert (dataset.train.images[number].numpy() == planes.transpose(1, 2, 0)).all()
    assert dataset.class_names[3] == "name3"
    assert dataset.shape == (3, 32, 32)
    assert (dataset.padding, dataset.flip) == (4, True)


def test_cifar_from_folder_and_archive(small_cifar: Small) -> None:
    name, made, train, root = small_cifar
    check_cifar(name, made, train, root)
    check_cifar(name, made, train, root / made.folder)
    pack(root / made.folder, root / made.archive)
    check_cifar(name, made, train, root / made.archive)
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    (root / made.archive).rename(elsewhere / made.archive)
    check_cifar(name, made, train, elsewhere)
    assert "is whole" in verify(name, elsewhere)


def test_second_start_does_not_read_the_source(small_cifar: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, _, root = small_cifar
    first = load(name, root)
    monkeypatch.setattr(Cifar, "read", lambda self, path: pytest.fail("read the source again"))
    assert torch.equal(load(name, root).train.images, first.train.images)


@pytest.mark.parametrize("as_archive", [False, True])
def test_altered_and_truncated_files_are_named(small_cifar: Small, as_archive: bool) -> None:
    name, made, _, root = small_cifar
    where = root / made.folder
    victim = where / next(iter(made.train))
    whole = victim.read_bytes()
    for damaged in (whole[:-100], whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        victim.write_bytes(damaged)
        if as_archive:
            pack(where, root / made.archive)
        with pytest.raises(MdcgError, match=rf"{victim.name} is altered or cut short.*data get") as told:
            load(name, root / made.archive if as_archive else root)
        assert "\n" not in str(told.value)
    victim.write_bytes(whole)
    assert len(load(name, root).train) > 0


def test_damaged_class_names(small_cifar: Small) -> None:
    name, made, _, root = small_cifar
    for content in (b"one\ntwo\n", b"\xff\xfe\x00"):
        (root / made.folder / made.names).write_bytes(content)
        with pytest.raises(MdcgError, match=rf"{made.names} holds \d class names in place of {made.classes}"):
            load(name, root)


def test_missing_file_and_missing_folder(small_cifar: Small) -> None:
    name, made, _, root = small_cifar
    first = root / made.folder / next(iter(made.train))
    content = first.read_bytes()
    first.unlink()
    with pytest.raises(MdcgError, match=f"lacks {first.name}"):
        verify(name, root)
    first.write_bytes(content)
    (root / made.folder / next(iter(made.test))).unlink()
    with pytest.raises(MdcgError, match=rf"lacks {next(iter(made.test))}"):
        load(name, root)
    with pytest.raises(MdcgError, match="there is no file or folder"):
        load(name, root / "nowhere")
    with pytest.raises(MdcgError, match=f"run 'mdcg data get {name} --data .*' first"):
        verify(name, cache.cache_folder())


def test_truncated_archive(small_cifar: Small) -> None:
    name, made, _, root = small_cifar
    archive = root / made.archive
    pack(root / made.folder, archive)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(MdcgError, match="damaged or cut short"):
        load(name, archive)
    archive.write_bytes(b"this is no archive")
    with pytest.raises(MdcgError, match="damaged or cut short"):
        load(name, archive)


def hostile_tar(path: Path, member: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(member, io.BytesIO(b"x" * member.size))


@pytest.mark.parametrize("kind", ["up", "absolute", "symlink", "hardlink"])
def test_hostile_tar_is_refused_whole(small_cifar: Small, kind: str, tmp_path: Path) -> None:
    name, made, _, root = small_cifar
    member = tarfile.TarInfo(
        {"up": "cifar/../../escaped", "absolute": "/tmp/escaped-mdcg"}.get(kind, "cifar/data_batch_1.bin")
    )
    if kind.endswith("link"):
        member.type = tarfile.SYMTYPE if kind == "symlink" else tarfile.LNKTYPE
        member.linkname = "/etc/passwd"
    else:
        member.size = 4
    hostile_tar(root / made.archive, member)
    with pytest.raises(MdcgError, match="leads outside" if kind in ("up", "absolute") else "link or device"):
        load(name, root / made.archive)
    assert not list(tmp_path.parent.rglob("escaped*"))
    assert not Path("/tmp/escaped-mdcg").exists()


def test_damaged_cache_is_made_anew_and_reported(small_cifar: Small) -> None:
    name, _, train, root = small_cifar
    load(name, root)
    (file,) = cache.cache_folder().glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1000])
    assert len(load(name, root).train) == len(train)  # cut short: noticed at once
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "was damaged and has been removed" in verify(name, root)
    assert not file.exists()


# ------------------------------------------------------------------ downloads


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    web = tmp_path / "web"
    web.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(web))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_download(server: str, small_cifar: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made, train, root = small_cifar
    archive = tmp_path / "web" / made.archive
    pack(root / made.folder, archive)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    online = dataclasses.replace(made, url=f"{server}/{made.archive}", md5=md5)
    target = tmp_path / "fetched"
    target.mkdir()
    replaced(dataclasses.replace(online, md5="0" * 32), monkeypatch)
    with pytest.raises(MdcgError, match="cannot download"):
        load(name, target, download=True)
    assert not list(target.iterdir())  # nothing half or wrong is left
    replaced(online, monkeypatch)
    with pytest.raises(MdcgError, match=f"run 'mdcg data get {name} --data {target}' first"):
        load(name, target)  # a folder that was named is not written to unasked
    load(name, target, download=True)
    check_cifar(name, online, train, target)
    assert (target / made.archive).exists()
    replaced(dataclasses.replace(made, url="http://127.0.0.1:9/no.tar.gz"), monkeypatch)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MdcgError, match=r"check the connection, or put no.tar.gz into"):
        load(name, empty, download=True)


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
    files = {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and _wanted(file.relative_to(folder).as_posix())
    }
    val = [tuple(line.split("\t")[:2]) for line in annotations]
    return dataclasses.replace(TINYIMAGENET, digest=_digest(files, wnids, val))


@pytest.fixture
def small_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    replaced(write_tiny(tmp_path), monkeypatch)
    return tmp_path


def zip_folder(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted(folder.rglob("*")):
            out.write(file, file.relative_to(folder.parent))


@pytest.mark.parametrize("as_zip", [False, True])
def test_tinyimagenet(small_tiny: Path, as_zip: bool) -> None:
    where = small_tiny
    if as_zip:
        where = small_tiny / "tiny-imagenet-200.zip"
        zip_folder(small_tiny / "tiny-imagenet-200", where)
    dataset = load("tinyimagenet", where)
    assert dataset.shape == (3, 64, 64)
    assert dataset.class_names == ("bus", "goldfish", "bee")
    assert dataset.counts().tolist() == [4, 4, 4]
    assert np.bincount(dataset.test.labels).tolist() == [2, 2, 2]
    for image, label in zip(dataset.train.images, dataset.train.labels, strict=True):
        assert abs(int(image.float().mean()) - (60 * label + 20)) <= 2
    assert (dataset.padding, dataset.mean) == (8, (0.4802, 0.4481, 0.3975))
    assert "is whole" in verify("tinyimagenet", where)


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


def test_encrypted_zip(small_tiny: Path) -> None:
    archive = small_tiny / "tiny-imagenet-200.zip"
    zip_folder(small_tiny / "tiny-imagenet-200", archive)
    content = bytearray(archive.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # set the flag that says "encrypted"
        start = content.find(mark)
        while start >= 0:
            content[start + offset] |= 1
            start = content.find(mark, start + 4)
    archive.write_bytes(content)
    with pytest.raises(MdcgError, match="damaged or cut short"):
        load("tinyimagenet", archive)


@pytest.mark.parametrize("kind", ["up", "link"])
def test_hostile_zip(small_tiny: Path, kind: str) -> None:
    archive = small_tiny / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as out:
        entry = zipfile.ZipInfo("tiny/../../escaped" if kind == "up" else "tiny/wnids.txt")
        if kind == "link":
            entry.external_attr = 0o120777 << 16
        out.writestr(entry, "/etc/passwd")
    with pytest.raises(MdcgError, match=r"leads outside|link or device"):
        load("tinyimagenet", archive)
    archive.write_bytes(archive.read_bytes()[:20])
    with pytest.raises(MdcgError, match="damaged or cut short"):
        load("tinyimagenet", archive)


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


def test_folder_with_train_and_test(photos: Path) -> None:
    dataset = load(f"folder:{photos}", size=16)
    assert dataset.shape == (3, 16, 16)
    assert dataset.class_names == ("<b>eel", "cat", "dog")
    assert dataset.counts().tolist() == [5, 7, 6]
    assert np.bincount(dataset.test.labels).tolist() == [4, 2, 3]
    first_five = dataset.train.images[dataset.train.labels == 1][:5]  # RGB, L, CMYK, 16-bit, RGBA of shade 200
    assert (first_five.float() - 200).abs().max() <= 2
    assert dataset.mean[0] == pytest.approx(dataset.train.images[..., 0].double().mean().item() / 255)
    assert "and so is its cache" in verify(f"folder:{photos}", size=16)
    (file,) = cache.cache_folder().glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "was damaged and has been removed" in verify(f"folder:{photos}", size=16)
    load(f"folder:{photos}", size=16)
    load(f"folder:{photos}", size=24)
    assert len(list(cache.cache_folder().glob("*.safetensors"))) == 2  # sizes do not drive each other out


def test_folder_split_for_the_user(photos: Path) -> None:
    dataset = load(f"folder:{photos / 'train'}")
    assert dataset.shape == (3, 32, 32)
    assert np.bincount(dataset.test.labels).tolist() == [1, 1, 1]
    assert dataset.counts().tolist() == [4, 6, 5]


def test_a_changed_folder_is_read_again(photos: Path) -> None:
    before = load(f"folder:{photos}")
    save_image(photos / "train/cat/new.png", shade=10)
    after = load(f"folder:{photos}")
    assert len(after.train) == len(before.train) + 1
    assert after.fingerprint != before.fingerprint
    assert len(list(cache.cache_folder().iterdir())) == 1  # the outdated cache is gone


def test_rotated_photos_are_turned(tmp_path: Path) -> None:
    for name in ("a", "b"):
        half = np.zeros((16, 16, 3), np.uint8)
        half[:8] = 255  # bright above
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        for split in ("train", "test"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(half).save(tmp_path / split / name / "x.png", exif=exif)
    image = load(f"folder:{tmp_path}", size=16).train.images[0]
    assert image[:8].max() == 0
    assert image[8:].min() == 255


def test_bad_folders(photos: Path, tmp_path: Path) -> None:
    def told(name: str, size: int | None = None) -> str:
        with pytest.raises(MdcgError) as error:
            load(name, size=size)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "there is no folder" in told(f"folder:{tmp_path / 'nowhere'}")
    (tmp_path / "bare").mkdir()
    assert "0 class folder(s)" in told(f"folder:{tmp_path / 'bare'}")
    assert "between 4 and 1024" in told(f"folder:{photos}", size=2)
    broken = photos / "train/cat/broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n not really")
    assert str(broken) in told(f"folder:{photos}")
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(whole, "PNG")
    broken.write_bytes(whole.getvalue()[:900])
    assert "not a readable image" in told(f"folder:{photos}")
    broken.unlink()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(photos / "train/cat/deep.tiff")
    assert "floating-point" in told(f"folder:{photos}")
    (photos / "train/cat/deep.tiff").unlink()
    (photos / "train/cat/gone.png").symlink_to("/no/such/file")
    assert "gone.png: No such file" in told(f"folder:{photos}")
    (photos / "train/cat/gone.png").unlink()
    (photos / "train/empty").mkdir()
    assert "holds no image" in told(f"folder:{photos}")
    save_image(photos / "train/empty/one.png")
    assert "has no folder in" in told(f"folder:{photos}")
    assert "holds a single image" in told(f"folder:{photos / 'train'}")


def test_names_of_any_bytes(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"th\xe9"):
        for i in range(3):
            save_image(tmp_path / os.fsdecode(name) / f"{i}\udce9.png")
    assert load(f"folder:{tmp_path}").class_names == ("caf\ufffd", "th\ufffd")


def test_unknown_dataset_and_size() -> None:
    with pytest.raises(MdcgError, match="did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(MdcgError, match="image size of digits is fixed"):
        load("digits", size=16)


# ------------------------------------------------------------------ where nothing may be written


def test_no_write_permission_for_the_cache(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the cache folder should be")
    monkeypatch.setenv("MDCG_CACHE", str(blocked / "cache"))
    with pytest.raises(MdcgError, match=r"cannot write .*choose a writable"):
        load(f"folder:{photos}")


@needs_ordinary_user
def test_read_only_cache_folder(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    monkeypatch.setenv("MDCG_CACHE", str(locked))
    with pytest.raises(MdcgError, match="Permission denied"):
        load(f"folder:{photos}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mdcg import files

    with (
        pytest.raises(MdcgError, match="No space left on device; make room"),
        files.atomic_file(tmp_path / "x"),
        Path("/dev/full").open("wb") as full,
    ):
        full.write(b"x" * 100_000)
    assert not list(tmp_path.iterdir())


def test_no_pickle_is_read() -> None:
    """Nothing in the package can unpickle: neither the module nor torch.load is ever touched."""
    source = Path(sys.modules["mdcg"].__file__ or "").parent
    for file in source.rglob("*.py"):
        text = file.read_text()
        assert "pickle" not in text.replace("unpickle", ""), file
        assert "torch.load(" not in text, file


# ------------------------------------------------------------------ datasets of one's own

Split = tuple[Any, Any]


def squares(classes: int = 4, each: int = 3, side: int = 8, channels: int = 1) -> Split:
    labels = np.arange(classes * each) % classes
    return np.random.default_rng(0).integers(0, 256, (len(labels), side, side, channels), np.uint8), labels


@dataclass(frozen=True, kw_only=True)
class Own(Bundled):
    """Read by whatever function it is given."""

    reader: Callable[[], Any]

    def read(self) -> Arrays:
        content: Arrays = self.reader()
        return content


def own(reader: Callable[[], Any] | None = None, **changes: Any) -> Own:
    usual: dict[str, Any] = {"name": "own", "summary": "Squares of four kinds", "shape": (1, 8, 8)}
    return Own(**(usual | changes), reader=reader or (lambda: arrays(squares(), squares(), list("abcd"))))


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(DATASETS, "_known", dict(DATASETS._known))


@pytest.mark.usefixtures("door")
def test_a_dataset_of_ones_own(cli: Cli, runs: Path) -> None:
    register_dataset(own(short="o", tasks=(2,), protocol=Protocol("smallconv", epochs=1, batch_size=4)))
    assert "Squares of four kinds" in cli("list", "datasets").out
    assert "o-2        own in 2 tasks" in cli("list", "scenarios").out
    assert cli("data", "verify", "own").out == "own: 24 images.\n"
    assert "12 training and 12 test images of 4 classes, ready" in cli("data", "get", "own").out
    assert "o-2_naive_m0_s0" in cli("run", "--scenario", "own-02", "--method", "naive", "--out", runs).out
    assert "4 classes cannot make 3 tasks" in cli("run", "--scenario", "o-3", "--method", "naive").sentence()
    assert "image size of own is fixed" in cli("data", "verify", "own", "--image-size", 8).sentence()
    dataset = load("own")
    assert (dataset.padding, dataset.flip) == (1, True)
    assert dataset.mean[0] == pytest.approx(squares()[0].mean() / 255)


@pytest.mark.usefixtures("door")
def test_ours_pass_the_check(photos: Path) -> None:
    check_dataset(f"folder:{photos}", size=16)
    check_dataset(own())
    check_dataset(own().name)


def test_small_cifar_passes_the_check(small_cifar: Small) -> None:
    name, _, _, root = small_cifar
    check_dataset(name, root)


def test_small_tinyimagenet_passes_the_check(small_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(dataclasses.replace(DATASETS["tinyimagenet"], tasks=(1,)), monkeypatch)  # it has 3 classes here, not 200
    check_dataset("tinyimagenet", small_tiny)


@pytest.mark.usefixtures("door")
def test_figures_follow_from_the_record() -> None:
    register_dataset(own(shape=(2, 64, 64), tasks=(2,), memories=(10, 20, 40)))
    asked = make_recipe(scenario="own-2")
    assert given_models(asked) == ((2, 64, 64), "resnet18")
    assert (memories(asked), memory(asked)) == ([10, 20, 40], [20])
    register_dataset(own(name="other"))
    assert usual_memory("other-2") == usual_memory("own-1") == 500
    with pytest.raises(MdcgError, match="nothing says how large the memory should be for other-2"):
        memories(make_recipe(scenario="other-2"))


def wrong(change: Callable[[Split], Split]) -> Callable[[], Arrays]:
    return lambda: arrays(change(squares()), squares(), list("abcd"))


BAD: dict[str, Callable[[], Any]] = {
    "its training images are float64, not uint8": wrong(lambda s: (s[0] / 255, s[1])),
    r"its training images have shape \(12, 8, 8\), not \(images, height": wrong(lambda s: (s[0][..., 0], s[1])),
    r"its training images have shape \(1, 8, 7\), not \(1, 8, 8\)": wrong(lambda s: (s[0][:, :, 1:], s[1])),
    r"its training images have shape \(0, 8": wrong(lambda s: (s[0][:0], s[1][:0])),
    "it has 12 training images and 11 labels": wrong(lambda s: (s[0], s[1][1:])),
    "its training labels are float64 of shape": wrong(lambda s: (s[0], s[1] + 0.5)),
    r"its training labels are int64 of shape \(12, 1\)": wrong(lambda s: (s[0], s[1][:, None])),
    "its training labels go from 1 to 4, but 4 classes are 0 to 3": wrong(lambda s: (s[0], s[1] + 1)),
    "its training labels go from -1 to 2": wrong(lambda s: (s[0], s[1] - 1)),
    "its class 'd' has no training image": wrong(lambda s: (s[0], s[1] % 3)),
    "its class 'e' has no training image": lambda: arrays(squares(), squares(), list("abcde")),
    "its class 'd' has no test image": lambda: arrays(squares(), squares(3), list("abcd")),
    "its class names are not two or more texts": lambda: arrays(squares(1), squares(1), ["a"]),
    "'read' returned tuple, not what mdcg.data.arrays makes": squares,
    "'read' returned NoneType": lambda: None,
    r"cannot be read \(ZeroDivisionError: division by zero\)": lambda: 1 / 0,
    r"cannot be read \(FileNotFoundError: .*\)": lambda: Path("/no/such/file").read_bytes(),
}


@pytest.mark.parametrize("said", BAD)
@pytest.mark.usefixtures("door")
def test_bad_images_are_told(said: str, cli: Cli) -> None:
    register_dataset(own(BAD[said]))
    with pytest.raises(MdcgError, match=said) as told:
        load("own")
    assert "\n" not in str(told.value)
    assert "mend its 'read'" in cli("run", "--scenario", "own-2", "--method", "naive").sentence()
    with pytest.raises(AssertionError, match=said):
        check_dataset("own")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "a b"}, "'a b' cannot name a dataset"),
        ({"name": ""}, "'' cannot name a dataset"),
        ({"short": "-x"}, "'-x' cannot name a dataset"),
        ({"short": "x:y"}, "'x:y' cannot name a dataset"),
        ({"summary": "two\nlines"}, "summary of one line"),
        ({"shape": (8, 8)}, r"\(channels, height, width\)"),
        ({"shape": (1, 0, 8)}, r"\(channels, height, width\)"),
        ({"tasks": (0,)}, "tasks of own cannot be"),
        ({"format": 0}, "format of own cannot be 0"),
        ({"preprocessing": Preprocessing(1, True, (0.5,) * 3, (0.5,) * 3)}, "one number for each of 1 channel"),
    ],
)
def test_bad_records_are_told(change: dict[str, Any], said: str) -> None:
    with pytest.raises(MdcgError, match=said) as told:
        own(**change)
    assert "\n" not in str(told.value)


@given(st.integers(-3, 3), st.lists(st.floats(), max_size=3), st.lists(st.floats(), max_size=3))
def test_only_numbers_that_can_normalise(padding: int, mean: list[float], std: list[float]) -> None:
    usable = padding >= 0 and len(mean) == len(std) and np.isfinite(mean).all() and np.isfinite(std).all()
    if usable and all(one > 0 for one in std):
        Preprocessing(padding, True, tuple(mean), tuple(std))
        return
    with pytest.raises(MdcgError, match=r"cannot|belong together"):
        Preprocessing(padding, True, tuple(mean), tuple(std))


def test_protocols_that_train_nothing() -> None:
    for change in ({"epochs": 0}, {"batch_size": 1}, {"lr": float("nan")}, {"lr": 0.0}, {"momentum": 1.0}):
        with pytest.raises(MdcgError, match="nothing can be trained by"):
            dataclasses.replace(Protocol("resnet20", 20, 32), **change)


@given(st.integers(1, 4), st.integers(1, 256))
def test_what_a_record_leaves_out(channels: int, side: int) -> None:
    record = own(shape=(channels, side, side))
    usual = record.trained((channels, side, side))
    assert (usual.backbone, usual.epochs, usual.batch_size) == ("resnet18" if side > 48 else "resnet20", 20, 32)
    assert record.prepared((channels, side, side)) == Preprocessing(max(1, side // 8), True)


@given(st.data(), st.integers(2, 6), st.integers(1, 5), st.integers(1, 3))
def test_arrays_hold_what_they_are_given(data: st.DataObject, classes: int, side: int, channels: int) -> None:
    """In whatever order and with whatever kind of whole numbers; mean and std are those of the pixels."""
    labels = data.draw(st.permutations([*range(classes), *range(classes)]))
    kind = data.draw(st.sampled_from([np.int64, np.int32, np.uint8]))
    images = np.random.default_rng(side).integers(0, 256, (len(labels), side, side, channels), np.uint8)
    images.setflags(write=False)
    made = arrays((images, np.array(labels, kind)), (images[::-1], labels[::-1]), list("abcdef")[:classes])
    cache.check(made, (channels, side, side))
    assert made.train_labels.tolist() == labels
    assert (made.test_images.numpy() == images[::-1]).all()
    np.testing.assert_allclose(made.mean, images.mean((0, 1, 2)) / 255)
    np.testing.assert_allclose(made.std, np.maximum(images.std((0, 1, 2)) / 255, 1e-3))


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True), st.integers(1, 999_999), st.booleans())
def test_every_name_can_stand_in_a_scenario(name: str, tasks: int, short: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DATASETS, "_known", {})
        record = register_dataset(own(name="own-dataset" if short else name, short=name if short else ""))
        one = f"{name}-{tasks}"
        for spelled in (one, f"{record.name}-{tasks}", f"{record.name}-{tasks:06}"):
            assert parse(spelled) == (record.name, tasks)
            assert canonical(spelled) == one


@pytest.mark.usefixtures("door")
def test_names_that_clash() -> None:
    register_dataset(own(short="o"))
    with pytest.raises(MdcgError, match="already a dataset named 'own'"):
        register_dataset(own())
    for name, short in (("o", ""), ("other", "o"), ("other", "own")):
        with pytest.raises(MdcgError, match="could not tell the dataset"):
            register_dataset(own(name=name, short=short))
    with pytest.raises(MdcgError, match="is registered as 'mine'; use one name"):
        DATASETS.register("mine")(own())
    with pytest.raises(MdcgError, match="register 'npz:PATH', for all"):
        register_dataset(own(name="npz:/a/b"))
    assert register_dataset(own(name="npz:PATH")).name == "npz:PATH"
    assert record_of("npz:/a/b").name == "npz:/a/b"
    with pytest.raises(MdcgError, match="no instance of DatasetRecord"):
        DATASETS.register("kind")(Own)  # type: ignore[arg-type]
    assert "other" not in DATASETS.names()
    with pytest.raises(AssertionError, match="another dataset is already registered as 'own'"):
        check_dataset(own())


ENTRY = own(name="from-outside", tasks=(2,))


@pytest.mark.usefixtures("door")
def test_datasets_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def bring(**points: str) -> None:
        found = [EntryPoint(name.replace("_", "-"), value, "mdcg.datasets") for name, value in points.items()]
        monkeypatch.setattr("mdcg.registry.entry_points", lambda group: found)
        monkeypatch.setattr(DATASETS, "_entry_points_read", False)

    bring(from_outside=f"{__name__}:ENTRY")
    assert record_of("from-outside") is ENTRY
    assert listed()[-1] == "from-outside-2"
    bring(digits=f"{__name__}:ENTRY")
    with pytest.raises(MdcgError, match="use one name for both"):
        parse("digits-5")
    bring(broken="no_such_module:X")
    with pytest.raises(MdcgError, match="the dataset 'broken' of no_such_module:X could not be loaded"):
        parse("digits-5")


@pytest.mark.usefixtures("door")
def test_what_the_check_finds() -> None:
    rng = np.random.default_rng()

    def another() -> Arrays:
        images = rng.integers(0, 256, (12, 8, 8, 1), np.uint8)
        return arrays((images, squares()[1]), squares(), list("abcd"))

    for record, said in (
        (own(another, name="random"), "random differs from one reading to the next"),
        (own(name="crowded", tasks=(3,)), "4 classes cannot make 3 tasks"),
        (own(name="lost", protocol=Protocol("resnet21", 1, 2)), "backbone 'resnet21' in the protocol of lost"),
    ):
        with pytest.raises(AssertionError, match=said):
            check_dataset(record)
    with pytest.raises(AssertionError, match="unknown dataset 'nobody'"):
        check_dataset("nobody")


def test_the_room_of_data_knows_nothing_above_it() -> None:
    below = {"data", "draws", "errors", "files", "registry", "tensors"}
    for file in (Path(sys.modules["mdcg"].__file__ or "").parent / "data").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mdcg"):
                assert (node.module or "").split(".")[1] in below, (file.name, node.module)
