"""Links of the site: to pages that are made of files outside docs/, and to files that have no page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs")  # which make docs installs, and make test does not

from website.hooks import on_page_markdown

PAGES = {"index.md", "experiments.md", "learner.md", "changelog.md", "tutorials/first_steps.md", "report.png"}


def turned(text: str, here: str) -> str:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri=here))
    files: Any = SimpleNamespace(get_file_from_path=lambda place: place if place in PAGES else None)
    config: Any = None
    return on_page_markdown(text, page, config, files)


@pytest.mark.parametrize(
    ("here", "written", "wanted"),
    [
        ("index.md", "[text](docs/learner.md#in-python)", "[text](learner.md#in-python)"),  # the README
        ("index.md", "![A picture](docs/report.png)", "![A picture](report.png)"),
        ("index.md", "[`results/`](results/)", "`results/`"),
        ("experiments.md", "[text](learner.md)", "[text](learner.md)"),
        ("experiments.md", "[text](../examples/first_steps.ipynb)", "[text](tutorials/first_steps.md)"),
        ("experiments.md", "[text](../src/mdcg/memory.py)", "text"),
        ("experiments.md", "[text](gone.md)", "[text](gone.md)"),  # MkDocs will tell
        ("experiments.md", "[text](#here) [there](https://example.org/a.md)", "[text](#here) [there](https://example.org/a.md)"),
        ("experiments.md", "`[text](../README.md)`", "`[text](../README.md)`"),
        ("experiments.md", "```python\n[f](../README.md)\n```", "```python\n[f](../README.md)\n```"),
        ("tutorials/first_steps.md", "[text](../docs/learner.md)", "[text](../learner.md)"),
        ("contributing.md", "[text](CHANGELOG.md)", "[text](changelog.md)"),
    ],
)  # fmt: skip
def test_links(here: str, written: str, wanted: str) -> None:
    assert turned(written, here) == wanted
