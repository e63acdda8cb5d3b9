"""Fig. "time": inference time of heads against the number of tasks (Appendix "… time overhead …")."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from mdcg.figures import style
from mdcg.figures.base import FIGURES, ModelFigure, Row
from mdcg.figures.plots.models import given
from mdcg.figures.plots.module_per_gate import ModulePerGate
from mdcg.models import Model, build_model
from mdcg.models.heads import CascadedGates
from mdcg.recipes.recipe import Recipe
from mdcg.runs.environment import environment
from mdcg.train.precision import Compute, compute

TASKS = 20  # up to which all heads are timed, after every one
FAR = (50, 100, 200, 500)  # and further ones, for those that can go so far
CASCADED = 200  # tasks up to which cascaded gates go: at 500 the matrix that adds them up would take a GiB
CLASSES = 2  # of each task
BATCH = 32
MARKED = (1, 2, 5, 10, 15, 20)  # numbers of tasks; and all further ones
FORWARDS = 100  # of a head, in each measurement
REPEATS = 5
GATES, PLAIN, PER_GATE, WHOLE = "cascaded gates", "incremental head", "one module per gate", "whole model"
SINGLE = "one gate per class"
ORDER = (GATES, PLAIN, PER_GATE, WHOLE, SINGLE)
Timed = dict[str, tuple[Callable[[], object], int]]  # what to call, and how often


@FIGURES.register("head-time")
class HeadTime(ModelFigure):
    """Inference time of cascaded gates, of one gate per class and of a plain head against the number of tasks."""

    begins = ("head", "tasks", "repeat", "milliseconds")

    def measure(self, asked: Recipe) -> list[Row]:
        """Time the heads; tasks are virtual: heads grow, and images are random numbers."""
        shape, backbone = given(asked)
        where = compute(asked.device, asked.precision)
        models = {
            name: build_model(backbone, head, shape, [0], dtype=where.dtype).to(where.device).eval()
            for name, head in ((GATES, "cascaded-gates"), (PLAIN, "incremental"), (SINGLE, "single-open-gate"))
        }
        about = {
            "device": environment(where).device,
            "precision": where.precision,
            "backbone": backbone,
            "features": models[GATES].backbone.features,
            "batch": BATCH,
        }
        with torch.no_grad(), where.settings():
            timed = dict(_growing(models, shape, where))
            for own in timed.values():
                for forward, _ in own.values():  # once untimed: what is slow only at first does not count
                    forward()
            # Repeats go through all tasks, so that whatever slows the machine for a while does not look like a task's.
            return [
                {
                    "head": head,
                    "tasks": tasks,
                    "repeat": repeat,
                    "milliseconds": round(milliseconds(forward, times, where), 6),
                    **about,
                }
                for repeat in range(1, REPEATS + 1)
                for tasks, own in timed.items()
                for head, (forward, times) in own.items()
            ]

    def draw(self, rows: Sequence[Row]) -> Drawing:
        drawing, axes = style.panels(1, 2, height=2.8)
        last = max(row["tasks"] for row in rows if row["head"] == WHOLE)  # up to which all heads were timed
        for ax, heads, end in zip(axes, ((GATES, PLAIN, SINGLE), ORDER), (last, math.inf), strict=True):
            for head in heads:
                own = [row for row in rows if row["head"] == head and row["tasks"] <= end]
                tasks = sorted({row["tasks"] for row in own})
                times = [[row["milliseconds"] for row in own if row["tasks"] == task] for task in tasks]
                low, middle, high = (np.array([np.quantile(some, q) for some in times]) for q in (0.25, 0.5, 0.75))
                look = style.LOOKS[ORDER.index(head)]
                marked = [place for place, count in enumerate(tasks) if count in MARKED or count > last]
                ax.plot(tasks, middle, label=head, markevery=marked, **look)
                ax.fill_between(tasks, low, high, color=look["color"], alpha=0.2, linewidth=0)
            ax.set_xlabel(f"tasks learned, {CLASSES} classes each")
        axes[0].set_title(f"A  Up to {last} tasks")
        axes[0].set_xticks([1, *range(5, last + 1, 5)])
        axes[0].set_ylabel("time of one forward (ms)")
        axes[0].set_ylim(bottom=0)
        axes[1].set_title("B  Further, and the whole model")
        axes[1].set_xscale("log")
        axes[1].set_yscale("log")
        for axis in (axes[1].xaxis, axes[1].yaxis):
            axis.set_major_formatter(FormatStrFormatter("%g"))
            axis.set_minor_formatter(NullFormatter())
        style.legend(drawing, axes)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            f"Time of one forward of a batch of {rows[0]['batch']} images through a head alone, the mean of "
            f"{FORWARDS} in a row, and through the whole model with cascaded gates: median of several such "
            "measurements, and their middle half as a band. One module per gate: the cascaded gates, one small layer "
            "after the other. One gate per class: open gates, which later tasks share."
        )

    def source(self, rows: Sequence[Row]) -> str:
        first = rows[0]
        return (
            f"{first['precision']} on {first['device']}; {first['backbone']}, {first['features']:,} features, "
            f"batches of {first['batch']}, {len({row['repeat'] for row in rows})} repeats; no training."
        )


def _growing(models: Mapping[str, Model], shape: tuple[int, int, int], where: Compute) -> Iterator[tuple[int, Timed]]:
    """The functions to time for each number of tasks: heads on the same features, the model on images."""
    noise = torch.randn(1, BATCH, *shape, generator=torch.Generator().manual_seed(0))
    images = noise.to(where.device, where.maps)
    gated = models[GATES]
    with where.autocast():
        features = gated.backbone(images).to(where.dtype)
    for tasks in range(1, max(TASKS, *FAR) + 1):
        timed: Timed = {}
        for name, model in models.items():
            if name == GATES and tasks > CASCADED:
                continue
            model.grow(CLASSES)
            if tasks <= TASKS or tasks in FAR:
                timed[name] = partial(copy.deepcopy(model.head), features), FORWARDS
        if tasks <= TASKS:
            head = copy.deepcopy(gated.head)
            assert isinstance(head, CascadedGates)
            timed[PER_GATE] = partial(ModulePerGate(head), features[0]), FORWARDS
            timed[WHOLE] = partial(_whole, Model(gated.backbone, head, gated.seeds), images, where), 1
        if timed:
            yield tasks, timed


def _whole(model: Model, images: torch.Tensor, where: Compute) -> torch.Tensor:
    with where.autocast():
        return model.logits(images)


def milliseconds(forward: Callable[[], object], times: int, where: Compute) -> float:
    """The time of one forward pass, the mean of several in a row: by the GPU's own clock, or the wall's on a CPU."""
    if where.device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        where.wait()
        start.record()
        for _ in range(times):
            forward()
        end.record()
        where.wait()
        return float(start.elapsed_time(end)) / times
    started = time.perf_counter()
    for _ in range(times):
        forward()
    return 1000 * (time.perf_counter() - started) / times
