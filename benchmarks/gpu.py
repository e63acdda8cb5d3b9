"""Time and memory of MD-CG on C10-5 on a GPU, for K members at once and each precision, by part.

    python benchmarks/gpu.py [--members 1 5 20 40] [--precisions fp32 tf32 bf16] [--out benchmarks/results]
    python benchmarks/gpu.py --method gem [--task 5] [--memory 500] [--apart] [--members …] [--precisions …]

ResNet-20, batch 32 and as many images from memory; random images of CIFAR's shape and number, whose content does not
matter for the time. Steps are measured by device events over replays of CUDA graphs; the parts of a step by graphs
that end after them. A run is 20 epochs of 313 steps in each of 5 tasks, with its captures, evaluations and
checkpoints. The eager loop is one member trained with plain PyTorch operations and without graphs, as one would
write it. Prints a table and writes it, with the hardware and the versions, to the folder --out.

The second form is for GEM, whose steps grow with the tasks: a step of one task, with past tasks in as few passes as may
be or, with --apart, in a pass each. It only prints.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from step import cifar_like, processor

from mdcg.data import Dataset
from mdcg.methods.gem import Gem
from mdcg.methods.md_cg import MDCG
from mdcg.train import past_tasks
from mdcg.train import state as states
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.epoch import EpochDraws, draw_epoch
from mdcg.train.evaluate import evaluate
from mdcg.train.graph import AT_ONCE, GraphedSteps, capture
from mdcg.train.group import Group, Member, Training
from mdcg.train.loop import SAVING, Batch, Trainer
from mdcg.train.precision import Compute, compute
from mdcg.train.state import State

TASKS, EPOCHS, STEPS = 5, 20, 313
PARTS = ("data", "forward", "backward", "update", "evaluation", "capture", "checkpoint")


@dataclass(frozen=True)
class Row:
    members: int
    precision: str
    first_step: float  # milliseconds of a step of all members in task 1
    step: float  # the same in later tasks
    per_member: float  # of the latter
    run: float  # seconds of a whole C10-5 run, per member
    shares: dict[str, float]  # of the run's time
    memory: float  # peak, in GiB
    eager: float  # milliseconds of a step of the eager loop
    faster: float  # how many times


def gem_group(members: int, memory: int, dataset: Dataset) -> Group:
    return Group(
        Training(TASKS, "resnet20", "incremental", epochs=EPOCHS, batch_size=32),
        tuple(Member(seed, memory, Gem()) for seed in range(members)),
        dataset,
    )


def group_of(members: int, dataset: Dataset) -> Group:
    settings = {"gamma": 1.0, "beta": 10.0}
    return Group(
        Training(TASKS, "resnet20", "cascaded-gates", epochs=EPOCHS, batch_size=32),
        tuple(Member(seed, 500, MDCG(lam=0.25), settings) for seed in range(members)),
        dataset,
    )


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Of one call, on the device."""
    work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / repeats


def seconds(work: Callable[[], object]) -> float:
    """On the host, until the device is done too."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def begin(group: Group, machine: Compute, task: int) -> tuple[Trainer, State, EpochDraws]:
    """At the first step of a task; what was learned before does not matter here."""
    trainer, state = Trainer(group, machine), states.fresh(group, machine)
    for number in range(task + 1):
        state.task = number
        states.begin_task(state, group)
        if number < task:
            states.end_task(state, group)
    state.model.train()
    draws = draw_epoch(group, state.memories, task, 0).to(machine.device)
    trainer.prepare(state, draws)
    for step in range(3):
        trainer.train_step(state, draws, step)
    return trainer, state, draws


def graphed_step(trainer: Trainer, state: State, draws: EpochDraws, repeats: int) -> tuple[float, float]:
    """Milliseconds of a step, and seconds of capturing."""
    graph = GraphedSteps(lambda *step: trainer.train_step(state, *step), draws)

    def both() -> None:
        graph.load(draws, 0)
        graph.run(AT_ONCE, False)
        graph.run(1, False)

    capturing = seconds(both)

    repeats = min(repeats, STEPS // AT_ONCE)  # no more steps than were drawn

    def steps() -> None:
        graph.load(draws, 0)
        for _ in range(repeats):
            graph.run(AT_ONCE, False)

    return milliseconds(steps, 2) / repeats / AT_ONCE, capturing


def parts_of_step(trainer: Trainer, state: State, draws: EpochDraws, repeats: int) -> list[float]:
    """Milliseconds up to the end of data, forward, backward."""
    step = torch.zeros(1, dtype=torch.int64, device=trainer.compute.device)

    def data() -> Batch:
        return trainer.batch(draws, step)

    def forward() -> torch.Tensor:
        return trainer.forward(state, data())[0]

    def backward() -> object:
        return torch.autograd.grad(forward().sum(), state.optimizer.parameters, materialize_grads=True)

    return [milliseconds(capture(work, []), repeats) for work in (data, forward, backward)]  # type: ignore[arg-type]


def measure(members: int, precision: str, dataset: Dataset, eager: float, repeats: int) -> Row:
    machine, group = compute("cuda", precision), group_of(members, dataset)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with machine.settings():
        first, _ = graphed_step(*begin(group, machine, 0), repeats)
        trainer, state, draws = begin(group, machine, 1)
        step, capturing = graphed_step(trainer, state, draws, repeats)
        memory = torch.cuda.max_memory_allocated() / 2**30
        ends = parts_of_step(trainer, state, draws, repeats)
        evaluate(state.model, trainer.eval_images, group, trainer.pixels, machine)
        evaluating = seconds(lambda: evaluate(state.model, trainer.eval_images, group, trainer.pixels, machine))
        with tempfile.TemporaryDirectory() as folder:
            checkpoints = Checkpoints(Path(folder))
            saving = seconds(lambda: checkpoints.save(*states.dump(state)))
    later = (TASKS - 1) * EPOCHS * STEPS
    training = (EPOCHS * STEPS * first + later * step) / 1000
    # Evaluation sees 2, 4, … of the classes; what was timed here saw 4.
    extra = {"evaluation": evaluating / 2 * sum(range(1, TASKS + 1)), "capture": TASKS * capturing}
    extra["checkpoint"] = min(TASKS * EPOCHS * saving, saving + SAVING * training)
    total = training + sum(extra.values())
    spent = [ends[0], ends[1] - ends[0], ends[2] - ends[1], max(step - ends[2], 0)]
    shares = {part: training * own / sum(spent) / total for part, own in zip(PARTS, spent, strict=False)}
    shares |= {part: own / total for part, own in extra.items()}
    each = step / members
    return Row(members, precision, first, step, each, total / members, shares, memory, eager, eager / each)


def gem_row(members: int, precision: str, dataset: Dataset, asked: argparse.Namespace) -> str:
    """A line of the table: K, precision, milliseconds of a step, of a member's, seconds of capturing, peak in GiB."""
    machine, group = compute("cuda", precision), gem_group(members, asked.memory, dataset)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with machine.settings():
        step, capturing = graphed_step(*begin(group, machine, asked.task - 1), asked.repeats)
    memory = torch.cuda.max_memory_allocated() / 2**30
    return f"{members:3d} {precision:5}{step:9.2f}{step / members:9.3f}{capturing:9.2f}{memory:6.1f}"


def eager_step(precision: str, dataset: Dataset, steps: int) -> float:
    """Milliseconds of one member's step without graphs and fused kernels."""
    os.environ["MDCG_KERNELS"] = "plain"
    try:
        machine = compute("cuda", precision)
        with machine.settings():
            trainer, state, draws = begin(group_of(1, dataset), machine, 1)
            numbers = iter(range(steps + 1))
            return milliseconds(lambda: trainer.train_step(state, draws, next(numbers)), steps)
    finally:
        del os.environ["MDCG_KERNELS"]


def table(rows: list[Row]) -> str:
    lines = [f"{'K':>3} {'':5}{'ms/step':>9}{'/member':>9}{'s/run':>8}{'GiB':>6}{'eager':>8}{'faster':>8}"]
    lines[0] += "".join(f"{part:>11}" for part in PARTS)
    for row in rows:
        line = f"{row.members:3d} {row.precision:5}{row.step:9.2f}{row.per_member:9.3f}{row.run:8.1f}{row.memory:6.1f}"
        line += f"{row.eager:8.1f}{row.faster:7.0f}x"
        lines.append(line + "".join(f"{row.shares[part]:11.1%}" for part in PARTS))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 5, 20, 40])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--method", choices=("md-cg", "gem"), default="md-cg")
    parser.add_argument("--task", type=int, choices=range(1, TASKS + 1), default=TASKS)
    parser.add_argument("--memory", type=int, default=500)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU; for the CPU see benchmarks/step.py.")
    about: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "host": processor(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    dataset = cifar_like(5000)
    dataset = replace(dataset, test=cifar_like(1000).test)
    if asked.method == "gem":
        if asked.apart:
            past_tasks.AT_ONCE = 1
        how = "a pass for each past task" if asked.apart else "past tasks together"
        print(f"C10-5, GEM, ResNet-20, batch 32, memory {asked.memory}, task {asked.task}; {how}")
        print(f"{'K':>3} {'':5}{'ms/step':>9}{'/member':>9}{'capture':>9}{'GiB':>6}")
        for precision, members in itertools.product(asked.precisions, asked.members):
            print(gem_row(members, precision, dataset, asked), flush=True)
        return
    print("C10-5, MD-CG, ResNet-20, batch 32 + 32; a step of all members, milliseconds; shares of a whole run's time")
    rows = []
    for precision in asked.precisions:
        eager = eager_step(precision, dataset, 30)
        rows += [measure(members, precision, dataset, eager, asked.repeats) for members in asked.members]
        print(table(rows[-len(asked.members) :]), flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    name = f"gpu-{about['gpu'].replace(' ', '-').lower()}-{about['date']}"
    (asked.out / f"{name}.json").write_text(
        json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    )
    head = ", ".join(f"{key} {value}" for key, value in about.items())
    (asked.out / f"{name}.txt").write_text(f"{head}\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
