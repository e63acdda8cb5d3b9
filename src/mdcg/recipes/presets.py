"""The preset `published`: what the paper's published code does where it departs from the paper.

Each departure is an option of its own: a method's fields, the forward passes and the epochs of a run
(`Method.published` and the two beside it), how images are prepared (`DatasetRecord.published`), and here heads and a
backbone. The preset turns all of them on. What is asked for besides still counts, while a head of the paper means that
of the published code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mdcg.data import Dataset, record_of
from mdcg.methods.base import Method, Passes, Preset, Value
from mdcg.scenario import parse

HEADS = {"cascaded-gates": "cascaded-gates-with-own", "single-gate": "scalar-gates"}
BACKBONES = {"resnet18": "resnet18-1000"}  # in place of the protocol's


@dataclass(frozen=True)
class Defaults:
    """What a preset sets of a method's runs where nothing else is asked for."""

    settings: Mapping[str, Value]  # fields of the method
    passes: Passes
    epochs: int


def defaults(preset: Preset, kind: type[Method], scenario: str, memory: int, usual: int) -> Defaults:
    """Of runs with this memory, where the scenario's protocol has `usual` epochs."""
    fields = {name: field for name, field in kind.model_fields.items() if not field.is_required()}
    chosen = {name: field.get_default() for name, field in fields.items()} | kind.tuned(scenario, memory)
    if preset == "paper":
        return Defaults(chosen, "joint", usual)
    epochs = kind.published_epochs.get(parse(scenario)[0], usual)
    return Defaults({**chosen, **kind.published}, kind.published_passes if kind.replays() else "joint", epochs)


def augmented(dataset: Dataset, augmentation: Preset) -> Dataset:
    """The dataset with crop, flip and normalisation as asked for."""
    chosen = record_of(dataset.name).published if augmentation == "published" else None
    if chosen is None:
        return dataset
    mean, std = chosen.mean or dataset.mean, chosen.std or dataset.std
    return replace(dataset, padding=chosen.padding, flip=chosen.flip, mean=mean, std=std)
