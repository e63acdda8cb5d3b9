"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from mdcg.errors import Busy, MachineError

PARTIAL = ".partial"  # suffix of a file that is still being written


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to, beside `path`; then flushed to disk and renamed to `path`.

    A reader or a crash never sees half a file.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)  # a rename is on disk only once its folder is
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(
            f"cannot write {path}: {reason}; make room or choose a writable folder, then give the same command again."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(content)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_partial(folder: Path) -> None:
    """Sweep up what killed processes left half-written."""
    for file in folder.glob(f".*{PARTIAL}"):
        owner = file.name.removesuffix(PARTIAL).rpartition(".")[2]
        if not (owner.isdigit() and _is_running(int(owner))):
            file.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def in_use(folder: Path) -> bool:
    """Whether a process holds `folder`."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody ever held it
        return False
    return False


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process alone; the system lets go when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+")
    except OSError as error:
        raise MachineError(
            f"cannot write in {folder}: {error.strerror or error}; choose another folder for it."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise Busy(f"{folder} is in use by {owner}; wait for it to end, or choose another folder.") from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
