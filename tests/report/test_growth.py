"""The work of a report is linear in the number of settings: lines of code are counted, no seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mdcg
from mdcg.report.files import csv_table, latex, markdown
from mdcg.results.read import distinct
from mdcg.results.settings import gather
from mdcg.runs.finished import FinishedRun
from tests.fake_runs import finished, spec
from tests.report.pages import page

STEP = 10
OURS = str(Path(mdcg.__file__).parent)
#: What each setting has of its own.
DIFFERENT: dict[str, Callable[[int], dict[str, Any]]] = {
    "a protocol": lambda place: {"lr": 0.01 + place / 1000},
    "what is named last": lambda place: {"evaluate_every": place},
    "a memory and a protocol": lambda place: {"memory": 100 + place, "lr": 0.01 + place / 1000},
}


def settings(count: int, what: str) -> list[FinishedRun]:
    of = spec("md", memory=100)
    return [finished(of.model_copy(update=DIFFERENT[what](place))) for place in range(count)]


def report(runs: Sequence[FinishedRun]) -> str:
    sections = gather(distinct(runs))
    return "".join(written(sections) for written in (markdown, latex, csv_table)) + page(sections, "all")


def lines(work: Callable[[], object]) -> int:
    """The lines of ours that are executed; each turn of a loop counts."""
    count = 0

    def line(frame: FrameType, event: str, value: object) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, value: object) -> Any:
        return line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("what", DIFFERENT)
def test_the_work_of_a_report_is_linear(what: str) -> None:
    report(settings(2, what))  # what is done once is done
    every = [settings(count * STEP, what) for count in (1, 2, 3)]
    one, two, three = (lines(lambda runs=runs: report(runs)) for runs in every)  # type: ignore[misc]
    assert two - one > 1000 * STEP
    assert abs(three - 2 * two + one) < STEP**2  # a line for each pair of settings makes twice as many


def test_the_files_of_a_report_grow_alike() -> None:
    """Also where a table with a column for each memory size would have one entry in each of its lines."""
    sizes = [len(latex(gather(settings(count, "a memory and a protocol")))) for count in (50, 100, 150)]
    assert sizes[2] - sizes[1] == pytest.approx(sizes[1] - sizes[0], rel=0.05)
