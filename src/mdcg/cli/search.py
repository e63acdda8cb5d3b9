"""The command that chooses hyperparameters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mdcg.cli.app import app
from mdcg.cli.options import asked_recipe, print_json, shares_options
from mdcg.cli.train import stopped_explained
from mdcg.errors import MdcgError

if TYPE_CHECKING:
    from mdcg.execute.sweep import Undone
    from mdcg.recipes.recipe import Recipe
    from mdcg.runs.record import Record
    from mdcg.runs.spec import RunSpec
    from mdcg.runs.store import Store


@app.command()
@shares_options
def search(
    method: Annotated[str | None, typer.Option(help="Method, see 'mdcg list methods'.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="File for the recipe with the choice.  [default: SCENARIO-METHOD.yaml]")
    ] = None,
    **options: Any,
) -> None:
    """Choose a method's settings as the paper did: its grid, one seed, judged on training images held out."""
    from mdcg.execute.search import HELD_OUT, chosen_recipe, grid_of, read_grid

    asked = asked_recipe(options, method=method)
    names = asked.asked_methods()
    if len(names) > 1:
        raise MdcgError(f"a search is for one method, not for {', '.join(names)}; name it with --method.")
    asked = asked.model_copy(
        update={
            "method": names[0],
            "methods": [],
            "set": grid_of(names[0], asked.set),
            "hold_out": asked.hold_out or HELD_OUT,
        }
    )
    file = write or Path(f"{asked.scenario.replace('/', '-').replace(':', '-')}-{names[0]}.yaml")
    if file.exists() and not _is_ours(file):
        raise MdcgError(f"{file} is there already, and no search wrote it; give another file with --write.")
    undone, records = _trained(asked, options)
    for reason in dict.fromkeys([*undone.failed.values(), *undone.left.values()]):
        print(f"mdcg: left out of the grid: {reason}", file=sys.stderr)
    found = read_grid(asked, records)
    if not all(one.scores for one in found):
        raise MdcgError("no point of the grid could be trained, so there is nothing to choose.")
    _write(file, chosen_recipe(asked, found))
    if options["as_json"]:
        return print_json(
            {
                "choices": [
                    {
                        "memory": one.memory,
                        "best": one.best,
                        "margin": None if one.margin != one.margin else one.margin,
                        "grid": [
                            {**dict(zip(one.axes, point, strict=True)), "ACC": score}
                            for point, score in one.scores.items()
                        ],
                    }
                    for one in found
                ],
                "recipe": str(file),
            }
        )
    from mdcg.report.searches import at_an_end, grid_table, verdict

    console = Console()
    seeds = f"{len(asked.seeds)} seeds" if len(asked.seeds) > 1 else f"seed {asked.seeds[0]}"
    print(f"{names[0]} on {asked.scenario}: ACC on {asked.hold_out:.0%} of the training images, held out, {seeds}")
    for one in found:
        print()
        console.print(grid_table(one))
        print(verdict(one))
        for key in at_an_end(one):
            print(f"The best {key} is at an end of the grid: a better one may lie beyond.")
    print(f"\nrecipe: {file}")
    return None


def _trained(asked: Recipe, options: dict[str, Any]) -> tuple[Undone, list[Record]]:
    """All points as one sweep: one that fails does not stop the others."""
    from mdcg.api import Sweep, load_for
    from mdcg.execute.sweep import Cell, Site

    specs = asked.resolve(load_for(asked))
    site = Site(
        asked.out,
        asked.data,
        asked.device,
        options["members"],
        tuple(options["log"] or ()),
        probes=tuple(options["probe"] or ()),
    )
    if options["fresh"]:
        _forget(site.store, specs)
    work = Sweep([Cell({}, specs)], site, asked.scenario)
    undone = stopped_explained(lambda: work.run(retry=options["fresh"]))
    return undone, list(work.records().values())


def _forget(store: Store, specs: Sequence[RunSpec]) -> None:
    """Or say, before anything is forgotten, that a run cannot be."""
    for spec in specs:
        if archived := store.archived(spec):
            raise MdcgError(
                f"--fresh cannot repeat {spec.name}, a run of the archive {archived[0].parent}; choose another --out."
            )
    for spec in specs:
        store.forget(spec)


MARK = "# Chosen by mdcg search"


def _is_ours(file: Path) -> bool:
    try:
        return file.read_text("utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        return False


def _write(file: Path, content: dict[str, Any]) -> None:
    import yaml

    from mdcg.files import write_whole

    text = f"{MARK} on training images held out.\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_whole(file, text.encode())
