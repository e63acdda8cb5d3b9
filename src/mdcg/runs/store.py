"""The store: one self-describing folder per finished run, and archives of runs that have none.

runs/c10-5_md-cg_m500_s0_1f2e3d4c5b/
    recipe.yaml          repeats the run
    result.json          R, metrics, history, time, environment; its presence says that the run is finished
    model.safetensors    the trained member
    measured/drift.json  what the probe `drift` measured while it trained, if it was asked to
runs/older.jsonl         an archive: finished runs, one per line
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import yaml
from pydantic import BaseModel

from mdcg.errors import MachineError, MdcgError, machine_trouble, unknown
from mdcg.files import remove_owner, remove_partial, shown, unlink_link, write_atomic
from mdcg.folders import Note, walk
from mdcg.runs.archive import SUFFIX, read_archive
from mdcg.runs.record import DAMAGE, NewerFormat, Record, as_record
from mdcg.runs.spec import RunSpec
from mdcg.saved import SavedModel
from mdcg.stored import NotNegative, Rows, json_of, read_as, read_bytes, warn_of

RESULT, RECIPE, MODEL, MEASURED = "result.json", "recipe.yaml", "model.safetensors", "measured"
Archived = Mapping[str, tuple[Path, Record]]  # by the digest of its spec: where a run stands, as ARCHIVE/NAME


class Measurements(BaseModel):
    """The measurements that one probe made of one run."""

    rows: Rows  # one per look: task and epoch (from 1; 0 epochs: the task begins), step, quantities
    seconds: NotNegative  # that it took, this run's share


class Store:
    """A folder of runs. A run is finished when its result is there, and what `probes` were to measure.

    Archives anywhere in the folder count, too: they are read once, when first asked for. Of a run that is there twice
    its own folder counts, else the newest line.
    """

    def __init__(self, root: Path, probes: Sequence[str] = ()) -> None:
        self.root, self.probes = root, tuple(dict.fromkeys(probes))

    def folder(self, spec: RunSpec) -> Path:
        """The folder of a run, whether it is there yet or not."""
        return self.root / spec.name

    def where(self, spec: RunSpec) -> Path:
        """The folder of a run; of one that has none, archive and name."""
        archived = None if self._own(spec) else self.archived(spec)
        return archived[0] if archived else self.folder(spec)

    def finished(self, spec: RunSpec) -> Record | None:
        """The record of a run that is done, with what `probes` were to measure. A damaged one counts as not done."""
        return self.stored(spec) if self.probes else self.result(spec)

    def stored(self, spec: RunSpec) -> Record | None:
        """The record of a finished run in its own folder: only there is a model, and what was measured."""
        record = self._own(spec)
        return record if all(measured_file(self.folder(spec), probe).is_file() for probe in self.probes) else None

    def result(self, spec: RunSpec) -> Record | None:
        """The record of a finished run, whatever was measured."""
        own = self._own(spec)
        archived = self.archived(spec) if own is None else None
        return archived[1] if archived else own

    def archived(self, spec: RunSpec) -> tuple[Path, Record] | None:
        """The place and record of a run in an archive, if it stands in one."""
        found = self._archived.get(spec.digest())
        return found if found and found[1].spec == spec else None

    def _own(self, spec: RunSpec) -> Record | None:
        try:
            record = read_record(self.folder(spec))
        except (NewerFormat, MachineError):
            raise
        except MdcgError as error:
            file = self.folder(spec) / RESULT
            if not _is_missing(error) and file.exists():
                warn_of(file, f"{str(error).partition(';')[0]}; its run counts as not done, and is trained anew.")
            return None
        return record if record.spec == spec else None

    def write(self, record: Record, model: SavedModel, measured: Mapping[str, Measurements]) -> None:
        """Write a run to its folder, the result last: a folder that has it is complete.

        A run that is repeated for the sake of its probes comes to the same result, which then stays as it is. If it
        does not, on another machine for instance, all that was stored before gives way.
        """
        folder = self.folder(record.spec)
        before = self._own(record.spec)
        same = before is not None and before.correct == record.correct
        if before is not None and not same:
            self.forget(record.spec)
        unlink_link(folder / MEASURED)  # to other files than this run's
        for probe, found in measured.items():
            write_atomic(measured_file(folder, probe), found.model_dump_json().encode())
        if same:
            return
        write_atomic(folder / RECIPE, yaml.safe_dump(record.spec.as_recipe(), sort_keys=False).encode())
        model.save(folder / MODEL)
        accuracy = record.class_accuracy
        content = record.model_dump() | record.computed()
        content["class_accuracy"] = None if accuracy is None else accuracy.tolist()
        write_atomic(folder / RESULT, (json.dumps(content, allow_nan=False) + "\n").encode())

    def forget(self, spec: RunSpec) -> None:
        """Make a run in its own folder count as not done; its files are overwritten when it is."""
        (self.folder(spec) / RESULT).unlink(missing_ok=True)
        unlink_link(self.folder(spec) / MEASURED)
        for file in (self.folder(spec) / MEASURED).glob("*.json"):
            file.unlink(missing_ok=True)

    def tidy(self, spec: RunSpec) -> None:
        """Remove what killed processes left in the folder of a run: half-written files, and their names."""
        folder = self.folder(spec)
        remove_partial(folder)
        remove_owner(folder)
        if not (folder / MEASURED).is_symlink():
            remove_partial(folder / MEASURED)

    def records(self, unreadable: list[tuple[Path, str]] | None = None) -> Iterator[tuple[Path, Record]]:
        """Every finished run below the folder, also in folders of folders, with its own folder; in order of names.

        Then those that archives alone hold, with archive and name. Other files and folders are passed over. What looks
        like a run and cannot be read is added to `unreadable`, with a sentence that says why.
        """
        refused = [] if unreadable is None else unreadable

        def note(folder: Path, why: str) -> None:
            if folder != self.root or self.root.exists():  # no folder yet: no runs yet
                refused.append((folder, f"cannot read {shown(folder)}: {why}."))

        folders, archives = self._look(note)
        own = set[str]()
        for folder in folders:
            try:
                record = read_record(folder)
            except MdcgError as error:
                if not _is_missing(error):  # another process has just begun it anew
                    refused.append((folder / RESULT, str(error)))
                continue
            if archives:
                own.add(record.spec.digest())
            yield folder, record
        refused += [(path, reason) for path in archives for reason in read_archive(path).unreadable]
        yield from (entry for digest, entry in newest(archives).items() if digest not in own)

    def named(self, unreadable: list[tuple[Path, str]] | None = None) -> Iterator[tuple[str, Record]]:
        """Every finished run by the name under which `find` has it, see `records`."""
        for place, record in self.records(unreadable):
            if archive_of(place):
                yield place.name, record
            else:
                yield str(place.relative_to(self.root)) if place != self.root else place.resolve().name, record

    def find(self, name: str) -> tuple[Path, Record]:
        """Find a run by path, or by name in this store: where it is, and its record."""
        paths = (Path(name), self.root / name)
        for path in paths:
            if (path / RESULT).is_file():
                return path, read_record(path)
        within = archive_of(Path(name))
        archived = {entry[0].name: entry for entry in (newest([within]) if within else self._archived).values()}
        if (asked := Path(name).name if within else name) in archived:
            return archived[asked]
        for path in paths:
            if path.is_dir() and path != self.root:
                raise MdcgError(f"{path} holds no finished run; give the same 'mdcg run' command again to finish it.")
        known = [str(folder.relative_to(self.root)) for folder in self._look()[0]]
        if not known and not archived:
            raise MdcgError(f"there is no run '{name}', and no finished run in {self.root}; give --out or a path.")
        raise unknown("run", name, [*known, *archived])

    def damaged(self) -> list[str]:
        """A sentence for each line of an archive that cannot be read: its run counts as not done."""
        return [reason for path in self._look()[1] for reason in read_archive(path).unreadable]

    @cached_property
    def _archived(self) -> Archived:
        archives = self._look()[1]
        for path in archives:
            if newer := read_archive(path).newer:  # which run it is cannot be told, so none may be made again
                raise NewerFormat(newer)
        return newest(archives)

    def _look(self, note: Note = lambda folder, why: None) -> tuple[list[Path], list[Path]]:
        """Find folders of runs, and archives, in order of names; not those within a run's folder, nor hidden ones."""
        runs, archives = list[Path](), list[Path]()
        if self.root.suffix.lower() == SUFFIX and self.root.is_file():
            return [], [self.root]
        for folder, folders, files in walk(self.root, note):
            folders[:] = [name for name in folders if not name.startswith(".")]
            if RESULT in files and _may_be_file(folder / RESULT):  # a pipe or a dead link is no result
                folders.clear()  # the run's own
                runs.append(folder)
                continue
            named = [name for name in files if name.lower().endswith(SUFFIX) and not name.startswith(".")]
            archives += [folder / name for name in named if _may_be_file(folder / name)]
        return runs, archives


def _may_be_file(path: Path) -> bool:
    """Whether there is a file; of what may not be looked at, reading it says why."""
    try:
        return path.is_file()
    except OSError:
        return True


def newest(archives: Iterable[Path]) -> Archived:
    """The runs of these archives, in order of names; of equal ones the line that was finished last."""
    found: dict[str, tuple[Path, Record]] = {}
    for path in archives:
        for record in read_archive(path).records:
            digest, when = record.spec.digest(), record.environment.finished or ""
            if digest not in found or when > (found[digest][1].environment.finished or ""):
                found[digest] = path / record.spec.name, record
    return dict(sorted(found.items(), key=lambda entry: entry[1][0].name))


def archive_of(place: Path) -> Path | None:
    """The archive that a run stands in, if it has no folder."""
    return place.parent if place.parent.suffix.lower() == SUFFIX and place.parent.is_file() else None


def read_record(folder: Path) -> Record:
    """Read the record of the run in this folder."""
    path = folder / RESULT
    try:
        return as_record(json_of(read_bytes(path)), str(path))
    except OSError as error:
        raise machine_trouble(error) or MdcgError(f"cannot read {path}: {error.strerror}; check the path.") from error
    except DAMAGE as error:
        raise MdcgError(f"{path} is damaged, or is no result of mdcg; repeat the run with --fresh.") from error


def _is_missing(error: MdcgError) -> bool:
    """Whether a record could not be read because there is none."""
    return isinstance(error.__cause__, FileNotFoundError)


def measured_file(folder: Path, probe: str) -> Path:
    """The file for what a probe measured of a run."""
    return folder / MEASURED / f"{probe}.json"


def read_measurements(folder: Path, probe: str) -> Measurements:
    """Read what a probe measured of the run in this folder."""
    path = measured_file(folder, probe)
    try:
        return read_as(Measurements, path)
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; repeat the run with --probe {probe}.") from error
    except ValueError as error:
        raise MdcgError(f"{path} is damaged; remove it, and repeat the run with --probe {probe}.") from error
