"""Time and memory of MD-CG on a GPU, for K members at once and each precision, by part.

    python benchmarks/gpu.py [--backbone resnet20] [--members 1 5 20 40] [--precisions fp32 tf32 bf16] [--profile]
                             [--out benchmarks/results]
    python benchmarks/gpu.py --method md-replay [--task 2] [--memory 500] [--backbone …] [--members …] …
    python benchmarks/gpu.py --method gem [--task 5] [--apart] …
    python benchmarks/gpu.py --recipe ablation-md-replay [--cell "C10-5, 2000"] [--task 2] [--members 20] …

ResNet-20 on C10-5 or ResNet-18 on TyM-10, batch 32 and as many images from memory; random images of the dataset's
shape and number, whose content does not matter for the time. Steps are measured in task 2, by device events over
replays of CUDA graphs; the parts of a step by graphs that end after them. A run is 20 epochs of 313 steps in each of 5
tasks (TyM-10: 30 of 313 in each of 10), with its captures, evaluations and checkpoints. The eager loop is one member
trained with plain PyTorch operations and without graphs, as one would write it. Prints a table and writes it, with the
hardware and the versions, to the folder --out.

With --profile also the kernels of one step of the most members, by name: how often each is launched, its microseconds
and its share. It is a plain step, with the kernels of a graph's; only the pauses between them differ.

The second form is for any other method, as it trains by default: a step of one task. The steps of GEM grow with the
tasks, so that it is the last one unless another is asked for; its past tasks go in as few passes as may be or, with
--apart, in a pass each. The third form is for the settings of a recipe, all of them or those whose label begins with
--cell, each with so many seeds. These forms only print.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from step import processor
from torch.profiler import ProfilerActivity, profile
from workload import Workload, random_dataset, workload_of

from mdcg.data import Dataset, record_of
from mdcg.errors import MdcgError
from mdcg.execute.cost import group_of
from mdcg.methods import METHODS
from mdcg.recipes.document import read_document
from mdcg.recipes.grid import expand, grid_cells, label
from mdcg.recipes.recipe import Recipe
from mdcg.scenario import parse
from mdcg.train import past_tasks
from mdcg.train import state as states
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.epoch import EpochDraws, draw_epoch
from mdcg.train.evaluate import evaluate
from mdcg.train.graph import AT_ONCE, GraphedSteps, capture
from mdcg.train.group import Group
from mdcg.train.images import kept_on_device
from mdcg.train.loop import SAVING, Batch, Trainer
from mdcg.train.precision import Compute, compute
from mdcg.train.rehearsal import rehearse
from mdcg.train.state import State

BACKBONES = {"resnet20": "ResNet-20", "resnet18": "ResNet-18"}
PROFILED = 5  # steps, of which a mean is taken
LONGEST, WIDEST = 40, 100  # kernels of a table, characters of their names
HEADINGS = f"{'K':>3} {'':5}{'ms/step':>9}{'/member':>9}{'capture':>9}{'GiB':>6}"  # of `step_row`
PARTS = ("data", "forward", "backward", "update", "evaluation", "capture", "checkpoint")


@dataclass(frozen=True)
class Row:
    members: int
    precision: str
    first_step: float  # milliseconds of a step of all members in task 1
    step: float  # the same in later tasks
    per_member: float  # of the latter
    run: float  # seconds of a whole run, per member
    shares: dict[str, float]  # of the run's time
    memory: float  # peak, in GiB
    eager: float  # milliseconds of a step of the eager loop
    faster: float  # how many times


@dataclass(frozen=True)
class Kernel:
    name: str
    launches: float  # of one step
    microseconds: float
    share: float  # of all kernels' time


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
    rehearse(group, machine)
    trainer, state = Trainer(group, machine), states.fresh(group, machine)
    for number in range(task + 1):
        state.task = number
        trainer.begin_task(state)
        if number < task:
            states.end_task(state, group)
    state.model.train()
    draws = draw_epoch(group, state.memories, task, 0).to(machine.device)
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

    repeats = min(repeats, int(draws.steps.min()) // AT_ONCE)  # no more steps than were drawn

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


def launched(work: Callable[[], object], times: int, device: str = "CUDA") -> list[tuple[str, float]]:
    """The name and the microseconds of each thing that so many calls make a device do."""
    for count in (1, times):  # the first time a profiler is still setting itself up
        with profile(activities=[getattr(ProfilerActivity, device)]) as found:
            for _ in range(count):
                work()
            if device == "CUDA":
                torch.cuda.synchronize()
    own = [event for event in found.events() or () if event.device_type.name == device]
    return [(event.name, event.time_range.elapsed_us()) for event in own]


def by_name(launches: Iterable[tuple[str, float]], steps: int) -> list[Kernel]:
    """The kernels of one step, of those launched in so many; what takes longest comes first."""
    times: dict[str, list[float]] = {}
    for name, microseconds in launches:
        times.setdefault(name, []).append(microseconds)
    total = sum(map(sum, times.values()))
    kernels = [Kernel(name, len(own) / steps, sum(own) / steps, sum(own) / total) for name, own in times.items()]
    return sorted(kernels, key=lambda kernel: -kernel.microseconds)


def kernels_of_step(group: Group, precision: str, task: int) -> list[Kernel]:
    machine = compute("cuda", precision)
    with machine.settings():
        trainer, state, draws = begin(group, machine, task)
        step = torch.zeros(1, dtype=torch.int64, device=machine.device)  # counted there, as graphs do
        return by_name(launched(lambda: trainer.train_step(state, draws, step), PROFILED), PROFILED)


def kernel_table(kernels: list[Kernel], members: int, precision: str) -> str:
    """The kernels that take longest, and all others in one line."""
    shown, others = kernels[:LONGEST], kernels[LONGEST:]
    sums = [together(f"{len(others)} others", others)] if others else []
    lines = [f"K = {members}, {precision}: the kernels of one step", f"{'launches':>9}{'µs':>10}{'share':>8}  name"]
    for one in (*shown, *sums, together("all", kernels)):
        lines.append(f"{one.launches:9.1f}{one.microseconds:10.1f}{one.share:8.1%}  {one.name[:WIDEST]}")
    return "\n".join(lines)


def together(name: str, kernels: list[Kernel]) -> Kernel:
    launches, microseconds = sum(one.launches for one in kernels), sum(one.microseconds for one in kernels)
    return Kernel(name, launches, microseconds, sum(one.share for one in kernels))


def measure(workload: Workload, members: int, precision: str, dataset: Dataset, eager: float, repeats: int) -> Row:
    machine, group = compute("cuda", precision), workload.group(members, dataset)
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
    tasks, of_task = workload.tasks, workload.epochs * workload.steps
    training = (of_task * first + (tasks - 1) * of_task * step) / 1000
    # Evaluation sees the classes of 1, 2, … tasks; what was timed here saw those of 2.
    extra = {"evaluation": evaluating / 2 * sum(range(1, tasks + 1)), "capture": tasks * capturing}
    extra["checkpoint"] = min(tasks * workload.epochs * saving, saving + SAVING * training)
    total = training + sum(extra.values())
    spent = [ends[0], ends[1] - ends[0], ends[2] - ends[1], max(step - ends[2], 0)]
    shares = {part: training * own / sum(spent) / total for part, own in zip(PARTS, spent, strict=False)}
    shares |= {part: own / total for part, own in extra.items()}
    each = step / members
    return Row(members, precision, first, step, each, total / members, shares, memory, eager, eager / each)


def step_row(group: Group, precision: str, task: int, repeats: int) -> str:
    """A line of the table: K, precision, milliseconds of a step, of a member's, seconds of capturing, peak in GiB."""
    machine, members = compute("cuda", precision), len(group.members)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with machine.settings():
        step, capturing = graphed_step(*begin(group, machine, task), repeats)
    memory = torch.cuda.max_memory_allocated() / 2**30
    return f"{members:3d} {precision:5}{step:9.2f}{step / members:9.3f}{capturing:9.2f}{memory:6.1f}"


def eager_step(group: Group, precision: str, steps: int) -> float:
    """Milliseconds of one member's step without graphs and fused kernels."""
    os.environ["MDCG_KERNELS"] = "plain"
    try:
        machine = compute("cuda", precision)
        with machine.settings():
            trainer, state, draws = begin(group, machine, 1)
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


def one_step(workload: Workload, asked: argparse.Namespace) -> None:
    """Print the table of a method."""
    method = METHODS[asked.method]()
    memory, task = asked.memory or workload.memory, asked.task or 2
    about = f"{workload.title}, {asked.method}, {BACKBONES[workload.backbone]}, batch 32, memory {memory}"
    if method.gradient_per_task:
        task = asked.task or workload.tasks
        past_tasks.AT_ONCE = 1 if asked.apart else past_tasks.AT_ONCE
        about += ", a pass for each past task" if asked.apart else ", past tasks together"
    print(f"{about}; task {task}")
    print(HEADINGS)
    dataset = workload.dataset()
    for precision in asked.precisions:
        groups = [workload.group(members, dataset, method, memory) for members in asked.members]
        for group in groups:
            print(step_row(group, precision, task - 1, asked.repeats), flush=True)
        if asked.profile:
            most = max(groups, key=lambda group: len(group.members))
            print(kernel_table(kernels_of_step(most, precision, task - 1), len(most.members), precision), flush=True)


def settings_of(asked: str, members: int, begins: str = "") -> Iterator[tuple[str, Group]]:
    """The settings of a recipe whose label begins so, each as a group of so many seeds, on random images."""
    datasets: dict[str, Dataset] = {}

    def load(recipe: Recipe) -> Dataset:
        name, _ = parse(recipe.scenario)
        if name not in datasets:
            datasets.clear()  # one at a time: they are large
            datasets[name] = random_dataset(record_of(name))
        return datasets[name]

    # One combination after the other, so that each is measured while its dataset is there.
    for combination in expand(read_document(asked), {"seeds": list(range(members))}):
        for cell in grid_cells([combination], load):
            if label(cell).startswith(begins):
                yield label(cell), group_of(cell.specs, load(combination.recipe))


def steps_of_recipe(asked: argparse.Namespace) -> None:
    """Print the table of a recipe's settings."""
    task = asked.task or 2
    print(f"{asked.recipe}; task {task}\n{HEADINGS}")
    for precision in asked.precisions:
        for members in asked.members or (20,):
            for name, group in settings_of(asked.recipe, members, asked.cell):
                if task > len(group.sizes):
                    raise MdcgError(f"{name} has tasks 1 to {len(group.sizes)}; name one of them with --task.")
                with kept_on_device():  # its images, and no longer those of another dataset
                    print(f"{step_row(group, precision, task - 1, asked.repeats)}  {name}", flush=True)


def md_cg(workload: Workload, asked: argparse.Namespace, about: dict[str, Any]) -> None:
    """Print the table of MD-CG, and write it."""
    what = f"{workload.title}, MD-CG, {BACKBONES[workload.backbone]}, batch 32 + 32"
    print(f"{what}; a step of all members, milliseconds; shares of a whole run's time")
    dataset, most = workload.dataset(), max(asked.members)
    rows: list[Row] = []
    kernels: dict[str, list[Kernel]] = {}
    for precision in asked.precisions:
        eager = eager_step(workload.group(1, dataset), precision, 30)
        own = [measure(workload, members, precision, dataset, eager, asked.repeats) for members in asked.members]
        print(table(own), flush=True)
        rows += own
        if asked.profile:
            kernels[precision] = kernels_of_step(workload.group(most, dataset), precision, 1)
            print(kernel_table(kernels[precision], most, precision), flush=True)
    write(asked.out, {**about, "scenario": workload.title, "backbone": workload.backbone}, rows, kernels, most)


def write(out: Path, about: dict[str, Any], rows: list[Row], kernels: dict[str, list[Kernel]], most: int) -> None:
    """Write the rows, and the kernels of a step of the most members, as numbers and as tables."""
    out.mkdir(parents=True, exist_ok=True)
    name = f"gpu-{about['backbone']}-{about['gpu'].replace(' ', '-').lower()}-{about['date']}"
    found = {**about, "rows": [asdict(row) for row in rows]}
    if kernels:
        found["kernels"] = {precision: [asdict(kernel) for kernel in own] for precision, own in kernels.items()}
    (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    tables = [head(about), table(rows), *(kernel_table(own, most, precision) for precision, own in kernels.items())]
    (out / f"{name}.txt").write_text("\n\n".join(tables) + "\n")


def head(about: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in about.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=BACKBONES, default="resnet20")
    parser.add_argument("--members", type=int, nargs="+")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--method", choices=METHODS.names(), default="md-cg")
    parser.add_argument("--recipe")
    parser.add_argument("--cell", default="")
    parser.add_argument("--task", type=int)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    workload = workload_of(asked.backbone)
    if asked.task is not None and not (1 <= asked.task <= workload.tasks or (asked.recipe and asked.task > 0)):
        parser.error(f"{workload.title} has tasks 1 to {workload.tasks}")
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
    print(head(about))
    if asked.recipe:
        try:
            steps_of_recipe(asked)
        except MdcgError as error:
            raise SystemExit(str(error)) from None
        return
    asked.members = asked.members or workload.members
    with kept_on_device():
        if asked.method == "md-cg":
            md_cg(workload, asked, about)
        else:
            one_step(workload, asked)


if __name__ == "__main__":
    main()
