"""The 8×8 handwritten digits that come with scikit-learn: 1,797 images, always at hand."""

from __future__ import annotations

import numpy as np

from mdcg.data.cache import Arrays, arrays
from mdcg.draws import Purpose, hold_out

TEST_FRACTION = 0.2


def read_digits() -> Arrays:
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int64)
    train, test = hold_out(labels, TEST_FRACTION, 0, Purpose.TEST_SPLIT)
    names = [str(digit) for digit in bunch.target_names]
    return arrays((images[train], labels[train]), (images[test], labels[test]), names)
