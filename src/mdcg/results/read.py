"""The finished runs on disk, however deep below a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mdcg.errors import MdcgError
from mdcg.runs.finished import FinishedRun
from mdcg.runs.store import Store
from mdcg.scenario import parse


@dataclass(frozen=True)
class FoundRuns:
    """The finished runs below a folder, and how many results were left out."""

    runs: list[FinishedRun]
    unreadable: int  # results that are damaged or foreign, folders that may not be read
    copies: int  # results of runs that were found elsewhere too
    reason: str = ""  # why the first of those cannot be read


def find_runs(root: Path) -> FoundRuns:
    """Find every finished run below `root`. A copy of a run is no second run: of equal specs only the newest counts.

    A run of an archive is no copy of one in a folder: the store has left it out.
    """
    if not root.exists():
        raise MdcgError(f"there is no folder {root}; give the folder of your runs, for instance 'mdcg report runs'.")
    if not root.is_dir():
        raise MdcgError(f"{root} is not a folder; give the folder of your runs, for instance 'mdcg report runs'.")
    refused: list[tuple[Path, str]] = []
    runs = []
    for folder, record in Store(root).records(refused):
        try:
            parse(record.spec.scenario)
        except MdcgError as error:
            refused.append((folder, f"{folder}: {error}"))
        else:
            runs.append(FinishedRun(folder, record))
    if not runs:
        damaged = f" ({len(refused)} could not be read)" if refused else ""
        raise MdcgError(f"there is no finished run in {root}{damaged}; train some with 'mdcg run' or 'mdcg compare'.")
    newest = distinct(runs)
    return FoundRuns(newest, len(refused), len(runs) - len(newest), refused[0][1] if refused else "")


def distinct(runs: Iterable[FinishedRun]) -> list[FinishedRun]:
    """The newest of equal runs, in the order of their folders."""
    by_spec = {run.spec.digest(): run for run in sorted(runs, key=lambda run: run.finished)}
    return sorted(by_spec.values(), key=lambda run: run.folder)
