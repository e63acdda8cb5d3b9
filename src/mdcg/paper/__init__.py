"""The paper's numbers: every cell of its Tables 1, 2 and 3, and every hyperparameter that it chose or searched.

Three files beside this one hold the numbers as they are printed. A test compares them with the paper's source.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

RUNS = 5  # behind every mean ± std (Section 4.1)


@dataclass(frozen=True)
class Cell:
    """A cell of a table. `memory` is 0 for methods without one; Table 3 has accuracies only."""

    table: int
    scenario: str
    memory: int
    row: str  # the method as the table calls it
    method: str  # the same by our names
    head: str  # where it is not the method's own, else empty
    acc: float
    acc_std: float | None
    bwt: float | None
    bwt_std: float | None
    mark: str  # "best" or "second" where it is highlighted, else empty


@cache
def cells() -> tuple[Cell, ...]:
    """The cells of all tables, table by table."""
    return tuple(
        Cell(
            table=int(row["table"]),
            scenario=row["scenario"],
            memory=int(row["memory"]),
            row=row["row"],
            method=row["method"],
            head=row["head"],
            acc=float(row["acc"]),
            acc_std=_number(row["acc_std"]),
            bwt=_number(row["bwt"]),
            bwt_std=_number(row["bwt_std"]),
            mark=row["mark"],
        )
        for row in _rows("results.csv")
    )


def cell(scenario: str, method: str, memory: int, head: str = "") -> Cell | None:
    """The cell that the paper prints for a method; of two tables the first, which also has the std.

    >>> cell("c10-5", "md-cg", 500).acc
    65.5
    """
    wanted = (scenario, method, memory, head)
    return next((one for one in cells() if (one.scenario, one.method, one.memory, one.head) == wanted), None)


@cache
def chosen(method: str) -> Mapping[str, Mapping[str, Mapping[int, float]]]:
    """The value of each hyperparameter by scenario and memory size (Appendix "Hyperparameters selection").

    >>> chosen("md")["lam"]["c10-5"][500]
    0.25
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in _rows("hyperparameters.csv"):
        if row["method"] == method:
            own = found.setdefault(row["setting"], {}).setdefault(row["scenario"], {})
            own[int(row["memory"])] = float(row["value"])
    return found


@cache
def grid(method: str) -> Mapping[str, tuple[float, ...]]:
    """The values of each hyperparameter that were searched, in the paper's order.

    >>> grid("ld")
    {'alpha': (0.1, 0.25, 0.5, 0.75, 1.0)}
    """
    rows = [row for row in _rows("grids.csv") if row["method"] == method]
    return {row["setting"]: tuple(map(float, row["values"].split())) for row in rows}


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((files(__name__) / name).read_text("utf-8").splitlines()))


def _number(text: str) -> float | None:
    return float(text) if text else None
