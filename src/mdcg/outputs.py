"""Files that a person has named to be written: what is there gives way only to a command that could have written it.

Each kind of file says once how it is told from all others, by its content. What is of another kind is refused before
any work is done, and again when the file is there to be put in its place. `force` replaces it all the same, but never
what the same command reads.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path

from mdcg.errors import MdcgError
from mdcg.files import atomic_file, cannot_write, check_replaceable, open_file, shown, write_atomic
from mdcg.folders import walk

LONGEST = 2**20  # bytes of a first line
HEAD = 2000  # bytes in which a file says what it is
MOST_LINKS = 40  # that lead to each other, as Linux follows them
FORCED = "replace it with --force (in Python force=True)"


class Foreign(Exception):
    """A file is of another kind."""


@dataclass(frozen=True)
class Kind:
    """A kind of file that we write."""

    name: str  # with its article, in sentences
    #: What would be lost if this file gave way, in words that follow its name; empty where nothing is. Any exception
    #: says that the file is of another kind.
    lost: Callable[[BufferedReader], str]

    @classmethod
    def told_by(cls, name: str, is_ours: Callable[[BufferedReader], bool]) -> Kind:
        """A kind of which a file can always be made anew."""

        def lost(file: BufferedReader) -> str:
            if not is_ours(file):
                raise Foreign
            return ""

        return cls(name, lost)


@dataclass(frozen=True)
class Output:
    """A file that is to be written where a person has said."""

    path: Path
    kind: Kind
    force: bool = False
    inputs: Sequence[Path] = ()  # files and folders that the same command reads
    advice: str = FORCED  # how a person replaces it all the same, where that can be said

    @property
    def forced(self) -> bool:
        """Whether it may take the place of anything."""
        return self.force and not self._is_input()

    @property
    def _or_force(self) -> str:
        return f", or {self.advice}" if self.advice else ""

    def check(self) -> None:
        """Refuse to replace what no such command has written."""
        if self._is_free() or self.forced:
            return
        there = f"{shown(self.path)} is there already, and "
        instead = f"choose another place{self._or_force}"
        if self.force:
            there, instead = f"{shown(self.path)} belongs to what this very command reads, and ", "choose another place"
        if not self.path.exists():
            raise MdcgError(f"{there}is a link that leads nowhere; {instead}.")
        try:
            if not self.path.stat().st_mode & 0o222:
                raise MdcgError(f"{there}is write-protected; {instead}.")
            file = open_file(self.path)
        except OSError as error:
            raise MdcgError(f"{there}cannot be read ({error.strerror or error}); {instead}.") from error
        with file:
            try:
                lost = self.kind.lost(file)
            except Exception as error:  # also an OSError: readers of archives look where no byte can be
                raise MdcgError(f"{there}is not {self.kind.name}, or is damaged; {instead}.") from error
        if lost:
            raise MdcgError(f"{shown(self.path)} {lost}{'' if self.force else self._or_force}.")

    def open(self) -> AbstractContextManager[BufferedRandom]:
        """Give a file to write to, which takes its place whole or not at all."""
        self.check()
        # Again at the end: somebody may put a file of theirs there meanwhile.
        return atomic_file(self.path, check=lambda _: self.check())

    def write(self, content: bytes) -> None:
        """Write it whole or not at all."""
        self.check()
        write_atomic(self.path, content, lambda _: self.check())

    def _is_free(self) -> bool:
        """Whether nothing is there; an error where no file can be: a folder, a device, or a link that leads to one."""
        try:
            for place in _led_to(self.path):
                check_replaceable(place, self.path)
            self.path.lstat()
        except FileNotFoundError:
            return True
        except OSError as error:
            raise cannot_write(self.path, error) from error
        except ValueError as error:
            raise MdcgError(f"'{shown(self.path)}' cannot be the name of a file; name another one.") from error
        return False

    def _is_input(self) -> bool:
        """Whether the file is one that the command reads, by whatever name, or is in a folder that it reads."""
        own = _itself(self.path)
        within = any(own.is_relative_to(os.path.realpath(one)) for one in self.inputs)  # however deep
        return within or any(own == file or _same(own, file) for one in self.inputs for file in _files(one))


def _led_to(path: Path) -> Iterator[Path]:
    """A path, and link after link what it leads to."""
    for _ in range(MOST_LINKS):
        yield path
        try:
            path = _itself(path).parent / path.readlink()
        except OSError:  # no link
            return


def _itself(path: Path) -> Path:
    """Where a file is, or a link itself."""
    return Path(os.path.realpath(path.parent), path.name)


def _files(path: Path) -> Iterator[Path]:
    """A file, or all files in a folder."""
    yield _itself(path)
    for folder, _, names in walk(Path(os.path.realpath(path))):
        yield from (folder / name for name in names)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def marked(begin: bytes, end: bytes, mark: bytes = b"") -> Callable[[BufferedReader], bool]:
    """Tell a file by how it begins and ends, and by a mark near its beginning."""

    def is_ours(file: BufferedReader) -> bool:
        head = file.read(HEAD)
        if not (head.startswith(begin) and mark in head):
            return False
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(end)))
        return file.read() == end

    return is_ours


def of_lines(begin: str, end: str, fits: Callable[[str], bool]) -> Callable[[BufferedReader], bool]:
    """Tell a text by how it begins and ends, and by each line: where somebody has added to it, it is theirs."""

    def is_ours(file: BufferedReader) -> bool:
        if file.read(len(begin.encode())) != begin.encode():
            return False
        file.seek(0)
        text = file.read().decode()
        return text.endswith(end) and all(fits(line) for line in text.splitlines())

    return is_ours


def csv_of(fits: Callable[[list[str]], bool]) -> Callable[[BufferedReader], bool]:
    """Tell a CSV file by its columns, and by how it is written: what a spreadsheet has saved is somebody else's."""

    def is_ours(file: BufferedReader) -> bool:
        columns = next(csv.reader([file.readline(LONGEST).decode()]), [])
        if not fits(columns):
            return False
        file.seek(0)
        text, again = file.read().decode(), io.StringIO()
        rows = list(csv.reader(io.StringIO(text, newline="")))
        csv.writer(again, lineterminator="\n").writerows(rows)
        return {len(row) for row in rows} == {len(columns)} and again.getvalue() == text

    return is_ours
