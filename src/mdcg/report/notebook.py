"""Results as a notebook shows them: a line of text, or a small table and R as a heat map."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from mdcg.report.terminal import measured, shade, spread
from mdcg.results.settings import Setting


def one_line(setting: Setting) -> str:
    """Describe the runs of a setting in a line: what was trained, and how it fared."""
    measured = ", ".join(
        f"{name} {spread(setting.stats[name].mean, setting.stats[name].std)}" for name in ("ACC", "BWT")
    )
    return f"{_what(setting)}: {measured}"


def as_html(setting: Setting) -> str:
    """Make a table of the metrics, and R as a heat map: mean accuracy on task j (across) after task i (down)."""
    metrics = "".join(
        f"<tr><th>{title}</th><td>{spread(setting.stats[name].mean, setting.stats[name].std)}</td></tr>"
        for name, title in measured([setting]).items()
    )
    mean = np.mean(setting.matrices, 0)  # NaN above the diagonal in every run
    head = "".join(f"<th>{task + 1}</th>" for task in range(len(mean)))
    rows = "".join(
        f"<tr><th>after task {task + 1}</th>{''.join(map(_cell, row.tolist()))}</tr>" for task, row in enumerate(mean)
    )
    return (
        f"<div><p><b>{escape(_what(setting))}, percent</b></p><table>{metrics}</table>"
        f"<table><tr><th>accuracy on task</th>{head}</tr>{rows}</table></div>"
    )


def _what(setting: Setting) -> str:
    spec, runs = setting.spec, len(setting.runs)
    memory = f", memory {spec.memory:,}" if spec.memory else ""
    return f"{setting.label} on {spec.task_sequence}{memory}, {runs} {'seeds' if runs > 1 else 'seed'}"


def _cell(value: float) -> str:
    if math.isnan(value):
        return "<td></td>"
    red, green, blue = shade(value)
    ink = "white" if value > 50 else "black"
    return f'<td style="background:rgb({red},{green},{blue});color:{ink}">{value:.1f}</td>'
