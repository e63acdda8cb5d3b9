"""The reference of what is asked for by name: keys of recipes, settings of methods and heads, commands and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

import mdcg.cli  # noqa: F401 (which brings all commands)
from mdcg.cli.app import app
from mdcg.cli.options import SHARED
from mdcg.cli.show import LISTS
from mdcg.figures import FIGURES
from mdcg.methods import METHODS, Method
from mdcg.models import HEADS
from mdcg.recipes.recipe import Recipe
from website.python import text_of
from website.words import cell, default_of, kind_of, table, written

BY_OTHER_NAMES = {"set": "settings"}  # options that are called otherwise than their keys


def recipe() -> str:
    """The page of recipe keys, made of the model that reads recipes."""
    sections = []
    for name, field in Recipe.model_fields.items():
        kind, default = kind_of(field), default_of(field)
        facts = kind[:1].upper() + kind[1:] + (f", default {default}" if default.startswith("`") else "")
        required = " It must be given." if default == "must be given" else ""
        sections.append(f"## {name}\n\n{meaning(name)}{required}\n\n*{facts}.*\n")
    return (
        "# Recipe keys\n\nWhat a recipe in YAML may say; most are options of `mdcg run` and keywords of `mdcg.run`. "
        "What is left out follows the paper's protocol for the scenario. Beside these keys a recipe for `mdcg sweep` "
        "may have `axes`, see [Experiments](../experiments.md#a-recipe).\n\n" + "\n".join(sections)
    )


def meaning(key: str) -> str:
    """What a key of recipes means, in the words of the model or of the command's help."""
    described = Recipe.model_fields[key].description
    option = SHARED.get(BY_OTHER_NAMES.get(key, key))
    text = described or (option.__metadata__[0].help if option is not None else None)  # type: ignore[attr-defined]
    if not text:
        raise ValueError(f"the recipe key '{key}' has no description: give its field one, or an option in SHARED.")
    return re.sub(r"\s*\[default: [^]]*\]", "", text).replace("--lr", "`lr`").replace("--preset", "`preset`")


def methods() -> str:
    """The page of methods and their settings."""
    sections = [_method(name, METHODS[name]) for name in METHODS.names() if _ours(METHODS[name])]
    return (
        "# Methods\n\nSettings are given as `--set lam=0.5`, in a recipe as `set: {lam: 0.5}`. Where the paper chose a "
        "value for a scenario and memory size, that is the default.\n\n" + "\n".join(sections)
    )


def _method(name: str, kind: type[Method]) -> str:
    rows = [
        (f"`{key}`", kind_of(field), default_of(field), cell(field.description or ""))
        for key, field in kind.model_fields.items()
    ]
    facts = [
        f"Head: [`{kind.head}`](heads.md#{kind.head})",
        "with a memory" if kind.uses_memory else "without a memory",
    ]
    tried = [f"`{key}`: {written([*values])}" for key, values in kind.grid.items()]
    facts += [f"tried by [search](../experiments.md#a-search): {'; '.join(tried)}"] if tried else []
    settings = table(["setting", "may be", "default", "meaning"], rows) if rows else ""
    return "\n\n".join(part for part in (f"## {name}", text_of(kind), f"{'; '.join(facts)}.", settings) if part) + "\n"


def heads() -> str:
    """The page of heads and their settings."""
    sections = []
    for name in HEADS.names():
        rows = [(f"`{key}`", f"`{default:g}`", cell(text)) for key, (default, text) in HEADS[name].settings.items()]
        settings = f"\n\n{table(['setting', 'default', 'meaning'], rows)}" if rows else ""
        sections.append(f"## {name}\n\n{_sentence(HEADS[name].summary)}{settings}\n")
    return "# Heads\n\nA head is chosen with `head`, where a method's own is not wanted.\n\n" + "\n".join(sections)


def names() -> str:
    """The page of all else that has a name."""
    sections = []
    for what in ("scenarios", "datasets", "backbones", "probes", "recipes"):
        rows = [(f"`{name}`", cell(text)) for name, text in LISTS[what]()]
        sections.append(f"## {what.capitalize()}\n\n{table(['name', 'what it is'], rows)}\n")
    figures = [(f"`{name}`", cell(FIGURES[name].summary())) for name in FIGURES.names()]
    sections.append(f"## Figures\n\n{table(['name', 'what it shows'], figures)}\n")
    return "# Names\n\n`mdcg list` prints these, `mdcg figure --list` the figures.\n\n" + "\n".join(sections)


def commands() -> str:
    """The page of commands, made of what parses them."""
    return "# Command line\n\n`mdcg COMMAND --help` prints the same.\n\n" + "\n".join(
        _command(name, command) for name, command in every_command(typer.main.get_command(app), "mdcg")
    )


def every_command(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """All commands with their whole names, those of groups too."""
    for word, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from every_command(inner, f"{name} {word}")
        else:
            yield f"{name} {word}", inner


def _command(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    usage = " ".join([name, *(_argument(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    rows = [(f"`{_argument(one)}`", cell(one.help or "")) for one in arguments]
    context = command.context_class(command, info_name=name)
    records = [one.get_help_record(context) for one in options]
    rows += [(f"`{words}`", cell(help_)) for words, help_ in (record for record in records if record)]
    return f"## {name}\n\n{command.help}\n\n```sh\n{usage}\n```\n\n{table(['', 'meaning'], rows) if rows else ''}\n"


def _argument(argument: Any) -> str:
    word = (argument.metavar or argument.name).upper()
    more = f"{word}…" if argument.nargs == -1 else word
    return more if argument.required else f"[{more}]"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _ours(kind: type) -> bool:
    return kind.__module__.startswith("mdcg.")


PAGES = {"recipe": recipe, "methods": methods, "heads": heads, "names": names, "command-line": commands}
