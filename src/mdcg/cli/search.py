"""The command that chooses hyperparameters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mdcg.cli.app import app
from mdcg.cli.options import asked, how, print_json, shares_options
from mdcg.cli.train import again, stopped_explained
from mdcg.errors import MdcgError


@app.command()
@shares_options
def search(
    method: Annotated[str | None, typer.Option(help="Method, see 'mdcg list methods'.")] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="File for the recipe with the choice.  [default: SCENARIO-METHOD.yaml]"),
    ] = None,
    **options: Any,
) -> None:
    """Choose a method's settings as the paper did: its grid, one seed, judged on training images held out."""
    from mdcg.execute.search import HELD_OUT, chosen_recipe, grid_of, read_grid, searched
    from mdcg.execute.sweep import Sweep
    from mdcg.recipes.grid import merged

    document, given = asked(options, method=method)
    keys = merged(document, given)
    name = keys.get("method")
    if isinstance(name, list):
        raise MdcgError(f"a search is for one method, not for {', '.join(name)}; name it with --method.")
    if name is not None:
        settings = {key.removeprefix("set."): value for key, value in keys.items() if key.startswith("set.")}
        given["set"] = grid_of(name, settings, others=bool(searched(keys)))
    given["hold_out"] = keys.get("hold_out") or HELD_OUT
    sweep = Sweep.of(document, **how(options), **given)
    first = sweep.specs[0]
    file = write or Path(f"{first.scenario.replace('/', '-').replace(':', '-')}-{name}.yaml")
    if file.exists() and not _is_ours(file):
        raise MdcgError(f"{file} is there already, and no search wrote it; give another file with --write.")
    undone = stopped_explained(lambda: sweep.run(retry=options["fresh"]), again(options["fresh"]))
    for reason in dict.fromkeys([*undone.failed.values(), *undone.left.values()]):
        print(f"mdcg: left out of the grid: {reason}", file=sys.stderr)
    found = read_grid(sweep.cells, sweep.records())
    if not all(one.scores for one in found):
        raise MdcgError("no point of the grid could be trained, so there is nothing to choose.")
    _write(file, chosen_recipe(keys, found))
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
    from mdcg.report.search_tables import at_an_end, grid_table, verdict

    console = Console()
    count = len({spec.seed for spec in sweep.specs})
    seeds = f"{count} seeds" if count > 1 else f"seed {first.seed}"
    print(f"{name} on {first.scenario}: ACC on {first.hold_out:.0%} of the training images, held out, {seeds}")
    for one in found:
        print()
        console.print(grid_table(one))
        print(verdict(one))
        for key in at_an_end(one):
            print(f"The best {key} is at an end of the grid: a better one may lie beyond.")
    print(f"\nrecipe: {file}")
    return None


MARK = "# Chosen by mdcg search"


def _is_ours(file: Path) -> bool:
    try:
        return file.read_text("utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        return False


def _write(file: Path, content: dict[str, Any]) -> None:
    import yaml

    from mdcg.files import write_atomic

    text = f"{MARK} on training images held out.\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_atomic(file, text.encode())
