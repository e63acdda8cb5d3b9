"""The one kind of error a person is meant to read."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class MdcgError(Exception):
    """A mistake that the reader can fix: its text says what is wrong and what to do.

    The command line prints it as one sentence and exits with code 2. `about` is the key of a recipe that it concerns,
    so that the line where that stands can be named too.
    """

    def __init__(self, text: str, about: str | None = None) -> None:
        super().__init__(text)
        self.about = about


#: Whatever other people's code may raise: `sys.exit` there is no wish of the person who gave the command.
FOREIGN = (Exception, SystemExit)


def reason_of(error: BaseException) -> str:
    """The first line of what an error says, without a full stop.

    >>> reason_of(ValueError("no such file.\\nMore of it")), reason_of(KeyError()), reason_of(SystemExit(3))
    ('no such file', 'KeyError', 'it called sys.exit')
    """
    if isinstance(error, SystemExit):
        return "it called sys.exit"
    return (str(error).strip().splitlines() or [""])[0].rstrip(".") or type(error).__name__


class MachineError(MdcgError):
    """The error of a disk or GPU that fails, whatever was asked for: other runs would fare no better."""


# The machine's own trouble, whatever was asked of it, and what helps.
TROUBLE = {
    errno.EMFILE: "allow more open files (ulimit -n), or let fewer runs train together (--members)",
    errno.ENFILE: "close other programs: this machine has too many files open",
    errno.ENOSPC: "make room or choose a writable folder",
    errno.EDQUOT: "make room or choose a writable folder",
    errno.EROFS: "choose a writable folder",
    errno.ENOLCK: "choose a folder on a disk with locks",
    errno.EIO: "check the disk",
    errno.ESTALE: "check the network disk",
    errno.ENOMEM: "free some memory",
}


def machine_trouble(error: BaseException | None) -> MachineError | None:
    """The error as one of the machine, if it comes from trouble that any other run would have too; else None.

    >>> print(machine_trouble(OSError(errno.EMFILE, "Too many open files", "a.json")))
    a.json: Too many open files; allow more open files (ulimit -n), or let fewer runs train together (--members).
    >>> print(machine_trouble(MemoryError()))
    memory has run out; close other programs, or use fewer or smaller images.
    >>> machine_trouble(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    """
    if isinstance(error, MemoryError):  # not where it is but the reason: training that does not fit says so itself
        return MachineError("memory has run out; close other programs, or use fewer or smaller images.")
    if isinstance(error, RuntimeError) and "start new thread" in str(error):  # Python's words, where no memory is left
        return MachineError("no thread can be started; close other programs, or allow more (ulimit -u, ulimit -v).")
    while error is not None:
        if isinstance(error, MachineError):
            return error
        if isinstance(error, OSError) and error.errno in TROUBLE:
            where = f"{error.filename}: " if error.filename else ""
            return MachineError(f"{where}{error.strerror}; {TROUBLE[error.errno]}.")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


class InputError(MdcgError, ValueError):
    """Images or labels that cannot be used; a ValueError too, as scikit-learn's users expect."""


class Busy(MdcgError):
    """The error for a folder that another process is working in."""


MANY, FEW = 60, 10  # names: more than so many are not told, but so few of them


def unknown(kind: str, name: str, known: Iterable[str], about: str | None = None) -> MdcgError:
    """The error for a name that does not exist, with the nearest one that does, and all of them unless they are many.

    >>> str(unknown("method", "replya", ["naive", "replay"]))
    "unknown method 'replya'; did you mean 'replay'? Known: naive, replay."
    """
    names = sorted(known)
    small = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(name.lower(), small, n=1, cutoff=0.6)
    hint = f"; did you mean '{small[near[0]]}'?" if near else "."
    known_names = f"Known: {', '.join(names)}." if names else "There is none."
    if len(names) > MANY:
        known_names = f"Known: {', '.join(names[:FEW])} and {len(names) - FEW:,} others."
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)  # nothing that a terminal obeys
    return MdcgError(f"unknown {kind} '{shown}'{hint} {known_names}", about)
