"""The commands that are disturbed, and what must come of them all the same."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mdcg.testing.forked import Process, Server

TIMEOUT = 300.0  # seconds, after which a command does not end
SMALL = ["--scenario", "digits-2", "--epochs", "2", "--batch-size", "32", "--memory", "20"]
RECIPE = "{scenario: digits-2, epochs: 1, batch_size: 32, memory: 20, seeds: 0-1, axes: {method: [naive, der]}}"
FEW = ["--scenario", "digits-2", "--epochs", "1", "--memory", "20"]
OWN = ["--image-size", "8", "--backbone", "smallconv"]
COMMANDS: dict[str, list[str]] = {
    "run": ["run", *SMALL, "--method", "md-cg", "--seeds", "0-1", "--out", "runs"],
    "compare": ["compare", *SMALL, "--methods", "naive,replay", "--out", "runs", "--report", "page.html"],
    "sweep": ["sweep", "recipe.yaml", "--out", "runs"],
    "search": ["search", *SMALL, "--method", "md", "--set", "lam=0.1,1", "--out", "runs", "--write", "choice.yaml"],
    "figure": ["figure", "drift", *FEW, "--methods", "md-cg,der", "--seeds", "0-1", "--runs", "runs"],
    "learn": ["learn", "photos", *OWN, "--epochs", "2", "--memory", "20", "--out", "model.safetensors"],
}
SOMETIMES = ("seconds", "finished", "environment", "members")  # what differs from time to time
GIVEN = ("recipe.yaml", "photos")  # what lies there before
BESIDE = (".lock", ".groups")  # what may be left


def make_place(folder: Path) -> Path:
    """A folder with what the commands ask for."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    rng = np.random.default_rng(0)
    for label, name in enumerate(("cup", "fork")):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(100 * label, 100 * label + 150, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    return folder


def outcome(folder: Path) -> dict[str, object]:
    """All that commands have left in a place, by name: every byte, but for times and the machine in results."""
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and parts[0] not in GIVEN and not any(part in BESIDE for part in parts):
            found["/".join(parts)] = _content(file)
    return found


def _content(file: Path) -> object:
    content = file.read_bytes()
    if file.suffix == ".html":  # which says how long runs took
        return content.endswith(b"</html>\n")
    if file.suffix == ".safetensors":
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        about = {name: json.loads(text) for name, text in header.pop("__metadata__", {}).items()}
        return _timeless(about), header, content[end:]
    return _timeless(json.loads(content)) if file.suffix == ".json" else content


def _timeless(value: object) -> object:
    """What was read from JSON, without what another time and machine would make otherwise."""
    if isinstance(value, dict):
        return {key: _timeless(one) for key, one in value.items() if key not in SOMETIMES}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def differences(found: dict[str, object], wanted: dict[str, object]) -> str:
    """What is not as it should be, in words; empty where all is."""
    told = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    told += [f"{name} is left over" for name in found.keys() - wanted.keys()]
    told += [f"{name} differs" for name in found.keys() & wanted.keys() if found[name] != wanted[name]]
    return "; ".join(sorted(told))


@dataclass
class Disturbed:
    """Commands that are disturbed, each with what comes of it undisturbed."""

    server: Server
    folder: Path

    def __post_init__(self) -> None:
        self._wanted: dict[str, dict[str, object]] = {}
        self._places = 0

    def place(self) -> Path:
        """A new place, in which nothing has been done."""
        self._places += 1
        made = self.folder / f"place-{self._places}"
        shutil.copytree(self._given(), made)
        return made

    def _given(self) -> Path:
        given = self.folder / "given"
        return given if given.exists() else make_place(given)

    def start(self, name: str, place: Path, before: Callable[[], object] | None = None) -> Process:
        return self.server.start(*COMMANDS[name], before=before, cwd=str(place))

    def wanted(self, name: str) -> dict[str, object]:
        """What comes of a command that nobody disturbs."""
        if name not in self._wanted:
            place = self.place()
            process = self.start(name, place, often_saved)
            output, errors = process.communicate(TIMEOUT)
            if process.returncode != 0:
                raise AssertionError(f"mdcg {name} fails undisturbed: {errors or output}")
            self._wanted[name] = outcome(place)
            shutil.rmtree(place)
        return self._wanted[name]

    def halves(self, name: str, place: Path) -> str:
        """The files under their final names that are not what they should be, just after a kill."""
        wanted = self.wanted(name)
        found = {file: content for file, content in outcome(place).items() if "/." not in f"/{file}"}
        return "; ".join(f"{file} is no whole file" for file in found if found[file] != wanted.get(file))

    def finish(self, name: str, place: Path) -> str:
        """Give the command again, undisturbed; what is then not as it should be, in words."""
        process = self.start(name, place, often_saved)
        output, errors = process.communicate(TIMEOUT)
        if process.returncode != 0:
            return f"given again it ends with code {process.returncode}: {(errors or output).strip()[-300:]}"
        wrong = differences(outcome(place), self.wanted(name))
        groups = place / "runs" / ".groups"
        if groups.exists() and any(groups.iterdir()):
            wrong += "; a group is left over"
        return wrong.removeprefix("; ")


def often_saved() -> None:
    """Save a checkpoint after every epoch, however long it takes: so that the same is done every time."""
    from mdcg.train import loop

    loop.SAVING = 1


WRITES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.symlink",
    "os.link",
}  # Python's audit events


def at_operation(folder: Path, act: Callable[[int, str], object]) -> Iterator[int]:
    """Let `act` know of every operation that changes a file of this folder, before it is done: its number and name.

    The numbers that it gets are returned, for operations that are told otherwise.
    """
    numbers = itertools.count(1)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if _changes(event, given, str(folder)):
            act(next(numbers), event)

    sys.addaudithook(hook)
    return numbers


def _changes(event: str, given: tuple[Any, ...], folder: str) -> bool:
    """Whether what Python is about to do changes a file of this folder, or locks one."""
    if event == "fcntl.flock":
        return True
    if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return False
    named = event in ("open", *WRITES) and isinstance(given[0], str | bytes | os.PathLike)
    return named and str(Path(os.fsdecode(given[0])).absolute()).startswith(folder)
