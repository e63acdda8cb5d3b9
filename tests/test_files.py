"""Whole files, locks, and what killed processes leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mdcg.errors import Busy, MachineError, MdcgError
from mdcg.files import atomic_file, is_locked, locked, remove_partial, write_atomic
from mdcg.runs.store import Store


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"first")
    with contextlib.suppress(RuntimeError), atomic_file(path) as partial:
        partial.write_bytes(b"second, but")
        raise RuntimeError
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"


def test_only_orphans_are_swept_up(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    orphan, mine = tmp_path / f".a.{ended.pid}.partial", tmp_path / f".b.{os.getpid()}.partial"
    for file in (orphan, mine, tmp_path / "result.partial"):
        file.write_bytes(b"half")
    remove_partial(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([mine.name, "result.partial"])


def test_on_windows_nothing_is_asked_of_folders_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a folder cannot be opened, and signal 0 is Ctrl-C."""

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "kill", refuse)
    write_atomic(tmp_path / "file", b"content")
    (tmp_path / ".a.1.partial").write_bytes(b"half")
    remove_partial(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".a.1.partial", "file"]


def test_locks_name_their_owner_and_end_with_it(tmp_path: Path) -> None:
    code = "import pathlib\nfrom mdcg.files import locked\nwith locked(pathlib.Path()):\n  print(flush=True)\n  input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    assert is_locked(tmp_path)
    for _ in range(2):  # who asks in vain does not wipe out the name
        with pytest.raises(Busy, match=f"in use by process {other.pid}; wait for it"), locked(tmp_path):
            pass
    other.kill()
    other.wait()
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_a_folder_is_held_once_even_by_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    with locked(folder):
        assert is_locked(folder)
        with pytest.raises(Busy, match=f"in use by process {os.getpid()};"), locked(folder):
            pass
        (folder / ".owner").unlink()
        with pytest.raises(Busy, match="in use by another process;"), locked(folder):
            pass
        assert is_locked(folder)  # the refused left it alone
    assert not is_locked(folder)
    with locked(folder):
        pass


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "missing")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_held(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot write in"), locked(tmp_path / "file"):
        pass
    (tmp_path / ".lock").mkdir()
    with pytest.raises(MachineError, match="cannot write in"), locked(tmp_path):
        pass


def test_what_only_unix_has_is_not_needed(tmp_path: Path) -> None:
    """Import and train as where there is neither `fcntl` nor `resource`; nothing is left that looks like a lock."""
    code = (
        "import os, sys\n"
        "sys.modules['fcntl'] = sys.modules['resource'] = None\n"
        "del os.sysconf\n"
        "import mdcg\n"
        "mdcg.run(scenario='digits-2', method='naive', epochs=1, out=sys.argv[1], quiet=True)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "runs"], check=True)
    ((folder, record),) = Store(tmp_path / "runs").records()
    assert record.environment.versions.python
    assert record.environment.peak_memory is record.environment.hardware.ram is None
    assert not is_locked(folder)
    assert not (folder / ".owner").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(MdcgError, match="No space left on device; make room"),
        atomic_file(tmp_path / "x"),
        Path("/dev/full").open("wb") as full,
    ):
        full.write(b"x" * 100_000)
    assert not list(tmp_path.iterdir())


def test_no_pickle_is_read() -> None:
    """Nothing in the package can unpickle: the module is never touched, and torch.load reads tensors alone."""
    source = Path(sys.modules["mdcg"].__file__ or "").parent
    for file in source.rglob("*.py"):
        text = file.read_text()
        assert not re.search(r"\b(import|from) (pickle|cloudpickle|dill|joblib)\b", text), file
        for call in re.findall(r"torch\.load\([^\n]*", text):
            assert "weights_only=True" in call, file
