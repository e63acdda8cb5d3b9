"""The command that makes a report of many runs."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from mdcg.cli.app import app
from mdcg.cli.options import FORCE
from mdcg.terminal import say


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder for the page and the tables.")] = Path("report"),
    reproduction: Annotated[
        Path | None,
        typer.Option(
            help="Write every cell of the paper's tables beside ours into this Markdown file, and no report.",
        ),
    ] = None,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Make a page and tables (Markdown, LaTeX, CSV) of all finished runs in a folder, beside the paper's numbers."""
    from mdcg.files import readable, remove_partial
    from mdcg.outputs import Output
    from mdcg.report.files import csv_table, latex, markdown
    from mdcg.report.kinds import REPORT
    from mdcg.report.notes import NOTES
    from mdcg.report.reproduction import reproduction_page, write_reproduction
    from mdcg.results.read import find_runs
    from mdcg.results.settings import gather

    outputs = {name: Output(out / name, kind, force) for name, kind in REPORT.items()}
    for output in outputs.values() if reproduction is None else [reproduction_page(reproduction)]:
        output.check()
    gc.disable()
    try:
        found = find_runs(runs)
    finally:
        gc.freeze()  # they stay to the end: to look through them again and again would take a fifth of the time
        gc.enable()
    if found.unreadable:
        count = f"left out results that are damaged or not ours: {found.unreadable}"
        say(f"mdcg: {count}, the first: {found.reason}", error=True)
    if found.copies:
        say(f"mdcg: left out older copies of the same runs: {found.copies}", error=True)
    if reproduction is not None:
        write_reproduction(reproduction, found.runs, runs / NOTES)
        say(f"reproduction: {reproduction}")
        return
    from mdcg.report.page.page import page_file  # which brings libraries to draw with

    sections = gather(found.runs)
    contents = {
        "table.md": markdown(sections).encode("utf-8", "replace"),
        "table.tex": latex(sections).encode("utf-8", "replace"),
        "table.csv": csv_table(sections).encode("utf-8", "replace"),
        "index.html": page_file(sections, f"Results in {readable(runs)}"),
    }
    remove_partial(out)
    for name, content in contents.items():
        outputs[name].write(content)
    say(f"tables: {', '.join(str(out / name) for name in list(contents)[:3])}")
    say(f"report: {out / 'index.html'}")
