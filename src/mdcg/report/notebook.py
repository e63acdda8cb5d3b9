"""Results as a notebook shows them: a line of text, or small tables, with R and searched grids as heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from mdcg import markup
from mdcg.execute.search import SearchResult
from mdcg.methods.base import Value
from mdcg.metrics import spread
from mdcg.report.search_tables import at_an_end, text_of, verdict
from mdcg.report.terminal import measured, shade
from mdcg.results.settings import Setting, departures


def one_line(setting: Setting) -> str:
    """Describe the runs of a setting in a line: what was trained, and how it fared."""
    measured = ", ".join(
        f"{name} {spread(setting.stats[name].mean, setting.stats[name].std)}" for name in ("ACC", "BWT")
    )
    return f"{_what(setting)}: {measured}"


def as_html(setting: Setting) -> str:
    """Make a table of the metrics, and R as a heat map: mean accuracy on task j (across) after task i (down)."""
    shown = measured([setting])
    metrics = markup.table([], zip(shown.values(), _metrics(setting, shown), strict=True))
    mean = np.mean(setting.matrices, 0)  # NaN above the diagonal in every run
    head = ["accuracy on task", *(str(task + 1) for task in range(len(mean)))]
    rows = [[f"after task {task + 1}", *(_shaded(value, value) for value in row)] for task, row in enumerate(mean)]
    return markup.titled(f"{_what(setting)}, percent", metrics, markup.table(head, rows))


def comparison_html(settings: Sequence[Setting]) -> str:
    """Make a table of settings, a line each, best first."""
    ranked = sorted(settings, key=lambda setting: -setting.stats["ACC"].mean)
    runs = max(len(setting.runs) for setting in settings)
    scenarios, shown = "; ".join(dict.fromkeys(setting.spec.task_sequence for setting in settings)), measured(settings)
    over = f"mean ± sample std over {runs} seeds" if runs > 1 else "one seed"
    rows = [[setting.label, *_metrics(setting, shown)] for setting in ranked]
    return markup.titled(f"{scenarios}: percent, {over}", markup.table(["", *shown.values()], rows))


def search_html(results: Sequence[SearchResult]) -> str:
    """Make a table of each searched grid, of two settings a heat map; above it stands what was chosen."""
    return "".join(markup.titled(_chosen(found), _grid(found)) for found in results)


def _chosen(found: SearchResult) -> str:
    ends = at_an_end(found)
    return verdict(found) + (f" ({', '.join(ends)} at an end of the grid)" if ends else "")


def _grid(found: SearchResult) -> str:
    """The ACC of every point, the best one with a star; colours go from the worst to the best."""
    low, high = min(found.scores.values()), max(found.scores.values())

    def cell(*point: Value) -> object:
        score = found.scores.get(point, math.nan)
        place = 100 * (score - low) / (high - low) if high > low else 50.0
        return _shaded(score, place, "*" if point == found.ranked[0] else "")

    if len(found.axes) != 2:
        rows = [[*map(text_of, point), cell(*point)] for point in found.scores]
        return markup.table([*found.axes, "ACC"], rows)
    (down, first), (across, second) = found.axes.items()
    rows = [[text_of(row), *(cell(row, column) for column in second)] for row in first]
    return markup.table([f"{down} ↓ {across} →", *map(text_of, second)], rows)


def _what(setting: Setting) -> str:
    runs = len(setting.runs)
    unnamed = [words for words in departures(setting.spec) if words not in setting.name.split(", ")]
    return ", ".join([setting.what, *unnamed, f"{runs} {'seeds' if runs > 1 else 'seed'}"])


def _metrics(setting: Setting, names: Iterable[str]) -> list[str]:
    return [spread(setting.stats[name].mean, setting.stats[name].std) for name in names]


def _shaded(value: float, place: float, mark: str = "") -> object:
    """The cell of a value, whose colour is at a place from 0 to 100; an empty one for what is not known."""
    if math.isnan(value):
        return ""
    return markup.Coloured(f"{value:.1f}{mark}", shade(place), "white" if place > 50 else "black")
