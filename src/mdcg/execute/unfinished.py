"""Groups that were begun and not finished: which runs are in them, and where their checkpoints are."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from mdcg.files import write_atomic
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.train.checkpoint import DONE, MEMBERS, Checkpoints

GROUPS = ".groups"  # their folders, below the store


def group_folder(store: Store, specs: Sequence[RunSpec]) -> Path:
    """The folder of a group's checkpoints: with other probes it is another one, for what they missed is not there."""
    names = "\n".join([*(spec.name for spec in specs), *(f"probe {probe}" for probe in sorted(store.probes))])
    return store.root / GROUPS / hashlib.blake2b(names.encode(), digest_size=8).hexdigest()


def is_begun(store: Store, specs: Sequence[RunSpec]) -> bool:
    """Whether exactly these runs have begun together."""
    return (group_folder(store, specs) / MEMBERS).exists()


def note_group(store: Store, specs: Sequence[RunSpec]) -> None:
    """Write down who is in a group, so that it is known as begun."""
    content = {"members": [spec.name for spec in specs], "probes": list(store.probes)}
    write_atomic(group_folder(store, specs) / MEMBERS, json.dumps(content).encode())


def begun(store: Store) -> list[tuple[Path, list[str]]]:
    """The folder and run names of each unfinished group that the store's probes look at."""
    return [(folder, names) for folder, names, probes in _groups(store) if probes == set(store.probes)]


def begun_otherwise(store: Store) -> list[list[str]]:
    """The run names of each unfinished group that other probes look at: what the store's missed is not there."""
    return [names for _, names, probes in _groups(store) if probes != set(store.probes)]


def tidy(store: Store, specs: Sequence[RunSpec]) -> None:
    """Remove what is left of groups whose runs are all finished, in whatever company."""
    for folder in (store.root / GROUPS).glob(f"*{DONE}"):
        shutil.rmtree(folder, ignore_errors=True)
    finished = {spec.name for spec in specs if store.finished(spec) is not None}
    for folder, names in begun(store):
        if finished.issuperset(names):
            Checkpoints(folder).discard()


def _groups(store: Store) -> Iterator[tuple[Path, list[str], set[str]]]:
    """The folder, run names and probes of each unfinished group."""
    for folder in sorted((store.root / GROUPS).glob("*")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            content = json.loads((folder / MEMBERS).read_text())
            names, probes = list(map(str, content["members"])), set(map(str, content["probes"]))
            if not folder.name.endswith(DONE) and len(set(names)) == len(names) > 0:
                yield folder, names, probes
