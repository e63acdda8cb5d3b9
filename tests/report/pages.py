"""The page of a report as a test reads it."""

from __future__ import annotations

from collections.abc import Sequence

from mdcg.report.page.page import page_file
from mdcg.results.settings import Section


def page(sections: Sequence[Section], title: str) -> str:
    return page_file(sections, title).decode()
