"""Names that would be commands to a terminal, or formulas to a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from mdcg.markup import cell
from mdcg.terminal import PlainConsole, plain
from tests.conftest import Cli

EVIL = "\x1b]0;renamed\x07\x1b[2J\x9b31m[/][bold]x"


def printed(*what: object) -> str:
    file = io.StringIO()
    PlainConsole(file=file, width=200).print(*what)
    return file.getvalue()


@pytest.mark.parametrize("how", [lambda text: text, Text, lambda text: Text(text, style="bold")])
def test_nothing_that_a_terminal_obeys(how: type[str]) -> None:
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(how(EVIL))
    for what in (table, how(EVIL)):
        shown = printed(what)
        assert "[/][bold]x" in shown
        assert not set(shown) & set("\x1b\x07\x9b")


@given(st.text())
def test_only_what_can_be_printed_is_kept(text: str) -> None:
    assert all(c.isprintable() or c in "\n\t" for c in plain(text))
    assert len(plain(text)) == len(text)


@given(st.text(st.sampled_from("=+-@\t\r\n\x00 a") | st.characters()) | st.floats(allow_nan=False) | st.integers())
def test_no_cell_is_a_formula(value: str | float | int) -> None:
    """Nor is it one behind blanks, which some programs leave out."""
    written = cell(value)
    if isinstance(value, str):
        assert not re.match(r"[\s\x00-\x1f]*[=+\-@]", str(written))
        lines = value.replace("\r\n", "\n").replace("\r", "\n")
        assert str(written) in (lines, f"'{lines}")
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerow([written, 1])
        assert list(csv.reader(io.StringIO(file.getvalue(), newline=""))) == [[written, "1"]]
    else:
        assert written is value


def test_a_class_that_is_an_escape_sequence(cli: Cli, tmp_path: Path) -> None:
    """In a result of somebody else's: shown, listed and exported, it is text."""
    runs = tmp_path / "runs"
    words = ["run", "--scenario", "digits-5", "--method", "naive", "--epochs", "1", "--seeds", "0", "--out", runs]
    cli(*words)
    (result,) = runs.glob("*/result.json")
    content = json.loads(result.read_text())
    content["class_names"] = [f"=cmd{EVIL}{n}" for n in range(10)]
    result.write_text(json.dumps(content))
    for command in (["show", result.parent], ["runs", "--out", runs]):
        shown = cli(*command).out
        assert not set(shown) & set("\x1b\x07\x9b")
    cli("runs", "--out", runs, "--export", tmp_path / "runs.csv")
    cells = [text for row in csv.reader((tmp_path / "runs.csv").open()) for text in row]
    assert not [text for text in cells if text.startswith("=")]
