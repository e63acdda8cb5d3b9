"""Groups that were begun and not finished: which runs are in them, and where their checkpoints are."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from mdcg.errors import MdcgError
from mdcg.files import remove_folder, remove_partial, unlink_link, write_atomic
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store, measured_file, read_record
from mdcg.stored import read_as, warn_of
from mdcg.train.checkpoint import DONE, MEMBERS, Checkpoints

GROUPS = ".groups"  # their folders, below the store


class GroupNote(BaseModel):
    """The note on who is in a group that was begun."""

    members: Annotated[list[str], Field(min_length=1)]  # names of runs
    probes: list[str]

    @field_validator("members")
    @classmethod
    def _differ(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("a run is named twice")
        return value


def group_folder(store: Store, specs: Sequence[RunSpec]) -> Path:
    """The folder of a group's checkpoints: with other probes it is another one, for what they missed is not there."""
    names = "\n".join([*(spec.name for spec in specs), *(f"probe {probe}" for probe in sorted(store.probes))])
    return store.root / GROUPS / hashlib.blake2b(names.encode(), digest_size=8).hexdigest()


def is_begun(store: Store, specs: Sequence[RunSpec]) -> bool:
    """Whether exactly these runs have begun together."""
    return (group_folder(store, specs) / MEMBERS).exists()


def note_group(store: Store, specs: Sequence[RunSpec]) -> None:
    """Write down who is in a group, so that it is known as begun."""
    note = GroupNote(members=[spec.name for spec in specs], probes=list(store.probes))
    folder = group_folder(store, specs)
    unlink_link(folder)
    write_atomic(folder / MEMBERS, json.dumps(note.model_dump()).encode())


def begun(store: Store) -> list[tuple[Path, list[str]]]:
    """The folder and run names of each unfinished group that the store's probes look at."""
    return [(folder, names) for folder, names, probes in _groups(store) if probes == set(store.probes)]


def begun_otherwise(store: Store) -> list[list[str]]:
    """The run names of each unfinished group that other probes look at: what the store's missed is not there."""
    return [names for _, names, probes in _groups(store) if probes != set(store.probes)]


def tidy(store: Store, specs: Sequence[RunSpec]) -> None:
    """Remove what kills have left: half-written files, and groups whose runs are all finished, in whatever company."""
    remove_partial(store.root)
    for spec in specs:
        store.tidy(spec)
    groups = store.root / GROUPS
    if groups.is_symlink():  # what it leads to may be anything
        return
    for folder in list(groups.glob("*")):
        with contextlib.suppress(OSError):
            if folder.name.endswith(DONE):
                remove_folder(folder)
            elif not folder.is_symlink():
                remove_partial(folder)
                folder.rmdir()  # if nothing is in it
    known = {spec.name: spec for spec in specs}
    for folder, names, probes in _groups(store):
        if all(_is_finished(store, name, probes, known) for name in names):
            Checkpoints(folder).discard()


def _is_finished(store: Store, name: str, probes: set[str], known: Mapping[str, RunSpec]) -> bool:
    """Whether a run is finished, of this sweep or another, with what these probes were to measure."""
    if name in known and probes == set(store.probes):
        with contextlib.suppress(MdcgError):
            return store.finished(known[name]) is not None
        return False
    return finished_run(store, name, probes) is not None


def finished_run(store: Store, name: str, probes: Collection[str]) -> RunSpec | None:
    """The run of this name, if it is finished in a folder of its own, with what these probes were to measure."""
    folder = store.root / name
    try:
        spec = read_record(folder).spec
    except MdcgError:
        return None
    measured = all(measured_file(folder, probe).is_file() for probe in probes)
    return spec if spec.name == name and measured else None


def _groups(store: Store) -> Iterator[tuple[Path, list[str], set[str]]]:
    """The folder, run names and probes of each unfinished group."""
    for folder in sorted((store.root / GROUPS).glob("*")):
        path = folder / MEMBERS
        if folder.name.endswith(DONE) or not path.exists():
            continue
        try:
            note = read_as(GroupNote, path)
        except FileNotFoundError:  # another process has just finished it
            continue
        except (OSError, ValueError):
            warn_of(path, f"{path}, which names the runs of a group, is damaged; they start anew. Remove {folder}.")
        else:
            yield folder, note.members, set(note.probes)
