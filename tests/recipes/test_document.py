"""Recipes that mean far more than they say, or nothing that can be meant: each costs one sentence, and no memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdcg.errors import MdcgError
from mdcg.recipes.document import read_document
from mdcg.recipes.grid import expand


def bomb(inner: str, outer: str) -> str:
    """Nine lines, each of which repeats the one before nine times."""
    lines = [f"a0: &a0 {inner}"]
    lines += [f"a{n}: &a{n} {outer.format(','.join([f'*a{n - 1}'] * 9))}" for n in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (bomb("[x, x]", "[{}]"), "has more than 100,000 values, its aliases followed; shorten it."),
        (bomb("{x: 1}", "{{<<: [{}]}}"), "has more than 100,000 values, its aliases followed; shorten it."),
        ("\n".join(f"key{n}: 1" for n in range(60_000)), "has more than 100,000 values, its aliases followed"),
        ("# " + "x" * 2**20, "is larger than a megabyte; give a recipe, a YAML file of some lines."),
        ('memory: !!int ""', "is not valid YAML ('' is no int, line 1); correct it."),
        ('memory: !!float ""', "is not valid YAML ('' is no float, line 1); correct it."),
        ('memory: !!timestamp "x"', "is not valid YAML ('x' is no timestamp, line 1); correct it."),
        ("memory: " + "9" * 5000, f"is not valid YAML ('{'9' * 40}' is no int, line 1); correct it."),
        ("memory: " + "9" * 19, "is not valid YAML (a whole number of more than 18 digits, line 1); correct it."),
        ("a: &a [*a]", "contains itself (an alias within its own anchor); correct it."),
        ("a: " + 5000 * "[", "has lists or keys too deep in each other; make it flatter."),
        ("a: " + 5000 * "{a: ", "has lists or keys too deep in each other; make it flatter."),
    ],
)
def test_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(MdcgError) as told:
        read_document(path)
    assert sentence in str(told.value)
    assert len(str(told.value)) < 300


def test_aliases_that_people_write(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("base: &base {lam: 0.1}\nother: {<<: *base, beta: 2}\nmemory: 999999999999999999\n")
    content = read_document(path).content
    assert content["other"] == {"lam": 0.1, "beta": 2}
    assert content["memory"] == 10**18 - 1


def test_more_than_can_be_planned(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    many = ", ".join(map(str, range(1, 102)))
    path.write_text(f"scenario: digits-5\nmethod: replay\naxes:\n  memory: [{many}]\n  epochs: [{many}]\n")
    with pytest.raises(MdcgError, match="10,201 combinations, of at most 10,000; divide them among recipes"):
        expand(read_document(path))
    path.write_text(f"scenario: digits-5\nmethod: replay\nseeds: 0-999\naxes:\n  memory: [{many}]\n")
    with pytest.raises(MdcgError, match="that would be 101,000 runs, of at most 100,000; leave out seeds or values"):
        expand(read_document(path))
