"""Datasets by name, and by what they are called in scenarios."""

from __future__ import annotations

from dataclasses import replace

from mdcg.data.record import DatasetRecord
from mdcg.errors import MdcgError, unknown
from mdcg.registry import Registry

ANY = "PATH"  # a record named `folder:PATH` stands for folder:/my/birds and all others


class Datasets(Registry[DatasetRecord]):
    """Records by name; one that could be taken for another is refused."""

    def _add(self, name: str, thing: DatasetRecord) -> None:
        if not isinstance(thing, DatasetRecord):
            raise MdcgError(
                f"the dataset '{name}' is no instance of DatasetRecord but {thing!r}; register an instance."
            )
        if name != thing.name:
            raise MdcgError(f"the dataset '{thing.name}' is registered as '{name}'; use one name for both.")
        if name.partition(":")[2] not in ("", ANY):
            raise MdcgError(f"'{name}' names one of many datasets; register '{name.partition(':')[0]}:{ANY}', for all.")
        for other in self._known.values():
            if other.name != name and {name, thing.scenario_name} & {other.name, other.scenario_name}:
                raise MdcgError(
                    f"scenarios could not tell the dataset '{name}' from '{other.name}', which has the same name or "
                    "short name; choose another one."
                )
        super()._add(name, thing)


DATASETS = Datasets("dataset", "mdcg.datasets")


def register_dataset(record: DatasetRecord) -> DatasetRecord:
    """Make a dataset of your own available by name."""
    return DATASETS.register(record.name)(record)


def record_of(name: str) -> DatasetRecord:
    """The record of a dataset.

    >>> record_of("cifar10").scenarios
    ('c10-5',)
    >>> record_of("folder:/my/birds").name
    'folder:/my/birds'
    """
    family, colon, _ = name.partition(":")
    key = f"{family}:{ANY}" if colon else name
    if key not in DATASETS.names():
        raise unknown("dataset", name, DATASETS.names())
    return replace(DATASETS[key], name=name) if colon else DATASETS[key]


def is_known(name: str) -> bool:
    """Whether a dataset is here; its package may be gone."""
    try:
        record_of(name)
    except MdcgError:
        return False
    return True
