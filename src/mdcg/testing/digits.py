"""A sixth of the digits, for tests that train on them and not for how well: they take a sixth of the time."""

from __future__ import annotations

from functools import cache

import sklearn.datasets
from sklearn.utils import Bunch

all_of_them = cache(sklearn.datasets.load_digits)


@cache
def some() -> Bunch:
    """The first 300, of all classes about as many."""
    digits = all_of_them()
    return Bunch(images=digits.images[:300], target=digits.target[:300], target_names=digits.target_names)


def take_some() -> None:
    """Have this process find no more than these."""
    sklearn.datasets.load_digits = some
