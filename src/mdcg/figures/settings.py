"""Which runs a figure can show: of which scenarios, and which may be averaged."""

from __future__ import annotations

from collections.abc import Sequence

from mdcg.errors import MdcgError
from mdcg.experiments.recipe import Recipe
from mdcg.figures.base import Run
from mdcg.methods import METHODS
from mdcg.scenario import parse


def needs_second_task(figure: str, asked: Recipe) -> None:
    """Say so before anything trains, where a figure is about what happens from task 2 on."""
    if parse(asked.scenario)[1] < 2:
        raise MdcgError(f"the figure {figure} begins with task 2, and {asked.scenario} has one task.", about="scenario")


def one_setting(runs: Sequence[Run]) -> list[Run]:
    """Runs that differ in nothing but the seed: of several settings the one with the most seeds, then the paper's."""
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
