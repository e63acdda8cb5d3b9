"""From runs to settings: what differs in nothing but the seed belongs together, and nothing else does."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np

from mdcg import metrics, paper
from mdcg.methods import METHODS
from mdcg.metrics import Matrix
from mdcg.models import HEADS
from mdcg.recipes import presets
from mdcg.recipes.presets import Preset
from mdcg.recipes.protocol import PAPER
from mdcg.results.read import Run
from mdcg.runs.spec import RunSpec, format_of
from mdcg.scenario import SCENARIOS, parse

PRESETS: tuple[Preset, ...] = get_args(Preset)
ALPHA = 0.05  # a difference with a smaller p counts as significant
#: Named in other ways than by "field value", or no difference between settings of one section.
ELSEWHERE = {"scenario", "fingerprint", "hold_out", "method", "memory", "head", "hyperparameters", "head_settings"}
#: More looks at the same training, and a user's code: named only where nothing else differs.
LAST = {"evaluate_every": "evaluated every", "code": "code"}
FACTS = tuple(field for field in RunSpec.model_fields if field not in {*ELSEWHERE, "seed", *LAST})


@dataclass(frozen=True)
class Spread:
    """A mean and the sample standard deviation behind it, NaN where there is none."""

    n: int
    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(len(values), *metrics.mean_std(values))


@dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but the seed. `name` tells them from all others of the same memory and section."""

    runs: tuple[Run, ...]
    name: str

    @property
    def spec(self) -> RunSpec:
        """That of the first seed."""
        return self.runs[0].record.spec

    @property
    def label(self) -> str:
        return f"{self.name}, memory {self.spec.memory}" if self.spec.memory else self.name

    @cached_property
    def matrices(self) -> Matrix:
        """R of every run: (runs, tasks, tasks)."""
        return np.stack([run.record.R for run in self.runs])

    @cached_property
    def stats(self) -> dict[str, Spread]:
        """Of ACC, BWT, BWT_final, forgetting and seconds."""
        rows = [metrics.summary(R) for R in self.matrices]
        found = {name: Spread.of([row[name] for row in rows]) for name in rows[0]}
        return found | {"seconds": Spread.of([run.record.seconds for run in self.runs])}

    @cached_property
    def paper(self) -> paper.Cell | None:
        return paper_cell(self.spec)

    @property
    def difference(self) -> float:
        """ACC less the paper's, NaN where it has none."""
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
    """Settings whose accuracies may be compared: of the same images, in the same tasks. Best first."""

    title: str
    shared: str  # how most of them were trained; a setting that was not says so in its name
    settings: tuple[Setting, ...]

    @cached_property
    def marks(self) -> dict[int, str]:
        """ "best" and "second" of each memory size, by place; as printed, so that equal numbers are marked alike.

        The best of one is no news, nor is the second of two.
        """
        found: dict[int, str] = {}
        for memory in {setting.spec.memory for setting in self.settings} - {0}:
            rivals = {
                place: round(setting.stats["ACC"].mean, 1)
                for place, setting in enumerate(self.settings)
                if setting.spec.memory == memory
            }
            ranks = sorted(set(rivals.values()), reverse=True)
            for mark, rank, fewest in (("best", 0, 2), ("second", 1, 3)):
                if len(rivals) >= fewest and rank < len(ranks):
                    found |= {place: mark for place, acc in rivals.items() if acc == ranks[rank]}
        return found


def welch(ours: Spread, theirs: Spread) -> float | None:
    """Welch's t-test: the two-sided p of a difference between two means; None where a spread is missing.

    >>> round(welch(Spread(5, 65.0, 1.0), Spread(5, 66.0, 1.5)), 3)
    0.255
    """
    if min(ours.n, theirs.n) < 2 or math.isnan(ours.std) or math.isnan(theirs.std):
        return None
    a, b = ours.std**2 / ours.n, theirs.std**2 / theirs.n
    if a + b == 0:
        return None
    t = (ours.mean - theirs.mean) / math.sqrt(a + b)
    freedom = (a + b) ** 2 / (a**2 / (ours.n - 1) + b**2 / (theirs.n - 1))
    from scipy.special import stdtr  # only here: it takes a while to load

    return float(2 * stdtr(freedom, -abs(t)))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: what each p is worth among all of them, in their order.

    That any of them is below 0.05 by chance alone then happens in 5% of such families, or less.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = least
    return adjusted


def paper_cell(spec: RunSpec) -> paper.Cell | None:
    """What the paper prints for runs like this one. The preset `published` is another reading of the same paper."""
    if preset_of(spec) is None:
        return None
    head = _papers_head(spec)
    return paper.cell(spec.scenario, spec.method, spec.memory, "" if head == METHODS[spec.method].head else head)


def preset_of(spec: RunSpec) -> Preset | None:
    """The preset that a run was trained with, on the paper's images and evaluated on its test images; None: neither.

    Where both mean the same it is the paper's. Its precision does not matter, nor how often it was evaluated.
    """
    head = _papers_head(spec)
    if spec.method not in METHODS.names() or head not in HEADS.names() or parse(spec.scenario)[0] not in PAPER:
        return None
    for preset in PRESETS:
        asked = settings_of_preset(preset, spec.scenario, spec.method, spec.memory, head)
        if all(getattr(spec, name) == value for name, value in asked.items()):
            return preset
    return None


def settings_of_preset(preset: Preset, scenario: str, method: str, memory: int, head: str) -> dict[str, object]:
    """What a preset makes of a spec's fields in a scenario of the paper; `head` by the paper's name."""
    dataset, _ = parse(scenario)
    protocol, published = PAPER[dataset], preset == "published"
    defaults = presets.defaults(preset, METHODS[method], scenario, memory, protocol.epochs)
    backbone = presets.BACKBONES.get(protocol.backbone, protocol.backbone) if published else protocol.backbone
    head = presets.HEADS.get(head, head) if published else head
    return {
        "format": format_of(scenario),
        "hyperparameters": defaults.settings,
        "head": head,
        "head_settings": {name: default for name, (default, _) in HEADS[head].settings.items()},
        "backbone": backbone,
        "epochs": defaults.epochs,
        "batch_size": protocol.batch_size,
        "rate": protocol.rate,
        "momentum": protocol.momentum,
        "hold_out": 0.0,
        "augmentation": preset if dataset == presets.OTHER_PIXELS else "paper",
        "passes": defaults.passes,
    }


def _papers_head(spec: RunSpec) -> str:
    """The head by the paper's name, where the published code has another for it."""
    return {published: ours for ours, published in presets.HEADS.items()}.get(spec.head, spec.head)


def summarise(runs: Iterable[Run]) -> list[Section]:
    """Settings by what they were evaluated on, best first."""
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.record.spec.seed):
        alike = run.record.spec.model_dump(exclude={"seed"}) | {"sizes": run.record.sizes}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(run)
    by_images: dict[tuple[str, float, str], list[list[Run]]] = {}
    for group in groups.values():
        spec = group[0].record.spec
        by_images.setdefault((spec.scenario, spec.hold_out, spec.fingerprint), []).append(group)
    versions = Counter((scenario, hold_out) for scenario, hold_out, _ in by_images)
    sections = []
    for scenario, hold_out, fingerprint in sorted(by_images, key=_usual_order):
        title = scenario + (f", on {100 * hold_out:.4g}% of the training images held out" if hold_out else "")
        title += f", data {fingerprint}" if versions[scenario, hold_out] > 1 else ""
        sections.append(_section(title, by_images[scenario, hold_out, fingerprint]))
    return sections


def _usual_order(key: tuple[str, float, str]) -> tuple[int, str, float, str]:
    known = SCENARIOS.index(key[0]) if key[0] in SCENARIOS else len(SCENARIOS)
    return known, *key


def _section(title: str, groups: list[list[Run]]) -> Section:
    facts = [_facts(group[0]) for group in groups]
    usual = {key: Counter(fact[key] for fact in facts).most_common(1)[0][0] for key in facts[0]}
    specs = [group[0].record.spec for group in groups]
    exceptions = [
        [
            f"{key.replace('_', ' ')} {fact[key]}"
            for key in usual
            if fact[key] != usual[key] and key not in _implied(spec)
        ]
        for fact, spec in zip(facts, specs, strict=True)
    ]
    names = [
        [spec.method, *_head(spec), *own, *unusual]
        for spec, own, unusual in zip(specs, _chosen(specs), exceptions, strict=True)
    ]
    alike: dict[tuple[str | int, ...], list[RunSpec]] = {}
    for name, spec in zip(names, specs, strict=True):
        alike.setdefault((*name, spec.memory), []).append(spec)
    settings = []
    for group, spec, name in zip(groups, specs, names, strict=True):
        others = alike[*name, spec.memory]
        last = [
            f"{words} {getattr(spec, field)}"
            for field, words in LAST.items()
            if len({getattr(other, field) for other in others}) > 1
        ]
        settings.append(Setting(tuple(group), ", ".join(name + last)))
    settings.sort(key=lambda setting: (-setting.stats["ACC"].mean, setting.label))
    return Section(title, _shared(usual, any(exceptions)), tuple(settings))


def _facts(run: Run) -> dict[str, str]:
    """How a run was trained, method and memory apart, as text."""
    spec = run.record.spec
    return {field: _text(getattr(spec, field)) for field in FACTS} | {"tasks": "+".join(map(str, run.record.sizes))}


def _shared(usual: dict[str, str], exceptions: bool) -> str:
    text = (
        f"{usual['backbone']}, {usual['epochs']} epochs per task, batches of {usual['batch_size']}, "
        f"learning rate {usual['rate']}, momentum {usual['momentum']}"
    )
    if usual["passes"] != "joint":
        text += ", memory images in passes of their own"
    return text + (", except where a name says otherwise" if exceptions else "")


def _implied(spec: RunSpec) -> Mapping[str, object]:
    """What need not be said of a run that is said to be `published`."""
    if preset_of(spec) != "published":
        return {}
    return settings_of_preset("published", spec.scenario, spec.method, spec.memory, _papers_head(spec))


def _head(spec: RunSpec) -> list[str]:
    known = spec.method in METHODS.names()
    head = _papers_head(spec) if preset_of(spec) == "published" else spec.head
    return [] if known and head == METHODS[spec.method].head else [head]


def _chosen(specs: Sequence[RunSpec]) -> list[list[str]]:
    """Of each spec the hyperparameters that tell it from others of its method and head.

    A value that is the method's own choice for a memory size tells nothing, though it may differ from size to size:
    such settings are one line of a chart. Any other value is named. Those of the preset `published` have its name
    instead.
    """
    told: list[list[str]] = [[] for _ in specs]
    families: dict[tuple[str, str], list[int]] = {}
    for place, spec in enumerate(specs):
        if preset_of(spec) == "published":
            told[place].append("published")
            continue
        families.setdefault((spec.method, spec.head), []).append(place)
    for places in families.values():
        values = {place: {**specs[place].hyperparameters, **specs[place].head_settings} for place in places}
        usual = {place: _own_choice(specs[place]) for place in places}
        for key in dict.fromkeys(key for place in places for key in values[place]):
            here = [place for place in places if key in values[place]]
            own = [place for place in here if key in usual[place] and usual[place][key] == values[place][key]]
            others = {values[place][key] for place in here if place not in own}
            if not others and len(here) == len(places):
                continue
            bare = own if len({values[place][key] for place in own}) > 1 else []
            for place in here:
                if place not in bare:
                    told[place].append(f"{key} {_text(values[place][key])}")
    return told


def _own_choice(spec: RunSpec) -> dict[str, object]:
    """The settings of a run for which none was asked for."""
    found: dict[str, object] = {}
    if spec.method in METHODS.names():
        kind = METHODS[spec.method]
        found |= {name: field.default for name, field in kind.model_fields.items()}
        found |= kind.tuned(spec.scenario, spec.memory)
    if spec.head in HEADS.names():
        found |= {name: default for name, (default, _) in HEADS[spec.head].settings.items()}
    return found


def _text(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
