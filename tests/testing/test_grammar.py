"""What the campaign draws of commands and recipes, and what it finds wrong with an answer."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mdcg.recipes.recipe import Recipe
from mdcg.testing.abuse.grammar import commands, draw_command
from mdcg.testing.abuse.recipes import draw_recipe
from mdcg.testing.abuse.scratch import Scratch, spelt, wrong
from tests.conftest import Cli


def test_the_same_trial_is_the_same_command() -> None:
    drawn = [draw_command(random.Random(f"1 {trial}")) for trial in range(300)]
    assert drawn == [draw_command(random.Random(f"1 {trial}")) for trial in range(300)]
    assert len(set(map(tuple, drawn))) > 280


def test_the_same_trial_is_the_same_recipe() -> None:
    drawn = [draw_recipe(random.Random(f"1 {trial}"), huge=False) for trial in range(300)]
    assert drawn == [draw_recipe(random.Random(f"1 {trial}"), huge=False) for trial in range(300)]
    assert len(set(drawn)) > 280


def test_every_command_and_option_is_drawn(cli: Cli) -> None:
    drawn = {tuple(draw_command(random.Random(trial))) for trial in range(6000)}
    words = {word.partition("=")[0] for command in drawn for word in command}
    for path in commands():
        told = cli(*path, "--help").out
        options = set(re.findall(r"(?m)^ +(?:-\w, )?(--[\w-]+)", told)) - {"--help"}
        assert options == {parameter.words[0] for parameter in commands()[path] if parameter.words}
        assert options <= words
        assert any(command[: len(path)] == path for command in drawn)


def test_every_key_is_drawn() -> None:
    drawn = b"\n".join(draw_recipe(random.Random(trial), huge=False) for trial in range(1000)).decode(
        "utf-8", "replace"
    )
    assert set(re.findall(r"(?m)^(\w+):", drawn)) >= {*Recipe.model_fields, "axes"}


SENTENCE = "mdcg: there is no such thing; name another.\n"
TRACE = 'Traceback (most recent call last):\n  File "/x/mdcg/y.py", line 1\nKeyError: 5\n'


@pytest.mark.parametrize(
    ("words", "code", "said", "errors"),
    [
        (["list", "heads"], 0, "fixed  one layer\n", ""),
        (["run"], 0, "", "mdcg: 1 of 2 runs were already finished.\n"),
        (["run"], 2, "", SENTENCE),
        (["run"], 2, "", f"mdcg: 3 files were left out.\n{SENTENCE}"),
        (["sweep", "x"], 1, "", "mdcg: 1 of 1 runs not finished: it diverged.\n"),
        (["runs", "--json"], 0, '{"runs": []}\n', ""),
    ],
)
def test_answers_that_are_right(words: list[str], code: int, said: str, errors: str) -> None:
    assert wrong(words, code, said, errors) is None


@pytest.mark.parametrize(
    ("words", "code", "said", "errors", "found"),
    [
        (["run"], 1, "", TRACE, 'traceback, KeyError: 5 (File "/x/mdcg/y.py", line 1)'),
        (["run"], 0, "", "x.py:3: UserWarning: careful\n", "warning, x.py:3: UserWarning: careful"),
        (["run"], 1, "", "mdcg: 1 of 1 runs not finished: it diverged.\n", "exit code 1, "),
        (["sweep", "x"], 1, "", SENTENCE, "exit code 1, "),
        (["run"], -9, "", "", "exit code -9, "),
        (["run"], 0, "\x1b[31mred\n", "", "escapes, '\\x1b' in what it says"),
        (["run"], 2, "", f"mdcg: cut\n{SENTENCE[6:]}", "no sentence, there is no such thing"),
        (["run"], 2, "", "", "no sentence, "),
        (["run"], 2, "", "Usage: mdcg run [OPTIONS]\n\nError: No such option: --x\n", "no sentence, Usage: mdcg run"),
        (["run"], 2, "", f"mdcg: {3000 * 'x'}.\n", "no sentence, mdcg: xxx"),
        (["run", "--json"], 0, '{"ACC": NaN}', "", "no JSON, "),
        (["run", "--json"], 0, '{"ACC": 5', "", "no JSON, "),
    ],
)
def test_answers_that_are_wrong(words: list[str], code: int, said: str, errors: str, found: str) -> None:
    assert (wrong(words, code, said, errors) or "").startswith(found)


@dataclass
class Acted:
    """What a command has done; like `forked.Process`."""

    output: Path
    errors: Path
    ends: bool

    def wait(self, timeout: float) -> int:
        if not self.ends:
            raise subprocess.TimeoutExpired("mdcg", timeout)
        return 0


class Actor:
    """A server whose commands do in this process what they are told."""

    act: Callable[..., object]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *words: str, **_: object) -> Acted:
        done = self.act(*words)
        for name in ("out", "err"):
            (self.folder / name).touch()
        return Acted(self.folder / "out", self.folder / "err", ends=done != "endless")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scratch, Actor]]:
    def furnish(made: Scratch) -> None:
        (made.here / "runs").mkdir()
        (made.here / "runs" / "result.json").write_text("{}")
        (made.here / "link").symlink_to("runs")
        os.mkfifo(made.here / "pipe")

    monkeypatch.setattr(Scratch, "_furnish", furnish)
    (tmp_path / "work").mkdir()
    actor = Actor(tmp_path)
    made = Scratch(tmp_path / "work", actor)  # type: ignore[arg-type]
    before = sorted(made.root.rglob("*"))
    yield made, actor
    assert sorted(made.root.rglob("*")) == before
    assert (made.here / "runs" / "result.json").read_text() == "{}"
    assert (made.here / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("words", "act", "found"),
    [
        (["runs"], lambda here: (here / "new").mkdir(), "it left, 'some/where/new'"),
        (["runs"], lambda here: (here.parents[1] / "home" / "x").touch(), "it left, 'home/x'"),
        (["runs"], lambda here: (here / "runs" / "result.json").write_text("[]"), "it changed, "),
        (["run", "--out", "runs"], lambda here: (here / "runs" / "result.json").unlink(), "it removed, "),
        (["runs"], lambda here: ((here / "pipe").unlink(), (here / "pipe").touch()), "it changed, 'some/where/pipe'"),
        (["run"], lambda here: "endless", "it does not end within 300 s"),
    ],
)
def test_what_is_touched(
    scratch: tuple[Scratch, Actor], words: list[str], act: Callable[[Path], object], found: str
) -> None:
    folder, actor = scratch
    actor.act = lambda *_: act(folder.here)
    assert (folder.complaint(words) or "").startswith(found)


@pytest.mark.parametrize(
    ("words", "act"),
    [
        (["report", "--out=a/b"], lambda here: (here / "a" / "b").mkdir(parents=True)),
        (["run"], lambda here: (here / "runs" / "another").touch()),
        (["run", "--out", "link"], lambda here: (here / "runs" / "another").touch()),
        (["run", "--fresh"], lambda here: (here / "runs" / "result.json").write_text("[]")),
        (["runs", "--export", "runs/result.json"], lambda here: (here / "runs" / "result.json").write_text("[]")),
        (["search"], lambda here: (here / "digits-2-md.yaml").touch()),
        (["run"], lambda here: (here.parents[1] / "cache" / "digits").touch()),
    ],
)
def test_what_may_be_touched(scratch: tuple[Scratch, Actor], words: list[str], act: Callable[[Path], object]) -> None:
    folder, actor = scratch
    actor.act = lambda *_: act(folder.here)
    assert folder.complaint(words) is None


def test_the_fewest_words_are_told(scratch: tuple[Scratch, Actor]) -> None:
    folder, actor = scratch
    actor.act = lambda *words: (folder.here / "new").touch() if {"run", "--bad"} <= set(words) else None
    words = ["run", "--epochs", "1", "--bad", "x", "--memory", "20"]
    complaint = folder.complaint(words)
    assert complaint is not None
    found = folder.shortest(words, complaint, lambda fewer, seconds: folder.complaint(fewer, seconds=seconds))
    assert found == (["run", "--bad"], complaint)


def test_a_command_as_a_shell_takes_it() -> None:
    odd = "a\x1b'\n\udcff é"
    line = spelt(["it's", odd, ""])
    told = subprocess.run(["bash", "-c", line.replace("mdcg", r"printf '%s\0'", 1)], stdout=subprocess.PIPE, check=True)
    assert [os.fsdecode(word) for word in told.stdout.split(b"\0")[:-1]] == ["it's", odd, ""]
    assert "5000 letters" in spelt([5000 * "x"])
