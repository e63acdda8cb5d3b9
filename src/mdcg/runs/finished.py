"""A finished run as results, reports and figures see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdcg.files import readable
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import measured_file, read_measurements


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: where it lies, its record, and what was measured of it."""

    folder: Path  # of a run that has none, archive and name
    record: Record

    @property
    def spec(self) -> RunSpec:
        return self.record.spec

    @property
    def finished(self) -> str:
        """The time when it was finished, as ISO 8601; empty where the record does not say."""
        return self.record.environment.finished or ""

    @property
    def printable(self) -> str:
        """The folder as text; no path can be made of it again."""
        return readable(self.folder)

    def has(self, probe: str) -> bool:
        """Whether a probe has measured it."""
        return measured_file(self.folder, probe).is_file()

    def measured(self, probe: str) -> list[dict[str, Any]]:
        """The rows that a probe measured, one per look: task (from 1), epoch (0: the task begins), step, quantities."""
        return read_measurements(self.folder, probe).rows

    def named(self) -> dict[str, Any]:
        """The columns that tell its rows from those of other runs."""
        return {"method": self.spec.method, "memory": self.spec.memory, "seed": self.spec.seed}
