"""The notes on why cells of the paper's tables differ from ours: `notes.yaml`, a list of entries such as

- {table: 1, scenario: c10-5, method: replay, memory: 2000, says: The paper prints one number twice.}

where `memory` may be a list, or left out for all sizes, and `preset: published` is about runs with that preset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mdcg import paper
from mdcg.errors import MdcgError
from mdcg.files import open_file
from mdcg.methods.base import Preset
from mdcg.recipes.settings import explain

NOTES = "notes.yaml"
Noted = Mapping[tuple[paper.Cell, Preset], str]  # what is said of each cell


class Note(BaseModel):
    """One entry of the notes, about one cell or several."""

    model_config = ConfigDict(extra="forbid")

    table: int
    scenario: str
    method: str
    memory: list[int] = []
    preset: Preset = "paper"
    says: str = Field(min_length=1)

    @field_validator("memory", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return value if isinstance(value, list) else [value]

    def cells(self) -> list[paper.Cell]:
        """The cells that it is about, of those with a deviation: others cannot be told to differ."""
        named = (self.table, self.scenario, self.method)
        own = {
            cell.memory: cell
            for cell in paper.cells()
            if (cell.table, cell.scenario, cell.method) == named and cell.acc_std is not None
        }
        if not own or not set(own).issuperset(self.memory):
            sizes = f" with memory {sizes_in_words(self.memory)}" if self.memory else ""
            raise MdcgError(
                f"Table {self.table} of the paper has no ± for {self.method} on {self.scenario}{sizes}; name cells "
                "that it has."
            )
        return [own[memory] for memory in self.memory or own]


def read_notes(path: Path) -> Noted:
    """Read what each entry says of each cell; nothing where there is no such file."""
    try:
        entries = []
        if path.exists():
            with open_file(path) as file:
                entries = yaml.safe_load(file.read().decode())
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no text, or an impossible date
        raise MdcgError(f"{path} is not valid YAML ({' '.join(str(error).split())}); correct it.") from error
    if not isinstance(entries, list | None):
        raise MdcgError(f"{path} must be a list of notes, each with table, scenario, method, memory and says.")
    noted: dict[tuple[paper.Cell, Preset], str] = {}
    for number, entry in enumerate(entries or [], 1):
        try:
            note = Note.model_validate(entry)
            about = [(cell, note.preset) for cell in note.cells()]
            if any(one in noted for one in about):
                raise MdcgError("another entry is about the same cell; keep one.")
        except (ValidationError, MdcgError) as error:
            reason = explain(error) if isinstance(error, ValidationError) else error
            raise MdcgError(f"{path}, entry {number}: {reason}") from error
        noted |= dict.fromkeys(about, " ".join(note.says.split()))
    return noted


def sizes_in_words(sizes: Sequence[int]) -> str:
    """Write memory sizes as words.

    >>> sizes_in_words([200, 500, 1000]), sizes_in_words([2000])
    ('200, 500 and 1,000', '2,000')
    """
    *first, last = [f"{size:,}" for size in sizes] or [""]
    return f"{', '.join(first)} and {last}" if first else last
