"""Milliseconds of one C10-5 MD-CG step on the CPU, by part, for K = 1, 2 and 4 members.

    python benchmarks/step.py [--steps 20] [--members 1 2 4] [--backbone resnet20]

ResNet-20, batch 32 and as many images from memory, task 2; random images of CIFAR's shape, whose content
does not matter for the time. Prints the hardware and, for each K, the median over steps of each part.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from mdcg.data import Dataset, Split
from mdcg.methods.md_cg import MDCG
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group, Member, Training
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute

PARTS = ("data", "forward", "backward", "update")


def cifar_like(per_class: int = 200) -> Dataset:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), per_class)
    images = torch.from_numpy(rng.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8))
    split = Split(images, labels)
    names = tuple(str(label) for label in range(10))
    return Dataset("random", split, split, names, (0.49, 0.48, 0.45), (0.2, 0.2, 0.2), 4, True, "random")


def measure(dataset: Dataset, members: int, steps: int, backbone: str) -> dict[str, float]:
    """Median milliseconds of each part of a step, after three steps of warming up."""
    machine = compute("cpu", "fp32")
    settings = {"gamma": 1.0, "beta": 10.0}
    group = Group(
        Training(5, backbone, "cascaded-gates", epochs=1, batch_size=32),
        tuple(Member(seed, 500, MDCG(lam=0.25), settings) for seed in range(members)),
        dataset,
    )
    trainer, state = Trainer(group, machine), states.fresh(group, machine)
    states.begin_task(state, group)
    states.end_task(state, group)  # the first task's images go into memory; its weights do not matter here
    state.task = 1
    states.begin_task(state, group)
    state.model.train()
    draws = draw_epoch(group, state.memories, 1, 0)
    times: dict[str, list[float]] = {part: [] for part in PARTS}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        times[part].append(1000 * (time.perf_counter() - start))

    for step in range(steps + 3):
        with timed("data"):
            batch = trainer.batch(draws, step % int(draws.steps.min()))
        with timed("forward"):
            loss, _ = trainer.forward(state, batch)
        with timed("backward"):
            gradients = torch.autograd.grad(loss.sum(), state.optimizer.parameters)
        with timed("update"):
            state.optimizer.step(gradients)
    return {part: statistics.median(values[3:]) for part, values in times.items()}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--backbone", default="resnet20")
    asked = parser.parse_args()
    print(f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"C10-5, MD-CG, {asked.backbone}, batch 32 + 32, float32; median of {asked.steps} steps, milliseconds")
    columns = (*PARTS, "step", "per member", "data share")
    print(f"{'K':>3}" + "".join(f"{name:>12}" for name in columns))
    dataset = cifar_like()
    for members in asked.members:
        parts = measure(dataset, members, asked.steps, asked.backbone)
        total = sum(parts.values())
        times = [*parts.values(), total, total / members]
        print(f"{members:3d}" + "".join(f"{value:12.2f}" for value in times) + f"{parts['data'] / total:12.1%}")


if __name__ == "__main__":
    main()
