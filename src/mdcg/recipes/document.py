"""A recipe as it is written: keys and values, and where they come from a YAML file the line of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mdcg.errors import MdcgError, unknown

SHIPPED = Path(__file__).parent / "shipped"
OLDER_NAMES = {"rate": "lr"}  # of keys, which recipes may still have
Place = tuple[str | int, ...]  # keys and list indices, from the top


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

    >>> sorted(shipped_recipes())[:3]
    ['quick', 'stream-c10-blurry', 'stream-c10-online']
    """
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def summary_of(recipe: Path) -> str:
    """The comment that a recipe begins with."""
    return recipe.read_text("utf-8").partition("\n")[0].removeprefix("#").strip()


def find_recipe(asked: Path | str) -> Path:
    """The file of a recipe: any file, or by its name one that comes with mdcg. A file of that name comes first."""
    path, shipped = Path(asked), shipped_recipes()
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
        loader = yaml.SafeLoader(path.read_text("utf-8"))
        root = loader.get_single_node()
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


STRING = "tag:yaml.org,2002:str"


def _plain(document: Document, loader: yaml.SafeLoader, node: yaml.Node, place: Place) -> Any:
    """The content of a node, whose lines are noted. Of two equal keys YAML itself would silently keep the last one."""
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            document.lines[*place, index] = item.start_mark.line + 1
            items.append(_plain(document, loader, item, (*place, index)))
        return items
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
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
