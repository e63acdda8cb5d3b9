"""Scenarios: in which order classes come, and how they fall into tasks.

A model's outputs are numbered by arrival: output 0 is the first class of the first task. `order` translates
between these *positions* and the dataset's labels, so that the new classes of task t are always one contiguous range of
outputs, the same for every member of a group whatever its seed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from mdcg.data import DATASETS
from mdcg.draws import Ints
from mdcg.errors import MdcgError, unknown
from mdcg.files import shown
from mdcg.stored import Counted, Share


class Stream(BaseModel):
    """How classes and images come, where that is more than a scenario's name can say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: tuple[tuple[str, ...], ...] | None = None  # names of each task's classes; None: by the seed
    sizes: tuple[Counted, ...] | None = None  # classes of each task, where the seed draws them; None: as even as can be
    blurry: Share = 0.0  # of a task's images that comes in its neighbours
    online: bool = False  # each image comes once, and the memory is a reservoir of the stream

    @property
    def returning(self) -> bool:
        """Whether some class is in several tasks."""
        return self.tasks is not None and len({name for task in self.tasks for name in task}) < sum(
            map(len, self.tasks)
        )

    @property
    def revisits(self) -> bool:
        """Whether a task may bring images of classes that are another's."""
        return self.blurry > 0 or self.returning

    def told(self) -> dict[str, object]:
        """All that is not as usual, as a recipe says it."""
        own = self.model_dump(mode="json", exclude_defaults=True)
        return own | ({"returning": True} if self.returning else {})

    def in_words(self, most: int = 60) -> str:
        """The stream in words; empty for the usual one. Lists that need more than `most` letters are cut short.

        >>> Stream(sizes=(5, 1, 4), blurry=0.1, online=True).in_words()
        'tasks of 5+1+4 classes, blurry 0.1, online'
        >>> Stream(tasks=(("cat", "dog"), ("car",))).in_words()
        'tasks cat, dog | car'
        """
        parts = []
        if self.tasks is not None:
            parts.append(_cut("tasks " + " | ".join(", ".join(task) for task in self.tasks), most))
        if self.sizes is not None:
            parts.append(_cut(f"tasks of {'+'.join(map(str, self.sizes))} classes", most))
        parts += [f"blurry {self.blurry:g}"] * (self.blurry > 0) + ["online"] * self.online
        return ", ".join(parts)


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
    sizes: tuple[int, ...]  # number of classes that are new in each task
    # Positions of each task's classes; None: they are what is new in it, one range after the other.
    tasks: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def build(cls, classes: int, tasks: int, seed: int) -> Scenario:
        """Draw the order of the classes from the seed, and split them into tasks as evenly as can be."""
        return cls(class_order(classes, seed), task_sizes(classes, tasks))

    @classmethod
    def of(cls, stream: Stream, tasks: int, class_names: Sequence[str], seed: int) -> Scenario:
        """The scenario of a stream, for one seed.

        >>> Scenario.of(Stream(tasks=(("b",), ("c", "b"))), 2, ["a", "b", "c"], seed=0)
        Scenario(order=(1, 2), sizes=(1, 1), tasks=((0,), (1, 0)))
        """
        if stream.tasks is None:
            order = class_order(len(class_names), seed)
            return cls(order, stream.sizes or task_sizes(len(order), tasks))
        names = list(dict.fromkeys(name for task in stream.tasks for name in task))
        position = {name: place for place, name in enumerate(names)}
        of_tasks = tuple(tuple(position[name] for name in task) for task in stream.tasks)
        label = {name: place for place, name in enumerate(class_names)}
        order = tuple(label[name] for name in names)
        return cls(order, _new_in_each(of_tasks), of_tasks if stream.returning else None)

    @property
    def ends(self) -> tuple[int, ...]:
        """The number of classes seen once each task is over."""
        return tuple(accumulate(self.sizes))

    def positions(self, task: int) -> range:
        """The outputs that are new in a task."""
        end = self.ends[task]
        return range(end - self.sizes[task], end)

    def classes_of(self, task: int) -> tuple[int, ...]:
        """The outputs that a task is about, those that come back among them."""
        return self.tasks[task] if self.tasks else tuple(self.positions(task))

    def position_of_label(self, labels: int) -> Ints:
        """The position of each of the dataset's labels; -1 for a class that never comes."""
        inverse = np.full(labels, -1, np.int64)
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
    if classes < tasks:
        raise MdcgError(f"{classes} classes cannot make {tasks} tasks; ask for at most {classes}.")
    small, larger = divmod(classes, tasks)
    return (small + 1,) * larger + (small,) * (tasks - larger)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _new_in_each(tasks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The number of classes that are new in each task, of tasks whose classes are numbered by arrival."""
    seen = list(accumulate((max(own) + 1 for own in tasks), max))
    return tuple(after - before for before, after in zip([0, *seen], seen, strict=False))


def make_stream(
    class_names: Sequence[str],
    count: int,
    *,
    tasks: Sequence[Sequence[str]] | None = None,
    order: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    first: int | None = None,
    returning: bool = False,
    blurry: float = 0.0,
    online: bool = False,
) -> Stream:
    """The stream of `count` tasks that a recipe asks for, checked against the classes there are.

    >>> make_stream("abcdef", 3, order="fedcba", first=4).tasks
    (('f', 'e', 'd', 'c'), ('b',), ('a',))
    """
    if count < 1:
        raise MdcgError("a scenario needs at least one task; give some.", about="tasks")
    if tasks is not None:
        for about, given in (("order", order), ("sizes", sizes), ("first", first)):
            if given is not None:
                raise MdcgError(f"'tasks' says which classes come when; leave '{about}' out.", about=about)
        if len(tasks) != count:
            raise MdcgError(f"'tasks' lists {len(tasks)} tasks, the scenario's name says {count}.", about="tasks")
        _check_tasks(tasks, class_names, returning)
        return Stream(tasks=tuple(map(tuple, tasks)), blurry=blurry, online=online)
    if returning:
        raise MdcgError("classes come back only where 'tasks' lists them; give it, too.", about="returning")
    if order is not None:
        _check_names(order, class_names, "order")
        if twice := _twice(order):
            raise MdcgError(f"class '{twice}' is twice in 'order'; keep one.", about="order")
    own = _sizes(len(class_names if order is None else order), count, sizes, first)
    if order is None:
        return Stream(sizes=own, blurry=blurry, online=online)
    ends = list(accumulate(own or task_sizes(len(order), count)))
    split = tuple(tuple(order[start:end]) for start, end in zip([0, *ends], ends, strict=False))
    return Stream(tasks=split, blurry=blurry, online=online)


def _sizes(classes: int, count: int, sizes: Sequence[int] | None, first: int | None) -> tuple[int, ...] | None:
    """The number of classes of each task; None where they are as even as can be."""
    if sizes is not None and first is not None:
        raise MdcgError("'sizes' says how many classes come first; leave 'first' out.", about="first")
    found = None
    if sizes is not None:
        if len(sizes) != count or sum(sizes) != classes or min(sizes, default=0) < 1:
            raise MdcgError(
                f"sizes {', '.join(map(str, sizes)) or 'of no task'} do not split {classes} classes into {count} tasks "
                "of one class or more; correct them, or the number of tasks in the scenario's name.",
                about="sizes",
            )
        found = tuple(sizes)
    elif first is not None:
        if count < 2 or first < 1 or classes - first < count - 1:
            raise MdcgError(
                f"after a first task of {first} classes, {classes - first} are left for {count - 1} more tasks; give "
                "another 'first' or number of tasks.",
                about="first",
            )
        found = (first, *task_sizes(classes - first, count - 1))
    return None if found == task_sizes(classes, count) else found


def _check_tasks(tasks: Sequence[Sequence[str]], class_names: Sequence[str], returning: bool) -> None:
    """Refuse tasks that are empty, name a class twice or name one that there is not."""
    home: dict[str, int] = {}
    for number, own in enumerate(tasks, start=1):
        if not own:
            raise MdcgError(f"task {number} has no class; give it one, or leave it out.", about="tasks")
        _check_names(own, class_names, "tasks")
        if twice := _twice(own):
            raise MdcgError(f"class '{twice}' is twice in task {number}; keep one.", about="tasks")
        for name in own:
            if name in home and not returning:
                raise MdcgError(
                    f"class '{name}' is in tasks {home[name]} and {number}; keep one, or say 'returning: true' if it "
                    "is to come back.",
                    about="tasks",
                )
            home[name] = number


def _check_names(names: Sequence[str], known: Sequence[str], about: str) -> None:
    for name in names:
        if name not in known:
            raise unknown("class", name, known, about=about)


def _twice(names: Collection[str]) -> str | None:
    seen = set[str]()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


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
    if any("\ud800" <= letter <= "\udfff" for letter in dataset):  # bytes of a path that are no text
        raise MdcgError(
            f"the name of {shown(dataset)} is no text, and a result must hold it; rename the folder, or name a link."
        )
    short = {record.name: record.scenario_name for record in DATASETS.values()}
    return f"{short.get(dataset, dataset).rstrip('/')}-{tasks}"


def scenario_names() -> list[str]:
    """The usual scenarios of every dataset.

    >>> scenario_names()[:3]
    ['digits-5', 'c10-5', 'c100-10']
    """
    return [name for record in DATASETS.values() for name in record.scenarios]
