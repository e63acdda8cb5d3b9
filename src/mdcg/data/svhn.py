"""SVHN, the digits of house numbers cut to 32×32, from its official MATLAB files.

`X` holds the images, the last axis counts them; `y` the labels, in which 10 stands for the digit 0.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mdcg.data.content import Arrays, arrays
from mdcg.data.published import PublishedFiles
from mdcg.data.record import Preprocessing
from mdcg.files import open_file

MOST = 3 * 10**8  # bytes that a file may hold
PACKED = 15  # the kind of a variable that is compressed; what it is unpacked to begins with its own kind
TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


class Svhn(PublishedFiles):
    """The cropped digits; its third file, of easier ones, is left out."""

    def read(self, path: Path) -> Arrays:
        """Read the images and labels of both splits."""
        return arrays(_split(path / TRAIN), _split(path / TEST), list("0123456789"))


def _split(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.integer]]:
    from scipy.io import loadmat, whosmat  # slow to import, and only needed here

    file = io.BytesIO(_unpacked(path))
    for name, shape, kind in whosmat(file):
        if name in ("X", "y") and (kind not in ("uint8", "double") or math.prod(shape) > MOST):
            raise ValueError(f"{name} of {path.name} is {kind} of shape {shape}")
    content = loadmat(file, variable_names=["X", "y"])
    return np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), content["y"].reshape(-1) % 10


def _unpacked(path: Path) -> bytes:
    """A MATLAB file with its variables as they are before they are compressed, if they are not more than there can be.

    It is 128 bytes, then one variable after the other: its kind and size as four bytes each, and its content.
    """
    with open_file(path) as file:
        pieces, left = [file.read(128)], MOST
        while head := file.read(8):
            kind, size = struct.unpack("<II", head)
            content = file.read(min(size, MOST + 1))
            pieces.append(zlib.decompressobj().decompress(content, left + 1) if kind == PACKED else head + content)
            left -= len(pieces[-1])
            if left < 0:
                raise ValueError(f"{path.name} holds more than {MOST:,} bytes")
            if _claims_more(pieces[-1]):
                raise ValueError(f"{path.name} is damaged")
    return b"".join(pieces)


def _claims_more(variable: bytes) -> bool:
    """Whether a part of a variable says that it is longer than there is: scipy would take memory for it first."""
    place = 8
    while place <= len(variable) - 8:
        kind, size = struct.unpack_from("<II", variable, place)
        place += 8
        if kind < 2**16:  # else it stands in the place of its size
            if size > len(variable) - place:
                return True
            place += size + -size % 8
    return False


SVHN = Svhn(
    name="svhn",
    summary="SVHN: 99,289 digits of house numbers, 32×32, 10 classes (train_32x32.mat, test_32x32.mat)",
    tasks=(5,),
    shape=(3, 32, 32),
    preprocessing=Preprocessing(padding=4, flip=False),  # a digit in a mirror is none
    url="http://ufldl.stanford.edu/housenumbers/",
    folder="svhn",
    largest=2 * 10**8,
    files={TRAIN: "e26dedcc434d2e4c54c9b2d4a06d8373", TEST: "eb5a983be6a315427106f1b164d9cef3"},
)
