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
    """The keys of a YAML recipe, not yet checked."""
    try:
        text = path.read_text("utf-8")
        content = yaml.safe_load(text)
        root = yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise MdcgError(f"cannot read recipe {path}: {error.strerror}; check the path.") from error
    except UnicodeDecodeError as error:
        raise MdcgError(f"recipe {path} is not a text file; give a YAML file.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date, for instance
        reason = " ".join(str(error).split())
        raise MdcgError(f"recipe {path} is not valid YAML ({reason}); correct it.") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise MdcgError(f"recipe {path} must be a list of 'key: value' lines, for instance 'scenario: digits-5'.")
    written = Written(path, {}, {})
    try:
        _note_lines(written, root, ())
    except RecursionError as error:
        raise MdcgError(f"recipe {path} contains itself (an alias within its own anchor); correct it.") from error
    written.content.update({key.replace("-", "_"): value for key, value in content.items()})
    return written


def _note_lines(written: Written, node: yaml.Node, place: Place) -> None:
    """YAML itself would silently let the last of two equal keys win."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = key.value if place else key.value.replace("-", "_")
            here, line = (*place, name), key.start_mark.line + 1
            if here in written.lines:
                raise MdcgError(
                    f"{written.path}, line {line}: '{key.value}' is given twice, also in line {written.lines[here]}; "
                    "keep one."
                )
            written.lines[here] = line
            _note_lines(written, value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here = (*place, index)
            written.lines[here] = item.start_mark.line + 1
            _note_lines(written, item, here)
