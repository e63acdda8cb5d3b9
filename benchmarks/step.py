"""Milliseconds of one MD-CG step on the CPU, by part, for K = 1, 2 and 4 members.

    python benchmarks/step.py [--steps 20] [--members 1 2 4] [--backbone resnet20]

Task 2 of C10-5, or with --backbone resnet18 of TyM-10; batch 32 and as many images from memory. Random images of the
dataset's shape, whose content does not matter for the time, and fewer of them, to begin sooner. Prints the hardware
and, for each K, the median over steps of each part.
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

import torch
from workload import workload_of

from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute

PARTS = ("data", "forward", "backward", "update")
PER_TASK = 400  # images


def measure(group: Group, steps: int) -> dict[str, float]:
    """Median milliseconds of each part of a step, after three steps of warming up."""
    machine = compute("cpu", "fp32")
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
    workload = workload_of(asked.backbone)
    what = f"{workload.title}, MD-CG, {workload.backbone}, batch 32 + 32, float32"
    print(f"{what}; median of {asked.steps} steps, milliseconds")
    columns = (*PARTS, "step", "per member", "data share")
    print(f"{'K':>3}" + "".join(f"{name:>12}" for name in columns))
    dataset = workload.dataset(per_class=PER_TASK * workload.tasks // workload.classes)
    for members in asked.members:
        parts = measure(workload.group(members, dataset), asked.steps)
        total = sum(parts.values())
        times = [*parts.values(), total, total / members]
        print(f"{members:3d}" + "".join(f"{value:12.2f}" for value in times) + f"{parts['data'] / total:12.1%}")


if __name__ == "__main__":
    main()
