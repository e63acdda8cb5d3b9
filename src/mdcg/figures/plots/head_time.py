"""Fig. "time": inference time of heads against the number of tasks (Appendix "… time overhead …")."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
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

TASKS = 20
CLASSES = 2  # of each task
BATCH = 32
FORWARDS = 100  # of a head, in each measurement
REPEATS = 5
GATES, PLAIN, PER_GATE, WHOLE = "cascaded gates", "incremental head", "one module per gate", "whole model"
ORDER = (GATES, PLAIN, PER_GATE, WHOLE)
Timed = dict[str, tuple[Callable[[], object], int]]  # what to call, and how often


@FIGURES.register("head-time")
class HeadTime(ModelFigure):
    """Inference time of cascaded gates and of a plain incremental head against the number of tasks."""

    def measure(self, asked: Recipe) -> list[Row]:
        """Time the heads; tasks are virtual: heads grow, and images are random numbers."""
        shape, backbone = given(asked)
        where = compute(asked.device, asked.precision)
        gated = build_model(backbone, "cascaded-gates", shape, [0], dtype=where.dtype).to(where.device).eval()
        plain = build_model(backbone, "incremental", shape, [0], dtype=where.dtype).to(where.device).eval()
        about = {
            "device": environment(where).device,
            "precision": where.precision,
            "backbone": backbone,
            "features": gated.backbone.features,
            "batch": BATCH,
        }
        with torch.no_grad(), where.settings():
            timed = list(_growing(gated, plain, shape, where))
            for own in timed:
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
                for tasks, own in enumerate(timed, start=1)
                for head, (forward, times) in own.items()
            ]

    def draw(self, rows: Sequence[Row]) -> Drawing:
        drawing, axes = style.panels(1, 2, height=2.8)
        for ax, heads in zip(axes, (ORDER[:2], ORDER), strict=True):
            for head in heads:
                own = [row for row in rows if row["head"] == head]
                tasks = sorted({row["tasks"] for row in own})
                times = [[row["milliseconds"] for row in own if row["tasks"] == task] for task in tasks]
                low, middle, high = (np.array([np.quantile(some, q) for some in times]) for q in (0.25, 0.5, 0.75))
                look = style.LOOKS[ORDER.index(head)]
                ax.plot(tasks, middle, label=head, markevery=max(1, len(tasks) // 8), **look)
                ax.fill_between(tasks, low, high, color=look["color"], alpha=0.2, linewidth=0)
            ax.set_xticks([1, *range(5, max(row["tasks"] for row in rows) + 1, 5)])
            ax.set_xlabel(f"tasks learned, {CLASSES} classes each")
        axes[0].set_title("A  Two heads")
        axes[0].set_ylabel("time of one forward (ms)")
        axes[0].set_ylim(bottom=0)
        axes[1].set_title("B  The same, and the whole model")
        axes[1].set_yscale("log")
        axes[1].yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes[1].yaxis.set_minor_formatter(NullFormatter())
        style.legend(drawing, axes)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        return (
            f"Time of one forward of a batch of {rows[0]['batch']} images through a head alone, the mean of "
            f"{FORWARDS} in a row, and through the whole model with cascaded gates: median of several such "
            "measurements, and their middle half as a band. One module per gate: the same gates, one small layer "
            "after the other."
        )

    def source(self, rows: Sequence[Row]) -> str:
        first = rows[0]
        return (
            f"{first['precision']} on {first['device']}; {first['backbone']}, {first['features']:,} features, "
            f"batches of {first['batch']}, {len({row['repeat'] for row in rows})} repeats; no training."
        )


def _growing(gated: Model, plain: Model, shape: tuple[int, int, int], where: Compute) -> Iterator[Timed]:
    """The functions to time for each number of tasks: heads on the same features, the model on images."""
    noise = torch.randn(1, BATCH, *shape, generator=torch.Generator().manual_seed(0))
    images = noise.to(where.device, where.maps)
    with where.autocast():
        features = gated.backbone(images).to(where.dtype)
    for _ in range(TASKS):
        gated.grow(CLASSES)
        plain.grow(CLASSES)
        head = copy.deepcopy(gated.head)
        assert isinstance(head, CascadedGates)
        yield {
            GATES: (partial(head, features), FORWARDS),
            PLAIN: (partial(copy.deepcopy(plain.head), features), FORWARDS),
            PER_GATE: (partial(ModulePerGate(head), features[0]), FORWARDS),
            WHOLE: (partial(_whole, Model(gated.backbone, head, gated.seeds), images, where), 1),
        }


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
