"""MNIST and Fashion-MNIST from their official files: IDX, packed with gzip.

An IDX file is two zero bytes, the kind of its numbers (8: uint8), how many axes it has, the length of each as four
bytes with the highest first, and the numbers.
"""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mdcg.data.content import Arrays, arrays
from mdcg.data.published import PublishedFiles
from mdcg.data.record import Preprocessing
from mdcg.files import open_file

MOST = 60_000 * 28 * 28  # numbers in a file
TRAIN = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@dataclass(frozen=True, kw_only=True)
class Mnist(PublishedFiles):
    """A dataset in the four files of MNIST."""

    class_names: tuple[str, ...]

    def read(self, path: Path) -> Arrays:
        """Read the images and labels of both splits."""
        train, test = (
            (_idx(path / images, axes=3)[..., None], _idx(path / labels, axes=1)) for images, labels in (TRAIN, TEST)
        )
        return arrays(train, test, self.class_names)


def _idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    with open_file(path) as packed, gzip.GzipFile(fileobj=packed) as file:
        kind, lengths = file.read(4), file.read(4 * axes)
        shape = struct.unpack(f">{axes}I", lengths.ljust(4 * axes, b"\0"))
        size = math.prod(shape)
        # As much as there should be and one more, so that a few packed bytes cannot fill the memory.
        content = file.read(size + 1) if kind == bytes([0, 0, 8, axes]) and size <= MOST else b""
    if len(content) != size or not size:
        raise ValueError(f"{path.name} is no IDX file of {axes} axes")
    return np.frombuffer(content, np.uint8).reshape(shape)


MNIST = Mnist(
    name="mnist",
    summary="MNIST: 70,000 handwritten digits, 28×28 grey, 10 classes (four .gz files)",
    tasks=(5,),
    shape=(1, 28, 28),
    preprocessing=Preprocessing(padding=2, flip=False),  # a digit in a mirror is none
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    folder="mnist",
    largest=4 * 10**7,
    files={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    class_names=tuple("0123456789"),
)

FASHION_MNIST = Mnist(
    name="fashion-mnist",
    summary="Fashion-MNIST: 70,000 pieces of clothing, 28×28 grey, 10 classes (four .gz files)",
    tasks=(5,),
    shape=(1, 28, 28),
    preprocessing=Preprocessing(padding=2, flip=True),
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    folder="fashion-mnist",
    largest=4 * 10**7,
    files={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
)
