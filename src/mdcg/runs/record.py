"""The record of a finished run, whatever file it stands in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Annotated, Any

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from mdcg import metrics
from mdcg.errors import MdcgError
from mdcg.metrics import Matrix
from mdcg.runs.environment import Environment
from mdcg.runs.packed import Columns, Packed, columns_of, share_fields_set, shared
from mdcg.runs.spec import RunSpec
from mdcg.stored import DEEPEST, Count, Counted, NotNegative, plain

FORMAT = 5  # of result.json and of an archive's lines; a run's identity has its own, in spec.py
NEWEST = 1000  # a format beyond this is no newer one, but damage


def _or_columns(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Columns as they are: their values were checked before they were packed."""
    return value if isinstance(value, Columns) else check(value)


#: Rows as they were made, or the columns of some that were read.
History = Annotated[
    Sequence[dict[str, Any]],
    AfterValidator(partial(plain, deepest=DEEPEST + 1)),  # at once: they are many
    WrapValidator(_or_columns),
    PlainSerializer(list),
]
#: Whole numbers in lists, which may be packed.
Counts = Annotated[Sequence[Count], PlainSerializer(list)]
Table = Annotated[Sequence[Sequence[Count]], PlainSerializer(lambda rows: [list(row) for row in rows])]


class Record(BaseModel):
    """The record of a finished run. Lists are by class position (order of arrival)."""

    model_config = ConfigDict(extra="ignore")  # a later version may have added fields

    format: Counted = FORMAT
    spec: RunSpec
    sizes: list[Count]  # classes that are new in each task
    tasks: list[list[Count]] | None = None  # class positions of each task; None: what is new in it, range after range
    order: list[Count]  # dataset label of each class position
    class_names: list[str]  # of each class position
    correct: Table  # [task][class position], or [task][task] where no more than R is known
    total: list[Counted]  # images evaluated, of each class position; or of each task, likewise
    memory: dict[Count, Counts]  # training images kept at the end, by class position; an archive leaves them out
    history: History  # one row per epoch
    seconds: NotNegative  # this run's share of its group's time
    members: Counted = 1  # runs that were trained together
    environment: Environment = Environment()

    @model_validator(mode="after")
    def _fits_together(self) -> Record:
        classes, tasks = sum(self.sizes), len(self.sizes)
        named, counted = {len(self.order), len(self.class_names)}, {len(self.total), *map(len, self.correct)}
        if (
            not tasks
            or min(self.sizes) < (0 if self.tasks else 1)
            or (self.tasks is not None and (len(self.tasks) != tasks or not _are_positions(self.tasks, classes)))
            or len(self.correct) != tasks
            or named != {classes}
            or counted not in ({classes}, {tasks})
            or not all(
                0 <= hits <= images for row in self.correct for hits, images in zip(row, self.total, strict=True)
            )
        ):
            raise ValueError("its parts do not fit together")
        return self

    @property
    def by_class(self) -> bool:
        """Whether the counts tell classes apart, not tasks alone."""
        return len(self.total) == sum(self.sizes)

    @property
    def R(self) -> Matrix:
        """The accuracy matrix, see `mdcg.metrics`."""
        return metrics.accuracy_matrix(self.correct, self.total, self.task_columns)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the run, by name."""
        return metrics.summary(self.R, self.accuracies)

    @property
    def accuracies(self) -> list[float]:
        """The accuracy on the classes of all tasks so far, at every time it was evaluated: after each of them, and, of
        an online stream, within."""
        within = {
            task: _within(row) for row in self.history if "within" in row and isinstance(task := row.get("task"), int)
        }
        found, seen, total = list[float](), set[int](), np.array(self.total)
        for task, (counts, own) in enumerate(zip(np.array(self.correct), self.task_columns, strict=True), 1):
            seen.update(own)
            places = list(seen)
            found += [*within.get(task, ()), metrics.overall(counts[places], total[places])]
        return found

    @property
    def task_sizes(self) -> list[int]:
        """The number of classes of each task, those that came before among them."""
        return [len(classes) for classes in self.task_columns] if self.by_class else self.sizes

    @property
    def task_columns(self) -> list[list[int]]:
        """The entries of the counts that belong to each task: its class positions, or itself if tasks are counted."""
        if not self.by_class:
            return [[task] for task in range(len(self.sizes))]
        if self.tasks is not None:
            return self.tasks
        return [list(range(end - size, end)) for end, size in zip(accumulate(self.sizes), self.sizes, strict=True)]

    @property
    def class_accuracy(self) -> Matrix | None:
        """The accuracy of each class position at the end; None where counts are by task."""
        return metrics.class_accuracy(self.correct, self.total) if self.by_class else None

    def as_json(self) -> dict[str, Any]:
        """The content for `--json`: accuracies in percent, what was not evaluated as null."""
        matrix = self.R
        values = {name: _or_none(value) for name, value in metrics.summary(matrix, self.accuracies).items()}
        R = [[_or_none(entry) for entry in row] for row in matrix.tolist()]
        return {"seed": self.spec.seed, "R": R, **values, "seconds": round(self.seconds, 3)}

    def computed(self) -> dict[str, Any]:
        """The values that follow from the counts, for readers of a file who use other programs."""
        described = self.as_json()
        return {"R": described["R"], "metrics": {name: described[name] for name in metrics.NAMES}}


def _within(row: dict[str, Any]) -> list[float]:
    """The accuracies within a task, of its row in the history; of a row that is foreign, none."""
    pairs = row.get("within")
    fits = isinstance(pairs, list) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], int | float) for pair in pairs
    )
    return [float(accuracy) for _, accuracy in pairs] if fits and pairs else []


def _are_positions(tasks: list[list[int]], classes: int) -> bool:
    return all(own and min(own) >= 0 and max(own) < classes for own in tasks)


class NewerFormat(MdcgError):
    """The error for a result that only a newer version can read: it is not damaged, and must not be made again."""


#: What reading something that is no record may raise.
DAMAGE = (ValidationError, ValueError, LookupError, TypeError, AttributeError, OverflowError)


def as_record(content: Any, where: str) -> Record:
    """Read JSON content, in this format or an older one, as a record; `where` names it in a sentence."""
    found = content["format"]
    if FORMAT < found <= NEWEST:
        raise NewerFormat(
            f"{where} was written by a newer version of mdcg (format {found}; this one reads up to {FORMAT}); "
            "update mdcg."
        )
    while found != FORMAT:
        content = UPGRADES[found](content)
        found = content["format"]
    if not isinstance(content["history"], Columns):
        content = {**content, "history": columns(columns_of(_rows(content["history"])))}
    return _packed(Record.model_validate(content))


def columns(found: Any) -> Columns:
    """The columns of a history that was read, their values within bounds."""
    return Columns(plain(found, DEEPEST + 1))


def _rows(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        raise TypeError("a history is a list of rows")
    return found


def _packed(record: Record) -> Record:
    """A record that was read, in little memory: there may be thousands, alike but for their seeds and numbers."""
    record.correct = Packed(record.correct)
    record.memory = {place: Packed(images) for place, images in record.memory.items()}
    for name in ("sizes", "tasks", "order", "class_names", "total"):
        setattr(record, name, shared(getattr(record, name)))
    around, spec = record.environment, record.spec
    for part in ("versions", "hardware", "source"):
        setattr(around, part, shared(getattr(around, part)))
    for model in (record, around, spec):
        share_fields_set(model)
    for name in ("hyperparameters", "head_settings", "stream"):  # whose fields nobody sets
        spec.__dict__[name] = shared(getattr(spec, name))
    return record


def _structured_environment(content: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from format 1, which had versions and machine side by side, and one text for the device."""
    old = content["environment"]
    device = old.get("device") or ""
    on_cpu = re.fullmatch(r"cpu \((\d+) threads\)", device)
    hardware = {"threads": int(on_cpu[1])} if on_cpu else {"gpu": device or None}
    versions = {name: old.get(name) for name in ("mdcg", "torch", "numpy", "python")}
    kept = {name: old.get(name) for name in ("platform", "precision", "finished")}
    return {**content, "format": 2, "environment": {"versions": versions, "hardware": hardware, **kept}}


def _lr(content: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from format 2, which called the learning rate `rate`."""
    spec = {"lr" if key == "rate" else key: value for key, value in content["spec"].items()}
    return {**content, "format": 3, "spec": spec}


def _streams(content: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from format 3, which knew no streams: each class came in one task, and every task had new ones."""
    return {**content, "format": 4}


def _distils(content: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from format 4, in which a teacher was there or not, and was asked about memory images alone."""
    own = content["spec"]["hyperparameters"]
    if isinstance(own.get("distils"), bool):
        own = {**own, "distils": "memory" if own["distils"] else "nothing"}
    return {**content, "format": 5, "spec": {**content["spec"], "hyperparameters": own}}


# What turns a format's content into the next one's.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: _structured_environment,
    2: _lr,
    3: _streams,
    4: _distils,
}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
