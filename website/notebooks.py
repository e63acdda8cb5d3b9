"""The notebooks of examples/ as pages: executed when the site is built, with what they show."""

from __future__ import annotations

import base64
import logging
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

Pictures = dict[str, bytes]  # by the name of their file


def title_of(path: Path) -> str:
    """The heading that a notebook begins with."""
    first = nbformat.read(path, as_version=4).cells[0].source
    return str(first).splitlines()[0].removeprefix("#").strip()


@cache  # once for as long as the site is served
def page(path: Path) -> tuple[str, Pictures]:
    """Execute a notebook in an empty folder; return its page and the pictures on it."""
    logging.getLogger("traitlets").setLevel(logging.ERROR)
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    parts, pictures = [], Pictures()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            parts.append(_shown(output, path.stem, pictures))
    note = f"*This page is the notebook `examples/{path.name}`, executed.*"
    return "\n\n".join([parts[0], note, *parts[1:]]) + "\n", pictures


def _shown(output: Any, name: str, pictures: Pictures) -> str:
    """What stands below a cell: a picture before a table, a table before text."""
    if output.output_type == "stream":
        return _text(output.text)
    data = output.data
    if "image/png" in data:
        file = f"{name}-{len(pictures) + 1}.png"
        pictures[file] = base64.b64decode(data["image/png"])
        width = output.metadata.get("image/png", {}).get("width")
        return f'![{data["text/plain"]}]({file}){{ width="{width}" }}' if width else f"![]({file})"
    if "text/html" in data:
        return f'<div class="output" markdown="0">\n{_plain_table(data["text/html"])}\n</div>'
    return _text(data["text/plain"])


def _plain_table(html: str) -> str:
    """A table that looks as all others of the site do, not as its author wished."""
    without = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    return re.sub(r'\s(border="\d+"|class="dataframe")', "", without).strip()


def _text(text: str) -> str:
    return f"```{{ .text .output }}\n{text.rstrip()}\n```"
