"""Command lines drawn at random: of words that fit, that are at the edge, and that are wrong.

The grammar is the program's own: its commands with their options, as typer knows them. Counts are small or absurd, so
that what is accepted ends soon.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import typer
import yaml

from mdcg.cli.app import app
from mdcg.cli.show import LISTS
from mdcg.errors import MdcgError
from mdcg.figures import FIGURES
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.probes import PROBES
from mdcg.recipes.recipe import Recipe
from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.testing.abuse.scratch import ODD, Scratch, spelt

NUMBERS = ("0", "1", "2", "3", "8", "0.1", "0.5", "0.9")  # most of which fit
ODD_NUMBERS = (
    "-1", "-0.0", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "1" + "0" * 400, "9" * 5000, "2147483648",
    "9223372036854775808", "99999999999999999999", "٣", "1_0", "", " 1", "+2", "1,", "0x10", "1e400",
)  # fmt: skip
ODD_WORDS = (
    "", " ", "[/]", "[red]x[/red]", "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "../..", "a\nb", "\udcff\udcfe",
    "x" * 300, "é" * 300, "%s%n{}", "--", "-", "\u202etxt", "None", "null", ",", "=", ":", "@x", "folder:-2", "a:b",
    "json:loads",
)  # fmt: skip
ODD_OPTIONS = ("--no-such", "--epoch", "-x", "--help", "--version", "--out=", "--json=1", "--=x", "--set=", "--seed")
PATHS = (
    "runs", "images", "more", "model.safetensors", "newer.safetensors", "recipe.yaml", "archives",
    "archives/some.jsonl", "images/cat/0.png", "link", ODD, f"{ODD}/runs", f"{ODD}/images", f"{ODD}/model.safetensors",
    f"{ODD}/recipe.yaml",
)  # fmt: skip
ODD_PATHS = (
    "missing", "missing/deep/er", ".", "..", "../..", "", "garbage", "empty", "unreadable", "pipe", "null", "full",
    "endless", "null/x", "loop", "dangling", "recipe.yaml/x", "x" * 300, "x/" * 3000, "x" * 5000, "new\nline",
    "esc\x1b[31m", "\udcff", "[/].yaml", "~", "~nobody-here/x", "-", "--out", "/dev/null/x", "/proc/self/mem", "a\\b",
    "con.", " ",
)  # fmt: skip

#: What fits where a word or a path is asked for, by the name of the parameter or key, or of that of one command alone.
FITTING: Mapping[str, Sequence[str]] = {
    "scenario": ("digits-2", "digits-5", "folder:images-1", f"folder:{ODD}/images-1", "digits-1"),
    "method": METHODS.names(),
    "search method": ("der", "er-lode", "ld", "md", "md-cg"),  # which have a grid
    "methods": ("naive,replay", "md-cg", "der,gem", "er-ace,md"),
    "head": HEADS.names(),
    "backbone": ("smallconv", "resnet20"),
    "probe": PROBES.names(),
    "log": ("tensorboard",),
    "memory": ("20", "30", "20,30"),
    "seeds": ("0", "1", "0-1", "0,2"),
    "seed": ("0", "3"),
    "order": ("9,8,7,6,5,4,3,2,1,0", "cat,dog", "0,1"),
    "sizes": ("5,5", "6,4", "2"),
    "first": ("6", "2"),
    "settings": ("lam=0.1", "beta=2", "lam=0.1,1", "alpha=0.5", "strength=0.2", "second_memory=10"),
    "augment": ("none", "crop+flip", "jitter", "randaugment", "mixup", "cutmix+jitter"),
    "device": ("auto", "cpu"),
    "precision": ("auto", "fp32", "fp64"),
    "resize": ("crop", "fit", "squash"),
    "on_error": ("stop", "skip"),
    "image_size": ("8", "16"),
    "tasks": ("2", "10"),
    "on": ("raay", "cpu"),  # a cluster is another part's
    "only": ("method=naive", "memory=20", "method=replay,memory=20", "seed=0"),
    "sort": ("ACC", "-ACC", "memory", "-finished", "set.lam", "name"),
    "filters": ("method=replay", "memory>=20", "ACC<50", "seed=0", "set.lam<0.5", "scenario=digits-2,digits-5"),
    "figure names": [name for name in FIGURES.names() if name not in ("head-time", "sigmoid")],  # which take long
    "cache names": ("folder", "digits"),
    "what": list(LISTS),
    "name": ("digits", "folder:images", "cifar10", "mnist", "tinyimagenet", f"folder:{ODD}/images"),
    "run": ("finished", "runs", "missing"),
    "images": ("images", "more", f"{ODD}/images"),
    "model": ("model.safetensors", "newer.safetensors", f"{ODD}/model.safetensors"),
    "before": ("model.safetensors",),
    "weights": ("model.safetensors",),
    "recipe": ("plain.yaml",),
    "sweep recipe": ("recipe.yaml", f"{ODD}/recipe.yaml"),
    "data": ("images", "digits"),
    "runs": ("runs", "archives", ODD),
    "out": ("runs", "out", "made/out", f"{ODD}/runs", "link"),
    "learn out": ("out.safetensors", f"{ODD}/model.safetensors"),
    "export out": ("made/out.onnx", "out.pt2"),
    "write": ("chosen.yaml",),
    "report": ("page.html",),
    "reproduction": ("numbers.md",),
    "export": ("all.csv", "all.jsonl", "all.parquet", f"{ODD}/all.csv"),
}
#: What a command is given first where it has such an option, or one command alone.
SMALL = {"scenario": "digits-2", "epochs": "1", "batch_size": "64", "memory": "20"}
SMALL_OF_ONE = {("learn", "image_size"): "8", ("learn", "backbone"): "smallconv"}


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a command."""

    command: str
    name: str
    words: tuple[str, ...]  # none of an argument
    kind: str  # "flag", "number", "path" or "word"
    choices: tuple[str, ...]
    required: bool
    several: bool

    @property
    def fitting(self) -> Sequence[str]:
        return self.choices or fitting(self.name, self.command) or (NUMBERS if self.kind == "number" else PATHS)

    def value(self, rng: random.Random) -> str:
        if rng.random() < 0.6:
            return rng.choice(self.fitting)
        pools = {"number": (ODD_NUMBERS, NUMBERS, ODD_WORDS), "path": (ODD_PATHS, PATHS, ODD_WORDS)}
        return rng.choice(rng.choice(pools.get(self.kind, (ODD_WORDS, ODD_NUMBERS, ODD_PATHS, PATHS))))

    def given(self, rng: random.Random, value: str) -> list[str]:
        """The words that give it this value."""
        if not self.words:
            return [value]
        word = rng.choice(self.words)
        if self.kind == "flag":
            return [word]
        return [f"{word}={value}"] if rng.random() < 0.2 else [word, value]


@cache
def fitting(name: str, command: str = "") -> Sequence[str]:
    """What fits a parameter, or a key of recipes: as the table says, or else its choices and the numbers it may have.

    >>> fitting("optimizer"), fitting("warmup"), fitting("nothing")
    (['sgd', 'adamw'], ['0', '0.1', '0.5', '0.9'], [])
    """
    known = FITTING.get(f"{command} {name}") or FITTING.get(name)
    if known or name not in Recipe.model_fields:
        return known or []
    parts: list[Any] = [Recipe.model_fields[name].annotation]
    for part in parts:
        parts += get_args(part)
    values = [part for part in parts if isinstance(part, str)] or (["true"] if bool in parts else NUMBERS)
    return [value for value in values if _fits(name, value)]


def _fits(key: str, value: str) -> bool:
    try:
        Recipe(**{"scenario": "digits-2", key: yaml.safe_load(value)})
    except (ValueError, MdcgError):
        return False
    return True


@cache
def commands() -> dict[tuple[str, ...], list[Parameter]]:
    """Every command, and what it may be given.

    >>> [parameter.name for parameter in commands()["data", "get"]]
    ['name', 'data']
    """
    return dict(_commands(typer.main.get_command(app), ()))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Parameter]]]:
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from _commands(inner, (*path, word))
        return
    context = command.context_class(command, info_name=path[-1])
    yield path, [_parameter(path[-1], one, (one.get_help_record(context) or ("",))[0]) for one in command.params]


def _parameter(command: str, one: Any, shown: str) -> Parameter:
    argument = one.param_type_name == "argument"
    kinds = {"NUMBER": "number", "PATH": "path"}
    kind = "flag" if getattr(one, "is_flag", False) else kinds.get(one.metavar, "word")
    choices = re.search(r"[\[<](\w+(?:\|\w+)+)[\]>]", shown)
    return Parameter(
        command,
        one.name,
        () if argument else (*one.opts, *one.secondary_opts),
        kind,
        tuple(choices[1].split("|")) if choices else (),
        one.required,
        one.nargs == -1 or one.multiple,
    )


def draw_command(rng: random.Random) -> list[str]:
    """Draw a command line."""
    known = commands()
    (path,) = rng.choices(list(known), [8 + len(parameters) for parameters in known.values()])
    options = [one for one in known[path] if one.words]
    small = {one: SMALL.get(one.name) or SMALL_OF_ONE.get((one.command, one.name)) for one in options}
    given = [one.given(rng, value) for one, value in small.items() if value]
    weights = [3 if one.kind == "path" else 1 for one in options]  # of which there are few, with most to be wrong
    drawn = rng.choices(options, weights, k=rng.choice((0, 1, 1, 2, 2, 3, 4))) if options else []
    named = [one for one in options if one.required or (one.name in ("method", "methods") and rng.random() < 0.9)]
    given += [one.given(rng, rng.choice(one.fitting)) for one in named]
    given += [one.given(rng, one.value(rng)) for one in drawn]
    if rng.random() < 0.1:
        rng.shuffle(given)  # of an option that is given twice the last one counts
    arguments = []
    for one in known[path]:
        if not one.words and (one.required or rng.random() < 0.85):
            count = rng.choice((1, 1, 2)) if one.several else 1
            arguments += [rng.choice(one.fitting) if rng.random() < 0.7 else one.value(rng) for _ in range(count)]
    words = [word for words in given for word in words]
    words = [*path, *arguments, *words] if rng.random() < 0.7 else [*path, *words, *arguments]
    return rng.choice(MISCHIEF)(words, rng) if rng.random() < 0.15 else words


def without_one(words: list[str], rng: random.Random) -> list[str]:
    """All but one of them, as those below, which damage a recipe as well."""
    at = rng.randrange(len(words))
    return words[:at] + words[at + 1 :]


def one_twice(words: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(words))
    return words[: at + 1] + words[at:]


def two_swapped(words: list[str], rng: random.Random) -> list[str]:
    one, other = rng.randrange(len(words)), rng.randrange(len(words))
    words[one], words[other] = words[other], words[one]
    return words


def _one_more(words: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(words) + 1)
    return [*words[:at], rng.choice((*ODD_OPTIONS, *ODD_WORDS)), *words[at:]]


def _cut(words: list[str], rng: random.Random) -> list[str]:
    return words[: rng.randrange(len(words))]


MISCHIEF: Sequence[Callable[[list[str], random.Random], list[str]]] = (
    without_one, one_twice, two_swapped, _one_more, _one_more, _cut,
)  # fmt: skip


class Commands(Part):
    """Command lines of words that fit and of words that do not: a sentence, and nothing is lost."""

    name, usual = "commands", 1200

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._scratch = Scratch(folder, self.server())

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        words = draw_command(rng)
        complaint = self._scratch.complaint(words)
        if complaint is None:
            return None
        shortest, complaint = self._scratch.shortest(
            words, complaint, lambda fewer, seconds: self._scratch.complaint(fewer, seconds=seconds)
        )
        return Failure(spelt(shortest), complaint)
