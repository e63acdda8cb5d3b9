"""Whole files, locks, and what killed processes leave behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mdcg.errors import MdcgError
from mdcg.files import locked, remove_partial, whole_file, write_whole


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_whole(path, b"first")
    with contextlib.suppress(RuntimeError), whole_file(path) as partial:
        partial.write_bytes(b"second, but")
        raise RuntimeError
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"


def test_only_orphans_are_swept_up(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    orphan, mine = tmp_path / f".a.{ended.pid}.partial", tmp_path / f".b.{os.getpid()}.partial"
    for file in (orphan, mine, tmp_path / "result.partial"):
        file.write_bytes(b"half")
    remove_partial(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([mine.name, "result.partial"])


def test_locks_name_their_owner_and_end_with_it(tmp_path: Path) -> None:
    code = "import pathlib\nfrom mdcg.files import locked\nwith locked(pathlib.Path()):\n  print(flush=True)\n  input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(MdcgError, match=f"in use by process {other.pid}"), locked(tmp_path):
        pass
    other.kill()
    other.wait()
    with locked(tmp_path):
        pass
