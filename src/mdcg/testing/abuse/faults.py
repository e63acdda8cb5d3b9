"""Trouble of the machine, made on purpose: what a command cannot do it says, and given again without it does.

Most faults are raised where Python asks the system to change a file (its audit events), a few are made for real: limits
of files, handles and memory, streams that are closed, users without a home.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from mdcg.runs.failures import FAILED
from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.testing.abuse.work import COMMANDS, TIMEOUT, Disturbed, at_operation, often_saved

NOBODY = 54321  # a user of whom the system knows nothing
MOST_OPERATIONS = 120  # after which of them a fault begins
TOO_SMALL = "the memory is too small for this"
START = "import runpy; from mdcg.testing.digits import *; take_some(); runpy.run_module('mdcg', run_name='__main__')"
Before = Callable[[], object]
#: What a file system may answer: the error, and the operations that get it.
ERRORS: Mapping[str, tuple[int, str]] = {
    "disk full": (errno.ENOSPC, "open"),
    "quota used up": (errno.EDQUOT, "open"),
    "read-only": (errno.EROFS, "open os.rename os.remove os.mkdir os.rmdir"),
    "not allowed": (errno.EACCES, "open os.rename os.remove os.mkdir os.rmdir"),
    "disk broken": (errno.EIO, "open os.rename os.remove"),
    "network disk gone": (errno.ESTALE, "open os.rename os.remove os.mkdir"),
    "too many files open": (errno.EMFILE, "open"),
    "no locks": (errno.ENOLCK, "fcntl.flock"),
}


class Faults(Part):
    """Commands on a machine in trouble: one sentence, no run is blamed, and given again they do as asked."""

    name, usual = "faults", 120

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.work = Disturbed(self.server(), folder)

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        name = rng.choice(list(COMMANDS))
        fault = list(FAULTS)[number % len(FAULTS)]
        place = self.work.place()
        told, wrong = FAULTS[fault](self.work, name, place, rng)
        for note in place.rglob(FAILED):
            if TOO_SMALL in note.read_text():  # that is told of the run, until --retry
                note.unlink()
            else:
                wrong = wrong or f"{note.relative_to(place)} blames a run: {note.read_text()[-300:]}"
        if not wrong:
            place.mkdir(exist_ok=True)
            wrong = self.work.finish(name, place)
        return Failure(f"mdcg {shlex.join(COMMANDS[name])}, {fault}{told}", wrong) if wrong else None


Told = tuple[str, str]  # what more there is to say of a fault, and what went wrong
Fault = Callable[[Disturbed, str, Path, random.Random], Told]


def _checked(code: int | None, errors: str, heard: bool = True) -> str:
    """What is wrong with the answer of a command on such a machine, in words."""
    lines = errors.strip().splitlines()
    if code not in (0, 1, 2):
        return f"it ends with code {code}: {errors.strip()[-400:]}"
    if "Traceback" in errors or "Exception ignored" in errors:
        return f"it says {errors.strip()[-400:]}"
    if code and heard and not (lines and lines[-1].startswith("mdcg: ")):
        return f"it ends with code {code} and says {errors.strip()[-400:]!r}"
    return ""


def _answered(work: Disturbed, name: str, place: Path, before: Before, crashes: bool = False) -> str:
    process = work.start(name, place, partial(_troubled, before))
    _, errors = process.communicate(TIMEOUT)
    if crashes and process.returncode == -signal.SIGSEGV:
        return ""
    return _checked(process.returncode, errors)


def _troubled(before: Before) -> None:
    often_saved()
    before()


def _refused(kind: str) -> Fault:
    """The system refuses some operations on files, from one of them on: once, or always."""
    number, events = ERRORS[kind]

    def fault(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
        first, once = rng.randint(1, MOST_OPERATIONS), rng.random() < 0.3
        before = partial(_refuse, place, number, events.split(), first, once)
        told = f" {'once, ' if once else ''}from operation {first} on"
        return told, _answered(work, name, place, before)

    return fault


def _refuse(folder: Path, number: int, events: list[str], first: int, once: bool) -> None:
    done: list[int] = []

    def act(operation: int, event: str) -> None:
        if operation >= first and event in events and not (once and done):
            done.append(operation)
            raise OSError(number, os.strerror(number), str(folder / "file"))

    at_operation(folder, act)


def _limited(kind: int, smallest: int, largest: int) -> Fault:
    """A limit of the system, for real."""

    def fault(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
        limit = rng.randint(smallest, largest)
        return f" {limit:,}", _answered(work, name, place, partial(resource.setrlimit, kind, (limit, limit)))

    return fault


def _little_memory(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    """Memory for a few megabytes more than the process has when it begins.

    Where it ends within PyTorch this may crash (seen in a convolution's backward pass): no sentence can be told then,
    but nothing may be lost either.
    """
    more = rng.randint(1, 400)
    return f", {more} MB", _answered(work, name, place, partial(_limit_memory, more), crashes=True)


def _limit_memory(more: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + more * 10**6, used + more * 10**6))


def _closed_streams(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    """Streams that are closed from the start, as job runners close them."""
    closed = rng.choice(("<&-", ">&-", "2>&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"))
    return f" {closed}", _started(name, place, ["sh", "-c", f'exec "$@" {closed}', "sh"], heard="2" not in closed)


def _output_is_full(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    return "", _answered(work, name, place, _to_full)


def _to_full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _removed_folder(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    """Everything is removed while it is at work: it may say so, or make it anew."""
    delay = rng.uniform(0, 1.5)
    process = work.start(name, place, often_saved)
    time.sleep(delay)
    for target in ("runs", "figures", "model.safetensors"):
        shutil.rmtree(place / target, ignore_errors=True)
    _, errors = process.communicate(TIMEOUT)
    return f" after {delay:.3f} s", _checked(process.returncode, errors)


def _no_home(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    """A user of whom nothing is known, and no cache named."""
    for folder in (place, *place.rglob("*")):
        folder.chmod(0o777)
    return "", _answered(work, name, place, _become_nobody)


def _become_nobody() -> None:
    for variable in ("HOME", "USER", "LOGNAME", "MDCG_CACHE", "XDG_CACHE_HOME"):
        os.environ.pop(variable, None)
    os.setuid(NOBODY)


def _started(
    name: str, place: Path, words: Sequence[str] = (), heard: bool = True, variables: Mapping[str, str] | None = None
) -> str:
    """Start Python for real, these words in front of it; what is wrong with its answer."""
    done = subprocess.run(
        [*words, sys.executable, "-c", START, *COMMANDS[name]],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **(variables or {})},
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    return _checked(done.returncode, done.stderr.decode("utf-8", "replace"), heard)


def _plain_locale(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    return "", _started(name, place, variables=plain)


def _other_processes(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    """Two of one command at a time, one in another process namespace, where processes have other numbers."""
    process = work.start(name, place, often_saved)
    wrong = _started(name, place, ["unshare", "--pid", "--fork"] if _may_unshare() else [])
    _, errors = process.communicate(TIMEOUT)
    return "", wrong or _checked(process.returncode, errors)


def _may_unshare() -> bool:
    return bool(shutil.which("unshare")) and not subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode


def _cache_is_no_folder(work: Disturbed, name: str, place: Path, rng: random.Random) -> Told:
    target = rng.choice(("/dev/null", "/proc/nothing", str(place / "recipe.yaml")))
    return f" but {target}", _answered(work, name, place, partial(_name_cache, target))


def _name_cache(target: str) -> None:
    os.environ["MDCG_CACHE"] = target


FAULTS: Mapping[str, Fault] = {
    **{kind: _refused(kind) for kind in ERRORS},
    "files of so many bytes": _limited(resource.RLIMIT_FSIZE, 0, 50_000),
    "so many open files": _limited(resource.RLIMIT_NOFILE, 4, 40),
    "little memory": _little_memory,
    "closed streams": _closed_streams,
    "output is full": _output_is_full,
    "folder removed": _removed_folder,
    "no home": _no_home,
    "plain locale": _plain_locale,
    "another process namespace": _other_processes,
    "the cache is no folder": _cache_is_no_folder,
}
