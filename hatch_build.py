"""The description of the package: the README as it can be read away from the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def away(readme: str) -> str:
    """Leave out pictures that would not be found, and of links that would lead nowhere all but their text."""
    without = re.sub(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n+", "", readme, flags=re.MULTILINE)
    return re.sub(r"\[([^]]+)\]\((?!https?:|#)[^)]*\)", r"\1", without)


class Readme(MetadataHookInterface):
    """Gives the description to what is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": away(text)}
