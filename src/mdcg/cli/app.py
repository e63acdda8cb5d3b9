"""The application that the commands of the other files belong to."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.models import ArgumentInfo

from mdcg import __version__
from mdcg.errors import MdcgError
from mdcg.terminal import plain

UsageError: Any = typer.BadParameter.__mro__[1]  # which newer Typers have of their own, older ones of click

# torch takes seconds to import: commands import what they use, so that help is immediate.


class ReadableGroup(TyperGroup):
    """A group of commands whose help has the first sentence of each, whole, and whose errors are sentences."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _in_a_sentence(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _in_a_sentence(ctx):
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.short_help = re.split(r"(?<=\.)\s", command.help or "")[0]
            parameters: list[Any] = command.params
            for argument in parameters:
                if argument.param_type_name == "argument":
                    argument.display_type_rich = lambda ctx: ""  # newer Typers add its type to its name
        return command


@contextlib.contextmanager
def _in_a_sentence(ctx: Any) -> Iterator[None]:
    """Turn an error about the words of a command into an `MdcgError` of one sentence, without control characters."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # nothing was asked: the help itself, which newer clicks raise
            raise
        said = plain(error.format_message()).replace("\n", " ").rstrip(".")
        said = said[:1].lower() + said[1:].replace(". Did you mean", "; did you mean")
        said = said.replace("Value error, ", "").replace(": Input", ": input")
        if near := re.fullmatch(r"(.+) \(Possible options: (.+)\)", said):
            said = f"{near[1]}; did you mean {' or '.join(near[2].rsplit(', ', 1))}?"
        if said.endswith("?"):
            raise MdcgError(said) from None
        within = [ctx.command_path, ctx.invoked_subcommand or ""]  # where the error does not know its command
        command = error.ctx.command_path if error.ctx else " ".join(filter(None, within))
        raise MdcgError(f"{said}; '{command} --help' says what it takes.") from None


class Commands(typer.Typer):
    """Commands whose help has words for what is to be given, PATH for instance, and not the names of Python's types."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=ReadableGroup, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, *names: Any, **settings: Any) -> Callable[[Any], Any]:
        add = super().command(*names, **settings)

        def with_words(function: Any) -> Any:
            signature = inspect.signature(function, eval_str=True)
            for parameter in signature.parameters.values():
                for note in getattr(parameter.annotation, "__metadata__", ()):
                    note.metavar = note.metavar or _word_for(parameter.annotation.__origin__, note, parameter.name)
            function.__signature__ = signature
            function.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
            return add(function)

        return with_words


def _word_for(kind: Any, note: Any, name: str) -> str | None:
    """The word for a value of this type; None where the choices themselves, or nothing, are to be given."""
    if isinstance(note, ArgumentInfo):
        return name.rstrip("_").upper()
    words = {str: "TEXT", list[str]: "TEXT", Path: "PATH", int: "NUMBER", float: "NUMBER"}
    return next((word for one, word in words.items() if kind in (one, one | None)), None)


app = Commands(
    name="mdcg",
    help="Class-incremental learning: teach a classifier new classes, task by task, with a bounded memory.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
data_app = Commands(help="Download and check datasets.")
app.add_typer(data_app, name="data")


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"mdcg {__version__}")
        raise typer.Exit
