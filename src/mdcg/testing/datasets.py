"""The check of a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mdcg.data import DATASETS, Dataset, DatasetRecord, Split, load, record_of, register_dataset
from mdcg.data.content import digest_of
from mdcg.data.prepare import read_anew
from mdcg.errors import MdcgError
from mdcg.execute.context import Context, DatasetCache
from mdcg.execute.sweep import Sweep
from mdcg.models.backbones import backbone_names
from mdcg.recipes.grid import GridCell
from mdcg.recipes.recipe import make_recipe
from mdcg.scenario import canonical, parse, task_sizes
from mdcg.testing.groups import require

FEW_CLASSES, FEW_IMAGES = 4, 4  # of a dataset that is trained on to see whether it can be


def check_dataset(dataset: str | DatasetRecord, data: Path | None = None, size: int | None = None) -> None:
    """Check that a dataset can be read, named in scenarios and trained on; an AssertionError says what is wrong.

    A record is registered where it is not yet. `data` and `size` are those of `load`.

    >>> check_dataset("digits")
    """
    try:
        record = record_of(dataset) if isinstance(dataset, str) else _registered(dataset)
        loaded = _check_images(record, data, size)
        _check_names(record, loaded)
        _check_training(record, loaded)
    except MdcgError as error:
        raise AssertionError(str(error)) from error


def _registered(record: DatasetRecord) -> DatasetRecord:
    if record.name not in DATASETS.names():
        return register_dataset(record)
    require(DATASETS[record.name] == record, f"another dataset is already registered as '{record.name}'.")
    return record


def _check_images(record: DatasetRecord, data: Path | None, size: int | None) -> Dataset:
    """Check that a dataset is always the same; shapes, labels and class names are checked whenever it is read."""
    source = record.source(data, size, download=False)
    first, second = read_anew(record, source), read_anew(record, source)
    require(
        digest_of(first) == digest_of(second) and first.class_names == second.class_names,
        f"{record.name} differs from one reading to the next; draw what is random from a generator with a fixed seed.",
    )
    loaded = load(record.name, data, size)
    again = load(record.name, data, size)
    require(
        loaded.fingerprint == again.fingerprint == digest_of(first),
        f"the fingerprint of {record.name} is not that of its images.",
    )
    for what, numbers in (("mean", loaded.mean), ("std", loaded.std)):
        channels = loaded.shape[0]
        require(len(numbers) == channels, f"the {what} of {record.name} needs {channels} number(s), not {numbers}.")
    return loaded


def _check_names(record: DatasetRecord, loaded: Dataset) -> None:
    for tasks in record.tasks or (1,):
        name = f"{record.scenario_name}-{tasks}"
        for spelled in (name, f"{record.name}-{tasks}", f"{record.name}-0{tasks}"):
            require(parse(spelled) == (record.name, tasks), f"the scenario '{spelled}' is not one of {record.name}.")
            require(canonical(spelled) == name, f"the scenario '{spelled}' is not the same as '{name}'.")
        task_sizes(loaded.classes, tasks)
    backbone = record.protocol_for(loaded.shape).backbone
    require(backbone in backbone_names(), f"the backbone '{backbone}' in the protocol of {record.name} is not known.")


def _check_training(record: DatasetRecord, loaded: Dataset) -> None:
    """Check one epoch of training on a few classes and images, with replay."""
    few = _few(loaded)
    tasks = 2 if few.classes >= 4 else 1
    recipe = make_recipe(
        scenario=f"{record.scenario_name}-{tasks}", method="replay", memory=few.classes, epochs=1, batch_size=4
    )
    with TemporaryDirectory() as out:
        specs = recipe.resolve(few)
        cache = DatasetCache({(record.name, None, specs[0].image_size): few})
        sweep = Sweep([GridCell({}, specs)], Context(Path(out), device="cpu", datasets=cache), "")
        undone = sweep.run(quiet=True)
        require(not undone, f"training on {record.name} fails: {next(iter(undone.failed.values()), '')}")
        (done,) = sweep.records().values()
    learned = done.R[np.tril_indices(tasks)]
    require(bool(((learned >= 0) & (learned <= 100)).all()), f"training on {record.name} gives accuracies {learned}.")


def _few(dataset: Dataset) -> Dataset:
    names = dataset.class_names[:FEW_CLASSES]

    def some(split: Split) -> Split:
        chosen = np.concatenate([np.flatnonzero(split.labels == label)[:FEW_IMAGES] for label in range(len(names))])
        return Split(split.images[chosen], split.labels[chosen])

    return replace(dataset, train=some(dataset.train), test=some(dataset.test), class_names=names)
