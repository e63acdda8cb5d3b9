"""The paper's tables, cell by cell, beside what the runs of a folder give: a part of a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from mdcg import paper
from mdcg.files import open_file
from mdcg.methods import METHODS
from mdcg.methods.base import Preset
from mdcg.metrics import spread
from mdcg.outputs import Kind, Output
from mdcg.recipes.presets import PRESETS, preset_of, settings_of_preset
from mdcg.report.notes import Noted, read_notes, sizes_in_words
from mdcg.results.settings import Setting, gather
from mdcg.results.statistics import ALPHA, holm
from mdcg.runs.finished import FinishedRun

BEGIN = "<!-- From here on written by: mdcg report RUNS --reproduction FILE -->"
END = "<!-- Up to here -->"
ENOUGH: Mapping[Preset, int] = {"paper": paper.RUNS, "published": 3}  # seeds
ALWAYS = (1, 3)  # tables of which cells are missing even where there is no run at all
UNEXPLAINED = "not explained."
INTRO = f"""\
## The paper's tables, cell by cell

In percent, mean ± sample standard deviation over seeds. The first ACC is of runs with default settings; *published* are
runs with `--preset published`, "same" where that changes nothing for the method. Runs are counted for both. p is of
Welch's t-test of our ACC against the paper's mean and deviation, taken to be over {paper.RUNS} runs, after Holm's
correction over a family: all cells of one printed table, its scenarios together, for which p can be computed, with one
of the two presets. Bold: p < {ALPHA:g}. BWT-final, over the last row of R, stands beside the paper's BWT.
"""


@dataclass(frozen=True)
class Compared:
    """A cell of the paper, our runs of each preset where there are any, and their p after Holm's correction."""

    cell: paper.Cell
    ours: Mapping[Preset, Setting]
    p: Mapping[Preset, float]

    @property
    def presets(self) -> tuple[Preset, ...]:
        """The presets that mean different runs."""
        cell, head = self.cell, self.cell.head or METHODS[self.cell.method].head
        first, second = (
            settings_of_preset(preset, cell.scenario, cell.method, cell.memory, head) for preset in PRESETS
        )
        return PRESETS[:1] if first == second else PRESETS

    def runs(self, preset: Preset) -> int:
        return len(self.ours[preset].runs) if preset in self.ours else 0

    def differs(self, preset: Preset) -> bool:
        return self.p.get(preset, 1.0) < ALPHA


def write_reproduction(path: Path, runs: Iterable[FinishedRun], notes: Path) -> None:
    """Make the page, or renew what stands between the two comments of one that is there."""
    output = reproduction_page(path)
    output.check()
    block = f"{BEGIN}\n\n{reproduction(runs, read_notes(notes))}\n{END}"
    before = f"{BEGIN}{END}\n"
    if path.exists():
        with open_file(path) as file:
            before = file.read().decode()
    output.write((before[: before.index(BEGIN)] + block + before[before.index(END) + len(END) :]).encode())


def reproduction_page(path: Path) -> Output:
    """The page as a file to write. What stands there beside the tables is read, and kept: nothing can be forced."""
    return Output(path, Kind("a Markdown page", _without_a_place), force=True, inputs=[path])


def _without_a_place(file: BinaryIO) -> str:
    try:
        text = file.read().decode()
    except UnicodeDecodeError:
        return "is no text; give a Markdown file"
    if (text.count(BEGIN), text.count(END)) == (1, 1) and text.index(BEGIN) < text.index(END):
        return ""
    return f"does not say where the tables go; put in two lines: {BEGIN} and {END}"


def reproduction(runs: Iterable[FinishedRun], noted: Noted) -> str:
    """The tables, what differs and why, and what is missing, as Markdown."""
    tables = compared(runs)
    parts = [INTRO]
    for title, cells in _by_scenario(tables):
        if any(one.ours for one in cells):
            parts.append(f"### {title}\n\n{_table(cells)}")
    parts.append("### Cells that differ\n\n" + (_differing(tables, noted) or "None.\n"))
    parts.append("### Missing\n\n" + (_missing(tables) or "Nothing.\n"))
    return "\n".join(parts)


def compared(runs: Iterable[FinishedRun]) -> list[Compared]:
    """Compare every cell of each table, in the paper's order; Table 2's where there are runs of any."""
    found: dict[tuple[str, str, int, str, Preset], list[Setting]] = {}
    for setting in (setting for section in gather(runs) for setting in section.settings):
        cell, preset = setting.paper, preset_of(setting.spec)
        if cell and preset:
            found.setdefault((cell.scenario, cell.method, cell.memory, cell.head, preset), []).append(setting)
    # What differs in precision is not averaged: of several settings the one with the most seeds stands for all.
    best = {key: max(own, key=_weight) for key, own in found.items()}
    every: list[Compared] = []
    for table, printed in groupby(paper.cells(), key=lambda cell: cell.table):
        ours = {
            cell: {
                preset: best[key]
                for preset in PRESETS
                if (key := (cell.scenario, cell.method, cell.memory, cell.head, preset)) in best
            }
            for cell in printed
        }
        if table in ALWAYS or any(ours.values()):
            ps = {preset: _corrected(ours, preset) for preset in PRESETS}
            every += [
                Compared(cell, own, {preset: p[cell] for preset, p in ps.items() if cell in p})
                for cell, own in ours.items()
            ]
    return every


def _weight(setting: Setting) -> tuple[int, bool, str]:
    """The rank of a setting: by seeds, then bf16, then a fixed order, and never by what came of the runs."""
    spec = setting.spec
    return len(setting.runs), spec.precision == "bf16", spec.model_copy(update={"seed": 0}).digest()


def _corrected(ours: Mapping[paper.Cell, Mapping[Preset, Setting]], preset: Preset) -> dict[paper.Cell, float]:
    """The p of one table's cells where there is one. A table without deviations has none, whatever others print."""
    found = {cell: own[preset].p for cell, own in ours.items() if preset in own and cell.acc_std is not None}
    known = {cell: p for cell, p in found.items() if p is not None}
    return dict(zip(known, holm(list(known.values())), strict=True))


def _by_scenario(tables: Sequence[Compared]) -> Iterator[tuple[str, list[Compared]]]:
    """The tables as they are shown, one for each scenario, with titles."""
    shown: dict[tuple[int, str], list[Compared]] = {}
    for one in tables:
        shown.setdefault((one.cell.table, one.cell.scenario), []).append(one)
    for (table, scenario), cells in shown.items():
        yield f"Table {table}, {scenario.replace('c', 'C').replace('tym', 'TyM')}", cells


def _table(cells: Sequence[Compared]) -> str:
    heads = ["method", "memory", "runs", "ACC", "ACC, published", "ACC, paper"]
    if tested := any(one.cell.acc_std is not None for one in cells):
        heads += ["p", "p, published", "BWT-final", "BWT-final, published", "BWT, paper"]
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *(_row(one, tested) for one in cells)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(one: Compared, tested: bool) -> list[str]:
    cell, apart = one.cell, len(one.presets) > 1
    runs = " / ".join(str(one.runs(preset)) for preset in one.presets)
    accs = [_ours(one, preset, "ACC") for preset in one.presets] + ([] if apart else ["same"])
    row = [cell.row, f"{cell.memory:,}" if cell.memory else "", runs, *accs, _theirs(cell.acc, cell.acc_std)]
    if tested:
        row += [_p(one.p[preset]) if preset in one.p else "" for preset in PRESETS]
        row += [_ours(one, preset, "BWT_final") for preset in one.presets] + ([] if apart else [""])
        row.append(_theirs(cell.bwt, cell.bwt_std))
    return row


def _ours(one: Compared, preset: Preset, metric: str) -> str:
    if preset not in one.ours:
        return ""
    stats = one.ours[preset].stats[metric]
    text = spread(stats.mean, stats.std)
    return f"**{text}**" if metric == "ACC" and one.differs(preset) else text


def _theirs(mean: float | None, std: float | None) -> str:
    return spread(math.nan if mean is None else mean, math.nan if std is None else std)


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _differing(tables: Sequence[Compared], noted: Noted) -> str:
    """Write a line for each method of a table; sizes that have the same explanation share it."""
    alike: dict[tuple[str, str, Preset, str], list[Compared]] = {}
    for title, cells in _by_scenario(tables):
        for one in cells:
            for preset in (preset for preset in PRESETS if one.differs(preset)):
                says = noted.get((one.cell, preset), UNEXPLAINED)
                alike.setdefault((title, one.cell.row, preset, says), []).append(one)
    lines = []
    for (title, row, preset, says), cells in alike.items():
        gaps = ", ".join(f"{one.ours[preset].difference:+.1f}" for one in cells)
        sizes = sizes_in_words([one.cell.memory for one in cells if one.cell.memory])
        lines.append(f"- {title}, {row}{f', memory {sizes}' if sizes else ''}{_of(preset)} ({gaps}): {says}\n")
    return "".join(lines)


def _missing(tables: Sequence[Compared]) -> str:
    """Write a line for each table and preset with too few seeds."""
    lines = []
    for title, cells in _by_scenario(tables):
        for preset in PRESETS:
            wanted = [one for one in cells if preset in one.presets]
            if any(one.runs(preset) < ENOUGH[preset] for one in wanted):
                none = not any(one.runs(preset) for one in wanted)
                what = f"all {len(wanted)} cells (0 of {ENOUGH[preset]})" if none else _too_few(wanted, preset)
                lines.append(f"- {title}{_of(preset)}: {what}\n")
    return "".join(lines)


def _too_few(cells: Sequence[Compared], preset: Preset) -> str:
    """Name the cells with too few seeds.

    >>> _too_few([Compared(cell, {}, {}) for cell in paper.cells() if cell.row == "GEM"][:4], "paper")
    'GEM 200 to 2,000 (0 of 5)'
    """
    known = sorted({one.cell.memory for one in cells})
    short = [one for one in cells if one.runs(preset) < ENOUGH[preset]]
    parts = []
    for runs, alike in groupby(short, key=lambda one: one.runs(preset)):
        rows = [
            f"{row} {_range([one.cell.memory for one in own], known)}".strip()
            for row, own in groupby(alike, key=lambda one: one.cell.row)
        ]
        parts.append(f"{'; '.join(rows)} ({runs} of {ENOUGH[preset]})")
    return "; ".join(parts)


def _range(sizes: Sequence[int], known: Sequence[int]) -> str:
    """Write three or more sizes that follow each other as "200 to 1,000"; nothing for a method without a memory."""
    first = known.index(sizes[0])
    if len(sizes) > 2 and list(sizes) == known[first : first + len(sizes)]:
        return f"{sizes[0]:,} to {sizes[-1]:,}"
    return sizes_in_words([size for size in sizes if size])


def _of(preset: Preset) -> str:
    return ", published" if preset == "published" else ""
