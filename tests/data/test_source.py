"""Archives that claim, or hold, more than they should: refused in a sentence, before they take memory."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from mdcg.data import DATASETS, Arrays, Published, load, read_files, svhn
from mdcg.data.eurosat import EUROSAT
from mdcg.data.mnist import MNIST, TRAIN, Mnist
from mdcg.data.source import fetch
from mdcg.data.svhn import SVHN, Svhn
from mdcg.errors import MachineError, MdcgError
from mdcg.testing.abuse import archives
from mdcg.testing.abuse.archives import in_blocks, pax_header
from tests.conftest import Cli
from tests.data.conftest import replaced

MOST, MEMBERS = 100_000, 30  # bytes and files that these archives may hold
TAKEN = 10 * 2**20  # bytes of memory that may be taken for them


def header(name: str = "top/a.bin", size: int = 0, kind: bytes = tarfile.REGTYPE, sparse: int = 0) -> bytes:
    return archives.tar_header(name, size, kind, sparse)


def told(path: Path) -> str:
    """What is said of an archive, in one sentence; little memory is taken until then."""
    tracemalloc.start()
    try:
        with pytest.raises(MdcgError) as error:
            dict(read_files(path, lambda name: name.endswith(".bin"), MOST, MEMBERS))
        assert tracemalloc.get_traced_memory()[1] < TAKEN
    finally:
        tracemalloc.stop()
    assert not isinstance(error.value, MachineError)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700
    return str(error.value)


SPARSE = [*archives.SPARSE, ("GNU.sparse.name", "top/a.bin")]
LARGE = 2**22  # bytes of zeros, which gzip packs into four thousand
TARS: dict[str, tuple[bytes, str]] = {
    "four terabytes": (header(size=2**42), "holds more than the 100,000 bytes that it can have ('top/a.bin' has 4,398"),
    "unwanted": (header("top/readme", LARGE) + bytes(LARGE), "holds more than the 100,000 bytes"),
    "many exabytes": (header(size=2**80), "holds more than the 100,000 bytes"),
    "less than nothing": (header(size=-(2**70)), "damaged or cut short (a file has less than no bytes)"),
    "a few together": (2 * (header(size=60_000) + in_blocks(bytes(60_000))), "holds more than the 100,000 bytes"),
    "cut short": (header(size=90_000) + bytes(512), "damaged or cut short (unexpected end of data)"),
    "pax size": (pax_header([("size", str(2**42))]) + header(), "holds more than the 100,000 bytes"),
    "long pax": (header(kind=tarfile.XHDTYPE, size=2**40) + bytes(LARGE), "damaged or cut short (what it says of its"),
    "negative pax": (header(kind=tarfile.XHDTYPE, size=-512) + bytes(LARGE), "damaged or cut short"),
    "long name": (header(kind=tarfile.GNUTYPE_LONGNAME, size=LARGE) + bytes(LARGE), "damaged or cut short (what it"),
    "endless pax": (
        5000 * pax_header([("a", "b")]) + header(),
        "damaged or cut short (what it says of its files is too",
    ),
    "sparse": (
        pax_header([*SPARSE, ("GNU.sparse.realsize", str(2**42))]) + header() + in_blocks(b"0\n"),
        "holds more than",
    ),
    "endless map": (
        pax_header(SPARSE) + header(size=LARGE) + b"9999999\n" + LARGE // 2 * b"0\n",
        "damaged or cut short (what it says of its files",
    ),
    "old sparse": (header(kind=tarfile.GNUTYPE_SPARSE, sparse=2**42), "holds more than the 100,000 bytes"),
    "many": (31 * header(), "holds more than the 30 files that it can have"),
    "backwards": (pax_header([("size", "-99999")]) + header(), "damaged or cut short"),
    "device": (header(kind=tarfile.CHRTYPE), "'top/a.bin', a link or device"),
    "two lines": (header("top/../a\nb.bin"), "holds 'top/../a b.bin', a path that leads outside"),
    "no text": (pax_header([("path", "top/a.bin")])[:530].ljust(1024, b"\xff"), "damaged or cut short"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("content", "said"), TARS.values(), ids=TARS)
def test_tar(content: bytes, said: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.tar.gz" if packed else "a.tar")
    path.write_bytes(gzip.compress(content + bytes(1024)) if packed else content + bytes(1024))
    assert said in told(path)


def test_what_is_said_of_all_files_is_not_kept(tmp_path: Path) -> None:
    """Or each of many small headers would make all that follow cost more memory and time."""
    said = (
        pax_header([(f"{member}.{key}", "x") for key in range(500)], tarfile.XGLTYPE) + header() for member in range(25)
    )
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(b"".join(said) + bytes(1024)))
    tracemalloc.start()
    found = dict(read_files(path, lambda name: True, 10**7, MEMBERS))
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    assert found == {"a.bin": b""}


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def patched(content: bytes, mark: bytes, place: int, by: bytes) -> bytes:
    """The bytes at some place behind a mark replaced."""
    start = content.index(mark) + place
    return content[:start] + by + content[start + len(by) :]


CENTRAL, END = b"PK\1\2", b"PK\5\6"
SMALL, BOMB = zipped(("top/a.bin", b"abc")), zipped(("top/a.bin", bytes(LARGE)))
PACKED_ALL_AT_ONCE = zipped(("top/a.bin", bytes(LARGE)), method=zipfile.ZIP_BZIP2)
ZIPS: dict[str, tuple[bytes, str]] = {
    "bomb": (BOMB, "holds more than the 100,000 bytes that it can have ('top/a.bin' has 4,194,304)"),
    "bomb that claims little": (patched(BOMB, CENTRAL, 24, struct.pack("<I", 9)), "damaged or cut short (Bad CRC"),
    "claims": (patched(SMALL, CENTRAL, 24, struct.pack("<I", 2**32 - 2)), "holds more than the 100,000 bytes"),
    "two together": (
        zipped(("top/a.bin", bytes(60_000)), ("top/b.bin", bytes(60_000))),
        "holds more than the 100,000 bytes",
    ),
    "many": (zipped(*((f"top/{number}", b"") for number in range(31))), "holds more than the 30 files"),
    "long list": (
        zipped(*((f"top/{number}{'x' * 60_000}", b"") for number in range(30))),
        "(what it says of its files is too",
    ),
    "long list by claim": (patched(SMALL, END, 12, struct.pack("<I", 2**32 - 2)), "damaged or cut short"),
    "bzip2": (patched(PACKED_ALL_AT_ONCE, CENTRAL, 24, struct.pack("<I", 9)), "(compression method 12 is not read)"),
    "no text": (patched(patched(SMALL, CENTRAL, 8, b"\0\x08"), CENTRAL, 46, b"\xff\xfe"), "damaged or cut short"),
}


@pytest.mark.parametrize(("content", "said"), ZIPS.values(), ids=ZIPS)
def test_zip(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(content)
    assert said in told(tmp_path / "a.zip")


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "readme").write_bytes(bytes(MOST + 1))  # which is not wanted
    os.mkfifo(tmp_path / "pipe.bin")
    (tmp_path / "zero.bin").symlink_to("/dev/zero")
    (tmp_path / "loop.bin").symlink_to("loop.bin")
    (tmp_path / "in/side").mkdir(parents=True)
    (tmp_path / "in/side/above").symlink_to(tmp_path)
    deep = tmp_path / "deep" / "/".join("x" * 500)
    deep.mkdir(parents=True)
    (deep / "b.bin").touch()
    assert dict(read_files(tmp_path, lambda name: name.endswith(".bin"), MOST, MEMBERS)) == {"a.bin": b"abc"}
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(2**42)
    assert "holds more than the 100,000 bytes that it can have ('large.bin' has 4,398,046,511,104)" in told(tmp_path)
    (tmp_path / "large.bin").unlink()
    for number in range(MEMBERS):
        (tmp_path / f"{number}.bin").touch()
    assert "holds more than the 30 files" in told(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_what_macos_puts_beside_files_is_none_of_them(kind: str, tmp_path: Path) -> None:
    names = ["top/a.bin", "top/._a.bin", "top/in/b.bin", "top/in/._b.bin", "__MACOSX/top/._a.bin", "__MACOSX/a/c.bin"]
    made = {name: name.encode() for name in names}
    place = tmp_path / {"folder": "top", "tar": "a.tar", "zip": "a.zip"}[kind]
    if kind == "folder":
        for name, content in made.items():
            file = tmp_path / name.replace("__MACOSX", "top/__MACOSX")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    elif kind == "tar":
        place.write_bytes(b"".join(header(name, len(name)) + in_blocks(content) for name, content in made.items()))
    else:
        place.write_bytes(zipped(*made.items()))
    found = dict(read_files(place, lambda name: name.endswith(".bin"), MOST, MEMBERS))
    assert found == {"a.bin": b"top/a.bin", "in/b.bin": b"top/in/b.bin"}


def test_a_folder_of_eurosat_that_a_mac_has_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(dataclasses.replace(EUROSAT, counts={"River": 2, "Forest": 2}), monkeypatch)
    for name in ("River", "Forest"):
        (tmp_path / "2750" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (64, 64)).save(tmp_path / "2750" / name / f"{number}.jpg")
            (tmp_path / "2750" / name / f"._{number}.jpg").write_bytes(b"\0\x05\x16\x07" + bytes(100))
    assert len(load("eurosat", tmp_path / "2750").train) == 2


# ------------------------------------------------------------------ files of other kinds


def read_alone(record: Mnist | Svhn, folder: Path) -> str:
    """What is said of files whose md5 is not looked at; little memory is taken until then."""
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, OSError)) as error:
            record.read(folder)
        assert tracemalloc.get_traced_memory()[1] < TAKEN
    finally:
        tracemalloc.stop()
    return str(error.value)


@pytest.mark.parametrize("shape", [(2**31, 2**31, 28), (60_001, 28, 28), (2, 28, 28), (0, 28, 28), (2,)])
def test_an_idx_file_that_holds_or_claims_more(shape: tuple[int, ...], tmp_path: Path) -> None:
    packed = gzip.compress(struct.pack(f">HBB{len(shape)}I", 0, 8, 3, *shape) + bytes(LARGE))
    (tmp_path / TRAIN[0]).write_bytes(packed)
    assert read_alone(MNIST, tmp_path) == f"{TRAIN[0]} is no IDX file of 3 axes"


def test_a_matlab_file_that_holds_or_claims_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / svhn.TRAIN
    savemat(path, {"X": np.zeros((32, 32, 3, 500), np.uint8), "y": np.ones((500, 1), np.uint8)}, do_compression=True)
    assert path.stat().st_size < 5000
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(svhn, "MOST", 10**6)
        assert read_alone(SVHN, tmp_path) == f"{svhn.TRAIN} holds more than 1,000,000 bytes"
    unpacked = zlib.decompressobj().decompress(whole[136:])
    assert struct.unpack_from("<II4I", unpacked, 24) == (5, 16, 32, 32, 3, 500)
    shape = f"X of {svhn.TRAIN} is uint8 of shape (32, 32, 3, 2147483647)"
    for place, said in ((44, shape), (60, f"{svhn.TRAIN} is damaged")):  # the number of images, of bytes of pixels
        claims = zlib.compress(unpacked[:place] + struct.pack("<I", 2**31 - 1) + unpacked[place + 4 :])
        path.write_bytes(whole[:128] + struct.pack("<II", 15, len(claims)) + claims)
        assert read_alone(SVHN, tmp_path) == said


# ------------------------------------------------------------------ the machine, and the net


class Greedy(Published):
    """A dataset of somebody's own, whose reader asks for too much."""

    def read(self, path: Path) -> Arrays:
        raise MemoryError


def test_a_shortage_of_memory_is_not_the_readers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    (tmp_path / "greedy.npz").write_bytes(b"x")
    md5 = hashlib.md5(b"x").hexdigest()
    own = Greedy(name="greedy", summary="much", shape=(3, 8, 8), url="https://example.org/greedy.npz", md5=md5)
    monkeypatch.setitem(DATASETS._known, "greedy", own)
    with pytest.raises(MachineError, match="memory has run out"):
        load("greedy", tmp_path)
    assert "memory has run out; close other programs" in cli("data", "verify", "greedy", "--data", tmp_path).sentence()


def test_a_download_that_does_not_end(server: str, tmp_path: Path) -> None:
    (tmp_path / "web" / "a.zip").write_bytes(bytes(200_000))
    right = hashlib.md5(bytes(200_000)).hexdigest()
    with pytest.raises(MdcgError, match=r"cannot download .*/a.zip \(more comes than the file can have\)"):
        fetch(f"{server}/a.zip", right, tmp_path / "got", largest=199_999)
    assert not list((tmp_path / "got").iterdir())
    assert fetch(f"{server}/a.zip", right, tmp_path / "got", largest=200_000).stat().st_size == 200_000


def test_no_file_has_less_than_a_byte() -> None:
    with pytest.raises(MdcgError, match="the largest file of mnist cannot have 0 bytes"):
        dataclasses.replace(MNIST, largest=0)
