"""The command that draws figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mdcg.cli.app import app
from mdcg.cli.options import CHECK_PROBES, FORCE, own_backbone
from mdcg.cli.train import stopped_explained
from mdcg.errors import MdcgError
from mdcg.terminal import PlainConsole, say

if TYPE_CHECKING:
    from mdcg.figures.make import WrittenFigure


@app.command()
def figure(
    names: Annotated[list[str] | None, typer.Argument(help="Figures, see --list; 'all' for all of them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say which figures there are.")] = False,
    scenario: Annotated[str, typer.Option(help="DATASET-TASKS, for instance digits-5.")] = "c10-5",
    memory: Annotated[str | None, typer.Option(help="Memory size, or several.  [default: as in the paper]")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, where a figure compares any.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, for instance 0-4.  [default: each figure's own]")] = None,
    head: Annotated[str | None, typer.Option(help="Head, in place of each method's own.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of method or head, key=value.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs per task.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Backbone, in place of the protocol's.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, tf32, bf16 or fp64.  [default: auto]")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder or archive of the dataset.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    members: Annotated[int | None, typer.Option(min=1, help="Most runs to train together.")] = None,
    check_probes: Annotated[bool, typer.Option("--check-probes", help=CHECK_PROBES)] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Draw a figure of the paper, or of your own runs: train what is missing, measure, write SVG, PNG and CSV."""
    from mdcg.figures import FIGURES

    if list_:
        return _list()
    if not names:
        raise MdcgError("no figure was named; 'mdcg figure --list' says which there are.")
    from mdcg.figures.make import make
    from mdcg.recipes.parsing import parse_settings
    from mdcg.recipes.recipe import make_recipe

    chosen = FIGURES.names() if names == ["all"] else names
    asked = make_recipe(
        scenario=scenario,
        memory=memory,
        methods=methods,
        seeds=seeds,
        head=head,
        set=parse_settings(settings) if settings else None,
        epochs=epochs,
        backbone=own_backbone(backbone),
        device=device,
        precision=precision,
        data=data,
        out=runs,
    )
    how: dict[str, Any] = {
        "seeds_given": seeds is not None,
        "members": members,
        "retry": retry,
        "check_probes": check_probes,
        "force": force,
    }
    took = stopped_explained(lambda: make(chosen, asked, out, **how, done=_say))
    if took is not None:
        say(took)
    return None


def _list() -> None:
    from mdcg.figures import FIGURES

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name in FIGURES.names():
        table.add_row(name, FIGURES[name].summary())
    PlainConsole().print(table)


def _say(made: WrittenFigure) -> None:
    say(f"{made.name}: {made.caption}")
    say("\n".join(f"  {file}" for file in made.files))
