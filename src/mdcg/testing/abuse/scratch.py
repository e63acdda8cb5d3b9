"""A folder of whole and odd things in which commands are given, and what is expected of every command.

It ends in time, with the exit code 0 or 2 (1 of a sweep that has undone runs). What went wrong is told in sentences of
mdcg, or as typer tells of words that no command has; never by a traceback or a warning of Python. No name moves the
terminal. Nothing is written but where it was asked for, and nothing that was there is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
from PIL import Image

from mdcg.terminal import plain
from mdcg.testing.forked import Server

T = TypeVar("T")

SECONDS = 300.0  # after which a command counts as one that does not end, however slow the machine is
AGAIN = 30.0  # the same, of a command that has failed and is given again, shortened
MEMORY = 8 * 2**30  # bytes of addresses that a command may have
LARGEST = 2**30  # bytes of a file that a command may write
LONGEST = 2100  # letters of a sentence
ODD = "o\x1b[31md[red]\n\udcff"  # a folder whose name has markup, an escape, a line's end and a byte that is no text
OUTPUTS = ("--out", "--export", "--write", "--report", "--reproduction", "--runs")  # options that name what is written
SMALL = ["--scenario", "digits-2", "--epochs", 1, "--batch-size", 64, "--memory", 20]
PLAIN = "scenario: digits-2\nepochs: 1\nbatch_size: 64\nmemory: 20\n"
RECIPE = f"{PLAIN}axes: {{method: [naive, replay]}}\n"


@dataclass(frozen=True)
class Entry:
    """A file, folder, link or device as it was."""

    mode: int
    content: bytes = b""  # of a link, where it leads to
    device: int = 0

    def make(self, path: Path) -> None:
        if stat.S_ISDIR(self.mode):
            path.mkdir()
        elif stat.S_ISLNK(self.mode):
            path.symlink_to(os.fsdecode(self.content))
        elif stat.S_ISREG(self.mode):
            path.write_bytes(self.content)
            path.chmod(self.mode)
        else:
            os.mknod(path, self.mode, self.device)


Stamp = tuple[int, int, int, int]


class Scratch:
    """The folder: finished runs, an archive, models, images, a recipe, and what no command can use."""

    def __init__(self, folder: Path, server: Server) -> None:
        self._server = server
        self.root = folder / "all"
        self._cache = self.root / "cache"
        self.here = self.root / "some" / "where"  # so that ../.. is still ours
        for path in (self.here, self.root / "home", self.root / "tmp", self._cache, folder / "matplotlib"):
            path.mkdir(parents=True)
        self._variables = {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "MDCG_CACHE": str(self._cache),
            "MPLCONFIGDIR": str(folder / "matplotlib"),  # fonts that are found once
            "CUDA_VISIBLE_DEVICES": "",  # whose addresses are too many
        }
        self._furnish()
        self._stamps: dict[Path, Stamp] = {}
        self._whole = self._look({})

    def _furnish(self) -> None:
        here = self.here
        rng = np.random.default_rng(0)
        for place, names in (("images", ("cat", "dog")), ("more", ("bird", "fish")), (f"{ODD}/images", (ODD, "dog"))):
            for name in names:
                (here / place / name).mkdir(parents=True)
                for number in range(8):
                    pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(here / place / name / f"{number}.png")
        learn = ["learn", here / "images", "--epochs", 1, "--memory", 8, "--backbone", "smallconv", "--image-size", 8]
        for words in (
            ["compare", "--methods", "naive,replay", *SMALL, "--out", "runs"],
            [*learn, "--method", "replay", "--out", "model.safetensors"],
            ["learn", "more", "--from", "model.safetensors", "--epochs", 1, "--out", "newer.safetensors"],
            ["runs", "--export", "archives/some.jsonl"],
            ["data", "verify", "folder:images"],
        ):
            answer = self._server.run(*words, before=None, cwd=str(here), **self._variables)
            assert answer.returncode == 0, answer.stderr
        (here / "plain.yaml").write_text(f"{PLAIN}method: replay\n")
        (here / "recipe.yaml").write_text(RECIPE)
        shutil.copytree(next((here / "runs").glob("*replay*")), here / "finished")
        for name in ("runs", "model.safetensors", "recipe.yaml"):
            copy = shutil.copytree if name == "runs" else shutil.copy
            copy(here / name, here / ODD / name)
        (here / "garbage").write_bytes(rng.bytes(3000))
        (here / "empty").touch()
        (here / "unreadable").write_text(RECIPE)
        (here / "unreadable").chmod(0)
        (here / "loop").symlink_to("loop")
        (here / "dangling").symlink_to("nowhere")
        (here / "link").symlink_to("runs")
        os.mkfifo(here / "pipe")
        for name, number in (("null", 3), ("endless", 5), ("full", 7)):
            device = os.makedev(1, number)
            try:  # nodes of our own: root may replace those of the machine
                os.mknod(here / name, stat.S_IFCHR | 0o666, device)
            except PermissionError:
                (here / name).symlink_to({"endless": "/dev/zero"}.get(name, f"/dev/{name}"))

    def complaint(
        self, words: Sequence[str], outputs: Collection[Path] | None = None, seconds: float = SECONDS
    ) -> str | None:
        """Give a command, and put the folder in order again; what is wrong with its answer, if anything is.

        `outputs` are the places where it may write, in place of those that its words name.
        """
        process = self._server.start(*words, before=_confine, cwd=str(self.here), **self._variables)
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(seconds)
        said, errors = (path.read_bytes().decode("utf-8", "replace") for path in (process.output, process.errors))
        places = self._named(words) if outputs is None else [*outputs, self._cache]
        touched = self._put_in_order(places, fresh="--fresh" in words)
        if code is None:
            return f"it does not end within {seconds:g} s"
        return wrong(words, code, said, errors) or touched

    def shortest(
        self, parts: Sequence[T], complaint: str, again: Callable[[Sequence[T], float], str | None]
    ) -> tuple[Sequence[T], str]:
        """The parts without those that the complaint does not need, and what is said of them by `again`."""
        kind, size = _kind(complaint), len(parts) // 2
        while size:
            at = 0
            while at < len(parts):
                fewer = [*parts[:at], *parts[at + size :]]
                found = again(fewer, AGAIN) if fewer else None
                if found is not None and _kind(found) == kind:
                    parts, complaint = fewer, found
                else:
                    at += size
            size //= 2
        return parts, complaint

    def _named(self, words: Sequence[str]) -> list[Path]:
        """The places where a command may write: those that its words name, and those that it has of its own."""
        options = (*OUTPUTS, "--data") if "get" in words else OUTPUTS  # where a dataset goes to
        named = [after for word, after in itertools.pairwise(words) if word in options]
        named += [word.partition("=")[2] for word in words if word.partition("=")[0] in options]
        # Other libraries leave something in the folders for it.
        found = [self._cache, self.root / "home" / ".cache", self.root / "tmp"]
        found += [self.here / name for name in ("runs", "report", "figures")]
        if "search" in words:
            found += [path for path in self.here.glob("*.yaml") if path not in self._whole]
        for name in named:
            home = str(self.root / "home") + name[1:] if name.startswith("~") else name
            found += [Path(os.path.realpath(self.here / one)) for one in (name, home)]
            if "--force" in words and name:  # which replaces a link itself
                found += [Path(os.path.realpath((self.here / name).parent), (self.here / name).name)]
        return found

    def _put_in_order(self, places: Collection[Path], fresh: bool) -> str | None:
        """Undo what a command has done; what it should not have done, if anything."""
        now = self._look(self._whole)
        touched = sorted(path for path in {*now, *self._whole} if now.get(path) != self._whole.get(path))
        complaints = []
        for path in touched:
            inside = any(place in (path, *path.parents) for place in places)
            if path not in self._whole:
                allowed = inside or any(path in place.parents for place in places)
            else:  # what was there may be replaced where it was named itself, or is to be made afresh
                allowed = path in places or (inside and fresh) or self._cache in path.parents
            if not allowed:
                done = "left" if path not in self._whole else "changed" if path in now else "removed"
                complaints.append(f"it {done}, {str(path.relative_to(self.root))!a}")
        for path in reversed([path for path in touched if path in now]):
            path.rmdir() if stat.S_ISDIR(now[path].mode) else path.unlink()
        for path in [path for path in touched if path in self._whole]:
            self._whole[path].make(path)
        if touched:
            self._look(self._whole)
        return next(iter(complaints), None)

    def _look(self, known: dict[Path, Entry]) -> dict[Path, Entry]:
        """All that is there; the content of what has not been touched since is known."""
        found: dict[Path, Entry] = {}
        stamps: dict[Path, Stamp] = {}
        folders = [self.root]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    path, about = Path(entry.path), entry.stat(follow_symlinks=False)
                    stamps[path] = about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino
                    if stat.S_ISDIR(about.st_mode):
                        folders.append(path)
                        found[path] = Entry(stat.S_IFDIR)
                    elif path in known and stamps[path] == self._stamps.get(path):
                        found[path] = known[path]
                    else:
                        found[path] = Entry(about.st_mode, _content(path, about.st_mode), about.st_rdev)
        self._stamps = stamps
        return found


def _content(path: Path, mode: int) -> bytes:
    if stat.S_ISLNK(mode):
        return os.fsencode(path.readlink())
    return path.read_bytes() if stat.S_ISREG(mode) and os.access(path, os.R_OK) else b""


def _confine() -> None:
    """Bound a command's process: its memory and its files, and no network."""
    import resource  # which not every system has

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    socket.getaddrinfo = _no_network


def _no_network(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def wrong(words: Sequence[str], code: int, said: str, errors: str) -> str | None:
    """What is wrong with an answer, if anything is: how a command ended, and what it said on both streams."""
    lines = errors.splitlines()
    if "Traceback (most recent call last)" in errors or "Exception ignored" in errors:
        raised = [line.strip() for line in lines if line and not line.startswith((" ", "Traceback", "mdcg: "))]
        place = [line.strip() for line in lines if "/mdcg/" in line and "File " in line]
        return f"traceback, {' '.join(raised[-1:])} ({' '.join(place[-1:])})"
    if "Warning:" in errors:
        return f"warning, {next(line for line in lines if 'Warning:' in line)}"
    if code not in (0, 1, 2) or (code == 1 and ("sweep" not in words or "not finished" not in errors)):
        return f"exit code {code}, {' '.join(lines[-1:])}"
    odd = sorted({ascii(letter) for letter in said + errors if plain(letter) != letter})
    if odd:
        return f"escapes, {', '.join(odd[:5])} in what it says"
    if code == 2 and list(words) in ([], ["data"]):  # nothing was asked: the help
        return None if errors.startswith("Usage: mdcg ") else f"no help, {errors[:60]}"
    if not all(line.startswith("mdcg: ") and len(line) <= LONGEST for line in lines):
        return f"no sentence, {next(line for line in lines if not line.startswith('mdcg: ') or len(line) > LONGEST)}"
    if code == 2 and not errors.rstrip().endswith((".", "?", "…", ">")):
        return f"no sentence, {errors}"
    if code == 0 and "--json" in words and said.startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            json.loads(said, parse_constant=_no_number)
            return None
        return f"no JSON, {said[:60]}"
    return None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _kind(complaint: str) -> str:
    """What complaints of the same fault have in common."""
    kind, _, rest = complaint.partition(", ")
    return f"{kind}, {rest.partition(':')[0]}" if kind == "traceback" else kind


def spelt(words: Sequence[str]) -> str:
    """A command line as a shell takes it, but for very long words."""
    return " ".join(["mdcg", *map(_spelt, words)])


def _spelt(word: str) -> str:
    if len(word) > 80:
        return f"{_spelt(word[:20])}…({len(word)} letters)"
    if word.isascii() and word.isprintable():
        return shlex.quote(word)
    return (
        "$'" + "".join(chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(word)) + "'"
    )
