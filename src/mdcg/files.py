"""Files that appear whole or not at all, and folders that one process holds.

Whoever writes a file holds a lock on it, which the system lets go of however the process ends: so any process, on any
machine that shares the disk, can tell what is being written from what a kill has left. Where a disk has no locks, work
goes on without: files are whole all the same, but two commands may do the same work, and what a kill has left stays.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import BinaryIO

from filelock import BaseFileLock, FileLock, Timeout

from mdcg.errors import TROUBLE, Busy, InputError, MachineError, MdcgError, cut, reason_of, said

try:
    import fcntl
except ImportError:  # Windows, where what a kill has left stays
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

PARTIAL = ".partial"  # suffix of a file that is still being written
LEFTOVER = re.compile(r"\.(.+)\.(?:[0-9a-f]{12}|[0-9]+)\.partial", re.DOTALL)  # of older versions: a process's number
LOCK = ".lock"  # file that a folder is held by
OWNER = ".owner"  # and one that names who holds it: a locked file cannot be read on every system
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}  # what a disk without locks answers
READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no links, no waiting for a pipe
NO_FILE = "a pipe, a socket or a device"
SYSTEM: tuple[Path, ...] = (Path("/dev"), Path("/proc"), Path("/sys"))  # where a system like Linux has its own files,
SHARED = Path("/dev/shm")  # but for these
TRIES = 100  # to make a file, while others tidy up beside it
PATIENCE = 0.2  # seconds to wait for a lock: who just looks whether a folder is locked holds it for a moment


@contextlib.contextmanager
def atomic_file(
    path: Path, flush: bool = True, check: Callable[[Path], object] = lambda _: None
) -> Iterator[BufferedRandom]:
    """Give a file to write to, with a name of its own beside `path`; then flush it to disk and rename it to `path`.

    A reader or a crash never sees half a file. What kills have left of earlier ones is removed. A link at `path` gives
    way to the file; what it leads to stays as it is. A pipe or device does not, nor a link among them: root could
    replace /dev/null or /dev/stdin. Just before the file is renamed `check`, given it, may refuse that: see
    `outputs`.
    """
    partial = None
    check_replaceable(path)
    try:
        remove_partial(path.parent, path.name)
        file = _create(path)
        partial = Path(file.name)
        with file:
            yield file
            file.flush()
            if flush:
                _flush(file)
            if sys.platform == "win32":  # which renames nothing that is open
                file.close()
            check(partial)
            partial.replace(path)
        if flush:
            _flush_folder(path.parent)  # a rename is on disk only once its folder is
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> MachineError:
    """The sentence for a file that cannot be written."""
    advice = TROUBLE.get(error.errno or 0, "make room or choose a writable folder")
    return MachineError(f"cannot write {path}: {error.strerror or error}; {advice}, then give the same command again.")


def check_replaceable(path: Path, named: Path | None = None) -> None:
    """Refuse to write where a folder is, a pipe or a device, or among the system's own.

    `named` is the path that a person gave, where that is a link that leads to this one.
    """
    said = shown(path) if named in (None, path) else f"{shown(named or path)} leads to {shown(path)}, which"
    if _is_systems(path):
        raise MdcgError(f"{said} is the system's own; name a file to write elsewhere.")
    try:
        kind = path.lstat().st_mode
    except (OSError, ValueError):  # there is nothing, or it will be said when it is written
        return
    if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
        raise MdcgError(f"{said} is {'a folder' if stat.S_ISDIR(kind) else NO_FILE}; name a file to write.")


def _is_systems(path: Path) -> bool:
    """Whether something lies among the devices and processes: links there, such as /dev/stdin, are no one's to replace.

    What lies in /dev/shm is files.
    """
    try:
        folder = Path(os.path.realpath(path.parent))
    except (OSError, ValueError):
        return False
    return any(root in (folder, *folder.parents) for root in SYSTEM) and SHARED not in (folder, *folder.parents)


def write_atomic(path: Path, content: bytes, check: Callable[[Path], object] = lambda _: None) -> None:
    """Write a file that appears whole or not at all. `check` as in `atomic_file`."""
    with atomic_file(path, check=check) as file:
        _write(file, content)


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _flush(file: BinaryIO) -> None:
    os.fsync(file.fileno())


def _create(path: Path) -> BufferedRandom:
    """Create a file beside `path` and lock it; its name cannot be foreseen, and nothing that has it is opened."""
    for last in (*(TRIES - 1) * (False,), True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.parent / f".{_short(path.name)}.{secrets.token_hex(6)}{PARTIAL}"
            file = partial.open("x+b")
        except (FileNotFoundError, FileExistsError):  # the folder, empty until now, was tidied up
            if last:
                raise
            continue
        if _lock(file.fileno()) is not False and partial.exists():
            return file
        file.close()  # who tidies up was here before the lock
        partial.unlink(missing_ok=True)
    raise OSError(errno.EAGAIN, "others remove what is written")


def _short(name: str) -> str:
    """A file's name, cut so that more can be added to it."""
    return os.fsencode(name)[:200].decode("utf-8", "ignore")


def _lock(handle: int) -> bool | None:
    """Lock an open file until it is closed, and return whether that could be done; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _flush_folder(folder: Path) -> None:
    if sys.platform == "win32":  # which cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_partial(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left half-written in a folder; with a `name`, of that file alone.

    What is still being written, by whatever machine, is locked and stays, and so does what cannot be locked.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = LEFTOVER.fullmatch(entry.name)
            if found and (name is None or found[1] == _short(name)) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_unless_locked(Path(entry.path))


def _remove_unless_locked(file: Path) -> None:
    handle = os.open(file, READ | os.O_RDWR)  # network disks lock only what may be written
    try:
        if _lock(handle) and os.path.samestat(os.fstat(handle), file.lstat()):  # not renamed meanwhile
            file.unlink()
    finally:
        os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it; of a link, the link alone."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        try:
            shutil.rmtree(folder)
        except RecursionError as error:  # it cannot be one of ours, which have no folders in them
            raise OSError(errno.ELOOP, "folders lie too deep in each other", str(folder)) from error


def unlink_link(path: Path) -> None:
    """Remove a link where none of ours can be: what it leads to is not ours to change."""
    if path.is_symlink():
        path.unlink(missing_ok=True)


def open_file(path: Path, pipe: bool = False) -> BufferedReader:
    """Open a file to read it; an OSError where it is none, for a device may be endless, and a pipe without a writer.

    A `pipe` may be allowed, as of `mdcg sweep <(make-recipe)`: one that nobody writes to is empty.
    """
    waiting = getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, os.O_RDONLY | waiting | getattr(os, "O_BINARY", 0))
    kind = os.fstat(handle).st_mode
    if not (stat.S_ISREG(kind) or (pipe and stat.S_ISFIFO(kind))):
        os.close(handle)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, f"it is {NO_FILE}", path)
    if waiting:
        os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")


def path_of(given: object, home: bool = False) -> Path:
    """The path that a person gives in Python; what cannot be the path of any file is refused.

    With `home`, ~ is one's own folder: for what is not named file by file.
    """
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"a file is named by its path, a text or a Path, not by {said(given)}.")
    try:
        path = Path(given).expanduser() if home else Path(given)
        path.lstat()
    except (ValueError, TypeError, RuntimeError) as error:  # a zero byte, no characters, ~nobody
        raise InputError(f"{said(given)} cannot be a path ({reason_of(error)}); check it.") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"'{shown(path, 80)}' is too long to be a path; check it.") from error
    except Exception as error:  # an object of anybody's that calls itself a path
        raise InputError(f"a {type(given).__name__} gives no path ({reason_of(error)}); give a text.") from error
    return path


def readable(path: Path) -> str:
    """A path as text, whatever bytes its name is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


def shown(path: Path | str, length: int = 300) -> str:
    """A path for a sentence: on one line and not endless, whatever it is made of.

    >>> shown("birds\\n\\udce9/" + 1000 * "x" + ".png", 20)
    'birds �/xx…xxxxx.png'
    """
    text = "".join(" " if c.isspace() else c if c.isprintable() else "\ufffd" for c in str(path))
    return cut(text, length)


def is_locked(folder: Path) -> bool:
    """Whether a process has locked `folder`."""
    lock = folder / LOCK
    if lock.is_symlink() or not lock.exists():  # nobody ever held it, and to try would leave a file
        return False
    try:
        with _quiet(), FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # not ours to hold
        return False


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process alone; the system unlocks it when the process ends, however it ends.

    On a disk without locks this is said, once, and nothing is locked.
    """
    lock, owner = FileLock(folder / LOCK, timeout=PATIENCE), folder / OWNER
    try:
        _acquire(lock, folder)
    except Timeout:
        raise Busy(f"{folder} is in use by {_name(owner)}; wait for it to end, or choose another folder.") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            advice = TROUBLE.get(error.errno or 0, "choose another folder for it")
            raise MachineError(f"cannot write in {folder}: {error.strerror or error}; {advice}.") from error
        _say_without(folder)
    try:
        with contextlib.suppress(MachineError), atomic_file(owner, flush=False) as file:  # held all the same
            file.write(f"process {os.getpid()}\n{platform.node()}".encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink()
        lock.release()


def _acquire(lock: BaseFileLock, folder: Path) -> None:
    for last in (*(TRIES - 1) * (False,), True):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unlink_link(folder / LOCK)
            with _quiet():
                lock.acquire()
            return
        except FileNotFoundError:  # who had it before has just removed it
            if last:
                raise


def remove_owner(folder: Path) -> None:
    """Remove the name of who had locked a folder, where a kill has left it: nobody holds the folder any longer."""
    lock, owner = folder / LOCK, folder / OWNER
    if lock.is_symlink() or not (lock.exists() and owner.exists()):
        return
    with contextlib.suppress(OSError, Timeout), _quiet(), FileLock(lock, timeout=0):
        owner.unlink()


def _quiet() -> contextlib.AbstractContextManager[object]:
    """Keep to ourselves what filelock says where there is no `flock`: a file that names its process will do."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


_said: list[bool] = []


def _say_without(folder: Path) -> None:
    if not _said:
        _said.append(True)
        logger.warning(
            "the disk of %s has no locks, so that nothing keeps a second command from the same work: give none there "
            "meanwhile.",
            folder,
        )


def _name(owner: Path) -> str:
    """The process that has locked a folder, as far as it has told; of another machine, that too."""
    try:
        handle = os.open(owner, READ)
        try:
            process, _, node = os.read(handle, 300).decode("utf-8").partition("\n")
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return "another process"
    where = f" on {node}" if node and node != platform.node() else ""
    return shown(process + where) or "another process"
