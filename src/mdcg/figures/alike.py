"""Which runs of a pile may stand for one setting, so that settings are never averaged as if they were seeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mdcg.figures.base import Run
from mdcg.methods import METHODS
from mdcg.models import HEADS


def alike(runs: Sequence[Run], besides: Collection[str]) -> list[list[Run]]:
    """The runs in parts that agree in every setting but these (`seed`, `memory`, or one of method or head)."""
    parts: dict[tuple[tuple[str, object], ...], list[Run]] = {}
    for run in runs:
        known = run.spec.settings().items()
        key = tuple(sorted((name, value) for name, value in known if name.removeprefix("set.") not in besides))
        parts.setdefault(key, []).append(run)
    return list(parts.values())


def usual(run: Run, besides: Collection[str] = ()) -> bool:
    """Whether its head is the method's own, and all settings but these are those chosen for its memory size."""
    spec, kind = run.spec, METHODS[run.spec.method]
    expected = kind(**kind.tuned(spec.scenario, spec.memory)).model_dump()
    expected |= {name: default for name, (default, _) in HEADS[spec.head].settings.items()}
    own = {**spec.hyperparameters, **spec.head_settings}
    return spec.head == kind.head and all(own[name] == expected[name] for name in own if name not in besides)
