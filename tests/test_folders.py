"""The walk over folders: as `os.walk` does it, and where that gives up."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mdcg.files import remove_folder
from mdcg.folders import DEEPEST, walk
from mdcg.results.read import find_runs
from mdcg.runs.store import Store
from tests.fake_runs import finished, spec


def dig(place: Path, depth: int, name: str = "d") -> None:
    """Folders in each other, whose path may be longer than the system takes at once."""
    place.mkdir()
    handle = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)


@contextmanager
def little_stack() -> Iterator[None]:
    """Few functions may call each other, so that fewer folders than a thousand are too many for them."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 200)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "place"
    subprocess.run(["/bin/rm", "-rf", tmp_path / "place"], check=True)  # pytest could not


def test_as_the_library_walks(place: Path) -> None:
    for name in ("a/b/c", "a/d", "b", ".hidden/x", "\udcff\udcfe/y", "z\n"):
        (place / name).mkdir(parents=True)
        (place / name / "file").touch()
    for name, to in (("loop", "loop"), ("up", ".."), ("a/here", "."), ("dead", "nowhere")):
        (place / name).symlink_to(to)
    os.mkfifo(place / "a/pipe")
    theirs = {folder: (folders, files) for folder, folders, files in os.walk(place)}
    ours = {str(folder): (folders, others) for folder, folders, others in walk(place)}
    assert ours.keys() == theirs.keys()
    for folder, (folders, others) in ours.items():
        assert sorted([*folders, *others]) == sorted([*theirs[folder][0], *theirs[folder][1]])
        assert not any(Path(folder, name).is_symlink() for name in folders)
    places = [folder for folder, *_ in walk(place)]
    assert places == sorted(places)


def test_what_is_taken_away_is_spared(place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    (place / "c").mkdir()
    seen = []
    for folder, folders, _ in walk(place):
        seen.append(folder.name)
        folders[:] = [name for name in folders if name != "a"]
    assert seen == ["place", "c"]


@pytest.mark.parametrize(("depth", "name"), [(DEEPEST, "d"), (DEEPEST + 1, "d"), (60, "x" * 200)])
def test_how_deep_it_goes(place: Path, depth: int, name: str) -> None:
    dig(place, depth, name)
    told: list[tuple[Path, str]] = []
    seen = len(list(walk(place, lambda folder, why: told.append((folder, why)))))
    if depth > DEEPEST:
        assert (seen, [why for _, why in told]) == (DEEPEST + 1, [f"its folders lie more than {DEEPEST} deep"])
    elif name == "d":
        assert (seen, told) == (depth + 1, [])
    else:
        assert [why for _, why in told] == ["File name too long"]


def test_each_folder_is_read_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    scan = os.scandir

    def counted(folder: Path) -> object:
        read.append(folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", counted)
    for count in (20, 40):
        shutil.rmtree(place, ignore_errors=True)
        for one in range(count):
            (place / str(one) / "inner").mkdir(parents=True)
        read.clear()
        list(walk(place))
        assert len(read) == 2 * count + 1


def test_runs_beside_folders_that_lie_too_deep(place: Path, stored: Path) -> None:
    shutil.copytree(stored, place)
    dig(place / "a", 300)
    (place / "b").symlink_to(place)
    refused: list[tuple[Path, str]] = []
    with little_stack():
        assert len(list(Store(place).records(refused))) == 1
    ((folder, why),) = refused
    assert folder.is_relative_to(place / "a")
    assert why.endswith(f": its folders lie more than {DEEPEST} deep.")
    assert find_runs(place).unreadable == 1


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    run = finished(spec()).record
    (tmp_path / "runs" / run.spec.name).mkdir(parents=True)
    (tmp_path / "runs" / run.spec.name / "result.json").write_text(run.model_dump_json())
    return tmp_path / "runs"


def test_no_folder_of_ours_lies_so_deep(place: Path) -> None:
    dig(place, 300)
    with pytest.raises(OSError, match="too deep in each other"), little_stack():
        remove_folder(place)
