"""Which of many runs can stand side by side in one drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mdcg.figures.base import USUAL, Run
from mdcg.methods import METHODS

#: In these members of one drawing may differ.
FREE = {"method", "hyperparameters", "memory", "head", "head_settings", "seed", "evaluate_every"}


def one_protocol(runs: Sequence[Run]) -> list[Run]:
    """Those trained as most are: the same network, epochs, precision and so on."""
    keys = [run.spec.model_dump_json(exclude=FREE) for run in runs]
    most = Counter(keys).most_common(1)
    return [run for run, key in zip(runs, keys, strict=True) if key == most[0][0]]


def side_by_side(runs: Sequence[Run]) -> list[Run]:
    """One setting of each method, all with memories of one size: that of most runs. Methods without one join them.

    Of several settings of a method it is the one with the most seeds, then the paper's choice, then its own head.
    """
    if not runs:
        return []
    sizes = Counter(run.spec.memory for run in runs if run.spec.memory)
    usual = USUAL.get(runs[0].spec.scenario, 500)
    size = max(sizes, key=lambda size: (sizes[size], size == usual, -size), default=0)
    return [
        run
        for method in dict.fromkeys(run.spec.method for run in runs)
        for run in one_setting([run for run in runs if run.spec.method == method and run.spec.memory in (0, size)])
    ]


def one_setting(runs: Sequence[Run]) -> list[Run]:
    """Of runs of one method and memory size, those that differ in the seed alone."""
    settings: dict[str, list[Run]] = {}
    for run in runs:
        settings.setdefault(run.spec.model_copy(update={"seed": 0}).digest(), []).append(run)

    def rank(own: list[Run]) -> tuple[int, bool, bool]:
        spec = own[0].spec
        method = METHODS[spec.method]
        usual = method(**method.tuned(spec.scenario, spec.memory)).model_dump()
        return len(own), spec.hyperparameters == usual, spec.head == method.head

    return max(settings.values(), key=rank, default=[])
