"""Which runs train together: groups that were begun go on as they were, the rest is grouped anew."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mdcg.data import Dataset
from mdcg.files import write_whole
from mdcg.runs.fingerprint import changed
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.train.checkpoint import DONE, MEMBERS, Checkpoints
from mdcg.train.group import SMALL

GROUPS = ".groups"  # checkpoints of unfinished groups, below the store
Warn = Callable[[str], None]


def silent(text: str) -> None:
    """For those who want no warnings."""


def aloud(text: str) -> None:
    """On standard error."""
    print(f"mdcg: {text}", file=sys.stderr)


def default_members(dataset: Dataset, device: str) -> int:
    """On a CPU only small images gain from company; larger ones would just take more memory."""
    return 64 if device == "cuda" or dataset.shape[1] <= SMALL else 1


def split(specs: list[RunSpec], parts: int) -> list[list[RunSpec]]:
    """Parts of nearly equal size, in order."""
    ends = [len(specs) * (part + 1) // parts for part in range(parts)]
    return [specs[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def plan(
    store: Store,
    specs: Sequence[RunSpec],
    most: Callable[[RunSpec], int],
    fresh: bool = False,
    warn: Warn = silent,
) -> list[list[RunSpec]]:
    """Groups to train: first those that were begun and not finished, as they were; then new ones, at most so large.

    It only looks: nothing on disk is changed.
    """
    asked = {spec.name: spec for spec in specs}
    open_ = {name: spec for name, spec in asked.items() if fresh or store.finished(spec) is None}
    groups: list[list[RunSpec]] = []
    for names in [] if fresh else begun_otherwise(store):
        if any(name in open_ for name in names):
            warn(f"{len(names)} runs were begun with other probes, among them some asked for now; these start anew.")
    for _, names in [] if fresh else begun(store):
        if not any(name in open_ for name in names):
            continue
        if all(name in asked for name in names):
            together = [asked[name] for name in names]
            if len({spec.group_key() for spec in together}) == 1:
                groups.append(together)
                open_ = {name: spec for name, spec in open_.items() if name not in names}
        else:
            warn(
                f"{len(names)} runs were begun together and not finished, among them some asked for now; these "
                "start anew. To go on with all of them, ask for all of them as before."
            )
    new: dict[str, list[RunSpec]] = {}
    for spec in open_.values():
        new.setdefault(spec.group_key(), []).append(spec)
    for together in new.values():
        size = most(together[0])
        groups += [together[start : start + size] for start in range(0, len(together), size)]
    return groups


def say_what_is_repeated(store: Store, specs: Sequence[RunSpec], warn: Warn) -> None:
    """Finished runs that train once more, because probes have not looked at them or their code has changed.

    And others that may, because their archive is damaged.
    """
    for reason in store.damaged():
        warn(reason)
    again = sum(store.finished(spec) is None and store.result(spec) is not None for spec in specs)
    if again:
        warn(f"{again} finished runs are trained again, so that {', '.join(store.probes)} can look at them.")
    _say_what_code_has_changed(store, specs, warn)


def _say_what_code_has_changed(store: Store, specs: Sequence[RunSpec], warn: Warn) -> None:
    """Finished runs of a user's own code as it was before, where it now trains runs of the same settings."""
    new = {_whatever_code(spec): spec for spec in specs if spec.code and store.result(spec) is None}
    if not new:
        return
    older = [record.spec for _, record in store.records() if _whatever_code(record.spec) in new]
    what = {
        f"{kind} '{getattr(spec, kind)}'"
        for spec in older
        for kind in changed(spec.code, new[_whatever_code(spec)].code)
    }
    if older:
        runs = "a finished run was" if len(older) == 1 else f"{len(older)} finished runs were"
        warn(
            f"the code of {' and '.join(sorted(what))} has changed since {runs} made; what is there is left as it is, "
            "and these are trained anew."
        )


def _whatever_code(spec: RunSpec) -> str:
    """The same for all runs with the same settings."""
    return spec.model_copy(update={"code": ""}).digest()


def begun(store: Store) -> list[tuple[Path, list[str]]]:
    """Folder and run names of each unfinished group that the store's probes look at."""
    return [(folder, names) for folder, names, probes in _groups(store) if probes == set(store.probes)]


def begun_otherwise(store: Store) -> list[list[str]]:
    """Run names of each unfinished group that others look at: what the store's probes missed is not there."""
    return [names for _, names, probes in _groups(store) if probes != set(store.probes)]


def note_group(store: Store, specs: Sequence[RunSpec]) -> None:
    """So that it is known as begun."""
    content = {"members": [spec.name for spec in specs], "probes": list(store.probes)}
    write_whole(group_folder(store, specs) / MEMBERS, json.dumps(content).encode())


def _groups(store: Store) -> Iterator[tuple[Path, list[str], set[str]]]:
    """Folder, run names and probes of each unfinished group."""
    for folder in sorted((store.root / GROUPS).glob("*")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            content = json.loads((folder / MEMBERS).read_text())
            names, probes = list(map(str, content["members"])), set(map(str, content["probes"]))
            if not folder.name.endswith(DONE) and len(set(names)) == len(names) > 0:
                yield folder, names, probes


def tidy(store: Store, specs: Sequence[RunSpec], warn: Warn) -> None:
    """Remove what is left of groups whose runs are all finished, in whatever company."""
    for folder in (store.root / GROUPS).glob(f"*{DONE}"):
        shutil.rmtree(folder, ignore_errors=True)
    finished = {spec.name for spec in specs if store.finished(spec) is not None}
    for folder, names in begun(store):
        if finished.issuperset(names):
            Checkpoints(folder, warn).discard()


def group_folder(store: Store, specs: Sequence[RunSpec]) -> Path:
    """Where a group keeps its checkpoints: with other probes it is another one, for what they missed is not there."""
    names = "\n".join([*(spec.name for spec in specs), *(f"probe {probe}" for probe in sorted(store.probes))])
    return store.root / GROUPS / hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
