"""All randomness, in one place.

Every random number comes from a counter-based generator (Philox) keyed by (seed, purpose, task, epoch). So a
run sees the same images in the same order whether it trains alone or among others, and an epoch can be drawn
again, to the same bits, after the process was killed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from mdcg.errors import MdcgError

Ints = npt.NDArray[np.int64]
WHOLE_TASK = 2**32 - 1  # in place of an epoch: drawn once for all of a task's


class Purpose(IntEnum):
    """What a stream of random numbers is for. The values are part of every result: never renumber them."""

    BACKBONE = 1
    HEAD = 2
    GATES = 3
    ORDER = 4
    CROP = 5
    FLIP = 6
    KEEP = 7
    REPLAY = 8
    HOLD_OUT = 9
    TEST_SPLIT = 10
    KEEP_SECOND = 11
    REFRESH = 12
    REFRESH_SECOND = 13
    KEEP_HELD_OUT = 14
    RETURN = 20
    BLUR = 21
    RESERVOIR = 22
    JITTER = 40
    RAND_AUGMENT = 41
    MIX = 42
    PARTNER = 43


def stream(seed: int, purpose: Purpose, task: int = 0, epoch: int = 0) -> np.random.Generator:
    """The generator for one purpose of one epoch.

    >>> float(stream(0, Purpose.ORDER).random()) == float(stream(0, Purpose.ORDER).random())
    True
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, int(purpose), task, epoch))))


def permutation(n: int, rng: np.random.Generator) -> Ints:
    """A random order of 0..n-1, by sorting random keys."""
    return np.argsort(rng.random(n), kind="stable")


def shuffled_cycles(n: int, length: int, rng: np.random.Generator) -> Ints:
    """Draw `length` numbers from 0..n-1 that go through all of them, in a new order each time round."""
    rounds = -(-length // n)
    keys = rng.random((rounds, n))
    return np.argsort(keys, axis=1, kind="stable").reshape(-1)[:length]


def hold_out(labels: Ints, fraction: float, seed: int, purpose: Purpose) -> tuple[Ints, Ints]:
    """Split indices into (kept, held out): the same fraction of every class, at least one image each way."""
    kept, held = [], []
    for label in np.unique(labels):
        images = np.flatnonzero(labels == label)
        if len(images) < 2:
            raise MdcgError(
                f"class {label} has a single image, which cannot be both kept and held out; "
                "add images to it or remove it."
            )
        count = min(max(1, round(fraction * len(images))), len(images) - 1)
        shuffled = images[permutation(len(images), stream(seed, purpose, task=int(label)))]
        held.append(shuffled[:count])
        kept.append(shuffled[count:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held))
