"""CIFAR from small files in the official layout, and what is said when they are bad."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg.data import cache, load, verify
from mdcg.data.cifar import Cifar
from mdcg.data.source import found
from mdcg.errors import MdcgError
from mdcg.testing import check_dataset
from tests.data.conftest import Small, published, replaced


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)


def check_cifar(small: Small, where: Path) -> None:
    """Compare what is read from a place with the bytes of the files."""
    name, made, train, root = small
    dataset, skip = load(name, where), made.label_bytes
    files = [np.fromfile(root / made.folder / file, np.uint8) for file in made.test]
    for split, records in ((dataset.train, train), (dataset.test, np.concatenate(files).reshape(-1, train.shape[1]))):
        assert split.labels.tolist() == records[:, skip - 1].tolist()  # CIFAR-100: the fine label
        assert (split.images.numpy() == records[:, skip:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)).all()
    assert dataset.class_names[3] == "name3"
    assert dataset.shape == (3, 32, 32)
    assert (dataset.padding, dataset.flip) == (4, True)


def test_cifar_from_folder_and_archive(small_cifar: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made, _, root = small_cifar
    check_cifar(small_cifar, root)
    check_cifar(small_cifar, root / made.folder)
    pack(root / made.folder, root / made.archive)
    published(made, root / made.archive, monkeypatch)
    check_cifar(small_cifar, root / made.archive)
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    (root / made.archive).rename(elsewhere / made.archive)
    check_cifar(small_cifar, elsewhere)
    assert "is whole" in verify(name, elsewhere)


@pytest.mark.parametrize("piece", [1, 3, 10_000])
def test_records_are_the_same_whatever_is_decoded_at_once(
    small_cifar: Small, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdcg.data.cifar.PIECE", piece)
    check_cifar(small_cifar, small_cifar[3])


def test_second_start_does_not_read_the_source(small_cifar: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, _, root = small_cifar
    first = load(name, root)
    monkeypatch.setattr(Cifar, "read", lambda self, path: pytest.fail("read the source again"))
    assert torch.equal(load(name, root).train.images, first.train.images)


@pytest.mark.parametrize("as_archive", [False, True])
@pytest.mark.parametrize("which", [0, -2, -1])  # the first and the last training file, and the test file
def test_altered_and_truncated_files_are_named(
    small_cifar: Small, as_archive: bool, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, made, _, root = small_cifar
    where = root / made.folder
    victim = where / [*made.train, *made.test][which]
    whole = victim.read_bytes()
    for damaged in (whole[:-100], whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        victim.write_bytes(damaged)
        if as_archive:
            pack(where, root / made.archive)
            published(made, root / made.archive, monkeypatch)
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


def test_a_file_that_vanishes_while_others_are_read(small_cifar: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made, _, root = small_cifar
    victim = root / made.folder / [*made.train][-1]

    def found_and_gone(*given: Any) -> list[tuple[str, Path | bytes]]:
        listed = list(found(*given))
        victim.unlink()
        return listed

    monkeypatch.setattr("mdcg.data.cifar.found", found_and_gone)
    with pytest.raises(MdcgError, match=rf"cannot read .*{victim.name}: No such file.*; check the file\."):
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


def test_truncated_archive(small_cifar: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made, _, root = small_cifar
    archive = root / made.archive
    pack(root / made.folder, archive)
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], b"this is no archive", b"", gzip.compress(b"nor is this")):
        archive.write_bytes(content)
        published(made, archive, monkeypatch)
        with pytest.raises(MdcgError, match="damaged or cut short"):
            load(name, archive)


def test_an_archive_is_not_read_before_its_md5_is_right(small_cifar: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    name, made, _, root = small_cifar
    archive = root / made.archive
    pack(root / made.folder, archive)  # all files are as they should be
    monkeypatch.setattr(Cifar, "read", lambda *_: pytest.fail("it was read"))
    for call in (load, verify):
        with pytest.raises(MdcgError, match=f"{made.archive} is altered or cut short .its md5 is not {made.md5}"):
            call(name, archive)
    # Larger than it can be, it is not even hashed.
    published(dataclasses.replace(made, largest=archive.stat().st_size - 1), archive, monkeypatch)
    with pytest.raises(MdcgError, match=f"{made.archive} is altered or cut short"):
        load(name, archive)


def hostile_tar(path: Path, member: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(member, io.BytesIO(b"x" * member.size))


@pytest.mark.parametrize("kind", ["up", "absolute", "symlink", "hardlink"])
def test_hostile_tar_is_refused_whole(
    small_cifar: Small, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    published(made, root / made.archive, monkeypatch)
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
    check_cifar((name, online, train, root), target)
    assert (target / made.archive).exists()
    replaced(dataclasses.replace(made, url="http://127.0.0.1:9/no.tar.gz"), monkeypatch)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MdcgError, match=r"check the connection, or put no.tar.gz into"):
        load(name, empty, download=True)


def test_small_cifar_passes_the_check(small_cifar: Small) -> None:
    name, _, _, root = small_cifar
    check_dataset(name, root)
