"""Commands that train."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from mdcg.cli.app import app
from mdcg.cli.options import asked_recipe, located, print_json, shares_options
from mdcg.errors import MdcgError
from mdcg.train.signals import Stopped

if TYPE_CHECKING:
    from mdcg.api import Result
    from mdcg.recipes.recipe import Recipe

T = TypeVar("T")


@app.command()
@shares_options
def run(
    method: Annotated[str | None, typer.Option(help="Method, see 'mdcg list methods'.")] = None, **options: Any
) -> None:
    """Train one method on a scenario, once per seed. Given again, an interrupted command goes on where it was."""
    asked = asked_recipe(options, method=method)
    if asked.methods:
        raise MdcgError("the recipe names several methods; give it to 'mdcg compare', or name one with --method.")
    name = asked.asked_methods()[0]
    results = run_asked(asked, options)
    if len(results) > 1:
        _print_comparison(results, asked, options, name, ranked=False)
        return _print_share(results, options)
    (result,) = results.values()
    if options["as_json"]:
        return print_json(result.as_json())
    from mdcg.report.terminal import accuracy_matrix, comparison
    from mdcg.runs.store import Store

    over = f", mean over {len(result.records)} seeds" if len(result.records) > 1 else ""
    print(f"{name} on {asked.scenario}, accuracy in percent on task{over}{_held_out(asked)}:\n")
    console = Console()
    console.print(accuracy_matrix(result.R.mean(0), console.width))
    console.print(comparison({name: result}, "", console))
    store = Store(asked.out)
    for record in result.records:
        print(store.where(record.spec))
    return _print_share(results, options)


@app.command()
@shares_options
def compare(
    methods: Annotated[str | None, typer.Option(help="Methods, for instance naive,replay,md-cg.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page to this file.")] = None,
    **options: Any,
) -> None:
    """Train several methods on a scenario and print a table, best first."""
    named = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    asked = asked_recipe(options, methods=named)
    results = run_asked(asked, options)
    if report is not None:
        _write_page(report, results, _title(asked))
    names = asked.asked_methods()
    _print_comparison(results, asked, options, names[0] if len(names) == 1 and len(results) > 1 else "method")
    if report is not None and not options["as_json"]:
        print(f"report: {report}")
    _print_share(results, options)


def _print_share(results: dict[str, Result], options: dict[str, Any]) -> None:
    """What probes took of the time, where there were any."""
    from mdcg.runs.share import Share
    from mdcg.runs.store import Store

    probes = options["probe"] or ()
    watched = [(Store(result.out, probes), record.spec) for result in results.values() for record in result.records]
    share = Share.of(watched)
    if share is not None and not options["as_json"]:
        print(share)


def _write_page(path: Path, results: dict[str, Result], title: str) -> None:
    from mdcg.files import write_whole
    from mdcg.report.page.page import page
    from mdcg.results.settings import summarise
    from mdcg.runs.finished import FinishedRun
    from mdcg.runs.store import Store

    runs = []
    for result in results.values():
        store = Store(result.out)
        runs += [FinishedRun(store.where(record.spec), record) for record in result.records]
    write_whole(path, page(summarise(runs), title).encode("utf-8", "replace"))


def _title(asked: Recipe) -> str:
    memory = f", memory {asked.memory[0]}" if len(asked.memory) == 1 else ""
    preset = ", as the published code" if asked.preset == "published" else ""
    return asked.scenario + memory + preset + _held_out(asked)


def _print_comparison(
    results: dict[str, Result], asked: Recipe, options: dict[str, Any], first: str = "method", ranked: bool = True
) -> None:
    if options["as_json"]:
        return print_json({"methods": {label: result.as_json() for label, result in results.items()}})
    from mdcg.report.terminal import comparison

    console = Console()
    return console.print(comparison(results, _title(asked), console, first, ranked))


def _held_out(asked: Recipe) -> str:
    return f", on {asked.hold_out:.0%} of the training images held out" if asked.hold_out else ""


def run_asked(asked: Recipe, options: dict[str, Any]) -> dict[str, Result]:
    from mdcg.api import run_recipe

    how = {
        "fresh": options["fresh"],
        "members": options["members"],
        "log": options["log"] or (),
        "probes": options["probe"] or (),
    }
    again = "the same command without --fresh" if options["fresh"] else "the same command again"
    with located(options):
        return stopped_explained(lambda: run_recipe(asked, **how), again)


def stopped_explained(work: Callable[[], T], again: str = "the same command again") -> T:
    """Do something that Ctrl-C or SIGTERM may stop; then say how to go on, and leave."""
    try:
        return work()
    except KeyboardInterrupt as stopped:  # `Stopped`, or Ctrl-C while others work
        said = stopped if isinstance(stopped, Stopped) else Stopped("stopped")
        print(f"mdcg: {said}; give {again} to go on.", file=sys.stderr)
        raise SystemExit(128 + said.signal) from None
