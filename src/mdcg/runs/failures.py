"""The notes on runs that failed, beside where their result would be: a sweep does not try them again unasked."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from pydantic import BaseModel

from mdcg.files import write_atomic
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.stored import read_as, warn_of

FAILED = "failed.json"


class FailureNote(BaseModel):
    """The note on a run that failed."""

    reason: str  # a sentence
    details: str = ""  # the traceback, where it is nobody's mistake
    when: str = ""  # UTC, ISO 8601


def failure(store: Store, spec: RunSpec) -> str | None:
    """The reason why a run failed, if it did and has not been finished since."""
    path = store.folder(spec) / FAILED
    try:
        return read_as(FailureNote, path).reason
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        warn_of(path, f"{path}, the note on a run that failed, is damaged; the run is tried again.")
        return None


def note_failure(store: Store, spec: RunSpec, reason: str, details: str = "") -> None:
    """Write down why a run failed."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    note = FailureNote(reason=reason, details=details, when=when)
    write_atomic(store.folder(spec) / FAILED, json.dumps(note.model_dump()).encode())


def forget_failure(store: Store, spec: RunSpec) -> None:
    """Remove the note on a run that failed."""
    (store.folder(spec) / FAILED).unlink(missing_ok=True)
