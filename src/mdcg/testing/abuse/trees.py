"""Folders in folders as nobody means them: what commands make of them that look for runs, images and datasets."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from PIL import Image

from mdcg.runs.store import RESULT
from mdcg.testing.abuse.campaign import Failure
from mdcg.testing.abuse.hostile import NAMES, Harm, Hostile, fewest
from mdcg.testing.abuse.images import SMALLEST
from mdcg.testing.forked import as_nobody

Words = Sequence[object]
RUN = ("--scenario", "digits-2", "--epochs", 1, "--batch-size", 64)
DEPTHS = (70, 330, 1000, 1100, 3000)
LINKS = (3, 39, 45, 400)
FILES = (RESULT, "all.jsonl", "a.png", "members.json", "model.safetensors", "recipe.yaml")
ODD_NAMES = [name for name in NAMES if name != b".."]
DEAD = ("a folder", "a link to itself", "a link to nowhere", "a pipe")


class Trees(Hostile):
    """Folders that lie deep, go round in links, may not be read or are named oddly, wherever commands look."""

    name, usual, memory = "trees", 300, 4 * 2**30

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for place in (folder.parent, folder):
            place.chmod(0o755)  # for those trials that nobody does
        self.made, self.here = folder / "made", folder / "here"
        for number, name in enumerate(("cat", "dog")):
            (self.made / "images" / name).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (9, 8), (90 * number, 60 * i, 90)).save(self.made / "images" / name / f"{i}.png")
        for words in (
            ("compare", "--methods", "naive,replay", "--memory", 20, *RUN, "--out", self.made / "runs"),
            ("learn", self.made / "images", "--out", self.made / "model.safetensors", *SMALLEST),
        ):
            error, code, _, said = self.wrong(*words)
            assert (error, code) == (None, 0), said
        (self.made / "recipe.yaml").write_text("scenario: digits-2\nmethod: replay\nmemory: 20\nepochs: 1\n")
        for name in ("cache", "data/cifar-10-batches-bin", "data/tiny-imagenet-200/train", "runs/.groups/group"):
            (self.made / name).mkdir(parents=True)
        self.names = sorted(path.name for path in (self.made / "runs").iterdir() if path.name != ".groups")

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        place = sorted(PLACES)[number % len(PLACES)]
        words = rng.choice(PLACES[place])
        nobody = os.geteuid() == 0 and words[0] in READING and rng.random() < 0.3
        finished = self.made / "runs" / self.names[0]
        harms = [_harm(rng, number, finished) for number in range(rng.choice((1, 1, 2, 3)))]
        found = fewest(harms, lambda chosen: self._tried(place, words, chosen, nobody))
        who = " as nobody" if nobody else ""
        return found and replace(found, how=f"{' '.join(map(str, words))}{who}, in {place} {found.how}")

    def _tried(self, place: str, words: Words, harms: Sequence[Harm[Path]], nobody: bool) -> str | None:
        try:
            shutil.copytree(self.made, self.here)
            folder = self.here / place.replace("RUN", self.names[0])
            folder.mkdir(exist_ok=True)
            for one in harms:
                one.do(folder)
            return self._answered(place, words, nobody)
        finally:  # as Python cannot remove what lies too deep
            subprocess.run(["/bin/rm", "-rf", self.here, *map(self.folder.joinpath, WRITTEN)], check=True)

    def _answered(self, place: str, words: Words, nobody: bool) -> str | None:
        """What is wrong with the answer to a command, if anything is."""
        first = self.names[0]
        asked = [str(word).replace("RUN", first).replace("HERE", str(self.here)) for word in words]
        cache = str(self.here / "cache") if place == "cache" else os.environ["MDCG_CACHE"]
        error, code, out, said = self.wrong(*asked, before=as_nobody if nobody else None, MDCG_CACHE=cache)
        if error is None and place.startswith("runs"):
            if not (self.here / "runs" / first / RESULT).exists():
                return "a finished run is gone"
            if words[0] == "runs" and "--json" in words and code == 0:
                listed = {run["name"] for run in json.loads(out)["runs"]}
                return None if listed.issuperset(self.names) else f"it left out finished runs: {said}"
        return error


WRITTEN = ("report", "figures", "runs", "new.safetensors", "all.csv", "all.jsonl", "page.html")
READING = ("runs", "show", "predict", "evaluate")
RUNS, SAME = ("--out", "HERE/runs"), ("--memory", 20, *RUN)
LOOK: tuple[Words, ...] = (
    ("runs", *RUNS), ("runs", *RUNS, "--json"), ("runs", *RUNS, "--json"), ("runs", *RUNS, "--export", "all.csv"),
    ("runs", *RUNS, "--export", "all.jsonl"), ("report", "HERE/runs"), ("show", "RUN", *RUNS), ("show", "x", *RUNS),
    ("show", "HERE/runs/RUN"),
)  # fmt: skip
TRAIN: tuple[Words, ...] = (
    ("run", "--method", "replay", *SAME, *RUNS), ("run", "--method", "replay", "--seeds", 1, *SAME, *RUNS),
    ("compare", "--methods", "naive,replay", *SAME, *RUNS, "--report", "page.html"),
    ("sweep", "HERE/recipe.yaml", *RUNS), ("sweep", "HERE/recipe.yaml", *RUNS, "--plan"),
    ("figure", "forgetting", "--methods", "replay", *SAME[:-2], "--runs", "HERE/runs"),
)  # fmt: skip
NEW = ("--out", "new.safetensors", *SMALLEST)
SEE: tuple[Words, ...] = (
    ("learn", "HERE/images", *NEW), ("learn", "HERE/images", *NEW, "--on-error", "skip"),
    ("learn", "HERE/images", "--from", "HERE/model.safetensors", "--epochs", 1, "--out", "new.safetensors"),
    ("predict", "HERE/model.safetensors", "HERE/images"), ("evaluate", "HERE/model.safetensors", "HERE/images"),
    ("run", "--scenario", "folder:HERE/images-2", "--method", "naive", *SMALLEST),
    ("data", "verify", "folder:HERE/images"),
)  # fmt: skip
CIFAR = ("--scenario", "c10-5", "--method", "naive", "--epochs", 1)
#: Where trees are put, and the commands that look there.
PLACES: dict[str, tuple[Words, ...]] = {
    "runs": LOOK + TRAIN,
    "runs/RUN": LOOK + TRAIN,
    "runs/RUN/measured": LOOK + TRAIN,
    "runs/.groups": TRAIN,
    "runs/.groups/group": TRAIN,
    "images": SEE,
    "images/cat": SEE,
    "cache": (("cache",), ("cache", "--clear"), ("run", "--method", "naive", *RUN), ("data", "verify", "digits")),
    "data": (("run", *CIFAR, "--data", "HERE/data"), ("data", "verify", "cifar10", "--data", "HERE/data")),
    "data/cifar-10-batches-bin": (
        ("run", *CIFAR, "--data", "HERE/data"), ("data", "verify", "cifar10", "--data", "HERE/data"),
    ),
    "data/tiny-imagenet-200/train": (
        ("run", "--scenario", "tym-10", "--method", "naive", "--data", "HERE/data"),
        ("data", "verify", "tinyimagenet", "--data", "HERE/data"),
    ),
}  # fmt: skip


def _harm(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    """One thing that is done to a folder, with the folder of a finished run at hand."""
    kind = rng.choice((_deep, _deep, _chain, _loop, _odd, _odd, _dead, _closed, _wide))
    return kind(rng, number, finished)


def _deep(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    depth, name = rng.choice(DEPTHS), rng.choice((b"d", b"d", b"x" * 200, b"all.jsonl", b".done", *ODD_NAMES))
    last = rng.choice(("nothing", *FILES))
    top = f"deep{number}{rng.choice(('', '', '.jsonl', '.png', '.done'))}"
    return Harm(f"{depth} folders {name!r} below {top}, then {last}", partial(_dig, depth, name, last, top))


def _dig(depth: int, name: bytes, last: str, top: str, place: Path) -> None:
    """Make folders in each other: their path may be longer than the system takes at once."""
    (place / top).mkdir()
    handle = os.open(place / top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    if last != "nothing":
        os.close(os.open(last, os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


def _chain(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    count, name = rng.choice(LINKS), rng.choice(("", *FILES))
    to = rng.choice((".", "..", "nowhere", "chain0", "/dev/zero"))

    def link(place: Path) -> None:
        own = place / f"chain{number}"
        own.mkdir()
        for one in range(count):
            (own / f"{one}").symlink_to(f"{one + 1}")
        (own / f"{count}").symlink_to(to)
        (place / f"{number}{name}").symlink_to(own / "0")

    return Harm(f"{count} links to {to} behind {number}{name}", link)


def _loop(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    to = rng.choice((".", "..", "../..", f"loop{number}", "../loop"))
    count = rng.choice((1, 3, 40))

    def link(place: Path) -> None:
        own = place / f"loop{number}"
        own.mkdir()
        for one in range(count):
            (own / f"round{one}").symlink_to(to)
        (own / "first").symlink_to("second")
        (own / "second").symlink_to("first")

    return Harm(f"{count} links to {to} in loop{number}", link)


def _odd(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    name, inner = rng.choice(ODD_NAMES), rng.choice(FILES)
    run = rng.random() < 0.5

    def make(place: Path) -> None:
        own = place / os.fsdecode(b"%d" % number + name[:200])
        own.mkdir()
        if run:
            shutil.copytree(finished, own / "run")
        (own / inner).write_bytes(b"{}")
        for suffix in (b".png", b".jsonl"):
            (own / os.fsdecode(b"x" + name[:200] + suffix)).write_bytes(b"neither image nor archive")

    return Harm(f"a folder {name!r}{' with a run' if run else ''} and {inner}", make)


def _dead(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    name, what = f"{rng.choice(('', f'{number}'))}{rng.choice(FILES)}", rng.choice(DEAD)

    def make(place: Path) -> None:
        own = place / f"dead{number}"
        own.mkdir()
        do: dict[str, Callable[[Path], object]] = {
            "a folder": lambda path: path.mkdir(),
            "a link to itself": lambda path: path.symlink_to(path.name),
            "a link to nowhere": lambda path: path.symlink_to("nowhere"),
            "a pipe": os.mkfifo,
        }
        do[what](own / name)
        if not os.path.lexists(place / f"{number}{name}"):
            do[what](place / f"{number}{name}")

    return Harm(f"{name} is {what}", make)


def _closed(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    mode, inner = rng.choice((0, 0o100, 0o400, 0o444, 0o111)), rng.choice(FILES)

    def close(place: Path) -> None:
        own = place / f"closed{number}"
        (own / "folder").mkdir(parents=True)
        for folder in (own, own / "folder"):
            (folder / inner).write_bytes(b"{}")
        own.chmod(mode)

    return Harm(f"closed{number} with {inner}, mode {mode:o}", close)


def _wide(rng: random.Random, number: int, finished: Path) -> Harm[Path]:
    count = rng.choice((100, 1500))

    def make(place: Path) -> None:
        for one in range(count):
            (place / f"wide{number}" / f"{one}.jsonl").mkdir(parents=True)

    return Harm(f"{count} folders side by side in wide{number}", make)
