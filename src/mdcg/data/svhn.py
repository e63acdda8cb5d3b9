"""SVHN, the digits of house numbers cut to 32×32, from its official MATLAB files.

`X` holds the images, the last axis counts them; `y` the labels, in which 10 stands for the digit 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mdcg.data.content import Arrays, arrays
from mdcg.data.published import PublishedFiles
from mdcg.data.record import Preprocessing

TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


class Svhn(PublishedFiles):
    """The cropped digits; its third file, of easier ones, is left out."""

    def read(self, path: Path) -> Arrays:
        """Read the images and labels of both splits."""
        return arrays(_split(path / TRAIN), _split(path / TEST), list("0123456789"))


def _split(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.integer]]:
    from scipy.io import loadmat  # slow to import, and only needed here

    content = loadmat(path, variable_names=["X", "y"])
    return np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), content["y"].reshape(-1) % 10


SVHN = Svhn(
    name="svhn",
    summary="SVHN: 99,289 digits of house numbers, 32×32, 10 classes (train_32x32.mat, test_32x32.mat)",
    tasks=(5,),
    shape=(3, 32, 32),
    preprocessing=Preprocessing(padding=4, flip=False),  # a digit in a mirror is none
    url="http://ufldl.stanford.edu/housenumbers/",
    folder="svhn",
    files={TRAIN: "e26dedcc434d2e4c54c9b2d4a06d8373", TEST: "eb5a983be6a315427106f1b164d9cef3"},
)
