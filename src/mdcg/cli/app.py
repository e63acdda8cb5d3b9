"""The application that the commands of the other files belong to."""

from __future__ import annotations

from typing import Annotated

import typer

from mdcg import __version__

# torch takes seconds to import: commands import what they use, so that help is immediate.

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


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"mdcg {__version__}")
        raise typer.Exit
