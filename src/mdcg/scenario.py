"""Scenarios: in which order classes come, and how they fall into tasks.

A model's outputs are numbered by arrival: output 0 is the first class of the first task. `order` translates
between these *positions* and the dataset's labels, so that task t is always one contiguous range of outputs,
the same for every member of a group whatever its seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from mdcg.data import DATASETS
from mdcg.draws import Ints
from mdcg.errors import MdcgError


@dataclass(frozen=True)
class Scenario:
    """A split of classes into tasks, for one seed.

    >>> scenario = Scenario.build(classes=10, tasks=5, seed=0)
    >>> scenario.order
    (4, 1, 7, 5, 3, 9, 0, 8, 6, 2)
    >>> list(scenario.positions(1))
    [2, 3]
    """

    order: tuple[int, ...]  # order[position] is the dataset's label
    sizes: tuple[int, ...]  # number of classes of each task

    @classmethod
    def build(cls, classes: int, tasks: int, seed: int) -> Scenario:
        """Draw the order of the classes from the seed, and split them into tasks as evenly as can be."""
        return cls(class_order(classes, seed), task_sizes(classes, tasks))

    @property
    def ends(self) -> tuple[int, ...]:
        """The number of classes seen once each task is over."""
        return tuple(accumulate(self.sizes))

    def positions(self, task: int) -> range:
        """The outputs that belong to a task."""
        end = self.ends[task]
        return range(end - self.sizes[task], end)

    def position_of_label(self) -> Ints:
        """The position of each of the dataset's labels."""
        inverse = np.empty(len(self.order), np.int64)
        inverse[list(self.order)] = np.arange(len(self.order))
        return inverse


def class_order(classes: int, seed: int) -> tuple[int, ...]:
    """The order of the paper's scenarios: `torch.randperm` after `torch.manual_seed(seed)`."""
    return tuple(torch.randperm(classes, generator=torch.Generator().manual_seed(seed)).tolist())


def task_sizes(classes: int, tasks: int) -> tuple[int, ...]:
    """The numbers of classes of the tasks: as even as can be, the larger tasks first.

    >>> task_sizes(11, 4)
    (3, 3, 3, 2)
    """
    if tasks < 1:
        raise MdcgError(f"a scenario needs at least one task, not {tasks}.")
    if classes < 2 * tasks:
        raise MdcgError(
            f"{classes} classes cannot make {tasks} tasks of at least two classes each; "
            f"ask for at most {classes // 2} tasks."
        )
    small, larger = divmod(classes, tasks)
    return (small + 1,) * larger + (small,) * (tasks - larger)


def parse(name: str) -> tuple[str, int]:
    """Split a scenario's name into dataset and number of tasks.

    >>> parse("c10-5")
    ('cifar10', 5)
    >>> parse("folder:/data/birds-v2-4")
    ('folder:/data/birds-v2', 4)
    """
    dataset, dash, tasks = name.rpartition("-")
    if not dash or not dataset or not re.fullmatch(r"[0-9]{1,6}", tasks):
        raise MdcgError(
            f"'{name}' is not a scenario: write DATASET-TASKS, for instance digits-5, c10-5 or folder:PATH-4."
        )
    long = {record.short: record.name for record in DATASETS.values() if record.short}
    return long.get(dataset, dataset), int(tasks)


def canonical(name: str) -> str:
    """The one spelling of a scenario.

    >>> canonical("cifar10-05")
    'c10-5'
    """
    dataset, tasks = parse(name)
    short = {record.name: record.scenario_name for record in DATASETS.values()}
    return f"{short.get(dataset, dataset).rstrip('/')}-{tasks}"


def scenario_names() -> list[str]:
    """The usual scenarios of every dataset.

    >>> scenario_names()[:3]
    ['digits-5', 'c10-5', 'c100-10']
    """
    return [name for record in DATASETS.values() for name in record.scenarios]
