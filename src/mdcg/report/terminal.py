"""The tables of results for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from mdcg.methods import METHODS
from mdcg.metrics import Matrix, spread
from mdcg.results.settings import Setting, departures, marks
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.scenario import Stream

CELL = 6  # characters of one entry of R
ENVIRONMENT = {"precision": "computed in", "finished": "finished at"}
STYLES = {"best": "bold", "second": "underline"}
COLUMNS = {"ACC": "ACC ↑", "BWT": "BWT", "BWT_final": "BWT-final", "forgetting": "forgetting ↓"}
ANYTIME = {"anytime": "anytime ↑"}


def shade(value: float) -> tuple[int, int, int]:
    """The colour for an accuracy in percent: from pale to deep blue, in even steps of lightness."""
    low, high = np.array([235, 242, 250]), np.array([8, 64, 129])
    red, green, blue = (low + (high - low) * min(max(value, 0), 100) / 100).astype(int).tolist()
    return red, green, blue


def measured(settings: Iterable[Setting]) -> dict[str, str]:
    """The metrics to show of these settings, and what heads their columns."""
    return COLUMNS | (ANYTIME if any(tasks_say_less(setting.spec) for setting in settings) else {})


def tasks_say_less(spec: RunSpec) -> bool:
    """Whether tasks are not all alike: accuracy over the stream then belongs beside the means over tasks."""
    return spec.stream != Stream()


def comparison(
    settings: Sequence[Setting], title: str, console: Console, first: str = "method", ranked: bool = True
) -> Table:
    """Make a table, a line per method or setting, best first unless the order is to stay; `first` heads that column."""
    ordered = sorted(settings, key=lambda setting: -setting.stats["ACC"].mean) if ranked else list(settings)
    shown = measured(ordered)
    whole = _comparison(ordered, title, shown, first)
    if console.measure(whole, options=console.options.update(width=10_000)).maximum <= console.width:
        return whole
    # Forgetting differs from BWT-final by little: where the terminal is too narrow, it makes room.
    del shown["forgetting"]
    return _comparison(ordered, title, shown, first)


def _comparison(settings: Sequence[Setting], title: str, metrics: Mapping[str, str], first: str) -> Table:
    table = Table(
        title=Text(title), title_justify="left", caption=_runs(settings), caption_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column(first, overflow="fold")
    for heading in metrics.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("s/run", justify="right", no_wrap=True)
    marked = marks(settings)
    for place, setting in enumerate(settings):
        cells = [spread(setting.stats[metric].mean, setting.stats[metric].std) for metric in metrics]
        seconds = f"{setting.stats['seconds'].mean:.1f}"
        table.add_row(Text(setting.label), *cells, seconds, style=STYLES.get(marked.get(place, ""), ""))
    return table


def _runs(settings: Sequence[Setting]) -> str:
    count = max(len(setting.runs) for setting in settings)
    said = f"percent, mean ± sample std over {count} seeds" if count > 1 else "percent, one seed"
    return "\n".join([said, *_set_otherwise(settings), *trained_otherwise(settings)])


def _set_otherwise(settings: Sequence[Setting]) -> list[str]:
    """Heads and settings that are not the default of a method in any of its settings, a line for each method."""
    lines = []
    for method in dict.fromkeys(setting.spec.method for setting in settings):
        found = [departures(setting.spec) for setting in settings if setting.spec.method == method]
        common = [words for words in found[0] if all(words in others for others in found)]
        lines += [f"{method}: {', '.join(common)}"] if common else []
    return lines


def trained_otherwise(settings: Sequence[Setting]) -> list[str]:
    """How methods that bring their own training were trained, a line for each, where others were not."""
    lines = []
    for method in dict.fromkeys(setting.spec.method for setting in settings):
        own = [setting.spec for setting in settings if setting.spec.method == method]
        keys = METHODS[method].recipe if method in METHODS.names() else ()
        values = {key: list(dict.fromkeys(getattr(spec, key) for spec in own)) for key in keys}
        said = [
            f"{key} {' or '.join(map(str, found))}"
            for key, found in values.items()
            if _tells(key, found, own) and any([getattr(setting.spec, key)] != found for setting in settings)
        ]
        lines += [f"{method}: {', '.join(said)}"] if said else []
    return lines


def _tells(key: str, values: Sequence[object], specs: Sequence[RunSpec]) -> bool:
    """Whether it tells how a method trains: they all have it in common, or each what suits its memory."""
    if len(values) == 1:
        return True
    kind = METHODS[specs[0].method]
    suited = [kind.training_of(kind.suited_to(spec.scenario, spec.memory)) for spec in specs]
    return all(getattr(spec, key) == own[key] for spec, own in zip(specs, suited, strict=True))


def coloured_matrix(R: Matrix, width: int) -> RenderableType:
    """Show R as a coloured matrix: row i after learning task i, column j accuracy on task j.

    What is too wide for the terminal goes on below, a block of tasks at a time.
    """
    tasks = len(R)
    at_once = max(1, (width - 12) // CELL)
    blocks: list[RenderableType] = []
    for start in range(0, tasks, at_once):
        block = range(start, min(start + at_once, tasks))
        table = Table(box=None, padding=(0, 0), pad_edge=False)
        table.add_column("after task ", justify="right")
        for task in block:
            table.add_column(f"{task + 1}", justify="center", min_width=CELL, no_wrap=True)
        for i in range(start, tasks):  # earlier rows have nothing in these columns
            table.add_row(f"{i + 1} ", *[_cell(R[i, j]) for j in block])
        blocks += [table, Text()]
    return Group(*blocks[:-1])


def _cell(value: float) -> Text:
    if math.isnan(value):
        return Text("·", style="dim", justify="center")
    red, green, blue = shade(value)
    ink = "white" if value > 50 else "black"
    return Text(f"{value:5.1f} ", style=Style(bgcolor=f"rgb({red},{green},{blue})", color=ink), justify="right")


def run_panel(record: Record, folder: str, width: int) -> RenderableType:
    """Show everything about one run, for `mdcg show`."""
    metrics = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, label in (COLUMNS | (ANYTIME if tasks_say_less(record.spec) else {})).items():
        metrics.add_row(label, spread(record.metrics[name], math.nan))
    settings = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for key, value in settings_of(record):
        settings.add_row(Text(key, style="dim"), Text(value))
    parts: list[RenderableType] = [
        Text(folder, style="bold"),
        Text("accuracy in percent on task"),
        coloured_matrix(record.R, width),
        metrics,
        *_classes(record),
        settings,
    ]
    spaced = [piece for part in parts for piece in (part, Text())]
    return Group(*spaced[:-1])


def _classes(record: Record) -> list[RenderableType]:
    """The table of final accuracies of each class; none where only tasks were counted."""
    accuracy = record.class_accuracy
    if accuracy is None:
        return []
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for task, classes in enumerate(record.task_columns):
        named = ", ".join(f"{record.class_names[c]}: {accuracy[c]:.1f}" for c in classes)
        table.add_row(Text(f"task {task + 1}", style="dim"), Text(named))
    return [Text("final accuracy of each class"), table]


def settings_of(record: Record) -> Sequence[tuple[str, str]]:
    """The settings, time and place of a run, as plain text."""
    recipe = record.spec.as_recipe()
    recipe["set"] = ", ".join(f"{key}={value}" for key, value in recipe["set"].items())
    rows = [(key, str(value)) for key, value in recipe.items() if value not in (None, "")]
    company = f" ({record.members} runs together)" if record.members > 1 else ""
    rows.append(("seconds", f"{record.seconds:.1f}{company}"))
    rows += [(ENVIRONMENT.get(key, key), str(value)) for key, value in record.environment.items()]
    return rows
