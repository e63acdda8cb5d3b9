"""Accuracy and time of five `learn` calls of two CIFAR-10 classes each, with a memory of 500, saved in between.

python benchmarks/learner_cifar.py DATA [--seeds 0 1 2 3 4] [--hold-out 0] [--precision bf16]

DATA is the folder in which cifar-10-batches-bin lies. Seeds are processes of their own, all at once. The classes of a
seed come in the order in which `mdcg run --scenario c10-5` has them, and ACC is the mean accuracy of the five tasks at
the end, so that the numbers stand beside `mdcg run --scenario c10-5 --method md-cg --memory 500`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

import mdcg
from mdcg.data import load
from mdcg.scenario import Scenario

TASKS = 5


def accuracies(seed: int, *, data: Path, hold_out: float, precision: str) -> tuple[list[float], float]:
    """Accuracy on each task's test images after the last one, in percent, and the seconds that the calls took."""
    dataset = load("cifar10", data=data)
    scenario = Scenario.build(dataset.classes, TASKS, seed)
    names = np.array(dataset.class_names)
    order = [[int(scenario.order[position]) for position in scenario.positions(task)] for task in range(TASKS)]
    learner = mdcg.Learner("md-cg", memory=500, hold_out=hold_out, precision=precision, seed=seed, quiet=True)
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        for task in order:
            chosen = np.flatnonzero(np.isin(dataset.train.labels, task))
            started = time.perf_counter()
            learner.learn(dataset.train.images[torch.from_numpy(chosen)], names[dataset.train.labels[chosen]])
            seconds += time.perf_counter() - started
            learner.save(file)
            learner = mdcg.Learner.load(file).set_params(quiet=True, precision=precision)
    by_task = []
    for task in order:
        own = np.flatnonzero(np.isin(dataset.test.labels, task))
        by_task.append(100 * learner.score(dataset.test.images[torch.from_numpy(own)], names[dataset.test.labels[own]]))
    return by_task, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--hold-out", type=float, default=0.0)
    parser.add_argument("--precision", default="bf16")
    asked = parser.parse_args()
    one = partial(accuracies, data=asked.data, hold_out=asked.hold_out, precision=asked.precision)
    with multiprocessing.get_context("spawn").Pool(len(asked.seeds)) as processes:
        found = processes.map(one, asked.seeds)
    print("| seed | task 1 | 2 | 3 | 4 | 5 | ACC | seconds |\n|---|---|---|---|---|---|---|---|")
    for seed, (by_task, seconds) in zip(asked.seeds, found, strict=True):
        cells = " | ".join(f"{value:.1f}" for value in (*by_task, statistics.mean(by_task)))
        print(f"| {seed} | {cells} | {seconds:.0f} |")
    means = [statistics.mean(by_task) for by_task, _ in found]
    spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
    print(f"\nACC {statistics.mean(means):.1f}{spread}, hold-out {asked.hold_out:g}, {asked.precision}")


if __name__ == "__main__":
    main()
