"""The registries of what can be asked for by name: methods, heads, backbones, datasets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from mdcg.errors import FOREIGN, MdcgError, reason_of, unknown

T = TypeVar("T")

logger = logging.getLogger(__name__)


def first_line(thing: object) -> str:
    """The first line of a docstring; empty, where there is none."""
    return next(iter((thing.__doc__ or "").strip().splitlines()), "")


class Registry(Generic[T]):
    """A registry of names and what they stand for; other packages add theirs through the entry point group."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._known: dict[str, T] = {}
        self._entry_points_read = False

    def register(self, name: str) -> Callable[[T], T]:
        """Make a decorator that gives the thing below it a name."""

        def add(thing: T) -> T:
            self._add(name, thing)
            return thing

        return add

    @contextmanager
    def temporary(self, name: str, thing: T) -> Iterator[None]:
        """Register a name that is not taken for the length of this context."""
        if name in self._known:
            raise self._taken(name)
        self.register(name)(thing)
        try:
            yield
        finally:
            del self._known[name]

    def __getitem__(self, name: str) -> T:
        self._read_entry_points()
        if not isinstance(name, str) or name not in self._known:
            raise unknown(self.kind, name, self._known, about=self.kind)
        return self._known[name]

    def names(self) -> list[str]:
        self._read_entry_points()
        return sorted(self._known)

    def values(self) -> list[T]:
        """The registered things, in the order in which they were registered."""
        self._read_entry_points()
        return list(self._known.values())

    def _add(self, name: str, thing: T) -> None:
        if name in self._known:
            if not _defined_again(self._known[name], thing):
                raise self._taken(name)
            if self._known[name] is not thing:
                logger.warning("the %s '%s' is defined anew: its name now means the new one.", self.kind, name)
        self._known[name] = thing

    def _taken(self, name: str) -> MdcgError:
        return MdcgError(f"there is already a {self.kind} named '{name}'; choose another name.")

    def _read_entry_points(self) -> None:
        if self._entry_points_read:
            return
        self._entry_points_read = True
        for point in entry_points(group=self.group):
            try:
                thing = point.load()
            except FOREIGN as error:
                raise MdcgError(
                    f"the {self.kind} '{point.name}' of {point.value} could not be loaded ({reason_of(error)}); "
                    "fix or uninstall that package."
                ) from error
            if self._known.get(point.name) is not thing:  # else it has registered itself on import
                self._add(point.name, thing)


def _defined_again(before: object, now: object) -> bool:
    """Whether a notebook's cell, or a line of a shell, was run again: it defines the same name in `__main__`."""
    place = _place(now)
    return place[0] == "__main__" and _place(before) == place


def _place(thing: object) -> tuple[str, str]:
    """The module and qualified name of a class or function; of an object, those of its class."""
    thing = getattr(thing, "func", thing)  # of a partial
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return named.__module__, named.__qualname__
