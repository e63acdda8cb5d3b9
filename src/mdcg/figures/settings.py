"""Runs that may be averaged: they differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Sequence

from mdcg.figures.base import Run
from mdcg.methods import METHODS


def one_setting(runs: Sequence[Run]) -> list[Run]:
    """Of several settings the one with the most seeds, then the one that the paper would choose."""
    settings: dict[str, list[Run]] = {}
    for run in runs:
        settings.setdefault(run.spec.model_copy(update={"seed": 0}).digest(), []).append(run)
    return max(settings.values(), key=_merit, default=[])


def one_setting_each(runs: Sequence[Run]) -> list[Run]:
    """The same of every method."""
    methods = sorted({run.spec.method for run in runs})
    return [run for method in methods for run in one_setting([run for run in runs if run.spec.method == method])]


def _merit(runs: Sequence[Run]) -> tuple[int, bool, bool]:
    spec = runs[0].spec
    kind = METHODS[spec.method]
    usual = kind(**kind.tuned(spec.scenario, spec.memory)).model_dump()
    return len(runs), spec.hyperparameters == usual, spec.head == kind.head
