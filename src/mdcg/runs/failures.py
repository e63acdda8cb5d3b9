"""The notes on runs that failed, beside where their result would be: a sweep does not try them again unasked."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from mdcg.files import write_atomic
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store

FAILED = "failed.json"


def failure(store: Store, spec: RunSpec) -> str | None:
    """The reason why a run failed, if it did and has not been finished since."""
    try:
        reason = json.loads((store.folder(spec) / FAILED).read_text("utf-8"))["reason"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(reason)


def note_failure(store: Store, spec: RunSpec, reason: str, details: str = "") -> None:
    """Write down why a run failed."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"reason": reason, "details": details, "when": when}
    write_atomic(store.folder(spec) / FAILED, json.dumps(content).encode())


def forget_failure(store: Store, spec: RunSpec) -> None:
    """Remove the note on a run that failed."""
    (store.folder(spec) / FAILED).unlink(missing_ok=True)
