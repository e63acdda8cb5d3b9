"""The command line."""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table

from mdcg import __version__
from mdcg.errors import MdcgError, unknown
from mdcg.train.signals import Stopped

if TYPE_CHECKING:
    from mdcg.api import Result
    from mdcg.experiments.recipe import Recipe

# torch takes seconds to import: the commands below import what they use, so that help is immediate.

app = typer.Typer(
    name="mdcg",
    help="Class-incremental learning: teach a classifier new classes, task by task, with a bounded memory.",
    invoke_without_command=True,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Download and check datasets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


def _option(kind: object, *names: str, **declared: Any) -> object:
    return Annotated[kind, typer.Option(*names, **declared)]


#: What `run` and `compare` share: all that a recipe may say, and how to go about it.
SHARED = {
    "scenario": _option(str | None, help="DATASET-TASKS, for instance digits-5 or folder:PATH-4."),
    "memory": _option(str | None, help="Images the memory may hold; several sizes as 200,500."),
    "seeds": _option(str | None, help="Seeds, for instance 0-4 or 0,2,5.  [default: 0]"),
    "preset": _option(str | None, help="paper, or published: as the paper's published code where it departs from it."),
    "settings": _option(
        list[str] | None, "--set", help="A setting of the method or head, key=value or key=value,value."
    ),
    "epochs": _option(int | None, help="Epochs per task."),
    "batch_size": _option(int | None, help="Images per batch."),
    "rate": _option(float | None, help="Learning rate."),
    "momentum": _option(float | None, help="Momentum of SGD."),
    "backbone": _option(str | None, help="Backbone, in place of the protocol's."),
    "head": _option(str | None, help="Head, in place of the method's own."),
    "hold_out": _option(float | None, help="Evaluate on this fraction of the training images, for tuning."),
    "evaluate_every": _option(int | None, help="Also evaluate every so many epochs."),
    "image_size": _option(int | None, help="Side in pixels to which a folder's images are resized.  [default: 32]"),
    "augmentation": _option(str | None, help="paper or published, of Tiny-ImageNet.  [default: as --preset]"),
    "device": _option(str | None, help="auto, cpu or cuda.  [default: auto]"),
    "precision": _option(str | None, help="auto, fp32, tf32, bf16 or fp64.  [default: auto]"),
    "out": _option(Path | None, help="Folder for runs.  [default: runs]"),
    "data": _option(Path | None, help="Folder or archive of the dataset."),
    "recipe": _option(Path | None, help="YAML file with these settings, all but the last three."),
    "members": _option(int | None, "--members", min=1, help="Most runs to train together."),
    "fresh": _option(bool, "--fresh", help="Repeat runs that are already finished."),
    "as_json": _option(bool, "--json", help="Print one JSON object and nothing else."),
}
NOT_IN_RECIPE = {"recipe", "settings", "fresh", "as_json", "members"}


def shares_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options; it receives them as keywords."""
    signature = inspect.signature(command, eval_str=True)
    own = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if get_args(kind)[0] is bool else None, annotation=kind
        )
        for name, kind in SHARED.items()
    ]
    command.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    return command


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"mdcg {__version__}")
        raise typer.Exit


@app.command()
@shares_options
def run(
    method: Annotated[str | None, typer.Option(help="Method, see 'mdcg list methods'.")] = None, **options: Any
) -> None:
    """Train one method on a scenario, once per seed. Given again, an interrupted command goes on where it was."""
    asked = _recipe(options, method=method)
    if asked.methods:
        raise MdcgError("the recipe names several methods; give it to 'mdcg compare', or name one with --method.")
    name = asked.asked_methods()[0]
    results = _run(asked, options)
    if len(results) > 1:
        return _print_comparison(results, asked, options, name, ranked=False)
    (result,) = results.values()
    if options["as_json"]:
        return _print_json(result.as_json())
    from mdcg.experiments.store import Store
    from mdcg.report.tables import accuracy_matrix, comparison

    over = f", mean over {len(result.records)} seeds" if len(result.records) > 1 else ""
    print(f"{name} on {asked.scenario}, accuracy in percent on task{over}{_held_out(asked)}:\n")
    console = Console()
    console.print(accuracy_matrix(result.R.mean(0), console.width))
    console.print(comparison({name: result}, "", console))
    for record in result.records:
        print(Store(asked.out).folder(record.spec))
    return None


@app.command()
@shares_options
def compare(
    methods: Annotated[str | None, typer.Option(help="Methods, for instance naive,replay,md-cg.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page to this file.")] = None,
    **options: Any,
) -> None:
    """Train several methods on a scenario and print a table, best first."""
    named = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    asked = _recipe(options, methods=named)
    results = _run(asked, options)
    if report is not None:
        from mdcg.files import write_whole
        from mdcg.report.page import page

        write_whole(report, page(results, _title(asked)).encode())
    names = asked.asked_methods()
    _print_comparison(results, asked, options, names[0] if len(names) == 1 and len(results) > 1 else "method")
    if report is not None and not options["as_json"]:
        print(f"report: {report}")


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's folder, or its name in --out.")],
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
) -> None:
    """Show one finished run: R as a coloured matrix, metrics, settings."""
    from mdcg.experiments.store import Store, read_record
    from mdcg.report.tables import run_panel

    folder = Store(out).find(run)
    console = Console()
    console.print(run_panel(read_record(folder), str(folder), console.width))


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, scenarios, datasets, backbones or heads")],
) -> None:
    """List what can be asked for by name."""
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in LISTS[what]():
        table.add_row(name, text)
    Console().print(table)


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100 or tinyimagenet")],
    data: Annotated[Path | None, typer.Option(help="Folder or archive of the dataset.")] = None,
) -> None:
    """Download a dataset where it is not at hand, verify it, and prepare its cache."""
    from mdcg.data import load
    from mdcg.data.load import PUBLISHED
    from mdcg.data.source import ARCHIVES

    if data is not None and name in PUBLISHED and not data.name.endswith(ARCHIVES):
        _make_folder(data)
    dataset = load(name, data, download=True)
    print(
        f"{name}: {len(dataset.train):,} training and {len(dataset.test):,} test images of {dataset.classes} classes, "
        "ready."
    )


@data_app.command()
def verify(
    name: Annotated[str, typer.Argument(help="A dataset's name, or folder:PATH")],
    data: Annotated[Path | None, typer.Option(help="Folder or archive of the dataset.")] = None,
    image_size: Annotated[int | None, typer.Option(help="For a folder: as given when training.")] = None,
) -> None:
    """Check every byte of a dataset and of its cache."""
    from mdcg.data import verify as verify_dataset

    print(verify_dataset(name, data, image_size))


def _list_methods() -> list[tuple[str, str]]:
    from mdcg.methods import METHODS

    rows = []
    for name in METHODS.names():
        method = METHODS[name]
        rows.append((name, method.summary()))
        for key, field in method.model_fields.items():
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
    from mdcg.scenario import SCENARIOS, parse

    named = [(name, f"{parse(name)[0]} in {parse(name)[1]} tasks") for name in SCENARIOS]
    return [*named, ("DATASET-T", "any dataset in T tasks of at least two classes, also folder:PATH-T")]


def _list_datasets() -> list[tuple[str, str]]:
    from mdcg.data import DATASETS

    return list(DATASETS.items())


def _list_backbones() -> list[tuple[str, str]]:
    from mdcg.models.backbones import SUMMARIES, backbone_names

    return [(name, SUMMARIES.get(name, "registered by a user or package")) for name in backbone_names()]


LISTS = {
    "methods": _list_methods,
    "scenarios": _list_scenarios,
    "datasets": _list_datasets,
    "backbones": _list_backbones,
    "heads": _list_heads,
}


def _recipe(options: dict[str, Any], **methods: Any) -> Recipe:
    """The recipe file, overruled by what was given on the command line."""
    from mdcg.experiments.recipe import make_recipe, parse_settings, read_recipe

    keys: dict[str, Any] = read_recipe(options["recipe"]) if options["recipe"] else {}
    said = {**options, **methods}
    given = {key: value for key, value in said.items() if key not in NOT_IN_RECIPE and value is not None}
    if "method" in given:
        keys.pop("methods", None)
    keys |= given
    if options["settings"]:
        in_file = keys.get("set")
        keys["set"] = {**(in_file if isinstance(in_file, dict) else {}), **parse_settings(options["settings"])}
    return make_recipe(**keys)


def _title(asked: Recipe) -> str:
    memory = f", memory {asked.memory[0]}" if len(asked.memory) == 1 else ""
    preset = ", as the published code" if asked.preset == "published" else ""
    return asked.scenario + memory + preset + _held_out(asked)


def _print_comparison(
    results: dict[str, Result], asked: Recipe, options: dict[str, Any], first: str = "method", ranked: bool = True
) -> None:
    if options["as_json"]:
        return _print_json({"methods": {label: result.as_json() for label, result in results.items()}})
    from mdcg.report.tables import comparison

    console = Console()
    return console.print(comparison(results, _title(asked), console, first, ranked))


def _held_out(asked: Recipe) -> str:
    return f", on {asked.hold_out:.0%} of the training images held out" if asked.hold_out else ""


def _run(asked: Recipe, options: dict[str, Any]) -> dict[str, Result]:
    from mdcg.api import run_recipe

    try:
        return run_recipe(asked, fresh=options["fresh"], members=options["members"])
    except Stopped as stopped:
        again = "the same command without --fresh" if options["fresh"] else "the same command again"
        print(f"mdcg: {stopped}; give {again} to go on.", file=sys.stderr)
        raise SystemExit(128 + stopped.signal) from None


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MdcgError(f"cannot create {path}: {error.strerror}; choose another folder with --data.") from error


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, allow_nan=False))


def main() -> None:
    """Run the command line: what a person can mend is one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these letters is no reason to fail
    try:
        app()
    except BrokenPipeError:
        # The reader (for instance `head`) has left; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except MdcgError as error:
        print(f"mdcg: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"mdcg: {where}{error.strerror or error}; check the path and its permissions.", file=sys.stderr)
        raise SystemExit(2) from None
