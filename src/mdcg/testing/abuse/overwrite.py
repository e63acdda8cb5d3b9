"""Files that are there already where a command is to write: what it may replace, and what it must leave alone.

A file that the command could have written itself gives way. Any other one stays as it is, to the bit, and the command
ends with a sentence; with `--force` it gives way too, unless it belongs to what the same command reads. A folder, a
pipe, a device, and a link that leads to one or among the system's own files, never do.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mdcg import files
from mdcg.testing import digits
from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.testing.abuse.scratch import spelt, wrong

DIGITS = ["--scenario", "digits-2", "--epochs", "1", "--batch-size", "64", "--memory", "20"]
LEARN = ["--method", "replay", "--epochs", "1", "--memory", "8", "--backbone", "smallconv", "--image-size", "8"]
RUNS = ["compare", "--methods", "naive,replay", *DIGITS]
FIGURE = ["figure", "forgetting", "--scenario", "digits-2", "--epochs", "1", "--memory", "20", "--methods", "naive"]
FIGURES = "figures/forgetting-digits-2-naive-m20"
ADDED = b"\nmine\n"
READ = ("images/cat/0.png", "model.safetensors", "runs/all.jsonl")  # by some commands


@dataclass(frozen=True)
class Writer:
    """A command that writes a file."""

    words: tuple[str, ...]  # {} is where it writes
    own: tuple[str, ...]  # the samples that it could have written
    place: str  # the name of the file, where the command has one for it
    weight: int = 4  # how often it is drawn: less where it takes long
    reads: tuple[str, ...] = ()  # of those above
    forcible: bool = True  # not where it reads what it replaces

    def command(self, place: Path) -> list[str]:
        at = place.parent if self.fixed else place
        return [word.format(at) for word in self.words]

    @property
    def fixed(self) -> bool:
        """Whether the command names the file, in a folder that it is given."""
        return "/" in self.place


WRITERS = (
    Writer(("learn", "images", "--out", "{}", *LEARN), ("model",), "new.safetensors", reads=("images/cat/0.png",)),
    Writer(
        ("learn", "more", "--from", "model.safetensors", "--out", "{}", "--epochs", "1"),
        ("model", "newer"),
        "new.safetensors",
    ),
    Writer(("export", "model.safetensors", "--out", "{}"), ("onnx",), "new.onnx", 3, ("model.safetensors",)),
    Writer(
        ("export", "model.safetensors", "--to", "torch", "--out", "{}"), ("pt2",), "new.pt2", 3, ("model.safetensors",)
    ),
    Writer((*RUNS, "--report", "{}"), ("page",), "new.html", 3, ("runs/all.jsonl",)),
    Writer(("report", "--out", "{}"), ("page",), "out/index.html", 1),
    Writer(("report", "--out", "{}"), ("markdown",), "out/table.md", 1),
    Writer(("report", "--out", "{}"), ("latex",), "out/table.tex", 1),
    Writer(("report", "--out", "{}"), ("table",), "out/table.csv", 1),
    Writer(("report", "--reproduction", "{}"), ("reproduction",), "new.md", 3, forcible=False),
    Writer(("runs", "--export", "{}"), ("runs",), "new.csv"),
    Writer(("runs", "--export", "{}"), ("archive", "nothing"), "new.jsonl", 4, ("runs/all.jsonl",)),
    Writer(("search", "--method", "der", *DIGITS, "--write", "{}"), ("chosen",), "new.yaml", 2, ("runs/all.jsonl",)),
    Writer((*FIGURE, "--out", "{}"), ("svg",), FIGURES + ".svg", 1),
    Writer((*FIGURE, "--out", "{}"), ("png",), FIGURES + ".png", 1),
    Writer((*FIGURE, "--out", "{}"), ("numbers",), FIGURES + ".csv", 1),
)
PARQUET = Writer(("runs", "--export", "{}"), ("parquet",), "new.parquet")
PERSONS = {  # files as a person has them
    "nothing": b"",
    "text": b"Notes of mine.\n",
    "csv": b"name,age\nAnn,3\n",
    "json": b'{"mine": [1, 2]}\n',
    "html": b"<!doctype html>\n<html><body>mine</body></html>\n",
    "yaml": b"scenario: digits-2\nmethod: der\n",
    "markdown of one's own": b"## Mine\n\nWith care.\n",
    "pdf": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj << >> endobj\n%%EOF\n",
    "zip": b"PK\5\6" + bytes(18),
    "zeros": bytes(1000),
}


class Overwrite(Part):
    """Files of every kind, links and devices where a command writes: what it could not have written stays as it is."""

    name, usual = "overwrite", 500

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._commands = self.server(_prepare)
        self.whole, self.here = folder / "whole", folder / "here"
        self.whole.mkdir()
        self._variables = {"MPLCONFIGDIR": str(folder / "matplotlib"), "CUDA_VISIBLE_DEVICES": ""}
        self.samples = self._furnish()
        self.writers = [*WRITERS, *([PARQUET] if "parquet" in self.samples else [])]

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.whole, self.here, symlinks=True)
        (writer,) = rng.choices(self.writers, [one.weight for one in self.writers])
        force = rng.random() < 0.3
        made = self._draw(writer, rng)
        words = [*writer.command(made.place), *(["--force"] if force else [])]
        before = _content(self.here)
        process = self._commands.start(
            *words, before=partial(_guarded, self.here), cwd=str(self.here), **self._variables
        )
        said, errors = process.communicate(300)
        complaint = wrong(words, process.returncode or 0, said, errors)
        after = _content(self.here)
        may = made.own or (force and made.forcible and writer.forcible)
        if complaint is None and may and process.returncode != 0:
            complaint = f"it was refused: {errors.strip()}"
        if complaint is None and not may:
            changed = sorted(str(path) for path in {*before, *after} if before.get(path) != after.get(path))
            if process.returncode != 2 or len(errors.splitlines()) != 1:
                complaint = f"exit code {process.returncode}, {errors.strip() or said.strip()[:100]}"
            elif changed:
                complaint = f"it changed {', '.join(changed[:3])}"
        return Failure(f"{spelt(words)}, where {made.words} is", complaint) if complaint else None

    def _draw(self, writer: Writer, rng: random.Random) -> Made:
        """Put something where the command is to write."""
        if writer.reads and rng.random() < 0.2:
            read = rng.choice(writer.reads)
            fits = Path(read).suffix == Path(writer.place).suffix or Path(writer.place).suffix not in SUFFIXES
            if fits:
                own = read == "runs/all.jsonl" and "archive" in writer.own
                return Made(Path(read), "what it reads", own, False)
        place = self.here / writer.place
        place.parent.mkdir(exist_ok=True)
        sample = rng.choice(writer.own if rng.random() < 0.3 else list(self.samples))
        content, words, own = self.samples[sample], sample, sample in writer.own
        if rng.random() < 0.2:
            end = rng.randrange(len(content)) if content and rng.random() < 0.5 else None
            content, words = (
                (content[:end], f"half of {sample}") if end is not None else (content + ADDED, f"{sample}, added to")
            )
            own = own and sample == "reproduction" and end is None  # what stands around the tables is kept
            own = own or ("nothing" in writer.own and not content)
        way = rng.random()
        if way < 0.55:
            place.write_bytes(content)
        elif way < 0.65:
            place.write_bytes(content)
            place.chmod(rng.choice((0o444, 0o400, 0o000)))
            words, own = f"{words}, write-protected", False
        elif way < 0.8:
            target = self.here / "elsewhere" / rng.choice(("thing", "thing.csv"))
            target.parent.mkdir()
            target.write_bytes(content)
            _link(place, target, rng)
            words = f"a link to {words}"
        else:
            words, own, forcible = _odd(self.here, place, rng)
            return Made(Path(writer.place), words, own, forcible)
        return Made(Path(writer.place), words, own, True)

    def _furnish(self) -> dict[str, bytes]:
        """Make what the commands read, and a sample of each kind of file."""
        here, rng = self.whole, np.random.default_rng(0)
        for place, names in (("images", ("cat", "dog")), ("more", ("bird", "fish"))):
            for name in names:
                (here / place / name).mkdir(parents=True)
                for number in range(8):
                    pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(here / place / name / f"{number}.png")
        parquet = importlib.util.find_spec("pyarrow") is not None
        made = self.folder / "made"
        commands: list[list[object]] = [
            ["learn", "images", "--out", "model.safetensors", *LEARN],
            ["learn", "more", "--from", "model.safetensors", "--out", made / "newer", "--epochs", "1"],
            ["export", "model.safetensors", "--out", made / "onnx"],
            ["export", "model.safetensors", "--to", "torch", "--out", made / "pt2"],
            [*RUNS, "--report", made / "page"],
            ["search", "--method", "der", *DIGITS, "--write", made / "chosen"],
            [*FIGURE, "--out", made],
            ["report", "--out", made],
            ["report", "--reproduction", made / "reproduction"],
            ["runs", "--export", made / "runs.csv"],
            ["runs", "--export", made / "runs.jsonl"],
            *([["runs", "--export", made / "runs.parquet"]] if parquet else []),
        ]
        for words in commands:
            process = self._commands.run(*words, before=None, cwd=str(here), **self._variables)
            assert process.returncode == 0, process.stderr
        figure = made / Path(FIGURES).name
        named = {
            **{name: made / name for name in ("newer", "onnx", "pt2", "page", "chosen", "reproduction")},
            "model": here / "model.safetensors",
            "a result": next((here / "runs").glob("*/result.json")),
            "a picture": here / "images" / "cat" / "0.png",
            "markdown": made / "table.md", "latex": made / "table.tex", "table": made / "table.csv",
            "runs": made / "runs.csv", "archive": made / "runs.jsonl",
            **({"parquet": made / "runs.parquet"} if parquet else {}),
            **{name: figure.with_name(f"{figure.name}.{suffix}") for name, suffix in FIGURE_FILES.items()},
        }  # fmt: skip
        shutil.copy(made / "runs.jsonl", here / "runs" / "all.jsonl")
        (here / "dev").mkdir()
        (here / "dev" / "stdin").symlink_to("/proc/self/fd/0")
        (here / "dev" / "stdout").symlink_to("stdin")
        return PERSONS | {name: path.read_bytes() for name, path in named.items()}


FIGURE_FILES = {"svg": "svg", "png": "png", "numbers": "csv"}
SUFFIXES = (".csv", ".parquet", ".jsonl")  # without which `runs --export` does not know what to write


@dataclass(frozen=True)
class Made:
    """What is there where a command writes."""

    place: Path
    words: str
    own: bool  # the command could have written it
    forcible: bool  # --force may replace it


def _link(place: Path, target: Path, rng: random.Random) -> None:
    if rng.random() < 0.3:  # a chain of links
        between = target.with_name("between")
        between.symlink_to(target.name)
        target = between
    place.symlink_to(os.path.relpath(target, place.parent) if rng.random() < 0.5 else target)


def _odd(here: Path, place: Path, rng: random.Random) -> tuple[str, bool, bool]:
    """Something that is no file, or leads to none: in words, whether it may be replaced, and by force."""
    if rng.random() < 0.5:
        target = rng.choice((
            "/dev/stdin", "/dev/stdout", "/dev/fd/0", "/proc/self/fd/1", "/dev/null", "/proc/self/mem",
            str(here / "dev" / "stdin"), str(here / "dev" / "stdout"), "/dev",
        ))  # fmt: skip
        between = here / "elsewhere"
        between.symlink_to(target)
        place.symlink_to(rng.choice((Path(target), between)))
        return f"a link to {target}", False, False
    kinds: dict[str, tuple[Callable[[Path], object], bool]] = {
        "a pipe": (os.mkfifo, False),
        "a folder": (Path.mkdir, False),
        "a link that leads nowhere": (lambda path: path.symlink_to("nowhere"), True),
        "a link to itself": (lambda path: path.symlink_to(path.name), True),
    }
    words = rng.choice(list(kinds))
    put, forcible = kinds[words]
    put(place)
    return words, False, forcible


def _content(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All that is in a folder but finished runs, to which commands may add."""
    found: dict[Path, tuple[int, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = b""
        if stat.S_ISLNK(mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        if path.name not in (files.LOCK, files.OWNER):
            found[path.relative_to(folder)] = mode, content
    return found


def _prepare() -> None:
    """Import once what would else take each command longer than its work."""
    import mdcg.execute.search
    import mdcg.export
    import mdcg.figures.make
    import mdcg.learner
    import mdcg.report.page.page  # noqa: F401

    digits.take_some()


def _guarded(folder: Path) -> None:
    """Make a folder of the trial's own the system's: links in it are not the machine's, should they be replaced."""
    files.SYSTEM = (*files.SYSTEM, folder / "dev")
