"""Fig. "bias_intro": rehearsal fits the images in memory, and forgets the tasks that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from matplotlib.figure import Figure as Drawing

from mdcg.errors import MdcgError
from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Row, RunFigure, memory, recipe_of
from mdcg.figures.plots import single
from mdcg.figures.plots.tasks import some
from mdcg.figures.selection import one_setting
from mdcg.methods import METHODS
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun

METHOD = "replay"
PANELS = {
    "logit": ("A  Ground-truth logit of the images in memory", "mean logit"),
    "memory_forgetting": ("B  Forgetting on the images in memory", "change of accuracy\n(percentage points)"),
    "test_forgetting": ("C  Forgetting on evaluated images", "change of accuracy\n(percentage points)"),
}


@FIGURES.register("bias")
class Bias(RunFigure):
    """Replay's logits and forgetting on the memory's images, and its forgetting on test images."""

    probes: ClassVar[tuple[str, ...]] = ("memory",)
    tasks: ClassVar[int] = 2

    def wanted(self, asked: Recipe) -> list[Recipe]:
        (method,) = single.one_method("bias", asked, METHOD)
        if METHODS[method].starts_anew:
            raise MdcgError(
                f"{method} begins every task with new weights, so there is no forgetting to draw; name another method.",
                about="methods",
            )
        return [recipe_of(asked, [method], memory(asked))]

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        return one_setting([run for run in super().pick(runs) if not METHODS[run.spec.method].starts_anew], METHOD)

    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        return [row for run in runs for row in _of_run(run)]

    def draw(self, rows: Sequence[Row]) -> Drawing:
        epochs, tasks = rows[0]["epochs"], rows[0]["tasks"]
        shown = some(row["past_task"] for row in rows)
        drawing, axes = style.panels(len(PANELS), height=2.2, sharex=True)
        for ax, (key, (title, label)) in zip(axes, PANELS.items(), strict=True):
            for place, past in enumerate(shown):
                own = [row for row in rows if row["past_task"] == past]
                mark = (place + 0.5) / len(shown)  # at places of its own, where lines lie on each other
                single.line(ax, own, key, f"past task {past}", style.LOOKS[place], [mark])
            style.training_axis(ax, tasks, epochs, first=2)
            ax.set_title(title, pad=single.title_pad(tasks))
            ax.set_ylabel(label)
            ax.label_outer()
        for ax in axes[1:]:
            ax.axhline(0, color=style.GREY, linewidth=0.8, zorder=1)
        both = [limit for ax in axes[1:] for limit in ax.get_ylim()]
        for ax in axes[1:]:  # to be compared
            ax.set_ylim(min(both), max(both))
        drawing.align_ylabels(axes)
        style.legend(drawing, axes, columns=4)
        return drawing

    def caption(self, rows: Sequence[Row]) -> str:
        shown, past = len(some(row["past_task"] for row in rows)), rows[0]["tasks"] - 1
        fewer = f" Of {past} past tasks {shown} are drawn." if shown < past else ""
        return (
            "A: mean ground-truth logit of each past task's images that are in memory at the time. B: accuracy on "
            "these images, less the accuracy on those in memory when the next task began, the past one just learned; "
            "below zero, something is forgotten. C: the same on the past task's evaluated images. Predictions are "
            "among the classes seen, the current task's included. Lines break where a task begins: there are more "
            f"classes then, and the memory may have changed.{fewer} {captions.averaged(rows)}"
        )


def _of_run(run: FinishedRun) -> list[Row]:
    """The rows of a run, with the change since each task had just been learned: since the task after it began."""
    looks = run.measured("memory")
    learned = {row["task"] - 1: row for row in looks if row["epoch"] == 0}
    rows = []
    for row in looks:
        for past in range(1, row["task"]):
            own: Row = {**single.moments(run, row), "past_task": past, "logit": row["logit"][past - 1]}
            for images in ("memory", "test"):
                now, then = (one[f"{images}_accuracy"][past - 1] for one in (row, learned[past]))
                own[f"{images}_accuracy"] = now
                own[f"{images}_forgetting"] = None if now is None or then is None else round(now - then, 5)
            rows.append(own)
    return rows
