"""Files that appear whole or not at all, and folders that one process holds."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from mdcg.errors import Busy, MachineError

PARTIAL = ".partial"  # suffix of a file that is still being written
LOCK = ".lock"  # file that a folder is held by
OWNER = ".owner"  # and one that names who holds it: a locked file cannot be read on every system


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; then flush the file to disk and rename it to `path`.

    A reader or a crash never sees half a file.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _flush(partial)
        partial.replace(path)
        _flush_folder(path.parent)  # a rename is on disk only once its folder is
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(
            f"cannot write {path}: {reason}; make room or choose a writable folder, then give the same command again."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all."""
    with atomic_file(path) as partial:
        partial.write_bytes(content)


def _flush(file: Path) -> None:
    with file.open("rb+") as opened:  # Windows flushes only what may be written
        os.fsync(opened.fileno())


def _flush_folder(folder: Path) -> None:
    if sys.platform == "win32":  # which cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_partial(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left half-written in a folder; with a `name`, of that file alone."""
    for file in folder.glob(f".{'' if name is None else f'{glob.escape(name)}.'}*{PARTIAL}"):
        owner = file.name.removesuffix(PARTIAL).rpartition(".")[2]
        if not (owner.isdigit() and _is_running(int(owner))):
            file.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    if sys.platform == "win32":  # where signal 0 is Ctrl-C: rather leave a file than end its writer
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def readable(path: Path) -> str:
    """A path as text, whatever bytes its name is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


def shown(path: Path | str, length: int = 300) -> str:
    """A path for a sentence: on one line and not endless, whatever it is made of.

    >>> shown("birds\\n\\udce9/" + 1000 * "x" + ".png", 20)
    'birds �/xx…xxxxx.png'
    """
    text = "".join(" " if c.isspace() else c if c.isprintable() else "\ufffd" for c in str(path))
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - half]}…{text[-half:]}"


def is_locked(folder: Path) -> bool:
    """Whether a process has locked `folder`."""
    if not (folder / LOCK).exists():  # nobody ever held it, and to try would leave a file
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # not ours to hold
        return False


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process alone; the system unlocks it when the process ends, however it ends."""
    lock, owner = FileLock(folder / LOCK, timeout=0), folder / OWNER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise Busy(f"{folder} is in use by {_name(owner)}; wait for it to end, or choose another folder.") from None
    except OSError as error:
        raise MachineError(
            f"cannot write in {folder}: {error.strerror or error}; choose another folder for it."
        ) from error
    try:
        with contextlib.suppress(OSError):  # held all the same
            owner.write_text(f"process {os.getpid()}", "utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink()
        lock.release()


def _name(owner: Path) -> str:
    """The process that has locked a folder, as far as it has told."""
    try:
        return owner.read_text("utf-8") or "another process"
    except (OSError, ValueError):
        return "another process"
