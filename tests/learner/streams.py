"""A small dataset that `mdcg run` and a `Learner` can both learn, in six classes; as arrays and as image files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import mdcg
from mdcg.data import DATASETS, Arrays, Bundled, Dataset, Preprocessing, Protocol, arrays, load
from mdcg.saved import SavedModel
from mdcg.scenario import Scenario
from mdcg.testing import toy_dataset

NAME, TASKS, SEED = "six-toys", 3, 3
COUNTS = [16, 24, 31, 20, 28, 18]


class SixToys(Bundled):
    """Noisy patterns, 8×8 grey."""

    def read(self) -> Arrays:
        toys = toy_dataset(COUNTS)
        train, test = ((split.images.numpy(), split.labels) for split in (toys.train, toys.test))
        return arrays(train, test, toys.class_names)


if NAME not in DATASETS.names():
    mdcg.register_dataset(
        SixToys(
            name=NAME,
            summary="noisy patterns",
            shape=(1, 8, 8),
            preprocessing=Preprocessing(padding=1, flip=True),
            protocol=Protocol("smallconv", epochs=2, batch_size=16, lr=0.05),
        )
    )


def settings_of(spec: Any) -> dict[str, Any]:
    """What a run sets of its method and head."""
    return {**spec.hyperparameters, **spec.head_settings}


def learner_like(result: mdcg.Result) -> mdcg.Learner:
    """A Learner that has learned nothing yet, with all the settings of a run."""
    spec, dataset = result.records[0].spec, result.dataset
    return mdcg.Learner(
        spec.method,
        memory=spec.memory or 1,
        set=settings_of(spec),
        head=spec.head,
        backbone=spec.backbone,
        normalise=(dataset.mean, dataset.std),
        padding=dataset.padding,
        flip=dataset.flip,
        epochs=spec.epochs,
        batch_size=spec.batch_size,
        lr=spec.lr,
        momentum=spec.momentum,
        passes=spec.passes,
        seed=spec.seed,
        hold_out=0,
        most_classes=dataset.classes,
        tasks=TASKS,
        quiet=True,
    )


def task_images(dataset: Dataset, task: int, seed: int = SEED) -> tuple[Any, list[str], list[str]]:
    """Images, names and the order of the classes of one task of `mdcg run`."""
    scenario = Scenario.build(dataset.classes, TASKS, seed)
    order = [scenario.order[position] for position in scenario.positions(task)]
    chosen = np.flatnonzero(np.isin(dataset.train.labels, order))
    names = [dataset.class_names[label] for label in dataset.train.labels[chosen]]
    return dataset.train.images[torch.from_numpy(chosen)], names, [dataset.class_names[label] for label in order]


def toys() -> Dataset:
    return load(NAME)


def write_images(folder: Path, dataset: Dataset, labels: Iterable[int], split: str = "train", most: int = 99) -> Path:
    """Some classes of a dataset as PNG files, folder/CLASS/00.png and so on: the first ones of each, at `most`."""
    part = getattr(dataset, split)
    for label in labels:
        own = folder / dataset.class_names[label]
        own.mkdir(parents=True, exist_ok=True)
        for number, index in enumerate(np.flatnonzero(part.labels == label)[:most]):
            Image.fromarray(part.images[index].numpy().squeeze()).save(own / f"{number:02}.png")
    return folder


def timeless(file: Path) -> bytes:
    """What a file holds, but for the times that its versions tell."""
    saved = SavedModel.load(file)
    versions = tuple(replace(version, seconds=0.0, finished="") for version in saved.versions)
    return replace(saved, versions=versions).content()


def assert_same(one: SavedModel, other: SavedModel) -> None:
    """Weights, velocities, memories and stored logits are the same, to the bit."""
    assert one.classes == other.classes
    assert one.setup == other.setup
    pairs = [(one.model.state_dict(), other.model.state_dict())]
    if one.kept is not None and other.kept is not None:
        pairs.append((one.kept.optimizer, other.kept.optimizer))
        for name in ("memory", "second"):
            mine, theirs = getattr(one.kept, name), getattr(other.kept, name)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                pairs.append((vars(mine), vars(theirs)))
        if one.kept.logits is not None:
            assert other.kept.logits is not None
            assert other.kept.has_logits is not None
            pairs.append(({"logits": one.kept.logits}, {"logits": other.kept.logits}))
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name
