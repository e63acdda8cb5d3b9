"""The preset `published`: what the paper's published code does where it departs from the paper.

Each departure is an option of its own: a method's fields, the forward passes and the epochs of a run
(`Method.published` and the two beside it), how images are prepared (`DatasetRecord.published`), and here heads and a
backbone. The preset turns all of them on. What is asked for besides still counts, while a head of the paper means that
of the published code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

from mdcg import paper
from mdcg.data import Dataset, Preprocessing, record_of
from mdcg.errors import MdcgError
from mdcg.methods import METHODS
from mdcg.methods.base import Method, Passes, Preset, Value
from mdcg.models import HEADS
from mdcg.runs.spec import ADDED, RunSpec
from mdcg.scenario import Stream, parse
from mdcg.train.augment import NONE, parse_augment, spell_augment
from mdcg.train.group import Augmentation, Numbers, Training

PRESETS: tuple[Preset, ...] = get_args(Preset)

CROP_AND_FLIP: set[Augmentation] = {"crop", "flip"}
PUBLISHED_HEADS = {"cascaded-gates": "cascaded-gates-with-own", "single-gate": "scalar-gates"}
PUBLISHED_BACKBONES = {"resnet18": "resnet18-1000"}  # in place of the protocol's


@dataclass(frozen=True)
class Defaults:
    """The defaults that a preset sets for a method's runs."""

    settings: Mapping[str, Value]  # fields of the method
    passes: Passes
    epochs: int


def defaults(
    preset: Preset, kind: type[Method], scenario: str, memory: int, usual: int, suited: Mapping[str, Value]
) -> Defaults:
    """The defaults of runs with this memory, and what suits it, where the scenario's protocol has `usual` epochs."""
    fields = {name: field for name, field in kind.model_fields.items() if not field.is_required()}
    chosen = {name: field.get_default() for name, field in fields.items()}
    chosen |= {**kind.fields_of(suited), **kind.tuned(scenario, memory)}
    if preset == "paper":
        return Defaults(chosen, "joint", usual)
    epochs = kind.published_epochs.get(parse(scenario)[0], usual)
    return Defaults({**chosen, **kind.published}, kind.published_passes if kind.replays() else "joint", epochs)


def augmented(dataset: Dataset, augmentation: Preset) -> Dataset:
    """The dataset with crop, flip and normalisation as asked for."""
    chosen = dataset.record.published if augmentation == "published" else None
    if chosen is None:
        return dataset
    mean, std = chosen.mean or dataset.mean, chosen.std or dataset.std
    return replace(dataset, padding=chosen.padding, flip=chosen.flip, mean=mean, std=std)


def usual_augment(images: Dataset | Preprocessing) -> tuple[Augmentation, ...]:
    """The augmentation of a dataset's images where nothing else is asked for."""
    asked: dict[Augmentation, bool] = {"crop": images.padding > 0, "flip": images.flip}
    return tuple(word for word, done in asked.items() if done)


def with_own(usual: tuple[Augmentation, ...], kind: type[Method]) -> tuple[Augmentation, ...]:
    """The usual augmentation with what the method brings, which images that are taken as they are do without."""
    own = parse_augment(str(kind.recipe["augment"])) if "augment" in kind.recipe and usual else ()
    return parse_augment(spell_augment({*usual, *own}))


def augment_settings(
    words: tuple[Augmentation, ...],
    usual: tuple[Augmentation, ...],
    jitter_strength: float = Numbers.jitter_strength,
    randaugment_n: int = Training.randaugment_n,
    randaugment_m: float = Numbers.randaugment_m,
    mix_alpha: float = Numbers.mix_alpha,
) -> dict[str, Any]:
    """The fields of a spec that say how images are augmented: None where as usual, or where a number says nothing."""
    return {
        "augment": None if words == usual else spell_augment(words),
        "jitter_strength": jitter_strength if "jitter" in words else None,
        "randaugment_n": randaugment_n if "randaugment" in words else None,
        "randaugment_m": randaugment_m if "randaugment" in words else None,
        "mix_alpha": mix_alpha if {"mixup", "cutmix"} & set(words) else None,
    }


def augmentations(spec: RunSpec) -> tuple[Augmentation, ...]:
    """The augmentations that were asked for in a run; none where they are as usual, or not known here."""
    with contextlib.suppress(MdcgError):
        return parse_augment(spec.augment or NONE)
    return ()


def own_training(spec: RunSpec, classes: int) -> dict[str, object]:
    """The fields of a spec that its method set, as it brings its own training; none where it trained otherwise."""
    found = brought_training(spec, classes)
    return found if all(getattr(spec, key) == value for key, value in found.items()) else {}


def brought_training(spec: RunSpec, classes: int) -> dict[str, object]:
    """The fields of a spec that its method sets where nothing else is asked for, if it brings its own training.

    `classes` is how many the run learned. Crop and flip are the dataset's matter, which is not always at hand.
    """
    if spec.method not in METHODS.names() or spec.stream.online:
        return {}
    kind = METHODS[spec.method]
    found: dict[str, object] = dict(kind.training_of(kind.suited_to(spec.scenario, spec.memory, classes)))
    if spec.optimizer != "sgd":
        found.pop("lr", None)
    own = set(parse_augment(str(found.pop("augment", NONE)))) - CROP_AND_FLIP
    usual = _crop_and_flip(spec)
    if own and usual is None:  # nobody knows: as they are where something was asked for
        usual = CROP_AND_FLIP if spec.augment is None else CROP_AND_FLIP.intersection(augmentations(spec))
    if own and usual:
        found |= augment_settings(parse_augment(spell_augment({*usual, *own})), ())
    return found


def _crop_and_flip(spec: RunSpec) -> set[Augmentation] | None:
    """Whether images are cropped and mirrored where nothing else is asked for; None where that is not known."""
    with contextlib.suppress(MdcgError):  # the dataset is gone, or was given in Python
        record = record_of(parse(spec.scenario)[0])
        published = record.published if spec.augmentation == "published" else None
        return {*usual_augment(published or record.preprocessing_for((1, 1, 1)))}
    return None


def cropped_and_flipped(dataset: Dataset, augment: str | None) -> Dataset:
    """The dataset with crop and flip as asked for; a crop is as its record says, or else up to an eighth."""
    if augment is None:
        return dataset
    words, usual = parse_augment(augment), Preprocessing.usual(dataset.shape)
    padding = (dataset.padding or usual.padding) if "crop" in words else 0
    return replace(dataset, padding=padding, flip="flip" in words)


def preset_of(spec: RunSpec) -> Preset | None:
    """The preset that a run was trained with, on the paper's images and evaluated on its test images; None: neither.

    Where both mean the same it is the paper's. Its precision does not matter, nor how often it was evaluated.
    """
    head = papers_head(spec)
    if spec.method not in METHODS.names() or head not in HEADS.names() or not _of_the_paper(spec.scenario):
        return None
    for preset in PRESETS:
        asked = settings_of_preset(preset, spec.scenario, spec.method, spec.memory, head)
        if all(getattr(spec, name) == value for name, value in asked.items()):
            return preset
    return None


def settings_of_preset(preset: Preset, scenario: str, method: str, memory: int, head: str) -> dict[str, object]:
    """The fields of a spec that a preset sets in a scenario of the paper; `head` by the paper's name."""
    record, published = record_of(parse(scenario)[0]), preset == "published"
    protocol = record.protocol
    assert protocol is not None  # every dataset of the paper has its own,
    assert record.shape is not None  # and images of one size
    kind = METHODS[method]
    suited = kind.suited_to(scenario, memory)
    chosen = defaults(preset, kind, scenario, memory, protocol.epochs, suited)
    backbone = PUBLISHED_BACKBONES.get(protocol.backbone, protocol.backbone) if published else protocol.backbone
    head = PUBLISHED_HEADS.get(head, head) if published else head
    usual = usual_augment((record.published if published else None) or record.preprocessing_for(record.shape))
    return {
        "format": record.format,
        "hyperparameters": chosen.settings,
        "head": head,
        "head_settings": {name: default for name, (default, _) in HEADS[head].settings.items()},
        "backbone": backbone,
        "epochs": chosen.epochs,
        "batch_size": protocol.batch_size,
        "lr": protocol.lr,
        "momentum": protocol.momentum,
        "hold_out": 0.0,
        "augmentation": preset if record.published else "paper",
        "passes": chosen.passes,
        **{name: value for name, value in ADDED.items() if name not in ("passes", "code")},
        **kind.training_of(suited),
        **augment_settings(with_own(usual, kind), usual),
        "stream": Stream(),
    }


def _of_the_paper(scenario: str) -> bool:
    """Whether the scenario has images of the paper: the tasks may be others."""
    return parse(scenario)[0] in _datasets_of_the_paper()


@cache
def _datasets_of_the_paper() -> set[str]:
    return {parse(cell.scenario)[0] for cell in paper.cells()}


def papers_head(spec: RunSpec) -> str:
    """The head by the paper's name, where the published code has another for it."""
    return {published: ours for ours, published in PUBLISHED_HEADS.items()}.get(spec.head, spec.head)
