"""mdcg as somebody has it who installed a wheel: no repository, nothing but what the wheel needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.docs.test_adding_a_method import write_package

ROOT = Path(__file__).parents[1]


def test_its_description_leads_nowhere_in_vain() -> None:
    """Links of the README to files of the repository are but text where there is none; nothing else is lost."""
    pytest.importorskip("hatchling")
    from hatch_build import away

    text = "A [page](docs/a.md) and [site](https://example.org).\n\n![A picture](docs/a.png)\n\nIt [goes](#on) on."
    assert away(text) == "A page and [site](https://example.org).\n\nIt [goes](#on) on."
    readme = (ROOT / "README.md").read_text("utf-8")
    assert not re.findall(r"\]\((?!https?:|#)", away(readme))
    assert [line for line in away(readme).splitlines() if line.startswith("#")] == [
        line for line in readme.splitlines() if line.startswith("#")
    ]


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """With a recipe that comes along, and a plugin."""
    pytest.importorskip("hatchling")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist"], cwd=ROOT, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (source,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(source) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"pyproject.toml", "README.md", "src/mdcg/py.typed", "tests/test_wheel.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "runs", "dist", ".mypy_cache", ".deps"))]
    venv.create(tmp_path / "venv", with_pip=True)
    place = tmp_path / "elsewhere"
    place.mkdir()
    write_package(place)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MDCG", "VIRTUAL"))}

    def run(program: str, *words: object) -> str:
        command = [str(tmp_path / "venv" / "bin" / program), *map(str, words)]
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    run("pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, "./distilled-replay")
    assert str(tmp_path / "venv") in run("python", "-c", "import mdcg; print(mdcg.__file__)")
    assert "table1-c10-5" in run("mdcg", "list", "recipes")
    assert "naive" in run("mdcg", "sweep", "quick", "--only", "method=naive,replay,memory=50", "--seeds", "0-1")
    run("mdcg", "run", "--scenario", "digits-5", "--method", "distilled-replay", "--memory", 100, "--epochs", 1)
    assert "tables:" in run("mdcg", "report")
    assert (place / "report" / "index.html").stat().st_size > 1_000_000  # with what draws its charts
