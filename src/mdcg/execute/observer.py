"""The observer of a group's training, which tells a progress display and trackers of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from mdcg.execute.context import Context
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.trackers import Epoch, Outcome, TrackedRun
from mdcg.train.group import Group
from mdcg.train.state import HistoryRow


class Observer:
    """Tells the display what becomes of a group, and trackers what becomes of each of its runs."""

    def __init__(self, specs: Sequence[RunSpec], context: Context) -> None:
        self._display, self._trackers = context.display, context.trackers
        self._epochs = specs[0].epochs
        self._runs = [_tracked(spec, context) for spec in specs]
        self._rows: Sequence[int] = range(len(specs))  # for each run, which of the rows told is its own
        self._begun = False

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs if self._begun else ():
            self._trackers.leave(run)

    def begin(self, title: str, group: Group, total: int, done: int, epochs: int) -> None:
        """Tell that a group begins: so many steps in all and done, so many epochs done."""
        self._display.begin(title, group, total, done)
        self._runs = [replace(run, done=epochs) for run in self._runs]
        self._begun = True
        for run in self._runs:
            self._trackers.begin(run)

    def of(self, rows: Sequence[int]) -> Observer:
        """Let run k be told of by row rows[k], since members may share who trains for them; return this observer."""
        self._rows = rows
        return self

    def step(self, count: int) -> None:
        self._display.step(count)

    def epoch(self, task: int, epoch: int, loss: float, rows: Sequence[HistoryRow]) -> None:
        self._display.epoch(task, epoch, loss, rows)
        for run, place in zip(self._runs, self._rows, strict=True):
            row = rows[place]
            told = Epoch(
                task=task + 1,
                epoch=epoch + 1,
                number=task * self._epochs + epoch + 1,
                loss=row["loss"],
                train_accuracy=row["train_accuracy"],
                accuracy=tuple(row.get("accuracy", ())),
            )
            self._trackers.epoch(run, told)

    def end(self, place: int, record: Record) -> None:
        """Tell that the run at this place is finished and stored."""
        self._trackers.end(self._runs[place], _outcome(record))


def tell_of_finished(specs: Sequence[RunSpec], context: Context) -> int:
    """Tell trackers of runs that were finished before, from what their results keep; return how many were news."""
    if not context.trackers:
        return 0
    records = (record for spec in specs if (record := context.store.finished(spec)) is not None)
    return sum(
        context.trackers.finished(_tracked(record.spec, context), _epochs(record), _outcome(record))
        for record in records
    )


def _tracked(spec: RunSpec, context: Context) -> TrackedRun:
    epochs = spec.training().tasks * spec.epochs
    return TrackedRun(spec.name, context.store.folder(spec), spec.settings(), epochs)


def _epochs(record: Record) -> list[Epoch]:
    """The epochs of a record; a row that is none, as of another program, is left out."""
    found = []
    for row in record.history:
        task, epoch = row.get("task"), row.get("epoch")
        loss, accuracy = row.get("loss"), row.get("train_accuracy")
        measured = isinstance(loss, int | float) and isinstance(accuracy, int | float)
        if isinstance(task, int) and isinstance(epoch, int) and measured:
            number = (task - 1) * record.spec.epochs + epoch
            found.append(Epoch(task, epoch, number, row["loss"], row["train_accuracy"], _numbers(row.get("accuracy"))))
    return found


def _numbers(values: object) -> tuple[float, ...]:
    fits = isinstance(values, list) and all(isinstance(value, int | float) for value in values)
    return tuple(values) if isinstance(values, list) and fits else ()


def _outcome(record: Record) -> Outcome:
    described = record.as_json()
    return Outcome({name: described[name] for name in record.metrics}, described["R"])
