"""Every data source on small files in the official layout, and what is said when they are bad."""

from __future__ import annotations

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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mdcg.data import DATASETS, DatasetRecord, cache, load, verify
from mdcg.data.cifar import CIFAR10, CIFAR100, Cifar
from mdcg.data.tinyimagenet import TINYIMAGENET, TinyImageNet, _digest, _wanted
from mdcg.errors import MdcgError

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
        files.whole_file(tmp_path / "x"),
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
