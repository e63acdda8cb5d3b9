"""The choice of runs that can stand in one drawing, so that settings are never averaged as if they were seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from mdcg.figures.base import usual_memory
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.recipes.presets import own_training
from mdcg.results.settings import alike
from mdcg.runs.finished import FinishedRun

#: In these members of one drawing may differ.
FREE = {"method", "hyperparameters", "memory", "head", "head_settings", "seed", "evaluate_every"}


def installed(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs whose method and head are here: of others, whose package is gone, nothing is known."""
    methods, heads = METHODS.names(), HEADS.names()
    return [run for run in runs if run.spec.method in methods and run.spec.head in heads]


def one_protocol(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs trained as most are: the same network, epochs, learning rate and so on.

    A method that brings its own training stands beside the others with it: only in the rest must it be like them.
    """
    own = [own_training(run.spec) for run in runs]
    brought = {key for its in own for key in its}
    rest = [run.spec.model_dump_json(exclude=FREE | brought) for run in runs]
    trained = [None if its else run.spec.model_dump_json(include=brought) for run, its in zip(runs, own, strict=True)]
    most = _most(rest)
    mostly = _most(key for key, other in zip(trained, rest, strict=True) if key is not None and other == most)
    return [run for run, key, other in zip(runs, trained, rest, strict=True) if other == most and key in (None, mostly)]


def _most(keys: Iterable[str]) -> str | None:
    """The key that comes most often, if there is any."""
    return next((key for key, _ in Counter(keys).most_common(1)), None)


def usual(run: FinishedRun, besides: Collection[str] = ()) -> bool:
    """Whether a run has the method's own head, and all settings but these are those chosen for its memory size."""
    spec, kind = run.spec, METHODS[run.spec.method]
    suited = kind.fields_of(kind.suited_to(spec.scenario, spec.memory))
    expected = kind(**{**suited, **kind.tuned(spec.scenario, spec.memory)}).model_dump()
    expected |= {name: default for name, (default, _) in HEADS[spec.head].settings.items()}
    own = {**spec.hyperparameters, **spec.head_settings}
    chosen = {name: value for name, value in own.items() if name not in besides}
    # A setting that the method had when the run was trained may be gone by now.
    return spec.head == kind.head and all(
        name in expected and value == expected[name] for name, value in chosen.items()
    )


def one_setting(runs: Sequence[FinishedRun], method: str | None = None) -> list[FinishedRun]:
    """Runs that differ in nothing but the seed: of several settings one of this method, if there is any, with the most
    seeds, then the usual one, then that with the usual memory."""

    def rank(own: list[FinishedRun]) -> tuple[bool, int, bool, bool]:
        spec = own[0].spec
        return spec.method == method, len(own), usual(own[0]), spec.memory == usual_memory(spec.scenario)

    return max(alike(runs), key=rank, default=[])


def one_setting_each(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs of one setting of every method, chosen as by `one_setting`."""
    methods = dict.fromkeys(run.spec.method for run in runs)
    return [run for method in methods for run in one_setting([run for run in runs if run.spec.method == method])]


def side_by_side(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs of one setting of every method, all with memories of one size: that of most runs.
    Methods without a memory join them."""
    if not runs:
        return []
    sizes = Counter(run.spec.memory for run in runs if run.spec.memory)
    wanted = usual_memory(runs[0].spec.scenario)
    size = max(sizes, key=lambda size: (sizes[size], size == wanted, -size), default=0)
    return one_setting_each([run for run in runs if run.spec.memory in (0, size)])
