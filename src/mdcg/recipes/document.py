"""A recipe as it is written: the content of a YAML file, and the line of everything in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mdcg.errors import MdcgError

Place = tuple[str | int, ...]  # keys and list indices, from the top


@dataclass(frozen=True)
class Written:
    path: Path
    content: dict[str, Any]
    lines: dict[Place, int]

    def wrong(self, place: Place, text: str) -> MdcgError:
        """The error that names file and line."""
        return MdcgError(f"{self.path}, line {self.line(place)}: {text}")

    def line(self, place: Place) -> int:
        """Where it stands, or what it is part of."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read_written(path: Path) -> Written:
    """The keys of a YAML recipe, not yet checked. Keys are text, whatever YAML would make of them."""
    written = Written(path, {}, {})
    try:
        loader = yaml.SafeLoader(path.read_text("utf-8"))
        root = loader.get_single_node()
        content = None
        if isinstance(root, yaml.MappingNode) and all(key.tag == STRING for key, _ in root.value):
            content = _plain(written, loader, root, ())
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
    written.content.update(content)
    return written


STRING = "tag:yaml.org,2002:str"


def _plain(written: Written, loader: yaml.SafeLoader, node: yaml.Node, place: Place) -> Any:
    """A node's content; notes its lines. Of two equal keys YAML itself would silently let the last one win."""
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            written.lines[*place, index] = item.start_mark.line + 1
            items.append(_plain(written, loader, item, (*place, index)))
        return items
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    loader.flatten_mapping(node)
    content = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"a key that is no word, in line {key.start_mark.line + 1}")
        name = key.value if place else key.value.replace("-", "_")
        here, line = (*place, name), key.start_mark.line + 1
        if here in written.lines:
            first, written.lines[here] = written.lines[here], line
            raise written.wrong(here, f"'{key.value}' is given twice, also in line {first}; keep one.")
        written.lines[here] = line
        content[name] = _plain(written, loader, value, here)
    return content
