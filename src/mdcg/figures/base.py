"""The kinds of figures: the runs they need, the numbers taken from them, and a drawing of nothing but these numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mdcg import paper
from mdcg.data import is_known, record_of
from mdcg.errors import MdcgError
from mdcg.recipes.recipe import Recipe
from mdcg.registry import Registry, first_line
from mdcg.runs.finished import FinishedRun
from mdcg.scenario import parse

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Row = dict[str, Any]  # of the CSV file: words and numbers
USUAL_MEMORY = 500  # where the paper has that, or nothing else is known


class Figure(ABC):
    """A figure, whose docstring says in one line what it shows."""

    begins: ClassVar[tuple[str, ...]] = ()  # the first columns of its CSV file, by which that is told from others

    @abstractmethod
    def draw(self, rows: Sequence[Row]) -> Drawing:
        """Draw these numbers and nothing else."""

    @abstractmethod
    def caption(self, rows: Sequence[Row]) -> str:
        """Say what is seen, in whole sentences; which runs it comes from is added."""

    @classmethod
    def summary(cls) -> str:
        return first_line(cls)


class RunFigure(Figure):
    """A figure of runs: those that are missing are trained."""

    begins = ("method", "memory", "seed")  # as `FinishedRun.named` gives them
    probes: ClassVar[tuple[str, ...]] = ()  # that must have looked at every run
    seeds: ClassVar[str] = "0-4"  # unless others are asked for
    several: ClassVar[tuple[str, ...]] = ()  # of what there may be several values: "memory", or settings by name
    tasks: ClassVar[int] = 1  # the fewest that a scenario must have

    @abstractmethod
    def wanted(self, asked: Recipe) -> list[Recipe]:
        """The runs that it needs. `asked` names the scenario, seeds and how to train; memory sizes and methods where
        the person who asks has chosen any."""

    @abstractmethod
    def numbers(self, runs: Sequence[FinishedRun]) -> list[Row]:
        """The rows of numbers: one for each that is drawn, or that goes into a mean that is drawn."""

    def pick(self, runs: Sequence[FinishedRun]) -> list[FinishedRun]:
        """The runs that it can show together, of one scenario and protocol; none, if there is nothing to see."""
        return [
            run for run in runs if len(run.record.sizes) >= self.tasks and all(run.has(probe) for probe in self.probes)
        ]


class ModelFigure(Figure):
    """A figure of models alone: nothing is trained."""

    @abstractmethod
    def measure(self, asked: Recipe) -> list[Row]:
        """Measure the numbers."""

    @abstractmethod
    def source(self, rows: Sequence[Row]) -> str:
        """What the numbers were measured on."""


FIGURES: Registry[type[Figure]] = Registry("figure", "mdcg.figures")


def memories(asked: Recipe) -> list[int]:
    """The memory sizes asked for, or all that the paper has for the scenario."""
    known = {cell.memory for cell in paper.cells() if cell.scenario == asked.scenario and cell.memory}
    sizes = asked.memory or list(_memories_of(asked.scenario)) or sorted(known)
    if not sizes:
        raise MdcgError(
            f"nothing says how large the memory should be for {asked.scenario}; give --memory.", about="memory"
        )
    return sizes


def memory(asked: Recipe) -> list[int]:
    """The memory sizes asked for, or the usual one."""
    if asked.memory:
        return asked.memory
    sizes, usual = memories(asked), usual_memory(asked.scenario)
    return [usual if usual in sizes else sizes[0]]


def usual_memory(scenario: str) -> int:
    """The memory size of figures that show one."""
    sizes = _memories_of(scenario)
    return sizes[len(sizes) // 2] if sizes else USUAL_MEMORY


def _memories_of(scenario: str) -> tuple[int, ...]:
    """The dataset's own memory sizes, for its usual numbers of tasks: what suits these need not suit others."""
    name, tasks = parse(scenario)
    record = record_of(name) if is_known(name) else None  # it may have been given in Python
    return record.memories if record and tasks in record.tasks else ()


def recipe_of(asked: Recipe, methods: Sequence[str], memory: list[int], **settings: Any) -> Recipe:
    """The recipe of these methods and memory sizes, trained as asked."""
    chosen = {**settings, **asked.set}
    return asked.model_copy(update={"method": None, "methods": list(methods), "memory": memory, "set": chosen})
