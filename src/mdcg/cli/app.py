"""The application that the commands of the other files belong to."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mdcg import __version__

# torch takes seconds to import: commands import what they use, so that help is immediate.


class ReadableGroup(TyperGroup):
    """A group of commands whose help has the first sentence of each, whole, and no types of Python's."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.short_help = re.split(r"(?<=\.)\s", command.help or "")[0]
            parameters: list[Any] = command.params
            for argument in parameters:
                if argument.param_type_name == "argument":
                    argument.display_type_rich = lambda ctx: ""  # Typer from 0.27 on would add its type to its name
        return command


app = typer.Typer(
    name="mdcg",
    cls=ReadableGroup,
    help="Class-incremental learning: teach a classifier new classes, task by task, with a bounded memory.",
    invoke_without_command=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    cls=ReadableGroup, help="Download and check datasets.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data")


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"mdcg {__version__}")
        raise typer.Exit
