"""Whole files, locks, and what killed processes leave behind."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from mdcg import files
from mdcg.errors import Busy, MachineError, MdcgError
from mdcg.files import LOCK, atomic_file, is_locked, locked, open_file, remove_folder, remove_partial, write_atomic
from mdcg.runs.store import Store


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"first")
    with contextlib.suppress(RuntimeError), atomic_file(path) as file:
        file.write(b"second, but")
        raise RuntimeError
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"


WRITER = """
import sys, pathlib
from mdcg.files import atomic_file
with atomic_file(pathlib.Path(sys.argv[1])) as file:
    (file.write if hasattr(file, "write") else file.write_bytes)(b"half")
    print(flush=True)
    input()
"""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to write a file, and ends it when it is told to."""
    words = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_only_orphans_are_swept_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process writes stays, though its number says nothing here: it may be that of another machine."""

    def unknown(*_: object) -> None:
        raise ProcessLookupError

    with writing(tmp_path / "killed") as killed:
        killed.kill()
        killed.wait()
    (tmp_path / "result.partial").write_bytes(b"somebody else's")
    assert len(names(tmp_path)) == 2
    with writing(tmp_path / "file") as living:
        monkeypatch.setattr(os, "kill", unknown)
        remove_partial(tmp_path)
        assert [name.split(".")[1] for name in names(tmp_path)] == ["file", "partial"]
        monkeypatch.undo()
        living.communicate("\n")
    assert names(tmp_path) == ["file", "result.partial"]


def test_what_was_left_of_a_file_goes_when_it_is_written(tmp_path: Path) -> None:
    with writing(tmp_path / "a") as killed, writing(tmp_path / "b") as other:
        for process in (killed, other):
            process.kill()
            process.wait()
    write_atomic(tmp_path / "a", b"whole")
    assert [name.split(".")[1] for name in names(tmp_path) if name != "a"] == ["b"]


@pytest.mark.parametrize("name", [".x.².partial", ".x.partial", ".x..partial", ".x.-1.partial", ".\n.٣.partial"])
def test_names_that_are_not_ours_are_left(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    remove_partial(tmp_path)
    remove_partial(tmp_path, "x")
    assert names(tmp_path) == [name]


def test_a_name_that_is_as_long_as_can_be(tmp_path: Path) -> None:
    path = tmp_path / (85 * "€")  # of three bytes each
    write_atomic(path, b"content")
    assert path.read_bytes() == b"content"


def test_files_are_written_while_others_sweep(tmp_path: Path) -> None:
    """A file is there before it is locked, and its folder before the file."""
    stop = threading.Event()

    def sweep() -> None:
        while not stop.wait(random.random() / 2000):  # in step with the writer, it would always come in between
            remove_partial(tmp_path / "deep")
            with contextlib.suppress(OSError):
                (tmp_path / "deep").rmdir()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(200):
            write_atomic(tmp_path / "deep" / "file", b"%d" % number)
            assert (tmp_path / "deep" / "file").read_bytes() == b"%d" % number
            (tmp_path / "deep" / "file").unlink()
    finally:
        stop.set()
        sweeper.join()


def test_the_umask_is_respected(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the names that are written nor at those beside them; what they lead to stays as it is."""
    monkeypatch.chdir(tmp_path)
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    precious.write_bytes(b"precious")
    folder.mkdir()
    beside = folder / f".file.{os.getpid()}.partial"
    for name in (".lock", ".owner", "file", beside.name):
        (folder / name).symlink_to(precious)
    assert not is_locked(folder)
    with locked(folder):
        assert is_locked(folder)
        write_atomic(folder / "file", b"new")
    remove_partial(folder)
    assert precious.read_bytes() == b"precious"
    assert (folder / "file").read_bytes() == b"new"
    assert not (folder / "file").is_symlink()


def test_a_pipe_that_names_an_owner(tmp_path: Path) -> None:
    """Nobody waits for what it will never say."""
    with locked(tmp_path):
        (tmp_path / ".owner").unlink()
        os.mkfifo(tmp_path / ".owner")
        with pytest.raises(Busy, match="in use by another process;"), locked(tmp_path):
            pass


def test_the_owner_on_another_machine_is_named_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(tmp_path):
        monkeypatch.setattr("platform.node", lambda: "elsewhere")
        here = re.escape((tmp_path / ".owner").read_text().splitlines()[1])
        with pytest.raises(Busy, match=f"in use by process {os.getpid()} on {here};"), locked(tmp_path):
            pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This is said once, and work goes on; what cannot be locked is not removed, for somebody may be writing it."""

    def without(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", without)
    monkeypatch.setattr("mdcg.files._said", [], raising=False)
    (tmp_path / ".a.0123456789ab.partial").touch()
    for _ in range(2):
        with locked(tmp_path):
            write_atomic(tmp_path / "file", b"content")
            remove_partial(tmp_path)
            assert not is_locked(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / ".a.0123456789ab.partial").exists()
    assert [record.getMessage().partition(", ")[0] for record in caplog.records] == [
        f"the disk of {tmp_path} has no locks"
    ]


def test_too_many_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("fcntl.flock", full)
    with (
        pytest.raises(MachineError, match=r"Too many open files; allow more open files \(ulimit -n\)"),
        locked(tmp_path),
    ):
        pass


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


@pytest.mark.parametrize("removed", [False, True])
def test_who_just_looks_keeps_nobody_out(removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a folder is locked is found out by locking it for a moment; and who held it may remove it at the end."""
    monkeypatch.setattr(files, "PATIENCE", 60.0)
    folder, lock = tmp_path / "held", FileLock(tmp_path / "held" / LOCK, thread_local=False)
    lock.acquire()

    def let_go() -> None:
        if removed:
            remove_folder(folder)
        lock.release()

    ending = threading.Timer(0.05, let_go)
    ending.start()
    with locked(folder):
        assert is_locked(folder)
    ending.join()


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
def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match="it is a pipe, a socket or a device"):
            open_file(path)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with open_file(pipe, pipe=True) as nobody:
        assert nobody.read() == b""


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """However slow its writer is, which was there before."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    both = os.open(pipe, os.O_RDWR)  # so that the writer need not wait for a reader
    writer = os.open(pipe, os.O_WRONLY)

    def write() -> None:
        os.write(writer, b"slow")
        os.close(writer)

    with open_file(pipe, pipe=True) as file:
        os.close(both)
        threading.Timer(0.05, write).start()
        assert file.read() == b"slow"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(MdcgError, match="is a pipe, a socket or a device; name a file to write"):
        write_atomic(pipe, b"x")
    with pytest.raises(MdcgError, match="is a folder; name a file to write"):
        write_atomic(tmp_path, b"x")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_full_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(MdcgError, match="No space left on device; make room"),
        atomic_file(tmp_path / "x"),
        Path("/dev/full").open("wb") as full,
    ):
        full.write(b"x" * 100_000)
    assert not list(tmp_path.iterdir())


def test_no_pickle_is_read() -> None:
    """Nothing in the package unpickles a file: the module is never touched, and torch.load reads tensors alone.

    Ray, which serialises jobs between the processes of a cluster that one trusts, does so by itself.
    """
    source = Path(sys.modules["mdcg"].__file__ or "").parent
    for file in source.rglob("*.py"):
        text = file.read_text()
        assert not re.search(r"\b(import|from) (pickle|cloudpickle|dill|joblib)\b", text), file
        for call in re.findall(r"torch\.load\([^\n]*", text):
            assert "weights_only=True" in call, file


def test_all_is_written_by_one_writer() -> None:
    """Nothing writes around `atomic_file` but logs that only grow, and files that never have a name."""
    source = Path(sys.modules["mdcg"].__file__ or "").parent
    around = (
        r"write_(text|bytes)\(|open\([^)\n]*[\"'][rbt+]*[wax]|mkstemp|NamedTemp|os\.re(place|name)|shutil\.(?!which)"
    )
    files = [file for file in source.rglob("*.py") if "testing" not in file.parts]  # which damages what it has made
    found = {str(file.relative_to(source)) for file in files if re.search(around, file.read_text())}
    assert found == {"files.py", "trackers/tensorboard.py"}
