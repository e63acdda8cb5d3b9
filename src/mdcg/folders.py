"""A walk over a folder of anybody's: however deep, whatever its names, and never around a loop of links."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

Note = Callable[[Path, str], None]  # of a folder, and why what is in it is not seen
DEEPEST = 64  # folders in each other: what lies deeper is nobody's runs or images


def walk(root: Path, note: Note = lambda folder, why: None) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder with the names of its folders and of all else, in order; as `os.walk`, which calls itself.

    Who takes names of folders away from a list is spared them. Links to folders are not followed, and count among all
    else. What cannot be read is told to `note`, with the reason, and so is what lies too deep.
    """
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        folders, others = list[str](), list[str]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    (folders if _is_folder(entry) else others).append(entry.name)
        except OSError as error:
            note(folder, error.strerror or str(error))
            continue
        folders.sort()
        yield folder, folders, sorted(others)
        if folders and depth == DEEPEST:
            note(folder, f"its folders lie more than {DEEPEST} deep")
        else:
            pending += [(folder / name, depth + 1) for name in reversed(folders)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False)
    return False
