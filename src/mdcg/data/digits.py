"""The 8×8 handwritten digits that come with scikit-learn: 1,797 images, always at hand."""

from __future__ import annotations

import numpy as np

from mdcg.data.content import Arrays, arrays_without_test
from mdcg.data.record import Bundled, Preprocessing, Protocol


class Digits(Bundled):
    """Handwritten digits, a fifth of each class held out for testing."""

    def read(self) -> Arrays:
        from sklearn.datasets import load_digits  # slow to import, and only needed here

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
        labels = bunch.target.astype(np.int64)
        return arrays_without_test(images, labels, [str(digit) for digit in bunch.target_names])


DIGITS = Digits(
    name="digits",
    summary="1,797 handwritten digits, 8×8 grey, 10 classes, part of the installation",
    part_of="scikit-learn",
    tasks=(5,),
    classes=10,
    images=1438,
    shape=(1, 8, 8),
    preprocessing=Preprocessing(padding=1, flip=False),
    protocol=Protocol("smallconv", epochs=10, batch_size=32, lr=0.05),  # not in the paper: small and quick
    memories=(50, 100, 200),
)
