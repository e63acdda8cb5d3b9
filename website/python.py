"""The reference of Python names: signatures and docstrings as Markdown, with the comments beside attributes."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any, get_origin

import mdcg
import mdcg.testing
from mdcg.api import RunOptions
from mdcg.registry import Registry
from website.words import cell, table

WIDE = 88  # characters of a signature's line
#: The pages: title, an introduction, and the names on it. What is named nowhere is on the first.
PAGES: dict[str, tuple[str, str, list[str]]] = {
    "experiments": ("Experiments", "Train, compare, search, and look at what was trained.", []),
    "learner": ("Learner", "A classifier that learns classes as they arrive.", ["Learner"]),
    "extending": (
        "Methods, probes, backbones, datasets",
        "What one derives from, or registers, to bring something of one's own.",
        [
            *("Method", "Step", "METHODS", "Probe", "Snapshot", "Measured", "PROBES"),
            *("register_backbone", "register_dataset"),
        ],
    ),
}
FIRST = ("run", "compare", "search", "load_runs", "Result", "Comparison", "Search", "Sweep")


def pages() -> dict[str, str]:
    """All pages by name."""
    elsewhere = {name for _, _, names in PAGES.values() for name in names}
    rest = [name for name in mdcg.__all__ if name not in {*elsewhere, *FIRST}]
    made = {}
    for page, (title, introduction, names) in PAGES.items():
        shown = names or [*FIRST, *rest]
        sections = "\n".join(section(name, getattr(mdcg, name), "mdcg") for name in shown)
        made[page] = f"# {title}\n\n{introduction}\n\n{sections}"
    checks = [section(name, getattr(mdcg.testing, name), "mdcg.testing") for name in mdcg.testing.__all__]
    made["testing"] = f"# Testing\n\n{text_of(mdcg.testing)}\n\n" + "\n".join(checks)
    return made


def section(name: str, thing: Any, package: str) -> str:
    """The section of one public name."""
    if isinstance(thing, Registry):
        example = f'```python\n@{package}.{name}.register("name")\n```'
        known = ", ".join(f"`{one}`" for one in thing.names())
        return f"## {name}\n\n{example}\n\n{text_of(type(thing))} Here: {thing.kind}s by name; known are {known}.\n"
    if not isinstance(thing, type):
        return f"## {name}\n\n{signature(f'{package}.{name}', thing)}\n\n{text_of(thing)}\n\n{_options(thing)}"
    made_by_hand = "__init__" in vars(thing) and not is_dataclass(
        thing
    )  # others are what calls return, or base classes
    parts = [f"## {name}", signature(f"{package}.{name}", thing) if made_by_hand else ""]
    parts += [text_of(thing), _attributes(thing), *_members(name, thing)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _members(name: str, kind: type) -> Iterator[str]:
    """The methods and properties that a class itself defines."""
    for member, value in vars(kind).items():
        if member.startswith("_") or member == "model_config":
            continue
        title = f"### {name}.{member}"
        if isinstance(value, property | cached_property):
            getter = value.fget if isinstance(value, property) else value.func
            kind_of_value = getter.__annotations__.get("return", "")
            yield f"{title}\n\n```python\n{member}: {kind_of_value}\n```\n\n{text_of(getter)}"
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            function: Any = getattr(value, "__func__", value)
            yield f"{title}\n\n{signature(f'{name}.{member}', function)}\n\n{text_of(function)}"


def signature(name: str, thing: Callable[..., Any]) -> str:
    """The call as one writes it, a line per argument where it is long."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    words, starred = [], False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        words.append(_parameter(parameter))
    returned = found.return_annotation
    arrow = "" if returned is found.empty or isinstance(thing, type) else f" -> {_annotation(returned)}"
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) > WIDE:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"
    return f"```python\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    kind = parameter.kind
    star = "**" if kind is parameter.VAR_KEYWORD else "*" if kind is parameter.VAR_POSITIONAL else ""
    note = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{star}{parameter.name}{note}"
    return f"{parameter.name}{note}{' = ' if note else '='}{parameter.default!r}"


def _annotation(value: Any) -> str:
    if isinstance(value, str):
        return value
    if get_origin(value) is not None or not isinstance(value, type):
        return re.sub(r"\b(?:typing|collections\.abc|pathlib|mdcg(?:\.\w+)+)\.", "", str(value))
    return value.__name__


def _options(function: Callable[..., Any]) -> str:
    """The keywords that the calls share, by name: each is a key of recipes."""
    if "Unpack[RunOptions]" not in str(function.__annotations__.get("asked", "")):
        return ""
    if function is not mdcg.run:
        return "`asked` are those of [run](#run).\n"
    names = ", ".join(f"[`{name}`](../recipe.md#{name})" for name in RunOptions.__annotations__)
    return f"`asked` are keys of a recipe: {names}.\n"


def text_of(thing: Any) -> str:
    """The docstring as Markdown: examples in fences, no sign taken for HTML."""
    return markdown(inspect.getdoc(thing) or "")


def markdown(docstring: str) -> str:
    """Write a docstring as Markdown."""
    blocks = []
    for block in re.split(r"\n\s*\n", docstring):
        if block.lstrip().startswith(">>>"):
            plain = re.sub(r"\s*# doctest: .*", "", textwrap.dedent(block))
            blocks.append(f"```pycon\n{plain}\n```")
        elif block.startswith("    "):
            blocks.append(block)
        else:
            blocks.append(re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", block))
    return "\n\n".join(blocks)


def _attributes(kind: type) -> str:
    """A table of the attributes that a class declares and that have a comment."""
    told = [(name, annotation, comment) for name, annotation, comment in attributes(kind) if comment]
    rows = [(f"`{name}`", f"`{annotation}`", cell(comment)) for name, annotation, comment in told]
    return table(["attribute", "type", "meaning"], rows) if rows else ""


def attributes(kind: type) -> Iterator[tuple[str, str, str]]:
    """The name, type and comment of the attributes in a class's body: behind them, or in the lines above."""
    if not kind.__module__.startswith("mdcg"):
        return
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (node,) = ast.parse("\n".join(lines)).body
    assert isinstance(node, ast.ClassDef)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_":
            annotation = re.sub(r"^ClassVar\[(.*)\]$", r"\1", ast.unparse(item.annotation))
            yield item.target.id, annotation, _comment(lines, item.lineno - 1, (item.end_lineno or item.lineno) - 1)


def _comment(lines: list[str], first: int, last: int) -> str:
    behind = re.search(r"  #:? (.*)", lines[last])
    if behind:
        return behind[1].strip()
    above: list[str] = []
    while first > 0 and (found := re.match(r"\s*#:? (.*)", lines[first - 1])):
        above.insert(0, found[1].strip())
        first -= 1
    return " ".join(above)
