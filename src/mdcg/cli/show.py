"""Commands that look at what is there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mdcg.cli.app import app
from mdcg.errors import unknown
from mdcg.terminal import PlainConsole


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's folder, or its name in --out.")],
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
) -> None:
    """Show one finished run: R as a coloured matrix, metrics, settings."""
    from mdcg.report.terminal import run_panel
    from mdcg.runs.store import Store

    place, record = Store(out).find(run)
    console = PlainConsole()
    console.print(run_panel(record, str(place), console.width))


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, scenarios, datasets, backbones, heads, probes or recipes")],
) -> None:
    """List what can be asked for by name."""
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in LISTS[what]():
        table.add_row(name, text)
    PlainConsole().print(table)


def _list_methods() -> list[tuple[str, str]]:
    from mdcg.methods import METHODS

    rows = []
    for name in METHODS.names():
        method = METHODS[name]
        rows += [(name, method.summary()), ("", method.streams())]
        if training := method.training():
            rows.append(("", f"trains, unless asked otherwise, with {training}"))
        own = inspect.get_annotations(method)  # before what it has of the methods that it is made of
        for key, field in sorted(method.model_fields.items(), key=lambda item: item[0] not in own):
            rows.append(("", f"--set {key}={field.default}: {field.description or ''}"))
    return rows


def _list_heads() -> list[tuple[str, str]]:
    from mdcg.models import HEADS

    rows = []
    for name in HEADS.names():
        rows.append((name, HEADS[name].summary))
        rows += [("", f"--set {key}={default:g}: {text}") for key, (default, text) in HEADS[name].settings.items()]
    return rows


def _list_scenarios() -> list[tuple[str, str]]:
    from mdcg.scenario import parse, scenario_names

    named = [(name, f"{parse(name)[0]} in {parse(name)[1]} tasks") for name in scenario_names()]
    return [*named, ("DATASET-T", "any dataset in T tasks of at least two classes, also folder:PATH-T")]


def _list_datasets() -> list[tuple[str, str]]:
    from mdcg.data import DATASETS

    return [(record.name, record.summary) for record in DATASETS.values()]


def _list_backbones() -> list[tuple[str, str]]:
    from mdcg.models.backbones import SUMMARIES, backbone_names

    return [(name, SUMMARIES.get(name, "registered by a user or package")) for name in backbone_names()]


def _list_probes() -> list[tuple[str, str]]:
    from mdcg.probes import PROBES

    return [(name, PROBES[name].summary()) for name in PROBES.names()]


def _list_recipes() -> list[tuple[str, str]]:
    from mdcg.recipes.document import shipped_recipes, summary_of

    return [(name, summary_of(path)) for name, path in shipped_recipes().items()]


LISTS = {
    "methods": _list_methods,
    "scenarios": _list_scenarios,
    "datasets": _list_datasets,
    "backbones": _list_backbones,
    "heads": _list_heads,
    "probes": _list_probes,
    "recipes": _list_recipes,
}
