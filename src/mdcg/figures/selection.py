"""The choice of runs that can stand in one drawing, so that settings are never averaged as if they were seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

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

    A method that brings its own training stands beside the others with it: in the rest it must be like them.
    """
    trained = [_Trained.of(run) for run in runs]
    counts = Counter(trained)
    # A protocol is followed by all that have its fields, but for those that their methods bring: counted for each set
    # of such fields, of which there are as many as methods, and not for each pair of protocols.
    followers: dict[frozenset[str], Counter[Fields]] = {}
    for one, count in counts.items():
        followers.setdefault(one.brought, Counter())[one.others] += count

    def following(protocol: _Trained) -> int:
        return sum(own[protocol.without(brought)] for brought, own in followers.items())

    protocol = max(counts, key=following, default=None)
    return [
        run
        for run, one in zip(runs, trained, strict=True)
        if protocol is not None and one.others == protocol.without(one.brought)
    ]


Fields = frozenset[tuple[str, str]]  # names and values


@dataclass(frozen=True)
class _Trained:
    """How a run was trained: names and values of all that runs of one drawing share."""

    fields: Fields
    brought: frozenset[str]  # names of those that its method brings

    @classmethod
    def of(cls, run: FinishedRun) -> _Trained:
        told = run.spec.model_dump(mode="json", exclude=FREE)
        fields = frozenset((name, json.dumps(value)) for name, value in told.items())
        return cls(fields, frozenset(own_training(run.spec, len(run.record.order))))

    @property
    def others(self) -> Fields:
        """The fields but for those that its method brings."""
        return self.without(self.brought)

    def without(self, names: Collection[str]) -> Fields:
        return frozenset(field for field in self.fields if field[0] not in names)


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
