"""The one kind of error a person is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MdcgError(Exception):
    """A mistake that the reader can fix: its text says what is wrong and what to do.

    The command line prints it as one sentence and exits with code 2. `about` is the key of a recipe that it concerns,
    so that the line where that stands can be named too.
    """

    def __init__(self, text: str, about: str | None = None) -> None:
        super().__init__(text)
        self.about = about


class MachineError(MdcgError):
    """The error of a disk or GPU that fails, whatever was asked for: other runs would fare no better."""


class InputError(MdcgError, ValueError):
    """Images or labels that cannot be used; a ValueError too, as scikit-learn's users expect."""


class Busy(MdcgError):
    """The error for a folder that another process is working in."""


def unknown(kind: str, name: str, known: Iterable[str], about: str | None = None) -> MdcgError:
    """The error for a name that does not exist, with the nearest one that does.

    >>> str(unknown("method", "replya", ["naive", "replay"]))
    "unknown method 'replya'; did you mean 'replay'? Known: naive, replay."
    """
    names = sorted(known)
    small = {known_name.lower(): known_name for known_name in names}
    near = difflib.get_close_matches(name.lower(), small, n=1, cutoff=0.6)
    hint = f"; did you mean '{small[near[0]]}'?" if near else "."
    known_names = f"Known: {', '.join(names)}." if names else "There is none."
    return MdcgError(f"unknown {kind} '{name}'{hint} {known_names}", about)
