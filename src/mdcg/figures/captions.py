"""The part of a caption that says where a figure's numbers come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mdcg.figures.base import Row
from mdcg.methods import METHODS
from mdcg.recipes.parsing import spell_seeds
from mdcg.recipes.presets import own_training
from mdcg.results.settings import OWN_TRAINING
from mdcg.runs.finished import FinishedRun
from mdcg.runs.spec import TUNED, RunSpec


def of_runs(runs: Sequence[FinishedRun]) -> str:
    """Say how many runs, of which methods and settings, with which seeds, trained how."""
    specs = [run.spec for run in runs]
    seeds = sorted({spec.seed for spec in specs})
    per_setting = Counter(spec.model_copy(update={"seed": 0}).digest() for spec in specs)
    n = sorted(set(per_setting.values()))
    each = f"n = {n[0]}" if len(n) == 1 else f"n = {n[0]} to {n[-1]}"
    brought = _brought(runs)
    # What is said of training is of the other methods; where there are none, of all.
    trained = [spec for spec in specs if spec.method not in brought] or specs
    around = [run.record.environment for run in runs]
    machines = _listed(f"{one.precision} on {one.device}" for one in around if one.precision and one.device)
    epochs, batch = _listed(spec.epochs for spec in specs), _listed(spec.batch_size for spec in specs)
    momenta = [spec.momentum for spec in trained if spec.optimizer == "sgd"]
    long = "1 epoch" if epochs == "1" else f"{epochs} epochs"
    parts = [
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} on {_listed(spec.task_sequence for spec in specs)}: "
        + "; ".join(_method(name, specs, brought) for name in sorted({spec.method for spec in specs})),
        f"memory {_listed(spec.memory for spec in specs if spec.memory)}" if any(spec.memory for spec in specs) else "",
        f"{'seed' if len(seeds) == 1 else 'seeds'} {spell_seeds(seeds)} ({each} per setting)",
        f"{_listed(spec.backbone for spec in specs)}, {long} per task, batches of {batch}, "
        f"learning rate {_listed(spec.lr for spec in trained)}" + (f", momentum {_listed(momenta)}" if momenta else ""),
        ", ".join(_tuned(trained)),
        "memory images in passes of their own" if any(spec.passes == "separate" for spec in specs) else "",
        machines,
    ]
    held_out = {spec.hold_out for spec in specs}
    evaluated = ["test images"] if 0.0 in held_out else []
    if some := held_out - {0.0}:
        evaluated.append(f"{_listed(some)} of the training images, held out")
    parts.append(f"evaluated on {' and on '.join(evaluated)}")
    return "; ".join(part for part in parts if part) + "."


def averaged(
    rows: Sequence[Row],
    spread: str = "one standard deviation on either side",
    apart: Sequence[str] = ("method", "memory"),
) -> str:
    """Say, as the end of a caption, how seeds were averaged; rows that differ in one of `apart` never are."""
    seeds: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        seeds.setdefault(tuple(row[key] for key in apart), set()).add(row["seed"])
    if all(len(own) == 1 for own in seeds.values()):
        return "A single seed." if len(set.union(*seeds.values())) == 1 else "A single seed of each."
    return f"Mean over seeds, and {spread}." if spread else "Mean over seeds."


def _tuned(specs: Sequence[RunSpec]) -> list[str]:
    """Name the settings of optimisation and augmentation that are not the paper's in every run."""
    values = {name: [getattr(spec, name) for spec in specs] for name in TUNED}
    unusual = {name: own for name, own in values.items() if any(one != TUNED[name] for one in own)}
    return [f"{name.replace('_', ' ')} {_listed(own)}" for name, own in unusual.items()]


def _brought(runs: Sequence[FinishedRun]) -> dict[str, list[str]]:
    """The fields of training that methods brought, of each whose runs all have its own; none if all methods did."""
    found: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        found.setdefault(run.spec.method, []).append(own_training(run.spec, len(run.record.order)))
    own = {name: list(dict.fromkeys(key for one in its for key in one)) for name, its in found.items() if all(its)}
    return own if len(own) < len(found) else {}


def _method(name: str, among: Sequence[RunSpec], brought: Mapping[str, Sequence[str]]) -> str:
    """Name a method with its weights, other settings where they are not the usual ones, its head likewise, and its
    own training where it brought some."""
    specs = [spec for spec in among if spec.method == name]
    heads = _listed(spec.head for spec in specs)
    usual = {key: field.default for key, field in METHODS[name].model_fields.items()}
    said = []
    for key in dict.fromkeys(key for spec in specs for key in (*spec.hyperparameters, *spec.head_settings)):
        values = [{**spec.hyperparameters, **spec.head_settings}.get(key) for spec in specs]
        as_before = set(values) == {METHODS[name].added.get(key)}  # as if there were no such setting
        if set(values) != {usual.get(key)} or (isinstance(usual.get(key), float) and not as_before):
            said.append(f"{key} {_listed(values)}")
    if heads != METHODS[name].head:
        said.insert(0, f"head {heads}")
    training = {key: [getattr(spec, key) for spec in specs] for key in brought.get(name, ())}
    own = [f"{_words(key)} {_listed(values)}" for key, values in training.items() if set(values) != {None}]
    if own:
        said.append(f"{OWN_TRAINING}: {', '.join(own)}")
    return f"{name} ({', '.join(said)})" if said else name


def _words(key: str) -> str:
    return "learning rate" if key == "lr" else key.replace("_", " ")


def _listed(values: Iterable[object]) -> str:
    """Name each value once; of many numbers the smallest and the largest.

    >>> _listed([0.5, 0.25, 0.5]), _listed(range(1, 9))
    ('0.25, 0.5', '1 to 8 (8 values)')
    """
    distinct = list(dict.fromkeys(values))
    numbers = [value for value in distinct if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(distinct):
        ordered = sorted(numbers)
        if len(ordered) > 4:
            return f"{ordered[0]:g} to {ordered[-1]:g} ({len(ordered)} values)"
        return ", ".join(f"{value:,}" if isinstance(value, int) else f"{value:g}" for value in ordered)
    return ", ".join(map(str, distinct))
