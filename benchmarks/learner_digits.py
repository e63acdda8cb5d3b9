"""Accuracy of a `Learner` that learns the digits two at a time, with nothing but its defaults and a memory of 100.

python benchmarks/learner_digits.py [METHOD …]

The small network, three seeds and orders of the digits, on one core. Prints a line for each method: the accuracy on all
digits' test images at the end, its mean and sample standard deviation, and the seconds it took.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

import mdcg
from mdcg.data import load

METHODS = ("md-replay", "er-ace", "replay", "md-cg")
SEEDS = range(3)


def accuracy(method: str, seed: int) -> float:
    """In percent, after all five pairs."""
    digits = load("digits")
    names, order = np.array(digits.class_names), np.random.default_rng(seed).permutation(10)
    learner = mdcg.Learner(method, memory=100, seed=seed, backbone="smallconv", quiet=True)
    for pair in order.reshape(5, 2):
        own = np.isin(digits.train.labels, pair)
        learner.learn(digits.train.images[torch.from_numpy(own)].numpy(), names[digits.train.labels[own]])
    return 100 * float(np.mean(learner.predict(digits.test.images.numpy()) == names[digits.test.labels]))


def main() -> None:
    torch.set_num_threads(1)
    for method in sys.argv[1:] or METHODS:
        started = time.perf_counter()
        found = [accuracy(method, seed) for seed in SEEDS]
        print(
            f"{method:10} {np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}   "
            f"({', '.join(f'{own:.1f}' for own in found)}; {time.perf_counter() - started:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
