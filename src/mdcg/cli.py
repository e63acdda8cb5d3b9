"""The command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mdcg.errors import MdcgError, unknown
from mdcg.train.signals import Stopped

if TYPE_CHECKING:
    from mdcg.experiments.recipe import Recipe

# torch takes seconds to import: the commands below import what they use, so that help is immediate.

app = typer.Typer(
    name="mdcg",
    help="Class-incremental learning: teach a classifier new classes, task by task, with a bounded memory.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Download and check datasets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

ScenarioOption = Annotated[str | None, typer.Option(help="DATASET-TASKS, for instance digits-5 or folder:PATH-4.")]
MemoryOption = Annotated[int | None, typer.Option(help="Images the memory may hold.")]
SeedsOption = Annotated[str | None, typer.Option(help="Seeds, for instance 0-4 or 0,2,5.  [default: 0]")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="A setting of the method or head, key=value.")]
HeadOption = Annotated[str | None, typer.Option(help="Head, in place of the method's own.")]
BackboneOption = Annotated[str | None, typer.Option(help="Backbone, in place of the protocol's.")]
EpochsOption = Annotated[int | None, typer.Option(help="Epochs per task.")]
BatchOption = Annotated[int | None, typer.Option(help="Images per batch.")]
RateOption = Annotated[float | None, typer.Option(help="Learning rate.")]
MomentumOption = Annotated[float | None, typer.Option(help="Momentum of SGD.")]
HoldOutOption = Annotated[
    float | None, typer.Option(help="Evaluate on this fraction of the training images, for tuning.")
]
EveryOption = Annotated[int | None, typer.Option(help="Also evaluate every so many epochs.")]
SizeOption = Annotated[int | None, typer.Option(help="Side in pixels to which a folder's images are resized.")]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]")]
PrecisionOption = Annotated[str | None, typer.Option(help="auto, fp32, tf32, bf16 or fp64.  [default: auto]")]
OutOption = Annotated[Path | None, typer.Option(help="Folder for runs.  [default: runs]")]
DataOption = Annotated[Path | None, typer.Option(help="Folder or archive of the dataset.")]
RecipeOption = Annotated[Path | None, typer.Option(help="YAML file with any of these settings.")]
TogetherOption = Annotated[int | None, typer.Option("--members", min=1, help="Most runs to train together.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Repeat runs that are already finished.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.command()
def run(
    scenario: ScenarioOption = None,
    method: Annotated[str | None, typer.Option(help="Method, see 'mdcg list methods'.")] = None,
    memory: MemoryOption = None,
    seeds: SeedsOption = None,
    settings: SetOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    rate: RateOption = None,
    momentum: MomentumOption = None,
    backbone: BackboneOption = None,
    head: HeadOption = None,
    hold_out: HoldOutOption = None,
    evaluate_every: EveryOption = None,
    image_size: SizeOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    out: OutOption = None,
    data: DataOption = None,
    recipe: RecipeOption = None,
    members: TogetherOption = None,
    fresh: FreshOption = False,
    json_: JsonOption = False,
) -> None:
    """Train one method on a scenario, once per seed. Given again, an interrupted command goes on where it was."""
    options = dict(locals())
    asked = _recipe(options)
    if asked.methods:
        raise MdcgError("the recipe names several methods; give it to 'mdcg compare', or name one with --method.")
    from mdcg.api import run_recipe

    name = asked.asked_methods()[0]
    result = run_recipe(asked, fresh=fresh, quiet=json_, members=members)[name]
    if json_:
        return _print_json(result.as_json())
    from mdcg.experiments.store import Store
    from mdcg.report.tables import accuracy_matrix, comparison

    console = Console()
    over = f", mean over {len(result.records)} seeds" if len(result.records) > 1 else ""
    console.print(accuracy_matrix(result.R.mean(0), f"{name} on {asked.scenario}: accuracy in percent on task{over}"))
    console.print()
    console.print(comparison({name: result}, ""))
    for record in result.records:
        print(Store(asked.out).folder(record.spec))
    return None


@app.command()
def compare(
    scenario: ScenarioOption = None,
    methods: Annotated[str | None, typer.Option(help="Methods, for instance naive,replay,md-cg.")] = None,
    memory: MemoryOption = None,
    seeds: SeedsOption = None,
    settings: SetOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    rate: RateOption = None,
    momentum: MomentumOption = None,
    backbone: BackboneOption = None,
    head: HeadOption = None,
    hold_out: HoldOutOption = None,
    evaluate_every: EveryOption = None,
    image_size: SizeOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    out: OutOption = None,
    data: DataOption = None,
    recipe: RecipeOption = None,
    members: TogetherOption = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML page to this file.")] = None,
    fresh: FreshOption = False,
    json_: JsonOption = False,
) -> None:
    """Train several methods on a scenario and print a table, best first."""
    options = dict(locals())
    if methods is not None:
        options["methods"] = [name.strip() for name in methods.split(",") if name.strip()]
    asked = _recipe(options)
    from mdcg.api import run_recipe
    from mdcg.files import write_whole
    from mdcg.report.page import page
    from mdcg.report.tables import comparison

    results = run_recipe(asked, fresh=fresh, quiet=json_, members=members)
    memory_text = f", memory {asked.memory}" if asked.memory else ""
    title = f"{asked.scenario}{memory_text}"
    if report is not None:
        write_whole(report, page(results, title).encode())
    if json_:
        _print_json({"methods": {name: result.as_json() for name, result in results.items()}})
    else:
        Console().print(comparison(results, title))
        if report is not None:
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
    Console().print(run_panel(read_record(folder), str(folder)))


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
    data: DataOption = None,
) -> None:
    """Download a dataset where it is not at hand, verify it, and prepare its cache."""
    from mdcg.data import load

    if data is not None:
        _make_folder(data)
    dataset = load(name, data)
    print(
        f"{name}: {len(dataset.train):,} training and {len(dataset.test):,} test images of {dataset.classes} classes, "
        "ready."
    )


@data_app.command()
def verify(
    name: Annotated[str, typer.Argument(help="A dataset's name, or folder:PATH")],
    data: DataOption = None,
) -> None:
    """Check every byte of a dataset and of its cache."""
    from mdcg.data import verify as verify_dataset

    print(verify_dataset(name, data))


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
NOT_IN_RECIPE = {"recipe", "settings", "fresh", "json_", "members", "report"}


def _recipe(options: dict[str, Any]) -> Recipe:
    """The recipe file, overruled by what was given on the command line."""
    from mdcg.experiments.recipe import make_recipe, parse_settings, read_recipe

    keys: dict[str, Any] = read_recipe(options["recipe"]) if options["recipe"] else {}
    given = {key: value for key, value in options.items() if key not in NOT_IN_RECIPE and value is not None}
    if "method" in given:
        keys.pop("methods", None)
    keys |= given
    if options["settings"]:
        keys["set"] = {**(keys.get("set") or {}), **parse_settings(options["settings"])}
    return make_recipe(**keys)


def _make_folder(path: Path) -> None:
    try:
        if not path.suffix:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MdcgError(f"cannot create {path}: {error.strerror}; choose another folder with --data.") from error


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, allow_nan=False))


def main() -> None:
    """Run the command line: what a person can mend is one sentence and exit code 2."""
    try:
        app()
    except MdcgError as error:
        print(f"mdcg: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Stopped as stopped:
        print(f"mdcg: {stopped}; give the same command again to go on.", file=sys.stderr)
        raise SystemExit(128 + stopped.signal) from None
    except BrokenPipeError:
        # The reader (for instance `head`) has left; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
