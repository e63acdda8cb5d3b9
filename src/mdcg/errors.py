"""The one kind of error a person is meant to read."""

from __future__ import annotations

import difflib
import errno
import logging
from collections.abc import Iterable
from pathlib import PurePath

LONGEST = 4000  # characters of an error
CONTROL = "\n\r\t\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029"  # of white space, what does more than leave room


class MdcgError(Exception):
    """A mistake that the reader can fix: its text says what is wrong and what to do.

    The command line prints it as one sentence and exits with code 2. `about` is the key of a recipe that it concerns,
    so that the line where that stands can be named too. What people have named may hold anything: the text is brought
    to one line that can be printed.

    >>> print(MdcgError("there is no file a\\nb\\x1b[31m; check the path."))
    there is no file a\\nb\\x1b[31m; check the path.
    """

    def __init__(self, text: str, about: str | None = None) -> None:
        super().__init__(cut(_printable(text), LONGEST))
        self.about = about


def said(value: object, length: int = 60) -> str:
    """A value as a sentence names it: on one line and not endless, whatever it is.

    >>> said("x"), said([1, 2]), said(range(3)), said("y" * 100, 20), said(10**5000)
    ("'x'", '[1, 2]', 'range(0, 3)', "'yyyyyyyyy…yyyyyyyy'", 'int')
    """
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str):
        value = cut(value, 4 * length)  # before it is written out
    try:
        text = repr(value) if isinstance(value, BRIEF) and _is_brief(value) else ""
    except Exception:  # a number of too many digits, or an object of anybody's
        text = ""
    return cut(_printable(text), length) if text else f"{type(value).__name__}"


BRIEF = (str, int, float, bytes, type(None), list, tuple, dict, set, range)  # others say more than fits a sentence


def _is_brief(value: object) -> bool:
    return not isinstance(value, bytes | list | tuple | dict | set) or len(value) <= 8


def cut(text: str, length: int) -> str:
    """The text without its middle, where it is longer."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - half]}…{text[-half:]}"


def _printable(text: str) -> str:
    """The text with escapes for what would not be seen, or do something to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() and c not in CONTROL else repr(c)[1:-1] for c in text)


_told: set[str] = set()


def warn_once(logger: logging.Logger, sentence: str) -> None:
    """Say a sentence to whoever listens, once in a process however often there is reason to."""
    if sentence not in _told and logger.isEnabledFor(logging.WARNING):
        _told.add(sentence)
        logger.warning("%s", sentence)


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


def unknown(kind: str, name: object, known: Iterable[str], about: str | None = None) -> MdcgError:
    """The error for a name that does not exist, with the nearest one that does, and all of them unless they are many.

    >>> str(unknown("method", "replya", ["naive", "replay"]))
    "unknown method 'replya'; did you mean 'replay'? Known: naive, replay."
    """
    names = sorted(known)
    text = cut(name, 200) if isinstance(name, str) else said(name)
    near = nearest(text, names)
    hint = "." if near is None else f"; did you mean '{near}'?"
    known_names = f"Known: {', '.join(names)}." if names else "There is none."
    if len(names) > MANY:
        known_names = f"Known: {', '.join(names[:FEW])} and {len(names) - FEW:,} others."
    return MdcgError(f"unknown {kind} '{text}'{hint} {known_names}", about)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one; None where none is like it.

    One that begins with it is, and one that has more of its words: a letter more or less in a word that is none of
    theirs says nothing.

    >>> nearest("md_s1_11c0", ["md_s1_6b0f", "md_s4_11c1"]), nearest("md_s4", ["md_s1_6b0f", "md_s4_11c1"])
    ('md_s1_6b0f', 'md_s4_11c1')
    """
    small = {one.lower(): one for one in sorted(known, reverse=True)}
    asked = name.lower()
    longer = sorted(one for one in small if one.startswith(asked)) if len(asked) > 2 else []
    if longer:
        return small[longer[0]]
    missing = {one: len(set(asked.split("_")).difference(one.split("_"))) for one in small}
    for fewest in sorted(set(missing.values())):
        alike = [one for one, count in missing.items() if count == fewest]
        if near := difflib.get_close_matches(asked, alike, n=1, cutoff=0.6):
            return small[near[0]]
    return None
