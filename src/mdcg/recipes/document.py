"""A recipe as it is written: keys and values, and where they come from a YAML file the line of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mdcg.errors import MdcgError, unknown
from mdcg.files import open_file, path_of

SHIPPED = Path(__file__).parent / "shipped"
OLDER_NAMES = {"rate": "lr"}  # of keys, which recipes may still have
Place = tuple[str | int, ...]  # keys and list indices, from the top
LONGEST = 2**20  # bytes of a recipe: nobody writes more, and what is written may mean much more
MOST = 100_000  # values of a recipe, those that aliases repeat counted each time
LARGEST = 2**63  # whole numbers are below it


@dataclass(frozen=True)
class Document:
    """The content of a recipe, not yet checked; one that was never a file has neither path nor lines."""

    content: dict[str, Any]
    path: Path | None = None
    lines: dict[Place, int] = field(default_factory=dict)

    def error(self, place: Place, text: str) -> MdcgError:
        """Make the error that names file and line, where there is a file."""
        return MdcgError(text if self.path is None else f"{self.path}, line {self.line(place)}: {text}")

    def line(self, place: Place) -> int:
        """The line where a place stands, or what it is part of."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def key_name(key: str) -> str:
    """The present name of a key of recipes.

    >>> key_name("batch-size"), key_name("rate")
    ('batch_size', 'lr')
    """
    plain = key.replace("-", "_")
    return OLDER_NAMES.get(plain, plain)


def written(keys: Mapping[str, Any]) -> Document:
    """Make a document of keys given in Python or on the command line; those that are None count as left out."""
    return Document({key_name(key): value for key, value in keys.items() if value is not None})


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with mdcg, by name.

    >>> sorted(name for name in shipped_recipes() if name.startswith("table1"))
    ['table1-c10-5', 'table1-c100-10']
    """
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def summary_of(recipe: Path) -> str:
    """The comment that a recipe begins with."""
    return recipe.read_text("utf-8").partition("\n")[0].removeprefix("#").strip()


def find_recipe(asked: Path | str) -> Path:
    """The file of a recipe: any file, or by its name one that comes with mdcg. A file of that name comes first."""
    path, shipped = path_of(asked), shipped_recipes()
    if str(path) in shipped and not path.is_file():
        return shipped[str(path)]
    if path.exists():  # a folder will be told of when it is read
        return path
    if path.stem in shipped:
        raise MdcgError(f"there is no file {path}; for the recipe that comes with mdcg write {path.stem}.")
    if path.suffix or len(path.parts) > 1:
        return path  # to be told of as any file that is missing
    raise unknown("recipe", str(path), shipped)


def read_document(asked: Path | str) -> Document:
    """Read the keys of a YAML recipe, see `find_recipe`. They are text, whatever YAML would make of them."""
    path = find_recipe(asked)
    document = Document({}, path)
    try:
        with open_file(path, pipe=True) as file:
            text = file.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise MdcgError(f"recipe {path} is larger than a megabyte; give a recipe, a YAML file of some lines.")
        loader = yaml.SafeLoader(text.decode("utf-8"))
        root = _composed(loader, path)
        if root is not None and _count(root, {}) > MOST:
            raise MdcgError(f"recipe {path} has more than {MOST:,} values, its aliases followed; shorten it.")
        content = None
        if isinstance(root, yaml.MappingNode) and all(key.tag == STRING for key, _ in root.value):
            content = _plain(document, loader, root, ())
    except OSError as error:
        raise MdcgError(f"cannot read recipe {path}: {error.strerror}; check the path.") from error
    except UnicodeDecodeError as error:
        raise MdcgError(f"recipe {path} is not a text file; give a YAML file.") from error
    except RecursionError as error:
        raise MdcgError(f"recipe {path} contains itself (an alias within its own anchor); correct it.") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date, for instance
        reason = " ".join(str(error).split())
        raise MdcgError(f"recipe {path} is not valid YAML ({reason}); correct it.") from error
    if content is None:
        raise MdcgError(f"recipe {path} must be a list of 'key: value' lines, for instance 'scenario: digits-5'.")
    document.content.update(content)
    return document


def _composed(loader: yaml.SafeLoader, path: Path) -> yaml.Node | None:
    try:
        return loader.get_single_node()
    except RecursionError as error:
        raise MdcgError(f"recipe {path} has lists or keys too deep in each other; make it flatter.") from error


STRING = "tag:yaml.org,2002:str"


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """The number of values that a node means with every alias written out, each node looked at once."""
    if id(node) not in counted:
        inner = list(node.value) if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        counted[id(node)] = 1 + sum(_count(part, counted) for part in inner)
    return counted[id(node)]


def _value(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """The value of a node that is neither a list nor keys; YAML's own errors come in many kinds."""
    try:
        value = loader.construct_object(node)
    except (yaml.YAMLError, RecursionError):
        raise
    except Exception as error:
        raise ValueError(
            f"'{node.value[:40]}' is no {node.tag.rpartition(':')[2]}, line {node.start_mark.line + 1}"
        ) from error
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError(f"a whole number of more than 18 digits, line {node.start_mark.line + 1}")
    return value


def _plain(document: Document, loader: yaml.SafeLoader, node: yaml.Node, place: Place) -> Any:
    """The content of a node, whose lines are noted. Of two equal keys YAML itself would silently keep the last one."""
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            document.lines[*place, index] = item.start_mark.line + 1
            items.append(_plain(document, loader, item, (*place, index)))
        return items
    if not isinstance(node, yaml.MappingNode):
        return _value(loader, node)
    loader.flatten_mapping(node)
    content = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"a key that is no word, in line {key.start_mark.line + 1}")
        name = key.value if place else key_name(key.value)
        here, line = (*place, name), key.start_mark.line + 1
        if here in document.lines:
            first, document.lines[here] = document.lines[here], line
            raise document.error(here, f"'{key.value}' is given twice, also in line {first}; keep one.")
        document.lines[here] = line
        content[name] = _plain(document, loader, value, here)
    return content
