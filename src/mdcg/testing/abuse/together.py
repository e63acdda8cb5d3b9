"""Commands that are given at the same time, about the same runs: none of them disturbs another.

Eight processes begin at once in one folder of finished runs. They train, several of them the same runs, some anew; they
list, draw and export what is there, empty the cache, and some are killed.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mdcg.execute.sweep import Sweep
from mdcg.files import OWNER, PARTIAL
from mdcg.learner.training import FOLDER
from mdcg.recipes.document import Document
from mdcg.runs.store import MODEL, RESULT, Store
from mdcg.saved import SavedModel
from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.testing.forked import Server, killed_at
from mdcg.testing.groups import toy_dataset
from mdcg.testing.made import write_made

AT_ONCE = 8
FEW, MANY = 12, 200  # made runs that are there beforehand; many in every fifth trial
METHODS, SEEDS, IMAGES_SEEDS = ("naive", "replay", "er-ace"), range(4), range(2)
SHORT = ["--epochs", 1, "--memory", 20]
SMALL = ["--backbone", "smallconv", "--image-size", 8]
PROBE = "drift"
KILLS = (
    ("step", 16),
    ("half", 6),
    ("flush", 6),
    ("unlink", 3),
    ("rmtree", 1),
)  # where, and at which call at the latest
BUSY = ("another process is working on it", "is in use by ", "has been removed meanwhile", "would be lost")
ALARMS = ("damaged", "cannot be", "could not be", "cannot read", "cannot write", "left out")  # nothing ever is
SECONDS = 300  # after which a command counts as one that does not end

Runs = frozenset[str]  # by name


@dataclass(frozen=True)
class Given:
    """A command, the runs that it needs, and where it sends itself which signal, if it does."""

    words: tuple[str, ...]
    needs: Runs = frozenset()
    kill: tuple[str, int, int] | None = None
    may_miss: bool = False  # it is about one run, which may be trained anew just now

    @property
    def anew(self) -> bool:
        return "--fresh" in self.words

    def again(self) -> list[str]:
        """The command that goes on where it was killed."""
        return [word for word in self.words if word != "--fresh"]

    def __str__(self) -> str:
        return " ".join(self.words) + (" killed by {2} at {0} {1}".format(*self.kill) if self.kill else "")


class Together(Part):
    """Eight commands at once about the same runs: none is lost, none has other bits, nothing is left behind."""

    name, usual = "together", 40

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = self.server()
        self._images = _write_images(folder / "images")
        self._recipe = folder / "recipe.yaml"
        self._recipe.write_text(json.dumps({**_recipe(METHODS), "seeds": [*SEEDS]}))
        self._whole, self._made = folder / "whole", folder / "made"
        for words in self._all():
            _run(self._server, words, folder, folder / "cache")
        (folder / "runs").rename(self._whole)
        self._names = {
            (record.spec.scenario, record.spec.method, record.spec.seed): path.name
            for path, record in Store(self._whole).records()
        }

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        made = MANY if number % 5 == 4 else FEW
        there = frozenset(name for name in sorted(self._names.values()) if rng.random() < 0.5)
        given = [self._draw(rng) for _ in range(AT_ONCE)]
        error = self._together(made, there, given)
        return None if error is None else self._shortest(made, there, given, error)

    def _shortest(self, made: int, there: Runs, given: Sequence[Given], error: str) -> Failure:
        """The failure with the fewest commands that still led to it; what depends on luck may need all of them."""
        for one in given if len(given) > 2 else ():
            fewer = [other for other in given if other is not one]
            found = self._together(made, there, fewer)
            if found is not None:
                return self._shortest(made, there, fewer, found)
        return Failure(f"{made + len(there)} finished runs; at once: {' | '.join(map(str, given))}", error)

    # ---- what is given ----

    def _draw(self, rng: random.Random) -> Given:
        others = (self._show, self._look, self._look, self._report, self._export, self._clear, self._figure)
        given = rng.choice((*4 * (self._train,), *others, self._learn))(rng)
        if rng.random() < 0.2:
            where, latest = rng.choice(KILLS)
            number = rng.choice(
                (signal.SIGKILL, signal.SIGINT, signal.SIGTERM) if where == "step" else (signal.SIGKILL,)
            )
            return replace(given, kill=(where, rng.randint(1, latest), int(number)))
        return given

    def _train(self, rng: random.Random) -> Given:
        anew = ["--fresh"] * (rng.random() < 0.2)
        kind = rng.choice(("run", "run", "compare", "sweep", "images"))
        if kind == "sweep":
            return _given(["sweep", self._recipe, "--out", "runs", *anew], self._needed("digits-2", METHODS, SEEDS))
        among = IMAGES_SEEDS if kind == "images" else SEEDS
        seeds = sorted(rng.sample(among, rng.randint(1, len(among))))
        told = ["--seeds", _several(seeds), "--members", rng.choice((1, 2, 8)), *anew]
        if kind == "images":
            return _given([*self._of_images(), *told], self._needed(f"folder:{self._images}-2", ["naive"], seeds))
        methods = rng.sample(METHODS, 1 if kind == "run" else rng.randint(2, len(METHODS)))
        named = ["--method" if kind == "run" else "--methods", _several(methods)]
        words = [kind, "--scenario", "digits-2", *named, *SHORT, "--out", "runs", *told]
        return _given(words, self._needed("digits-2", methods, seeds))

    def _show(self, rng: random.Random) -> Given:
        return _given(["show", rng.choice(sorted(self._names.values())), "--out", "runs"], may_miss=True)

    def _look(self, rng: random.Random) -> Given:
        return _given(["runs", "--out", "runs", *rng.choice(([], ["--json"], ["method=naive"]))])

    def _report(self, rng: random.Random) -> Given:
        return _given(["report", "runs", "--out", "report"])

    def _export(self, rng: random.Random) -> Given:
        return _given(["runs", "--out", "runs", "--export", rng.choice(("all.csv", "all.csv", "more/md.jsonl"))])

    def _clear(self, rng: random.Random) -> Given:
        return _given(["cache", "--clear"])

    def _figure(self, rng: random.Random) -> Given:
        name, methods = rng.choice((("forgetting", METHODS[:2]), (PROBE, METHODS[1:])))
        seeds = rng.choice(((0,), (0, 1)))
        told = ["--methods", _several(methods), "--seeds", _several(seeds), *SHORT]
        words = ["figure", name, "--scenario", "digits-2", *told, "--runs", "runs", "--out", "figures"]
        return _given(words, self._needed("digits-2", methods, seeds))

    def _learn(self, rng: random.Random) -> Given:
        return _given(self._learning())

    def _all(self) -> list[Sequence[object]]:
        """The commands that need every run, and the model."""
        return [
            ["sweep", self._recipe, "--out", "runs"],
            [*self._of_images(), "--seeds", _several(IMAGES_SEEDS)],
            self._learning(),
        ]

    def _of_images(self) -> list[object]:
        asked = ["--scenario", f"folder:{self._images}-2", "--method", "naive", *SHORT, *SMALL]
        return ["run", *asked, "--batch-size", 8, "--out", "runs"]

    def _learning(self) -> list[object]:
        how = ["--epochs", 2, "--memory", 20, *SMALL, "--batch-size", 8, "--hold-out", 0]
        return ["learn", self._images / "train", "--out", "model.safetensors", *how]

    def _needed(self, scenario: str, methods: Iterable[str], seeds: Iterable[int]) -> Runs:
        seeds = [*seeds]
        return frozenset(self._names[scenario, method, seed] for method in methods for seed in seeds)

    # ---- what comes of it ----

    def _together(self, made: int, there: Runs, given: Sequence[Given]) -> str | None:
        """Give these commands at once, in a folder with these runs; say what went wrong, if anything did."""
        place = self.folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        before = self._fill(place / "runs", made, there)
        processes = [
            self._server.start(
                *one.words,
                before=killed_at(*one.kill) if one.kill else None,
                cwd=str(place),
                MDCG_CACHE=str(place / "cache"),
            )
            for one in given
        ]
        try:
            ended = [
                (one, process, *process.communicate(SECONDS)) for one, process in zip(given, processes, strict=True)
            ]
        except subprocess.TimeoutExpired as error:
            return f"it does not end: {error.cmd}"
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
        killed = [one for one, process, *_ in ended if one.kill and process.returncode not in (0, 1, 2)]
        for one, process, output, errors in ended:
            trouble = None if one in killed else _trouble(one, process.returncode or 0, output, errors, place)
            trouble = trouble or _unexpected(errors)
            if trouble:
                return f"'{one}' ended with code {process.returncode}: {trouble}: {errors or output}"
        # A figure is drawn without the runs that others are at, and says so: these may be killed.
        succeeded = [one for one, process, _, errors in ended if process.returncode == 0 and not _busy(errors)]
        return (
            self._lost(place / "runs", there, given, killed, succeeded)
            or self._unlike(place / "runs", before)
            or self._afterwards(place, before, killed)
        )

    def _fill(self, runs: Path, made: int, there: Runs) -> dict[str, bytes]:
        """Make a folder of finished runs; the results of those that were made, by name."""
        for name in there:
            shutil.copytree(self._whole / name, runs / name)
        asked = {**_recipe(["md"]), "memory": 30, "seeds": [*range(made)]}
        sweep = Sweep.of(Document(asked), out=self._made / str(made))
        if not sweep.context.out.exists():
            write_made(sweep)
        shutil.copytree(sweep.context.out, runs, dirs_exist_ok=True)
        return {path.parent.name: path.read_bytes() for path in runs.glob(f"*_md_*/{RESULT}")}

    def _lost(
        self, runs: Path, there: Runs, given: Iterable[Given], killed: Collection[Given], succeeded: Iterable[Given]
    ) -> str | None:
        """A run that is not finished though nobody was killed who began it, or, begun anew, removed what was there."""
        cut = frozenset[str]().union(*(one.needs for one in killed))
        removed = frozenset[str]().union(*(one.needs for one in killed if one.anew))
        asked = frozenset[str]().union(*(one.needs for one in given))
        done = frozenset[str]().union(*(one.needs for one in succeeded))
        lost = [
            name for name in sorted((asked - cut) | ((done | there) - removed)) if not (runs / name / RESULT).exists()
        ]
        return f"not finished in the end: {', '.join(lost)}" if lost else None

    def _unlike(self, runs: Path, before: dict[str, bytes]) -> str | None:
        """A finished run that is not as it would be if nobody had been there."""
        for name in self._names.values():
            if (runs / name / RESULT).exists() and _bits(runs / name) != _bits(self._whole / name):
                return f"{name} has other bits than an undisturbed run"
        for name, content in before.items():
            if not (runs / name / RESULT).exists() or (runs / name / RESULT).read_bytes() != content:
                return f"{name}, which nobody asked for, was changed"
        return None

    def _afterwards(self, place: Path, before: dict[str, bytes], killed: Iterable[Given]) -> str | None:
        """What is wrong after all is asked for, and what was killed is given again, one command after the other."""
        for words in [*self._all(), *(one.again() for one in killed)]:
            done = _run(self._server, words, place, place / "cache")
            if done.returncode or _unexpected(done.stderr):
                return f"afterwards '{' '.join(done.args)}' ended with code {done.returncode}: {done.stderr}"
        missing = [name for name in self._names.values() if not (place / "runs" / name / RESULT).exists()]
        if missing:
            return f"not finished afterwards: {', '.join(missing)}"
        if not _same_model(place / "model.safetensors", self.folder / "model.safetensors"):
            return "the model that was learned has other bits than an undisturbed one"
        left = [
            str(path.relative_to(place))
            for path in place.rglob("*")
            if path.name.endswith((PARTIAL, OWNER, FOLDER)) or path.parent.name == ".groups"
        ]
        return f"left behind: {', '.join(left)}" if left else self._unlike(place / "runs", before)


def _given(words: Iterable[object], needs: Runs = frozenset(), may_miss: bool = False) -> Given:
    return Given(tuple(map(str, words)), needs, may_miss=may_miss)


def _several(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _recipe(methods: Iterable[str]) -> dict[str, Any]:
    return {"scenario": "digits-2", "epochs": 1, "memory": 20, "axes": {"method": [*methods]}}


def _run(server: Server, words: Iterable[object], place: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return server.run(*words, cwd=str(place), MDCG_CACHE=str(cache))


def _trouble(given: Given, code: int, output: str, errors: str, place: Path) -> str | None:
    """What is wrong with how a command ended that nobody killed."""
    if code == 0:
        return _unreadable(given, output, place)
    if code == (1 if given.words[0] == "sweep" else 2) and (_busy(errors) or given.may_miss):
        return None
    return "it should not fail"


def _busy(errors: str) -> bool:
    """Whether a command says that others are at work."""
    return any(busy in errors for busy in BUSY)


def _unreadable(given: Given, output: str, place: Path) -> str | None:
    """What cannot be read of that which a command wrote."""
    try:
        if "--json" in given.words:
            json.loads(output)
        if "all.csv" in given.words:
            list(csv.DictReader((place / "all.csv").read_text("utf-8").splitlines()))
        if given.words[0] == "report":
            page = (place / "report" / "index.html").read_text("utf-8")
            return None if page.endswith("</html>\n") else "its page is cut short"
    except (OSError, ValueError, csv.Error) as error:
        return f"what it wrote cannot be read: {error}"
    return None


def _unexpected(errors: str) -> str | None:
    """What should not have been said: no more than sentences, and none of damage, for there is none."""
    for line in errors.splitlines():
        if not line.startswith("mdcg: "):
            return "this is no sentence"
        if any(alarm in line for alarm in ALARMS) and not _busy(line):
            return "a false alarm"
    return None


def _bits(folder: Path) -> tuple[object, ...]:
    """All of a finished run that company must not change."""
    result = json.loads((folder / RESULT).read_text("utf-8"))
    return *(result[key] for key in ("R", "correct", "history", "memory")), (folder / MODEL).read_bytes()


def _same_model(one: Path, two: Path) -> bool:
    weights = [SavedModel.load(path).model.state_dict() for path in (one, two)]
    return all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def _write_images(folder: Path) -> Path:
    """A dataset of image files, in four classes; those to train on are a folder for `learn` as well."""
    toys = toy_dataset([9, 8, 7, 8], channels=3)
    for name, split in (("train", toys.train), ("test", toys.test)):
        for place, (image, label) in enumerate(zip(split.images.numpy(), split.labels, strict=True)):
            path = folder / name / toys.class_names[label] / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    return folder
