"""The command that chooses hyperparameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from mdcg.cli.app import app
from mdcg.cli.options import FORCE, asked, how, inputs_of, print_json, shares_options
from mdcg.cli.train import again, stopped_explained
from mdcg.compiler import start_early
from mdcg.terminal import PlainConsole, say


@app.command()
@shares_options
def search(
    method: Annotated[str | None, typer.Option(help="Method, see 'mdcg list methods'.")] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="File for the recipe with the choice.  [default: SCENARIO-METHOD.yaml]"),
    ] = None,
    force: Annotated[bool, FORCE] = False,
    **options: Any,
) -> None:
    """Choose a method's settings as the paper did: its grid, one seed, judged on training images held out."""
    start_early(options["device"], options["precision"])
    from mdcg.execute.search import chosen_recipe, read_search, recipe_file, recipe_text, search_sweep

    document, given = asked(options, method=method)
    inputs = inputs_of(options, document, given) if force else []
    if write is not None:
        recipe_file(write, force, inputs).check()  # before a dataset is read
    sweep, keys = search_sweep(document, given, **how(options))
    first = sweep.specs[0]
    stream = re.sub(r"[^A-Za-z0-9.]+", "-", first.stream.in_words())
    parts = [first.scenario.replace("/", "-").replace(":", "-"), *([stream] if stream else []), first.method]
    file = write or Path(f"{'-'.join(parts)}.yaml")
    output = recipe_file(file, force, inputs)
    output.check()
    undone = stopped_explained(lambda: sweep.run(retry=options["fresh"]), again(options["fresh"]))
    found = read_search(sweep, undone)
    output.write(recipe_text(chosen_recipe(keys, found)))
    if options["as_json"]:
        return print_json({"choices": [one.as_json() for one in found], "recipe": str(file)})
    from mdcg.report.search_tables import at_an_end, grid_table, verdict

    console = PlainConsole()
    count = len({spec.seed for spec in sweep.specs})
    seeds = f"{count} seeds" if count > 1 else f"seed {first.seed}"
    held_out = f"{first.hold_out:.0%} of the training images, held out"
    say(f"{first.method} on {first.task_sequence}: ACC on {held_out}, {seeds}")
    for one in found:
        say()
        console.print(grid_table(one))
        say(verdict(one))
        for key in at_an_end(one):
            say(f"The best {key} is at an end of the grid: a better one may lie beyond.")
    say(f"\nrecipe: {file}")
    return None
