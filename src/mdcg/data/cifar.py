"""CIFAR-10 and CIFAR-100 from their official binary archives.

A record is one label byte (CIFAR-100: coarse, then fine) and 3,072 pixel bytes, red plane first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mdcg.data.content import Arrays, arrays
from mdcg.data.published import Published
from mdcg.data.record import Preprocessing, Protocol
from mdcg.data.source import content_of, found, stamp
from mdcg.errors import MdcgError
from mdcg.pixels.decode import ahead

PIXELS = 3 * 32 * 32
MOST, MEMBERS = 2 * 10**8, 20  # bytes and files that an archive may hold
PIECE = 5000  # records that a thread decodes at once


@dataclass(frozen=True, kw_only=True)
class Cifar(Published):
    """A CIFAR dataset, read from its official files, each with its own checksum."""

    train: dict[str, str]  # file: sha1
    test: dict[str, str]
    names: str  # file with the class names
    label_bytes: int

    def stamp(self, path: Path) -> str:
        if path.is_file():
            return stamp([path])
        wanted = [path / name for name in (*self.train, *self.test, self.names)]
        missing = [file.name for file in wanted if not file.is_file()]
        if missing:
            raise MdcgError(
                f"{path} lacks {missing[0]}; unpack {self.archive} again, or remove the folder and run 'mdcg data get'."
            )
        return stamp(wanted)

    def read(self, path: Path) -> Arrays:
        """Read and verify every file, from the unpacked folder or the archive."""
        sha1 = self.train | self.test
        files = dict(found(path, lambda name: name in sha1 or name == self.names, MOST, MEMBERS))
        for name in (*sha1, self.names):
            if name not in files:
                raise MdcgError(f"{path} lacks {name}; get {self.archive} again with 'mdcg data get'.")

        def verified(name: str) -> npt.NDArray[np.uint8]:
            content = content_of(files[name])
            if hashlib.sha1(content).hexdigest() != sha1[name]:
                raise MdcgError(
                    f"{path / name} is altered or cut short (its sha1 is not {sha1[name]}); "
                    f"get {self.archive} again with 'mdcg data get'."
                )
            return np.frombuffer(content, np.uint8).reshape(-1, self.label_bytes + PIXELS)

        records = dict(zip(sha1, ahead(verified, sha1), strict=True))
        names = content_of(files[self.names]).decode(errors="replace").split()
        if len(names) != self.classes:
            raise MdcgError(
                f"{path / self.names} holds {len(names)} class names in place of {self.classes}; "
                f"get {self.archive} again with 'mdcg data get'."
            )
        train, test = (self._decoded([records[name] for name in part]) for part in (self.train, self.test))
        return arrays(train, test, names)

    def _decoded(self, files: Sequence[npt.NDArray[np.uint8]]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """The images and labels of some files' records; the planes are interleaved by several threads at once."""
        pieces = [piece for records in files for piece in np.split(records, range(PIECE, len(records), PIECE))]
        ends = np.cumsum([len(piece) for piece in pieces])
        images = np.empty((ends[-1], 32, 32, 3), np.uint8)

        def interleave(both: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]) -> None:
            place, piece = both
            place[:] = piece[:, self.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)

        list(ahead(interleave, zip(np.split(images, ends[:-1]), pieces, strict=True)))
        return images, np.concatenate([records[:, self.label_bytes - 1] for records in files])


CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

CIFAR10 = Cifar(
    name="cifar10",
    short="c10",
    summary="CIFAR-10: 60,000 images, 32×32, 10 classes (cifar-10-binary.tar.gz)",
    tasks=(5,),
    classes=10,
    images=50_000,
    shape=(3, 32, 32),
    preprocessing=Preprocessing(4, True, CIFAR10_MEAN, CIFAR10_STD),
    protocol=Protocol("resnet20", epochs=20, batch_size=32),  # Section 4.1, as for CIFAR-100 and Tiny-ImageNet
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    largest=2 * 10**8,
    folder="cifar-10-batches-bin",
    probe="data_batch_1.bin",
    train={
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    },
    test={"test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c"},
    names="batches.meta.txt",
    label_bytes=1,
)

CIFAR100 = Cifar(
    name="cifar100",
    short="c100",
    summary="CIFAR-100: 60,000 images, 32×32, 100 fine classes (cifar-100-binary.tar.gz)",
    tasks=(10,),
    classes=100,
    images=50_000,
    shape=(3, 32, 32),
    preprocessing=Preprocessing(4, True, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    protocol=Protocol("resnet20", epochs=20, batch_size=16),
    format=2,  # 2: normalised by its own statistics, not by CIFAR-10's
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    largest=2 * 10**8,
    folder="cifar-100-binary",
    probe="train.bin",
    train={"train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"},
    test={"test.bin": "8fb6623e830365ff53cf14adec797474f5478006"},
    names="fine_label_names.txt",
    label_bytes=2,
)
