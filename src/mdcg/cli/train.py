"""Commands that train one method, or several to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mdcg.cli.app import app
from mdcg.cli.options import FORCE, asked, how, inputs_of, print_json, shares_options
from mdcg.compiler import start_early
from mdcg.errors import MdcgError
from mdcg.files import shown
from mdcg.terminal import PlainConsole, say
from mdcg.train.signals import Stopped

if TYPE_CHECKING:
    from mdcg.api import Result
    from mdcg.execute.sweep import Sweep
    from mdcg.outputs import Output

T = TypeVar("T")


@app.command()
@shares_options
def run(
    method: Annotated[str | None, typer.Option(help="Method, see 'mdcg list methods'.")] = None,
    **options: Any,
) -> None:
    """Train one method on a scenario, once per seed. Given again, an interrupted command goes on where it was."""
    if method is not None and "," in method:  # said first: each may want options of its own
        together = f"'mdcg compare --methods {shown(method, 100)}'"
        raise MdcgError(f"'mdcg run' trains one method; {together} compares several.")
    sweep = _sweep(options, method=method)
    methods = {spec.method for spec in sweep.specs}
    if len(methods) > 1:
        raise MdcgError("the recipe names several methods; give it to 'mdcg compare', or name one with --method.")
    (name,) = methods
    results = _results(sweep, options)
    if len(results) > 1:
        _print_comparison(results, sweep, options, name, ranked=False)
        return _print_probe_time(sweep, options)
    (result,) = results.values()
    if options["as_json"]:
        return print_json(result.as_json())
    from mdcg.execute.sweep import held_out
    from mdcg.report.terminal import coloured_matrix, comparison

    over = f", mean over {len(result.records)} seeds" if len(result.records) > 1 else ""
    first = sweep.specs[0]
    say(f"{name} on {first.task_sequence}, accuracy in percent on task{over}{held_out(first)}:\n")
    console = PlainConsole()
    console.print(coloured_matrix(result.R.mean(0), console.width))
    console.print(comparison([result.setting], "", console))
    for spec in sweep.specs:
        say(sweep.context.store.where(spec))
    return _print_probe_time(sweep, options)


@app.command()
@shares_options
def compare(
    methods: Annotated[str | None, typer.Option(help="Methods, for instance naive,replay,md-cg.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page to this file.")] = None,
    force: Annotated[bool, FORCE] = False,
    **options: Any,
) -> None:
    """Train several methods on a scenario and print a table, best first."""
    named = [name.strip() for name in (methods or "").split(",") if name.strip()]
    page = _page(report, force, options) if report is not None else None
    sweep = _sweep(options, methods=named or None)
    results = _results(sweep, options)
    if page is not None:
        _write_page(page, sweep)
    names = {spec.method for spec in sweep.specs}
    _print_comparison(results, sweep, options, names.pop() if len(names) == 1 and len(results) > 1 else "method")
    if page is not None and not options["as_json"]:
        say(f"report: {page.path}")
    _print_probe_time(sweep, options)


def _sweep(options: dict[str, Any], **methods: Any) -> Sweep:
    start_early(options["device"], options["precision"])
    from mdcg.execute.sweep import Sweep

    document, given = asked(options, **methods)
    return Sweep.of(document, **how(options), **given)


def _results(sweep: Sweep, options: dict[str, Any]) -> dict[str, Result]:
    from mdcg.api import results_of

    return stopped_explained(lambda: results_of(sweep), again(options["fresh"]))


def _print_probe_time(sweep: Sweep, options: dict[str, Any]) -> None:
    """Print how much of the time probes took, where there were any."""
    from mdcg.runs.probe_time import ProbeTime

    store = sweep.context.store
    took = ProbeTime.of((store, spec) for spec in sweep.specs)
    if took is not None and not options["as_json"]:
        say(took)


def _page(path: Path, force: bool, options: dict[str, Any]) -> Output:
    """The file for a page; an error where that may not be written."""
    from mdcg.outputs import Output
    from mdcg.report.kinds import PAGE

    output = Output(path, PAGE, force, inputs_of(options, *asked(options)) if force else ())
    output.check()
    return output


def _write_page(output: Output, sweep: Sweep) -> None:
    from mdcg.report.page.page import page_file
    from mdcg.results.settings import gather, of_sweep

    runs = [run for setting in of_sweep(sweep) for run in setting.runs]
    output.write(page_file(gather(runs), sweep.title))


def _print_comparison(
    results: Mapping[str, Result], sweep: Sweep, options: dict[str, Any], first: str = "method", ranked: bool = True
) -> None:
    if options["as_json"]:
        return print_json({"methods": {label: result.as_json() for label, result in results.items()}})
    from mdcg.report.terminal import comparison

    console = PlainConsole()
    settings = [result.setting for result in results.values()]
    return console.print(comparison(settings, sweep.title, console, first, ranked))


def again(fresh: bool) -> str:
    """The command that resumes the one that was stopped."""
    return "the same command without --fresh" if fresh else "the same command again"


def stopped_explained(work: Callable[[], T], then: str = "the same command again") -> T:
    """Do something that Ctrl-C or SIGTERM may stop; then say how to go on, and leave."""
    try:
        return work()
    except KeyboardInterrupt as stopped:  # `Stopped`, or Ctrl-C while others work
        said = stopped if isinstance(stopped, Stopped) else Stopped("stopped")
        say(f"mdcg: {said}; give {then} to go on.", error=True)
        raise SystemExit(128 + said.signal) from None
