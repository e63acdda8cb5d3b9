"""Archives and files of datasets that are damaged, lie about themselves, or explode: what commands make of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import re
import shutil
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from mdcg.data import Arrays, DatasetRecord, Published, arrays, read_files
from mdcg.data.cifar import CIFAR10
from mdcg.data.eurosat import EUROSAT
from mdcg.data.mnist import MNIST, TEST, TRAIN
from mdcg.data.svhn import SVHN
from mdcg.data.tinyimagenet import TINYIMAGENET
from mdcg.data.tinyimagenet import _digest as digest_of_tiny
from mdcg.testing.abuse.campaign import Failure
from mdcg.testing.abuse.damage import Edited
from mdcg.testing.abuse.hostile import NAMES, Harm, Hostile, fewest


class Own(Published):
    """A dataset of somebody's own: raw images of 4 × 4 pixels, ten of each class in a file, in any archive."""

    def read(self, path: Path) -> Arrays:
        found = sorted(read_files(path, lambda name: name.endswith(".raw"), most=10**6, members=100))
        images = np.frombuffer(b"".join(content for _, content in found), np.uint8).reshape(-1, 4, 4, 3)
        labels = np.repeat(np.arange(len(found)), 10)
        return arrays((images, labels), (images, labels), [name for name, _ in found])


@dataclass(frozen=True)
class Layout:
    """The files of a small dataset as they are published, and its record."""

    record: DatasetRecord
    kinds: tuple[str, ...]  # of archives that they come in; "files": in none
    files: Mapping[str, bytes]
    most: int = 0  # bytes that an archive of it may hold


SEGMENT = 2**27  # bytes of zeros that are packed once, and repeated
BOMB = 19 * SEGMENT  # more than a command has memory for


@cache
def _packed_zeros() -> tuple[bytes, bytes]:
    """A segment of zeros as gzip has it, and as a part of what zip has."""
    part = zlib.compressobj(1, zlib.DEFLATED, -15)
    return gzip.compress(bytes(SEGMENT), 1), part.compress(bytes(SEGMENT)) + part.flush(zlib.Z_FULL_FLUSH)


@dataclass
class Packed:
    """An archive that is being made."""

    layout: Layout
    kind: str
    files: list[tuple[str, bytes]]
    before: dict[int, list[bytes | None]] = field(default_factory=dict)  # a file in a tar archive; None: a bomb's zeros
    about: dict[int, dict[str, int]] = field(default_factory=dict)  # a file in a zip archive, as ZipInfo has it
    after: list[Callable[[bytes], bytes]] = field(default_factory=list)  # what becomes of it, or of its first file

    def write(self, folder: Path) -> Path:
        """Write it into a folder, and return what a command is to be given."""
        if self.kind == "files":
            for place, (name, content) in enumerate(self.files):
                (folder / name).write_bytes(content if place else self._changed(content))
            return folder
        path = folder / f"{self.layout.record.name}.{self.kind}"
        if self.kind == "zip":
            path.write_bytes(self._changed(self._zip()))
        elif self.kind == "tar.gz":
            path.write_bytes(self._changed(b"".join(_gzipped(piece) for piece in self._tar())))
        else:
            with path.open("wb") as file:
                for piece in self._tar():
                    file.write(self._changed(piece)) if piece is not None else file.seek(BOMB, os.SEEK_CUR)
        return path

    def _changed(self, content: bytes) -> bytes:
        for change in self.after:
            content = change(content)
        return content

    def _tar(self) -> list[bytes | None]:
        pieces: list[bytes | None] = [b""]
        for place, (name, content) in enumerate(self.files):
            own = tar_header(f"top/{name}", len(content)) + in_blocks(content)
            for piece in [*self.before.get(place, ()), own]:
                if piece is None or pieces[-1] is None:
                    pieces.append(piece)
                else:
                    pieces[-1] += piece
        return [*pieces, bytes(1024)]

    def _zip(self) -> bytes:
        file = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            warnings.simplefilter("ignore")  # of two that have the same name
            for place, (name, content) in enumerate(self.files):
                info = zipfile.ZipInfo(name if place in self.about else f"top/{name}")
                info.compress_type = zipfile.ZIP_DEFLATED
                for key, value in self.about.get(place, {}).items():
                    setattr(info, key, value)
                archive.writestr(info, content)
        return file.getvalue()


def _gzipped(piece: bytes | None) -> bytes:
    """Pieces that were packed one by one are unpacked as one."""
    return gzip.compress(piece, 1) if piece is not None else BOMB // SEGMENT * _packed_zeros()[0]


def with_bomb(name: str, content: bytes) -> bytes:
    """A zip archive with one more file, which is small until it is unpacked."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        start, count = archive.start_dir, len(archive.infolist())
    packed = BOMB // SEGMENT * _packed_zeros()[1] + b"\x03\0"
    about = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(packed), BOMB, len(name), 0)
    local = b"PK\3\4" + about + name.encode() + packed
    entry = CENTRAL + struct.pack("<H", 20) + about + struct.pack("<HHHII", 0, 0, 0, 0, start) + name.encode()
    files = content[start : content.rindex(END)] + entry
    return (
        content[:start]
        + local
        + files
        + END
        + struct.pack("<HHHHIIH", 0, 0, count + 1, count + 1, len(files), start + len(local), 0)
    )


class Archives(Hostile):
    """Archives of datasets with bombs, claims, links and damage, not hashed first: read as they are, or a sentence."""

    name, usual, memory = "archives", 100, 5 * 2**29

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.layouts = _layouts()
        self.records = tuple(layout.record for layout in self.layouts)

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        layout = self.layouts[number % len(self.layouts)]
        kind, command = rng.choice(layout.kinds), rng.choice(("verify", "verify", "get"))
        harms = [self._harm(layout, kind, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
        found = fewest(harms, lambda chosen: self._tried(layout, kind, command, chosen))
        return found and replace(found, how=f"data {command} {layout.record.name} from {kind}, {found.how}")

    def _tried(self, layout: Layout, kind: str, command: str, harms: Sequence[Harm[Packed]]) -> str | None:
        place = self.folder / "data"
        place.mkdir()
        packed = Packed(layout, kind, list(layout.files.items()))
        for one in harms:
            one.do(packed)
        words = ["data", command, layout.record.name, "--data", packed.write(place)]
        error, _, _, said = self.wrong(*words, records=self.records)
        shutil.rmtree(place)
        if error is None and "memory" in said.lower():
            return f"nothing but the end of memory kept it from more: {said.strip()}"
        return error

    def _harm(self, layout: Layout, kind: str, rng: random.Random) -> Harm[Packed]:
        if rng.random() < 0.15:
            return _edited(rng.randrange(2**31))
        ways = {"zip": _zip_harm, "files": _file_harm}.get(kind, _tar_harm)
        words, do = ways(layout, rng, self.outside)
        return Harm(words, do)


Done = tuple[str, Callable[[Packed], object]]


def _edited(seed: int) -> Harm[Packed]:
    """Any bytes of the archive replaced, or removed."""

    def change(content: bytes) -> bytes:
        file = Edited(content)
        return file.damaged(file.draw(random.Random(seed)))

    return Harm(f"bytes edited by random.Random({seed})", lambda packed: packed.after.append(change))


def _tar_harm(layout: Layout, rng: random.Random, outside: Path) -> Done:
    """Something before a file of a tar archive, or in place of it."""
    name, place = rng.choice(list(layout.files)), rng.randrange(len(layout.files))
    top, huge = f"top/{name}", rng.choice((layout.most + 1, 2**40, 2**40, 2**62, 2**80, -1, -512, -(2**70)))
    link = rng.choice(("/etc/passwd", "../../outside/kept.png", name, "/dev/zero"))
    leads = rng.choice((f"{outside}/escaped", "../outside/escaped", "top/../../outside/escaped", "top\\..\\..\\x"))
    odd = rng.choice(NAMES).decode(errors="surrogateescape")
    many = rng.choice((10, 200))
    kinds: dict[str, Callable[[], bytes]] = {
        f"a path that leads to {leads}": lambda: tar_header(leads, 4) + in_blocks(b"here"),
        f"a link to {link}": lambda: tar_header(top, 0, rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE)), link=link),
        "a device": lambda: tar_header(top, 0, rng.choice((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE))),
        f"a file that claims {huge} bytes": lambda: tar_header(top, huge),
        "a bomb": lambda: tar_header(top, BOMB),
        "a bomb that nobody wants": lambda: tar_header("top/other", BOMB),
        "a bomb of a PAX header": lambda: tar_header("pax", BOMB, tarfile.XHDTYPE),
        f"a sparse file of {huge} bytes": lambda: tar_header(top, 0, tarfile.GNUTYPE_SPARSE, huge),
        f"a newer sparse file of {huge} bytes": lambda: (
            pax_header([*SPARSE, ("GNU.sparse.realsize", str(huge))]) + tar_header(top) + in_blocks(b"1\n0\n0\n")
        ),
        "a map of a sparse file that does not end": lambda: (
            pax_header(SPARSE) + tar_header(top, 10**6) + b"9999999\n" + 5 * 10**5 * b"0\n"
        ),
        f"a PAX size of {huge}": lambda: pax_header([("size", str(huge))]) + tar_header(top),
        f"a PAX header of {huge} bytes": lambda: tar_header("pax", huge, tarfile.XHDTYPE) + bytes(10**6),
        f"a PAX path of {leads}": lambda: pax_header([("path", leads)]) + tar_header(top, 4) + in_blocks(b"here"),
        "a PAX header of anything": lambda: tar_header("pax", 500, tarfile.XHDTYPE) + in_blocks(rng.randbytes(500)),
        f"{many} PAX headers": lambda: many * pax_header([("a", "b" * 300)], rng.choice(b"xg").to_bytes()),
        f"a long name of {huge} bytes": lambda: tar_header("x", huge, tarfile.GNUTYPE_LONGNAME) + bytes(10**6),
        f"a file named {odd!r}": lambda: tar_header(f"top/{odd}", 4) + in_blocks(b"here"),
        "the same file again": lambda: tar_header(top, 4) + in_blocks(b"here"),
        "a folder of its name": lambda: tar_header(top, 0, tarfile.DIRTYPE),
        "what macOS adds": lambda: tar_header(f"top/._{name}".replace(f"._{name}", _beside(name)), 4) + in_blocks(b"x"),
        f"{many} empty files": lambda: many * tar_header("top/other"),
        "a file of an unknown kind": lambda: tar_header(top, 4, b"~") + in_blocks(b"here"),
        "the end": lambda: bytes(1024),
    }
    words = rng.choice(list(kinds))
    pieces = [kinds[words](), *([None] if "a bomb" in words else [])]
    return words, lambda packed: packed.before.setdefault(place, []).extend(pieces)


def _beside(name: str) -> str:
    folder, _, last = name.rpartition("/")
    return f"{folder}/._{last}".lstrip("/")


def _zip_harm(layout: Layout, rng: random.Random, outside: Path) -> Done:
    """A file more in a zip archive, or something else that it says of those that it has."""
    name = rng.choice(list(layout.files))
    leads = rng.choice((f"{outside}/escaped", "../outside/escaped", "top/../../outside/escaped", "top\\..\\..\\x"))
    odd = rng.choice(NAMES).decode(errors="replace")
    many, number = rng.choice((50, 3000)), rng.choice((0, 1, 2**16 - 1, 2**31, 2**32 - 2, 2**32 - 1))
    method = rng.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED))

    def add(name: str, content: bytes, **about: int) -> Callable[[Packed], object]:
        def do(packed: Packed) -> None:
            packed.about[len(packed.files)] = about
            packed.files.append((name, content))

        return do

    def say(mark: bytes, place: int, form: str, number: int, which: float) -> Callable[[Packed], object]:
        return lambda packed: packed.after.append(partial(_put, mark, place, form, number, which))

    which = rng.random()
    kinds: dict[str, Callable[[Packed], object]] = {
        f"a path that leads to {leads}": add(leads, b"here"),
        "a link": add(f"top/{name}", b"/etc/passwd", external_attr=0o120777 << 16),
        "a bomb": lambda packed: packed.after.insert(0, partial(with_bomb, f"top/{name}")),
        "a bomb that says it is small": lambda packed: packed.after.insert(
            0, lambda content: _put(CENTRAL, 24, "<I", 9, 1.0, with_bomb(f"top/{name}", content))
        ),
        "a bomb of another kind": lambda packed: [
            one(packed)
            for one in (add(f"top/{name}", bytes(10**7), compress_type=method), say(CENTRAL, 24, "<I", 9, 1.0))
        ],
        f"a file compressed by {method}": add(f"top/{name}", bytes(10**6), compress_type=method),
        f"a file named {odd!r}": add(f"top/{odd}", b"here"),
        "the same file again": add(f"top/{name}", b"here"),
        "what macOS adds": add(f"top/{_beside(name)}", b"x"),
        "what macOS adds beside": add(f"__MACOSX/top/{_beside(name)}", b"x"),
        f"{many} empty files": lambda packed: [add(f"top/{place}", b"")(packed) for place in range(many)],
        f"a size of {number}": say(CENTRAL, 24, "<I", number, which),
        f"a packed size of {number}": say(CENTRAL, 20, "<I", number, which),
        f"a beginning at {number}": say(CENTRAL, 42, "<I", number, which),
        f"method {number % 99}": say(CENTRAL, 10, "<H", number % 99, which),
        "encryption": say(CENTRAL, 8, "<H", 1, which),
        "encryption of a file": say(b"PK\3\4", 6, "<H", 1, which),
        f"a list of {number} bytes": say(END, 12, "<I", number, 0.0),
        f"a list at {number}": say(END, 16, "<I", number, 0.0),
        f"{number} files": say(END, 10, "<H", number % 2**16, 0.0),
        "something before it": lambda packed: packed.after.append(lambda content: b"#!/bin/sh\n" * 9 + content),
        "something after it": lambda packed: packed.after.append(lambda content: content + bytes(100)),
    }
    words = rng.choice(list(kinds))
    return words, kinds[words]


CENTRAL, END = b"PK\1\2", b"PK\5\6"  # what an entry of a zip archive's list begins with, and what follows the list


def _put(mark: bytes, place: int, form: str, number: int, which: float, content: bytes) -> bytes:
    """Content with a number in it replaced, behind one of the marks."""
    starts = [found.start() + place for found in re.finditer(re.escape(mark), content)]
    if not starts:
        return content
    start = starts[min(int(which * len(starts)), len(starts) - 1)]
    new = struct.pack(form, number % 2 ** (8 * struct.calcsize(form)))
    return content[:start] + new + content[start + len(new) :]


def _file_harm(layout: Layout, rng: random.Random, outside: Path) -> Done:
    """A file of MNIST or SVHN that unpacks to more, or to something else."""
    shape = rng.choice(((2**31, 28, 28), (60_000, 28, 28), (40, 28, 28), (0, 0, 0), (40, 2**16, 2**16)))
    place, number = 4 * rng.randrange(20), rng.choice((0, 2**16, 2**31 - 16, 2**32 - 8))

    def idx(_: bytes) -> bytes:
        return gzip.compress(struct.pack(">HBB3I", 0, 8, 3, *shape)) + BOMB // SEGMENT * _packed_zeros()[0]

    def matrix(content: bytes) -> bytes:
        try:
            unpacked = zlib.decompressobj().decompress(content[136:])
        except zlib.error:  # after another harm
            return content
        made = zlib.compress(unpacked[:place] + struct.pack("<I", number) + unpacked[place + 4 :])
        return content[:128] + struct.pack("<II", 15, len(made)) + made

    def bomb(content: bytes) -> bytes:
        start = zlib.compressobj()
        made = start.compress(struct.pack("<II", 14, BOMB)) + start.flush(zlib.Z_FULL_FLUSH)
        made += BOMB // SEGMENT * _packed_zeros()[1]
        return content[:128] + struct.pack("<II", 15, len(made)) + made

    if layout.record.name == "mnist":
        return f"an IDX file of {shape} and a bomb", lambda packed: packed.after.append(idx)
    if rng.random() < 0.3:
        return "a matrix that is a bomb", lambda packed: packed.after.append(bomb)
    return f"{number} at {place} of a matrix", lambda packed: packed.after.append(matrix)


def tar_header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, sparse: int = 0, link: str = "") -> bytes:
    """The 512 bytes of a tar archive before a file; numbers may be any, also those that tarfile would not write."""
    info = tarfile.TarInfo(os.fsdecode(os.fsencode(name)[:100]))
    info.type, info.linkname = kind, link
    made = bytearray(info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")[-512:])
    made[124:136], made[483:495] = _tar_number(size), _tar_number(sparse)
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def _tar_number(value: int) -> bytes:
    if 0 <= value < 8**11:
        return b"%011o\0" % value
    return bytes([255 if value < 0 else 128]) + (value % 2**88).to_bytes(11, "big")


def in_blocks(content: bytes) -> bytes:
    """The content of a file as a tar archive has it."""
    return content + bytes(-len(content) % 512)


def pax_header(records: Iterable[tuple[str, str]], kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A header of a tar archive that says more of the next file, or of all that follow."""
    lines = b""
    for key, value in records:
        text, length = f" {key}={value}\n".encode(), 0
        while len(str(length)) + len(text) != length:
            length = len(str(length)) + len(text)
        lines += str(length).encode() + text
    return tar_header("pax", len(lines), kind) + in_blocks(lines)


SPARSE = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")]


def _layouts() -> list[Layout]:
    """Small datasets in the layouts of the published ones."""
    noise = np.random.default_rng(0)
    batches = {name: noise.bytes(20 * 3073) for name in (*CIFAR10.train, *CIFAR10.test)}
    batches = {
        name: b"".join(bytes([i % 10]) + content[3073 * i + 1 : 3073 * (i + 1)] for i in range(20))
        for name, content in batches.items()
    }
    sha1 = {name: hashlib.sha1(content).hexdigest() for name, content in batches.items()}
    cifar = replace(
        CIFAR10, train={name: sha1[name] for name in CIFAR10.train}, test={name: sha1[name] for name in CIFAR10.test}
    )
    files = batches | {CIFAR10.names: b"\n".join(b"name%d" % i for i in range(10))}
    land = {f"{name}/{name}_{i}.jpg": _photo(i) for name in ("River", "Forest") for i in range(5)}
    tiny = {f"train/{wnid}/images/{wnid}_{i}.JPEG": _photo(i) for wnid in ("n01", "n02") for i in range(3)}
    tiny |= {f"val/images/val_{i}.JPEG": _photo(i) for i in range(2)}
    lists = {"wnids.txt": "n01\nn02", "words.txt": "n01\tbee\nn02\tbus"}
    lists["val/val_annotations.txt"] = "val_0.JPEG\tn01\t0\nval_1.JPEG\tn02\t0"
    labelled = [("val_0.JPEG", "n01"), ("val_1.JPEG", "n02")]
    digest = digest_of_tiny(
        {name: hashlib.sha1(content).hexdigest() for name, content in tiny.items()}, ["n01", "n02"], [*labelled]
    )
    own = Own(name="own", summary="of one's own", shape=(3, 4, 4), url="https://example.org/own.zip", md5=32 * "0")
    return [
        Layout(cifar, ("tar.gz", "tar", "zip"), files, 2 * 10**8),
        Layout(replace(EUROSAT, counts={"River": 5, "Forest": 5}), ("zip", "tar.gz"), land, 3 * 10**8),
        Layout(
            replace(TINYIMAGENET, digest=digest),
            ("zip", "tar"),
            tiny | {name: text.encode() for name, text in lists.items()},
            5 * 10**8,
        ),
        Layout(own, ("zip", "tar", "tar.gz"), {f"{name}.raw": noise.bytes(480) for name in "abc"}, 10**6),
        Layout(MNIST, ("files",), _idx_files(noise)),
        Layout(SVHN, ("files",), _matlab_files(noise)),
    ]


def _photo(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (40 * number, 90, 90)).save(file, "JPEG")
    return file.getvalue()


def _idx_files(noise: np.random.Generator) -> dict[str, bytes]:
    made = {}
    for (images, labels), count in ((TRAIN, 40), (TEST, 20)):
        pixels = struct.pack(">HBB3I", 0, 8, 3, count, 28, 28) + noise.bytes(count * 784)
        made[images] = gzip.compress(pixels)
        made[labels] = gzip.compress(struct.pack(">HBBI", 0, 8, 1, count) + bytes(i % 10 for i in range(count)))
    return made


def _matlab_files(noise: np.random.Generator) -> dict[str, bytes]:
    from scipy.io import savemat

    made = {}
    for name in SVHN.files:
        file = io.BytesIO()
        pixels = noise.integers(0, 256, (32, 32, 3, 20), np.uint8)
        savemat(file, {"X": pixels, "y": (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]}, do_compression=True)
        made[name] = file.getvalue()
    return made
