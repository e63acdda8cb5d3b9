"""The columns of a results table, for whatever shows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mdcg.metrics import spread
from mdcg.report.terminal import tasks_say_less
from mdcg.results.settings import Section, Setting


@dataclass(frozen=True)
class Column:
    """A column of a results table."""

    title: str
    text: Callable[[Setting], str]
    value: Callable[[Setting], float | str | None]  # to sort by
    of_paper: bool = False  # says something only where the paper has a number


def columns(section: Section) -> list[Column]:
    """The columns of a section, without the paper's where it has no number for any setting."""
    compared = any(setting.paper for setting in section.settings)
    streamed = any(tasks_say_less(setting.spec) for setting in section.settings)
    return [
        column for column in COLUMNS if (compared or not column.of_paper) and (streamed or column.title != "anytime")
    ]


def _measured(title: str, metric: str) -> Column:
    return Column(
        title,
        lambda setting: spread(setting.stats[metric].mean, setting.stats[metric].std),
        lambda setting: setting.stats[metric].mean,
    )


def _printed(title: str, metric: str) -> Column:
    def numbers(setting: Setting) -> tuple[float, float]:
        found = (getattr(setting.paper, metric, None), getattr(setting.paper, f"{metric}_std", None))
        return math.nan if found[0] is None else found[0], math.nan if found[1] is None else found[1]

    return Column(title, lambda setting: spread(*numbers(setting)), lambda setting: numbers(setting)[0], True)


def _difference(setting: Setting) -> str:
    return f"{setting.difference:+.1f}" if setting.paper else "–"


COLUMNS = (
    Column("method", lambda setting: setting.name, lambda setting: setting.name),
    Column("memory", lambda setting: f"{setting.spec.memory or '–'}", lambda setting: setting.spec.memory),
    Column("runs", lambda setting: f"{len(setting.runs)}", lambda setting: len(setting.runs)),
    _measured("ACC", "ACC"),
    _printed("paper’s ACC", "acc"),
    Column("difference", _difference, lambda setting: setting.difference, True),
    Column("significant?", lambda setting: setting.verdict, lambda setting: setting.p, True),
    _measured("BWT", "BWT"),
    _measured("BWT-final", "BWT_final"),
    _printed("paper’s BWT", "bwt"),
    _measured("forgetting", "forgetting"),
    _measured("anytime", "anytime"),
    Column(
        "s/run", lambda setting: f"{setting.stats['seconds'].mean:.1f}", lambda setting: setting.stats["seconds"].mean
    ),
)
