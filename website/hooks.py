"""The hooks of MkDocs: pages that no file in docs/ holds, and links that lead out of it."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import notebooks, python, reference

ROOT = Path(__file__).parents[1]
#: Pages that are files outside docs/, by their place in the repository.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
NOTEBOOKS = {
    f"examples/{path.name}": f"tutorials/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.ipynb"))
}
MADE_OF = {**OUTSIDE, **NOTEBOOKS}
#: Links and pictures; code in the text, which is matched first, is left alone.
LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]*`)|(?P<text>!?\[(?:[^][]|\[[^]]*\])*\])\((?P<to>[^)\s]+)\)", re.DOTALL | re.MULTILINE
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every notebook into the navigation."""
    for entry in config.nav or []:
        if "Tutorials" in entry:
            entry["Tutorials"] = [{notebooks.title_of(ROOT / source): place} for source, place in NOTEBOOKS.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: from files elsewhere, from notebooks, from the code."""

    def add(place: str, content: str | bytes) -> None:
        files.append(File.generated(config, place, content=content))

    add("site.css", (ROOT / "website" / "site.css").read_text("utf-8"))
    for source, place in OUTSIDE.items():
        add(place, (ROOT / source).read_text("utf-8"))
    for source, place in NOTEBOOKS.items():
        text, pictures = notebooks.page(ROOT / source)
        add(place, text)
        for name, picture in pictures.items():
            add(f"tutorials/{name}", picture)
    for name, text in python.pages().items():
        add(f"reference/python/{name}.md", text)
    for name, make in reference.PAGES.items():
        add(f"reference/{name}.md", make())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links into the repository to the pages that are made of it; to all else that lies there none can lead."""
    here = page.file.src_uri
    origin = {place: source for source, place in MADE_OF.items()}.get(here, f"docs/{here}")

    def turned(link: re.Match[str]) -> str:
        if link["code"]:
            return link[0]
        target, hash_, anchor = link["to"].partition("#")
        if not target or "://" in target:
            return link[0]
        there = (ROOT / origin).parent.joinpath(target).resolve()
        if ROOT not in there.parents or not there.exists():
            return link[0]  # a mistake, of which MkDocs tells
        known = there.relative_to(ROOT).as_posix()
        place = MADE_OF.get(known, known.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            return link["text"][1:-1]
        return f"{link['text']}({relpath(place, Path(here).parent.as_posix())}{hash_}{anchor})"

    return LINK.sub(turned, markdown)
