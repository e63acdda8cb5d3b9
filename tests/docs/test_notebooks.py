"""The notebooks in examples/: they run, and are kept without outputs."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from mdcg.methods import METHODS

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_without_outputs(path: Path) -> None:
    cells = code_cells(path)
    assert len(cells) > 3
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, on a sixth of the digits, and for an epoch each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))
    monkeypatch.setattr("mdcg.testing.check_method", lambda name: METHODS[name])  # which tests of its own are about
    scope: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(path):
        text = re.sub(r'(epochs=|"epochs": )\d+', r"\g<1>1", "".join(cell["source"]))
        exec(compile(text, str(path), "exec"), scope)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_executed_in_a_kernel(path: Path, tmp_path: Path) -> None:
    """As Jupyter does it, to the letter."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    logging.getLogger("traitlets").setLevel(logging.ERROR)
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output["output_type"] == "error"]
    assert [output for output in shown if "text/html" in output.get("data", {})]
