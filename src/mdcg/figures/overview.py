"""The drawing of results at a glance: accuracy as tasks are learned and, of a single setting, R."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mdcg.figures import style
from mdcg.results.settings import Setting

NUMBERS = 10  # tasks up to which the numbers fit into the cells of R


def overview(settings: Sequence[Setting]) -> style.Drawing:
    """Draw the mean accuracy over the tasks learned so far, a line per setting; beside a single one its R."""
    with style.styled():
        drawing, axes = style.panels(1, 2 if len(settings) == 1 else 1, height=2.6)
        _accuracy(axes[0], settings)
        if len(settings) == 1:
            _matrix(axes[1], settings[0])
        else:
            style.legend(drawing, axes[:1], columns=3)
        drawing.suptitle(_title(settings), fontsize=9, x=0.01, ha="left")
        drawing.draw_without_rendering()  # the ticks are made here, in the style
    return drawing


def _title(settings: Sequence[Setting]) -> str:
    runs = max(len(setting.runs) for setting in settings)
    seeds = f"mean ± std over {runs} seeds" if runs > 1 else "one seed"
    if len(settings) == 1:
        return f"{settings[0].what}, {seeds}"
    return f"{', '.join(dict.fromkeys(setting.spec.task_sequence for setting in settings))}, {seeds}"


def _accuracy(ax: Axes, settings: Sequence[Setting]) -> None:
    methods = [setting.spec.method for setting in settings]
    for place, setting in enumerate(settings):
        # Where each is of another method, it looks as in every figure.
        look = style.LOOKS[place % len(style.LOOKS)]
        if len(set(methods)) == len(methods):
            look = style.look_of(methods[place], methods)
        so_far = np.nanmean(setting.matrices, axis=2)  # of what is not learned yet R has none
        style.band(ax, range(1, so_far.shape[1] + 1), so_far, setting.label, look, every=1)
    ax.set_ylim(-5, 105)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=NUMBERS))
    ax.set_xlabel("tasks learned")
    ax.set_ylabel("accuracy on them (%)")


def _matrix(ax: Axes, setting: Setting) -> None:
    mean = setting.matrices.mean(0)
    tasks = [str(task + 1) for task in range(len(mean))]
    form = "{:.0f}" if len(mean) <= NUMBERS else ""
    style.heat_map(ax, mean, tasks, tasks, "", form, vmin=0, vmax=100)
    for axis in (ax.xaxis, ax.yaxis):
        if len(tasks) > style.MANY:
            axis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("accuracy (%) on task")
    ax.set_ylabel("after task")
