"""The tables of a sweep for the terminal: what it would do, and what it gave, beside the paper's numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mdcg.execute.plan import Job, Plan, Undone
from mdcg.execute.sweep import Sweep
from mdcg.methods import METHODS
from mdcg.metrics import spread
from mdcg.recipes.grid import MEMORY, GridCell, label
from mdcg.report.terminal import STYLES, trained_otherwise
from mdcg.results.settings import Setting, marks
from mdcg.train.display import duration


def plan_table(planned: Plan) -> Table:
    """Make one line for each kind of group that would train: method, head and scenario."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("groups", justify="right")
    table.add_column("runs", justify="right")
    for name in ("method", "memory", "seeds"):
        table.add_column(name)
    table.add_column("time", justify="right")
    kinds: dict[str, list[Job]] = {}
    for job in planned.jobs:
        first = job.specs[0]
        head = "" if first.head == METHODS[first.method].head else f", {first.head}"
        kinds.setdefault(f"{first.method}{head} on {first.task_sequence}", []).append(job)
    for kind, jobs in kinds.items():
        specs = [spec for job in jobs for spec in job.specs]
        times = [job.seconds for job in jobs if job.seconds is not None]
        table.add_row(
            str(len(jobs)),
            str(len(specs)),
            Text(kind),
            _several([spec.memory for spec in specs if spec.memory]),
            _several([spec.seed for spec in specs]),
            duration(sum(times)) if len(times) == len(jobs) else "?",
        )
    return table


def _several(numbers: Sequence[int]) -> str:
    """Write whole numbers, three or more in a row as a range.

    >>> _several([0, 1, 2, 3, 7]), _several([200, 500]), _several([])
    ('0-3, 7', '200, 500', '–')
    """
    found = enumerate(sorted(set(numbers)))
    runs = [[number for _, number in run] for _, run in itertools.groupby(found, key=lambda one: one[1] - one[0])]
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts) or "–"


def sweep_table(sweep: Sweep, settings: Sequence[Setting], console: Console) -> tuple[Table, str]:
    """Make a line for each setting, a column for each memory size; below each result the paper's. And a caption.

    An axis that says scenario and memory at once, as "C10-5, 200", gives the columns in its own words. BWT is that at
    the end, which is what the paper's tables print; where the console is too narrow it is left out.
    """
    whole = _sweep_table(sweep, settings, with_bwt=True)
    if console.measure(whole, options=console.options.update(width=10_000)).maximum <= console.width:
        return whole, _caption(settings, "ACC | BWT-final in percent")
    return _sweep_table(sweep, settings, with_bwt=False), _caption(settings, "ACC in percent")


def _sweep_table(sweep: Sweep, settings: Sequence[Setting], with_bwt: bool) -> Table:
    axis, marked = _axis_of_columns(sweep.cells), marks(settings)
    found = {tuple(setting.labels.items()): place for place, setting in enumerate(settings)}
    rows: dict[str, dict[str, Text]] = {}
    for cell in sweep.cells:
        row = rows.setdefault(label(cell, without={axis}), {})
        if (place := found.get(tuple(cell.labels.items()))) is not None:
            entry = _entry(settings[place], STYLES.get(marked.get(place, ""), ""), with_bwt)
            row |= dict.fromkeys(_columns(cell, axis), entry)
    ordered = sorted(sweep.cells, key=_memory) if axis == MEMORY else sweep.cells
    every = [_columns(cell, axis) for cell in ordered]
    columns = dict.fromkeys([own for own, *_ in every] + list(itertools.chain.from_iterable(every)))
    table = Table(title=Text(sweep.title), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in columns:
        table.add_column(Text(column), justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(Text(name), *[row.get(column, Text("")) for column in columns])
    return table


def _axis_of_columns(cells: Sequence[GridCell]) -> str:
    """The axis whose values are columns: one whose values say scenario and memory at once, or else the memory."""
    return next((axis for axis in cells[0].labels if _says_memory(cells, axis)), MEMORY)


def _says_memory(cells: Sequence[GridCell], axis: str) -> bool:
    """Whether each value of an axis stands for one scenario and memory, and for the same methods as the others do."""
    if not all(axis in cell.labels for cell in cells):  # an axis that only some methods have
        return False
    places: dict[str, set[tuple[str, int]]] = {}
    methods: dict[str, set[str]] = {}
    for cell in cells:
        first = cell.specs[0]
        if first.memory:  # what has none says nothing of the axis
            places.setdefault(cell.labels[axis], set()).add((first.scenario, first.memory))
            methods.setdefault(cell.labels[axis], set()).add(first.method)
    one_each = all(len(own) == 1 for own in places.values())
    sizes = {memory for own in places.values() for _, memory in own}
    return one_each and len(sizes) > 1 and all(own == next(iter(methods.values())) for own in methods.values())


def _columns(cell: GridCell, axis: str) -> list[str]:
    """The columns of a cell: its own, and those where the grid means the same runs, as of a method without memory."""
    if axis == MEMORY:
        return [f"memory {_memory(cell)}" if _memory(cell) else "no memory"]
    same = [labels for labels in cell.aliases if {**labels, axis: cell.labels[axis]} == cell.labels]
    return [labels[axis] for labels in (cell.labels, *same)]


def _memory(cell: GridCell) -> int:
    return cell.specs[0].memory


def _entry(setting: Setting, style: str, with_bwt: bool) -> Text:
    acc, bwt = setting.stats["ACC"], setting.stats["BWT_final"].mean
    text = Text(spread(acc.mean, acc.std) + _after(bwt, with_bwt), style=style)
    if (printed := setting.paper) is not None:
        std = math.nan if printed.acc_std is None else printed.acc_std
        bwt = math.nan if printed.bwt is None else printed.bwt
        text.append(f"\n{spread(printed.acc, std)}{_after(bwt, with_bwt)}", style="not bold not underline dim")
    return text


def _after(bwt: float, with_bwt: bool) -> str:
    return f" | {bwt:.1f}" if with_bwt and not math.isnan(bwt) else ""


def _caption(settings: Sequence[Setting], numbers: str) -> str:
    counts = sorted({len(setting.runs) for setting in settings})
    seeds = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    over = f"mean ± sample std over {seeds} seeds" if counts[-1] > 1 else "one seed"
    beside = "; below it the paper's" if any(setting.paper for setting in settings) else ""
    said = f"{numbers}, {over}{beside}. Bold: best, underlined: second."
    return "\n".join([said, *trained_otherwise(settings)])


def sweep_json(sweep: Sweep, gathered: Sequence[Setting], undone: Undone) -> dict[str, Any]:
    """The sweep for other programs: its settings with their runs, and what is not finished."""
    found = {tuple(setting.labels.items()): setting.records for setting in gathered}
    settings = []
    for cell in sweep.cells:
        records = found.get(tuple(cell.labels.items()), [])
        runs = [{"name": record.spec.name, **record.as_json()} for record in records]
        settings.append({"labels": dict(cell.labels), "memory": cell.specs[0].memory, "runs": runs})
    return {"settings": settings, "failed": dict(undone.failed), "left": dict(undone.left)}


def plan_json(planned: Plan) -> dict[str, Any]:
    """The plan for other programs."""
    groups = [{"runs": [spec.name for spec in job.specs], "seconds": job.seconds} for job in planned.jobs]
    finished = [spec.name for spec in planned.finished]
    return {"groups": groups, "measured": planned.measured, "finished": finished, "failed": dict(planned.failed)}
