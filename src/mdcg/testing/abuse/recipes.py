"""Recipes drawn at random: as they should be, with edits of what they say, and damaged as files.

Their keys are the fields of `Recipe`. Most are planned and not run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mdcg.methods import METHODS
from mdcg.recipes.recipe import Recipe
from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.testing.abuse.grammar import SMALL, fitting, one_twice, two_swapped, without_one
from mdcg.testing.abuse.scratch import ODD, SECONDS, Scratch, spelt

Lines = list[str]

#: Values as YAML has them, of which few mean anything as a value of a recipe.
ODD_YAML = (
    "", "~", "[]", "{}", "[[]]", "[null]", "{a: 1}", "true", "no", "-1", "0", "0.5", ".nan", "-.inf", "1e308", "1e400",
    "0x1F", "1:30", "2024-01-01", "2024-13-45", "2001-12-14t21:59:43.10-05:00", "9" * 5000, "9" * 19, "1_0", '!!int ""',
    "!!int x", "!!float x", "!!bool maybe", "!!null x", "!!binary aGVsbG8=", "!!binary ****",
    "!!python/object:os.system x", "!!python/name:os.system", "!!python/object/apply:os.system [ls]", "!!set {a, b}",
    "!!omap [a: 1]", "!!pairs [a: 1]", "!!timestamp x", "!!str 5", "!!map []", "!!seq {}", "!unknown x", "&a [*a]",
    "&a {b: *a}", "*nowhere", "&x 5", "{<<: {epochs: 1}}", "{<<: [1, 2]}", "{<<: 5}", '"\\x1b[31m"', '"\\0"',
    '"\\ud800"', '"\\U0010ffff"', '"\\n"', "'[/]'", "'[red]x[/red]'", "|", '"unclosed', "[unclosed", "{a: b", "@at",
    "`tick", "%percent", "? x", "- x", "a: b: c", "x" * 5000, "é" * 300, "../..", "[1, 1]", "[" * 5000,
    "[" * 400 + "]" * 400, "{a: " * 300 + "1" + "}" * 300, "[0, 0.0, false]", "[1, 1.0, true]", "[.nan, .nan]",
    "{? [a] : b}", "{1: 2}", "{null: 1}", "#", "\t", "[a, b]", "[1, x]", "{dataset: digits}",
    "{dataset: digits, tasks: 2, first: 6}", "{dataset: digits, sizes: [6, 4]}",
    "{dataset: digits, tasks: [[1, 2], [3, 1]], returning: true}", "{dataset: digits, tasks: 2, blurry: 0.2}",
    "{dataset: [], tasks: 2}", "{dataset: digits, tasks: 2, online: true}", "{dataset: 5, tasks: 1e9}",
    "[{dataset: digits, tasks: 2}]", "pipe", "endless", "null",
)  # fmt: skip
ODD_LINES = (
    "base: &b {epochs: 1}", "<<: {epochs: 1}", "<<: *b", "<<: 5", "---", "...", "%YAML 1.1", "%TAG ! tag:x,2000:",
    "? a", "? [a, b]\n: c", ": x", "- item", "\tepochs: 1", "  epochs: 1", "word", "#\x07", "\0", "\ufeff", "\x85",
    "\u2028", "\x1b[31m: 1", "null: 1", "1: 2", "true: 1", "!!str x: 1", "set.lam: 1", "axes: {}", "axes: [1]",
    "axes: {nothing: []}", "axes: {seeds: [1]}", "axes: {set.lam: [0.1, 1]}", "axes: {memory: {a: 1}}",
    "axes: {v: {a: {epochs: 1}, b: {epochs: 2}}}", "axes: {v: {a: {set: {lam: 1}}}}", "axes: {v: {a: {set: 5}}}",
    "axes: {method: [naive, naive]}", "axes: {5: [1]}", "axes: {lr: [.nan, .nan]}", "axes: {v: {? [x] : {epochs: 1}}}",
    "axes: {v: {'': {lr: 1}}}", "rate: 0.1", "learning_rate: 1", "lam: 1", "Epochs: 1", "batch-size: 64", "'': 1",
    '"\\x1b[31m": 1', "set: {'': 1}", "set: {1: 2}", "set: {lam: {}}", "set: {lam: 0.1, lam: 1}", "set: {'\\e[/]': 1}",
    "scenario: {scenario: {}}",
)  # fmt: skip
ODD_KEYS = ("? a", "'[/]'", "!!int x", "*a", "&a b", "x" * 5000, "[a]", "{a}", "-", "<<", '"\\x1b"', "5", "null", "")
ODD_BYTES = (b"\0", b"\xff", b"\x07", b"\xc3", b"\xed\xa0\x80", b"\r", b"\t", b"\x1b[31m")
MANY = ", ".join(str(n / 1000) for n in range(1, 301))
#: Lines that mean far more than they say; for what trains nothing.
HUGE_LINES = (
    "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]" for n in range(1, 10))]),
    "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join(9 * [f'*a{n - 1}'])}]}}" for n in range(1, 10))]),
    "\n".join(f"key{n}: 1" for n in range(60_000)),
    "axes:\n" + "\n".join(f"  {key}: [{MANY}]" for key in ("lr", "clip", "momentum", "weight_decay")),
    f"axes: {{lr: [{MANY}], method: [naive, replay]}}", f"seeds: [{', '.join(map(str, range(3000)))}]",
    f"title: {'x' * 2**20}", "# " + "x" * 2**20, "\n".join(f"{'  ' * n}a:" for n in range(1000)),
)  # fmt: skip
#: What fits a key, where that is something else than on a command line.
VALUES: Mapping[str, Sequence[str]] = {
    "title": ("A title",),
    "set": ("{lam: 0.1}", "{lam: [0.1, 1]}", "{beta: 2}"),
    "tasks": ("[[0, 1], [2, 3]]", "[[9, 8, 7], [0, 1]]"),
    "seeds": ("[0, 1]", "0-1", "3"),
    "memory": ("[20, 30]", "20"),
    "method": ("[naive, replay]", "md-cg", "der"),
    "sizes": ("[6, 4]", "5,5"),
    "order": ("[1, 2, 3]",),
    "online": ("true", "false"),
    "returning": ("true", "false"),
    "out": ("runs", "made", "~/runs"),
    "data": ("images",),
}
FORMS = (
    (("sweep", "{}", "--plan"), 12), (("sweep", "{}", "--plan", "--json"), 3),
    (("sweep", "{}", "--plan", "--only", "method=naive"), 1), (("sweep", "{}"), 2),
    (("sweep", "{}", "--json", "--preset", "published"), 1), (("run", "--recipe", "{}", "--epochs", "1"), 1),
    (("compare", "--recipe", "{}", "--methods", "naive,md", "--memory", "20"), 1),
    (("search", "--recipe", "{}", "--epochs", "1"), 1),
)  # fmt: skip


def draw_recipe(rng: random.Random, huge: bool) -> bytes:
    """Draw a recipe that is as it should be, or was; with what means far more than it says if it may be `huge`."""
    lines = _whole_recipe(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        lines = rng.choice(EDITS)(lines, rng)
    if huge and rng.random() < 0.1:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(HUGE_LINES))
    content = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
    return rng.choice(DAMAGE)(content, rng) if rng.random() < 0.08 else content


def _whole_recipe(rng: random.Random) -> Lines:
    """The lines of a recipe as it should be."""
    keys = {**SMALL, "method": rng.choice(METHODS.names())}
    for key in rng.sample(list(Recipe.model_fields), rng.choice((0, 0, 1, 2, 4))):
        keys[key] = keys.get(key) or rng.choice(VALUES.get(key) or fitting(key))
    axes = {
        "memory": "[20, 30]",
        "method": "[naive, replay, md]",
        "lr": "[0.01, 0.1]",
        "set.lam": "[0.1, 1]",
        "optimizer": "[sgd, adamw]",
        "variant": "{A: {method: md-cg, head: single-gate}, B: {method: naive, set: {lam: 1}}}",
    }
    chosen = rng.sample(list(axes), rng.choice((0, 0, 1, 2)))
    keys = {
        key: value for key, value in keys.items() if key not in chosen and (key != "method" or "variant" not in chosen)
    }
    lines = [f"{key}: {value}" for key, value in keys.items()]
    rng.shuffle(lines)
    return lines + (["axes:", *(f"  {key}: {axes[key]}" for key in chosen)] if chosen else [])


def _other_value(lines: Lines, rng: random.Random) -> Lines:
    at = rng.randrange(len(lines))
    key = lines[at].partition(":")[0]
    return [*lines[:at], f"{key}: {rng.choice(ODD_YAML)}", *lines[at + 1 :]]


def _other_key(lines: Lines, rng: random.Random) -> Lines:
    at = rng.randrange(len(lines))
    key = rng.choice((*Recipe.model_fields, *ODD_KEYS))
    return [*lines[:at], f"{key}: {lines[at].partition(':')[2]}", *lines[at + 1 :]]


def _another_line(lines: Lines, rng: random.Random) -> Lines:
    at = rng.randrange(len(lines) + 1)
    return [*lines[:at], rng.choice(ODD_LINES), *lines[at:]]


def _another_key(lines: Lines, rng: random.Random) -> Lines:
    return [*lines, f"{rng.choice(list(Recipe.model_fields))}: {rng.choice(ODD_YAML)}"]


def _other_indent(lines: Lines, rng: random.Random) -> Lines:
    at = rng.randrange(len(lines))
    return [*lines[:at], rng.choice(("  ", "\t", " ", "")) + lines[at].lstrip(), *lines[at + 1 :]]


EDITS: Sequence[Callable[[Lines, random.Random], Lines]] = (
    _other_value, _other_value, _another_key, _other_key, _another_line, _another_line, _other_indent, without_one,
    one_twice, two_swapped,
)  # fmt: skip


def _some_byte(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice(ODD_BYTES) + content[at:]


def _other_encoding(content: bytes, rng: random.Random) -> bytes:
    return content.decode("utf-8", "replace").encode(
        rng.choice(("utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-7"))
    )


def _other_line_ends(content: bytes, rng: random.Random) -> bytes:
    return content.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\xc2\x85")))


def _cut_short(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _something_else(content: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", b"\n", b"#", b"\0", rng.randbytes(300), b"{}", b"--- \n...\n", b"5", b"text"))


DAMAGE: Sequence[Callable[[bytes, random.Random], bytes]] = (
    _some_byte, _some_byte, _other_encoding, _other_line_ends, _cut_short, _something_else,
)  # fmt: skip


class Recipes(Part):
    """Recipes of what fits and of what does not, or is no YAML at all: a plan, a table, or a sentence."""

    name, usual = "recipes", 1000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._scratch = Scratch(folder, self.server())

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        (form,) = rng.choices([form for form, _ in FORMS], [weight for _, weight in FORMS])
        path = rng.choice((*9 * ("drawn.yaml",), f"{ODD}/drawn.yaml"))
        words = [path if word == "{}" else word for word in form]
        content = draw_recipe(rng, huge="--plan" in words)
        complaint = self._given(words, path, content)
        if complaint is None:
            return None
        lines, complaint = self._scratch.shortest(
            content.splitlines(keepends=True),
            complaint,
            lambda fewer, seconds: self._given(words, path, b"".join(fewer), seconds),
        )
        text = repr(b"".join(lines))
        told = text if len(text) < 400 else f"{text[:350]}… ({len(text)} letters)"
        return Failure(f"{spelt(words)} with {told}", complaint)

    def _given(self, words: Sequence[str], path: str, content: bytes, seconds: float = SECONDS) -> str | None:
        """What is wrong with the answer to a recipe, if anything is; a plan writes nothing."""
        file = self._scratch.here / path
        file.write_bytes(content)
        places = [file] if "--plan" in words else [file, self._scratch.root]
        return self._scratch.complaint(words, places, seconds)
