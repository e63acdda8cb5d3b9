"""The reference of the site is made of the code: nothing that can be asked for is missing in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
from website import python, reference, words

import mdcg
import mdcg.testing
from mdcg.cli.app import app
from mdcg.cli.options import SHARED
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.recipes.recipe import Recipe


def headings(page: str) -> list[str]:
    return re.findall(r"^##+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)


def test_every_key_of_recipes() -> None:
    page = reference.recipe()
    assert headings(page) == list(Recipe.model_fields)
    assert "Whole number from 2 up to 100,000." in page
    assert "default `runs`" in page


def test_a_key_that_nobody_has_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SHARED, "epochs")
    with pytest.raises(ValueError, match="the recipe key 'epochs' has no description"):
        reference.recipe()


def test_every_setting() -> None:
    page = reference.methods()
    for name in METHODS.names():
        own = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert METHODS[name].summary() in own
        for key, field in METHODS[name].model_fields.items():
            assert field.description, (name, key)
            assert f"| `{key}` |" in own
    assert headings(reference.heads()) == HEADS.names()
    assert "| `beta` | `10` | offset of the gates' sigmoid (β) |" in reference.heads()


def test_every_option() -> None:
    page = reference.commands()
    assert {"mdcg run", "mdcg data get", "mdcg search", "mdcg list"} <= {*headings(page)}
    own = page.partition("## mdcg run\n")[2].partition("\n## ")[0]
    for name in SHARED:
        word = {"settings": "set", "as_json": "json"}.get(name, name).replace("_", "-")
        assert f"`--{word}" in own
    assert "| `--seeds TEXT` | Seeds, for instance 0-4 or 0,2,5. [default: 0] |" in own


def test_every_public_name() -> None:
    pages = python.pages()
    named = [name for page in pages.values() for name in headings(page) if "." not in name]
    assert sorted(named) == sorted([*mdcg.__all__, *mdcg.testing.__all__])
    assert "### Result.frame" in pages["experiments"]
    for name in (*mdcg.__all__, *mdcg.testing.__all__):
        assert (getattr(mdcg, name, None) or getattr(mdcg.testing, name)).__doc__, name


def test_comments_beside_attributes() -> None:
    found = {name: comment for name, _, comment in python.attributes(mdcg.Method)}
    assert found["uses_memory"] == "keeps images; from task 2 on, every step brings a batch of them"
    assert found["forks"].startswith("Its settings and memory do not matter in task 1")  # in the line above
    assert {name: kind for name, kind, _ in python.attributes(mdcg.Method)}["uses_memory"] == "bool"


def test_docstrings() -> None:
    text = "Add a<b, as `a<b`.\n\n    E = mc²\n\n>>> 1 + 1  # doctest: +SKIP\n2"
    assert python.markdown(text) == "Add a&lt;b, as `a<b`.\n\n    E = mc²\n\n```pycon\n>>> 1 + 1\n2\n```"


def test_words() -> None:
    fields = Recipe.model_fields
    assert words.kind_of(fields["momentum"]) == "number from 0 below 1"
    assert words.kind_of(fields["memory"]) == "whole numbers from 1"
    assert words.default_of(fields["seeds"]) == "`0`"
    assert words.default_of(fields["scenario"]) == "must be given"


def test_the_defaults_that_learn_tells_are_those_of_a_learner() -> None:
    """`[default: 500]` in the help of an option is what the parameter of that name is, where that is one value."""
    learn = typer.main.get_command(app).commands["learn"]  # type: ignore[attr-defined]
    said = {
        option.name: re.search(r"\[default: (\S+)\]", getattr(option, "help", None) or "") for option in learn.params
    }
    defaults = mdcg.Learner().get_params()
    told = {
        name: found[1] for name, found in said.items() if found and isinstance(defaults.get(name), str | int | float)
    }
    assert {"memory", "method", "hold_out", "held_out_images", "momentum", "warn_drop", "tasks"} <= told.keys()
    for name, text in told.items():
        value = defaults[name]
        if not isinstance(value, bool):
            assert text == (f"{value:g}" if isinstance(value, float) else str(value)), name


def test_who_is_told_of_tasks() -> None:
    """The table of docs/streams.md, by the names that methods have there."""
    text = (Path(__file__).parents[2] / "docs" / "streams.md").read_text().partition("## Who can learn what")[2]
    rows = [row.strip("|").split("|") for row in text.splitlines() if row.startswith("| ") and row.count("|") == 4]
    said = {
        name.strip().lower(): (again.strip(), online.strip())
        for names, again, online in rows
        for name in names.split(",")
    }
    del said[""]  # the heads of columns
    assert len(said) == 13
    for name, (again, online) in said.items():
        method = METHODS[name]
        assert method.learns_revisits == (again == "yes"), name
        assert method.online() == online.startswith("yes"), name
        if method.online():
            assert method.needs_boundaries == ("not told of tasks" not in online), name
