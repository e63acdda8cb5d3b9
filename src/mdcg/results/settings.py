"""The settings that runs belong to: those that differ in nothing but the seed, and no others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mdcg import metrics, paper
from mdcg.execute.sweep import Sweep
from mdcg.methods import METHODS
from mdcg.metrics import Matrix
from mdcg.models import HEADS
from mdcg.recipes import grid
from mdcg.recipes.presets import (
    augment_settings,
    augmentations,
    brought_training,
    own_training,
    papers_head,
    preset_of,
    settings_of_preset,
)
from mdcg.results.statistics import ALPHA, Spread, welch
from mdcg.runs.finished import FinishedRun
from mdcg.runs.record import Record
from mdcg.runs.spec import TUNED, RunSpec
from mdcg.scenario import Stream, scenario_names
from mdcg.train.augment import USUAL

#: Named in other ways than by "field value", or no difference between settings of one section.
ELSEWHERE = {
    *("scenario", "stream", "fingerprint", "hold_out"),
    *("method", "memory", "head", "hyperparameters", "head_settings"),
}
OWN_TRAINING = "its own training"  # in a name, of a run whose method brings some (`mdcg list methods`)
#: More looks at the same training, and a user's code: named only where nothing else differs.
LAST = {"evaluate_every": "evaluated every", "code": "code"}
FACTS = tuple(field for field in RunSpec.model_fields if field not in {*ELSEWHERE, "seed", *LAST})


@dataclass(frozen=True)
class Setting:
    """The runs of one setting, which differ in nothing but the seed."""

    runs: tuple[FinishedRun, ...]
    name: str  # tells them from others of the same memory and section
    label: str  # tells them from all others
    labels: Mapping[str, str] = field(default_factory=dict)  # its value on each axis of a grid

    @property
    def spec(self) -> RunSpec:
        """The spec of the first seed."""
        return self.runs[0].spec

    @property
    def what(self) -> str:
        """The words for what was trained on what, seeds apart."""
        memory = f", memory {self.spec.memory:,}" if self.spec.memory else ""
        return f"{self.name} on {self.spec.task_sequence}{memory}"

    @property
    def records(self) -> list[Record]:
        return [run.record for run in self.runs]

    @cached_property
    def matrices(self) -> Matrix:
        """The matrix R of every run: (runs, tasks, tasks)."""
        return np.stack([run.record.R for run in self.runs])

    @cached_property
    def stats(self) -> dict[str, Spread]:
        """The mean and deviation of every metric and of the seconds."""
        rows = [metrics.summary(R, record.accuracies) for R, record in zip(self.matrices, self.records, strict=True)]
        found = {name: Spread.of([row[name] for row in rows]) for name in rows[0]}
        return found | {"seconds": Spread.of([run.record.seconds for run in self.runs])}

    @cached_property
    def paper(self) -> paper.Cell | None:
        """The paper's cell for this setting, if it has one."""
        return paper_cell(self.spec)

    @property
    def difference(self) -> float:
        """The ACC less the paper's, NaN where it has none."""
        return self.stats["ACC"].mean - self.paper.acc if self.paper else math.nan

    @property
    def p(self) -> float | None:
        """How often chance alone makes such a difference from the paper's ACC; None where that cannot be said."""
        if not self.paper or self.paper.acc_std is None:
            return None
        return welch(self.stats["ACC"], Spread(paper.RUNS, self.paper.acc, self.paper.acc_std))

    @property
    def verdict(self) -> str:
        """Whether ACC differs significantly from the paper's, in words."""
        if not self.paper:
            return "–"
        if len(self.runs) < 2:
            return "n too small"
        if self.p is None:
            return "no std"  # the paper prints none
        chance = f"p = {self.p:.3f}" if self.p >= 0.001 else "p < 0.001"
        return f"{'yes' if self.p < ALPHA else 'no'}, {chance}"


@dataclass(frozen=True)
class Section:
    """A section of settings whose accuracies may be compared: of the same images, in the same tasks. Best first."""

    title: str
    shared: str  # how most of them were trained; a setting that was not says so in its name
    settings: tuple[Setting, ...]

    @cached_property
    def marks(self) -> dict[int, str]:
        """The marks of the best settings, see `marks`."""
        return marks(self.settings)


def marks(settings: Sequence[Setting]) -> dict[int, str]:
    """Mark "best" and "second" of each memory size, by place; as printed, so that equal numbers are marked alike.

    The best of one is no news, nor is the second of two. Only what was evaluated on the same images is compared.
    """
    rivals: dict[tuple[object, ...], dict[int, float]] = {}
    for place, setting in enumerate(settings):
        spec = setting.spec
        if spec.memory:
            key = (spec.scenario, spec.stream, spec.hold_out, spec.fingerprint, spec.memory)
            rivals.setdefault(key, {})[place] = round(setting.stats["ACC"].mean, 1)
    found: dict[int, str] = {}
    for accs in rivals.values():
        ranks = sorted(set(accs.values()), reverse=True)
        for mark, rank, fewest in (("best", 0, 2), ("second", 1, 3)):
            if len(accs) >= fewest and rank < len(ranks):
                found |= {place: mark for place, acc in accs.items() if acc == ranks[rank]}
    return found


def paper_cell(spec: RunSpec) -> paper.Cell | None:
    """The paper's cell for runs like this one. The preset `published` is another reading of the same paper."""
    if preset_of(spec) is None:
        return None
    head = papers_head(spec)
    return paper.cell(spec.scenario, spec.method, spec.memory, "" if head == METHODS[spec.method].head else head)


def alike(runs: Iterable[FinishedRun], besides: Collection[str] = ("seed",)) -> list[list[FinishedRun]]:
    """Split runs into parts that agree in every setting but these (`seed`, `memory`, or one of method or head)."""
    parts: dict[tuple[object, ...], list[FinishedRun]] = {}
    for run in runs:
        known = run.spec.settings().items()
        key = sorted((name, value) for name, value in known if name.removeprefix("set.") not in besides)
        parts.setdefault((*run.record.task_sizes, *key), []).append(run)
    return list(parts.values())


def of_sweep(sweep: Sweep) -> list[Setting]:
    """The settings of a sweep, named as its grid names them; of a cell without finished runs there is none."""
    store, found = sweep.context.store, []
    for cell in sweep.cells:
        records = [record for spec in cell.specs if (record := store.finished(spec)) is not None]
        runs = tuple(FinishedRun(store.where(record.spec), record) for record in records)
        if runs:
            found.append(Setting(runs, grid.label(cell, without={grid.MEMORY}), grid.label(cell), cell.labels))
    return found


def gather(runs: Iterable[FinishedRun]) -> list[Section]:
    """Gather settings by what they were evaluated on, best first; each is named by what tells it from the others."""
    groups = alike(sorted(runs, key=lambda run: run.spec.seed))
    by_images: dict[Evaluated, list[list[FinishedRun]]] = {}
    for group in groups:
        spec = group[0].spec
        by_images.setdefault((spec.scenario, spec.stream, spec.hold_out, spec.fingerprint), []).append(group)
    versions = Counter(key[:-1] for key in by_images)
    sections = []
    for key in sorted(by_images, key=_usual_order):
        scenario, stream, hold_out, fingerprint = key
        title = ", ".join(filter(None, [scenario, stream.in_words()]))
        title += f", on {100 * hold_out:.4g}% of the training images held out" if hold_out else ""
        title += f", data {fingerprint}" if versions[key[:-1]] > 1 else ""
        sections.append(_section(title, by_images[key]))
    return sections


Evaluated = tuple[str, Stream, float, str]  # scenario, stream, fraction held out, fingerprint of the images


def _usual_order(key: Evaluated) -> tuple[int, str, str, float, str]:
    usual = scenario_names()
    scenario, stream, hold_out, fingerprint = key
    place = usual.index(scenario) if scenario in usual else len(usual)
    return place, scenario, stream.in_words(most=10**6), hold_out, fingerprint


def _section(title: str, groups: list[list[FinishedRun]]) -> Section:
    facts = [_facts(group[0]) for group in groups]
    usual = {key: Counter(fact[key] for fact in facts).most_common(1)[0][0] for key in facts[0]}
    specs = [group[0].spec for group in groups]
    methods = sorted({spec.method for spec in specs})
    chosen = [_chosen(spec) for spec in specs]
    names, exceptions = [], False
    for group, fact, spec, told in zip(groups, facts, specs, chosen, strict=True):
        differs = [key for key in usual if fact[key] != usual[key]]
        training, implied = _training(spec, len(group[0].record.order), methods, differs)
        if fact["augment"] != usual["augment"]:
            implied |= _numbers_of_augmentation(spec)
        if told == ["published"]:
            implied |= _of_published(spec).keys()
        unusual = [_words(key, fact[key]) for key in differs if key not in implied]
        exceptions |= bool(training or unusual)
        names.append([spec.method, *_head(spec), *told, *training, *unusual])
    namesakes: dict[tuple[str | int, ...], list[RunSpec]] = {}
    for name, spec in zip(names, specs, strict=True):
        namesakes.setdefault((*name, spec.memory), []).append(spec)
    apart = {name: _apart(own) for name, own in namesakes.items()}
    settings = []
    for group, spec, name in zip(groups, specs, names, strict=True):
        last = [_words(LAST.get(field, field), _fact(spec, field)) for field in apart[*name, spec.memory]]
        full = ", ".join([*name, *last])
        label = f"{full}, memory {spec.memory}" if spec.memory else full
        settings.append(Setting(tuple(group), full, label))
    settings.sort(key=lambda setting: (-setting.stats["ACC"].mean, setting.label))
    return Section(title, _shared(usual, any(chosen), exceptions), tuple(settings))


def _facts(run: FinishedRun) -> dict[str, str]:
    """The settings of a run, method and memory apart, as text."""
    return {field: _fact(run.spec, field) for field in FACTS} | {"tasks": "+".join(map(str, run.record.task_sizes))}


def _fact(spec: RunSpec, field: str) -> str:
    value = getattr(spec, field)
    return USUAL if field == "augment" and value is None else _text(value)


def _words(field: str, value: str) -> str:
    return f"{field.replace('_', ' ')} {value}"


def _shared(usual: dict[str, str], chosen: bool, exceptions: bool) -> str:
    epochs = "epoch" if usual["epochs"] == "1" else "epochs"
    text = (
        f"{usual['backbone']}, {usual['epochs']} {epochs} per task, batches of {usual['batch_size']}, "
        f"learning rate {usual['lr']}"
    )
    text += f", momentum {usual['momentum']}" if usual["optimizer"] == "sgd" else ""
    for name, value in TUNED.items():
        text += f", {_words(name, usual[name])}" if usual[name] not in (_text(value), USUAL) else ""
    if usual["passes"] != "joint":
        text += ", memory images in passes of their own"
    if usual["weights"] != "None":
        text += f", initial weights {usual['weights']}"
    if usual["backbone_lr"] != "None":
        own = usual["backbone_lr"]
        text += ", the backbone frozen" if own == "0" else f", the backbone's learning rate {own}"
    if usual["normalise"] != "data":
        text += f", pixels normalised by {usual['normalise']}"
    text += ", the methods' default settings" if chosen else ""
    return text + (", except where a name says otherwise" if chosen or exceptions else "")


def _of_published(spec: RunSpec) -> Mapping[str, object]:
    """The settings that need not be named of a run that is said to be `published`."""
    return settings_of_preset("published", spec.scenario, spec.method, spec.memory, papers_head(spec))


def _training(
    spec: RunSpec, classes: int, methods: Iterable[str], differs: Collection[str]
) -> tuple[list[str], set[str]]:
    """What to call the training that a method brings, and the fields of which that tells: of the run's own method, or
    of another one of these, if it is there that a run differs from most."""
    brought = brought_training(spec, classes)
    if brought:
        departs = [key for key, value in brought.items() if getattr(spec, key) != value]
        if "augment" in departs:  # and its numbers with it
            departs = [key for key in departs if key not in _numbers_of_augmentation(spec)]
        if not departs:
            return [OWN_TRAINING], {*brought}
        if len(departs) < len(brought.keys() - _numbers_of_augmentation(spec)):
            others = [_words(key, _fact(spec, key)) for key in departs]
            return [f"{OWN_TRAINING} but {' and '.join(others)}"], {*brought}
    for method in methods:
        fields = own_training(spec.model_copy(update={"method": method}), classes)
        if not fields.keys().isdisjoint(differs):
            return [f"{method}'s training"], {*fields}
    return (["not its own training"] if brought else []), set()


def _numbers_of_augmentation(spec: RunSpec) -> set[str]:
    """The numbers that go with how images are augmented, and are as usual for that."""
    usual = augment_settings(augmentations(spec), ())
    return {key for key, value in usual.items() if key != "augment" and getattr(spec, key) == value}


def _head(spec: RunSpec) -> list[str]:
    known = spec.method in METHODS.names()
    head = papers_head(spec) if preset_of(spec) == "published" else spec.head
    return [] if known and head == METHODS[spec.method].head else [head]


def departures(spec: RunSpec) -> list[str]:
    """What of a run's head and settings is not its method's default, or `published`, the name of them all."""
    return [*(f"head {head}" for head in _head(spec)), *_chosen(spec)]


def _chosen(spec: RunSpec) -> list[str]:
    """The settings of a method and its head that are not their defaults, or `published`, the name of them all.

    The defaults may differ by memory size: such settings are one line of a chart.
    """
    if preset_of(spec) == "published":
        return ["published"]
    values, usual = {**spec.hyperparameters, **spec.head_settings}, _own_choice(spec)
    return [f"{key} {_text(value)}" for key, value in values.items() if key not in usual or usual[key] != value]


def _apart(namesakes: Sequence[RunSpec]) -> list[str]:
    """The fields that tell specs apart which would have the same name."""
    return [field for field in (*FACTS, *LAST) if len({getattr(spec, field) for spec in namesakes}) > 1]


def _own_choice(spec: RunSpec) -> dict[str, object]:
    """The default settings of a run: those it has where none was asked for."""
    found: dict[str, object] = {}
    if spec.method in METHODS.names():
        kind = METHODS[spec.method]
        found |= {name: field.default for name, field in kind.model_fields.items()}
        found |= kind.fields_of(kind.suited_to(spec.scenario, spec.memory))
        found |= kind.tuned(spec.scenario, spec.memory)
    if spec.head in HEADS.names():
        found |= {name: default for name, (default, _) in HEADS[spec.head].settings.items()}
    return found


def _text(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
