"""The making of a figure's files: train what is missing, measure, draw."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

from mdcg.errors import MachineError, MdcgError
from mdcg.execute.context import Context
from mdcg.execute.sweep import Sweep
from mdcg.execute.unfinished import tidy
from mdcg.figures import captions, style
from mdcg.figures.base import FIGURES, Figure, ModelFigure, Row, RunFigure, recipe_of
from mdcg.figures.read import UNFIT, numbers
from mdcg.files import remove_partial
from mdcg.markup import cell
from mdcg.methods import METHODS
from mdcg.outputs import Kind, Output, csv_of
from mdcg.recipes.grid import GridCell, expand, grid_cells
from mdcg.recipes.parsing import parse_seeds
from mdcg.recipes.recipe import Recipe
from mdcg.runs.finished import FinishedRun
from mdcg.runs.probe_time import ProbeTime
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.scenario import parse

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenFigure:
    """A figure on disk."""

    name: str
    files: list[Path]  # the drawing twice, and its numbers
    caption: str


def make(
    names: Sequence[str],
    asked: Recipe,
    out: Path,
    *,
    seeds_given: bool,
    members: int | None = None,
    retry: bool = False,
    check_probes: bool = False,
    force: bool = False,
    done: Callable[[WrittenFigure], None] = lambda made: None,
) -> ProbeTime | None:
    """Draw these figures; `asked` says of which scenario and how to train, its folder is that of the runs.

    Runs that several figures need are trained once, with the probes of all of them. Each figure is told of, to `done`,
    once it is written.
    """
    figures: dict[str, Figure] = {name: FIGURES[name]() for name in dict.fromkeys(names)}
    outputs = {name: _outputs(figure, out / _stem(name, asked), force) for name, figure in figures.items()}
    for output in (one for own in outputs.values() for one in own.values()):
        output.check()
    specs = {
        name: _specs(name, figure, asked, seeds_given)
        for name, figure in figures.items()
        if isinstance(figure, RunFigure)
    }
    probes: dict[str, set[str]] = {}
    for name, own in specs.items():
        for spec in own:
            probes.setdefault(spec.name, set()).update(_probes(figures[name]))
    _writable(out)
    by_name = {spec.name: spec for own in specs.values() for spec in own}
    context = Context(asked.out, asked.data, asked.device, members, check_probes=check_probes)
    _train(by_name, probes, asked.scenario, context, retry)
    for name, figure in figures.items():
        rows, where = _numbers(name, figure, specs.get(name, []), asked)
        done(_write(name, figure, rows, where, outputs[name]))
    return ProbeTime.of((Store(asked.out, tuple(probes[name])), spec) for name, spec in by_name.items())


def _probes(figure: Figure) -> tuple[str, ...]:
    return figure.probes if isinstance(figure, RunFigure) else ()


def _specs(name: str, figure: RunFigure, asked: Recipe, seeds_given: bool) -> list[RunSpec]:
    _check(name, figure, asked)
    if not seeds_given:
        asked = asked.model_copy(update={"seeds": parse_seeds(figure.seeds)})
    wanted = [combination for recipe in figure.wanted(asked) for combination in expand(recipe.document())]
    load = Context(asked.out, asked.data).dataset
    return list({spec.name: spec for cell in grid_cells(wanted, load) for spec in cell.specs}.values())


def _check(name: str, figure: RunFigure, asked: Recipe) -> None:
    """Refuse what no figure of its kind can show, before anything trains."""
    if parse(asked.scenario)[1] < figure.tasks:
        raise MdcgError(
            f"the figure {name} needs {figure.tasks} tasks, and {asked.scenario} has fewer; name another scenario.",
            about="scenario",
        )
    lists = {key: value for key, value in {"memory": asked.memory, **asked.set}.items() if isinstance(value, list)}
    for key, values in lists.items():
        if len(values) > 1 and key not in figure.several:
            raise MdcgError(f"the figure {name} shows one value of {key}, not {len(values)}; give one.", about=key)


def _train(
    specs: Mapping[str, RunSpec],
    probes: Mapping[str, set[str]],
    title: str,
    context: Context,
    retry: bool,
) -> None:
    """Train the runs in sweeps, one for each set of probes; runs that can train together have the same probes."""
    tidy(Store(context.out), list(specs.values()))  # also where nothing is left to train
    groups: dict[tuple[str, bool], list[RunSpec]] = {}
    stores = {frozenset(own): Store(context.out, tuple(own)) for own in probes.values()}
    for name, spec in specs.items():
        if stores[frozenset(probes[name])].finished(spec) is None:
            groups.setdefault((spec.group_key(), bool(probes[name])), []).append(spec)
    sweeps: dict[tuple[str, ...], list[RunSpec]] = {}
    for own in groups.values():
        every = sorted({probe for spec in own for probe in probes[spec.name]})
        sweeps.setdefault(tuple(every), []).extend(own)
    for watching, own in sweeps.items():
        undone = Sweep([GridCell({}, own)], replace(context, probes=watching), title).run(retry)
        for reason in dict.fromkeys(undone.failed.values()):
            logger.warning("left out of the figure, until --retry tries it again: %s", reason)
        for reason in dict.fromkeys(undone.left.values()):
            logger.warning("left out of the figure: %s", reason)


def _numbers(name: str, figure: Figure, specs: Sequence[RunSpec], asked: Recipe) -> tuple[list[Row], str]:
    """The numbers that are drawn, and where they come from."""
    if isinstance(figure, ModelFigure):
        _check_names(asked)
        rows = figure.measure(asked)
        return rows, figure.source(rows)
    assert isinstance(figure, RunFigure)
    store = Store(asked.out, figure.probes)
    found = [(store.folder(spec), store.finished(spec)) for spec in specs]
    runs = [FinishedRun(folder, record) for folder, record in found if record is not None]
    if not runs:
        raise MdcgError(f"no run that the figure {name} needs could be trained, so there is nothing to draw.")
    return numbers(figure, runs), captions.of_runs(runs)


def _check_names(asked: Recipe) -> None:
    """Refuse names that do not exist, also for a figure of models, which needs no method."""
    methods = asked.methods or METHODS.names()
    expand(recipe_of(asked, methods, asked.memory or [1]).document())


def _writable(out: Path) -> None:
    """Refuse a folder that figures cannot be written to, before anything trains; nothing is left behind."""
    missing: list[Path] = []
    try:
        missing += [folder for folder in (out, *out.parents) if not folder.exists()]
        for last in (False, False, True):
            try:
                out.mkdir(parents=True, exist_ok=True)
                with TemporaryFile(dir=out):
                    remove_partial(out)
                break
            except FileNotFoundError:  # another process tries the same, and has removed it again
                if last:
                    raise
    except OSError as error:
        raise MachineError(f"cannot write in {out}: {error.strerror}; choose another folder with --out.") from error
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def _outputs(figure: Figure, stem: Path, force: bool = False) -> dict[str, Output]:
    """The files of a figure: `stem`, with what tells each kind behind it."""
    begins = list(figure.begins)
    kinds = style.DRAWINGS | {
        "csv": Kind.told_by("a figure's table", csv_of(lambda columns: columns[: len(begins)] == begins))
    }
    return {suffix: Output(stem.with_name(f"{stem.name}.{suffix}"), kind, force) for suffix, kind in kinds.items()}


def _write(name: str, figure: Figure, rows: Sequence[Row], where: str, outputs: Mapping[str, Output]) -> WrittenFigure:
    """Write its files."""
    try:
        caption = f"{figure.caption(rows)} {where}"
        drawn = drawing(figure, rows, caption)
    except UNFIT as error:
        if not (probes := _probes(figure)):
            raise
        raise MdcgError(
            f"the figure {name} cannot be drawn from what {', '.join(probes)} measured ({error}), some of which is "
            "damaged; remove the folders 'measured' of its runs, and ask for the figure again."
        ) from error
    contents = {"svg": drawn["svg"], "png": drawn["png"], "csv": table(rows).encode()}
    for suffix, output in outputs.items():
        output.write(contents[suffix])
    return WrittenFigure(name, [output.path for output in outputs.values()], caption)


def _stem(name: str, asked: Recipe) -> str:
    """The name of the files: of figure and scenario, whose path is cut if it is long, and of settings given one value.

    >>> _stem("drift", Recipe(scenario="c10-5", memory=[500])), _stem("floats", Recipe(scenario="folder:/my birds-3"))
    ('drift-c10-5-m500', 'floats-folder-my-birds-3')
    >>> _stem("gates", Recipe(scenario="c10-5", methods=["md-replay"], head="open-gates", set={"cap": 2.0}))
    'gates-c10-5-md-replay-open-gates-cap-2'
    """
    method = asked.methods[0] if len(asked.methods) == 1 else ""
    one = {key: value for key, value in sorted(asked.set.items()) if not isinstance(value, list)}
    own = [f"{key}-{value}".removesuffix(".0") for key, value in one.items()]
    said = (
        re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-")[-60:]
        for part in (asked.scenario, method, asked.head or "", *own)
    )
    size = f"m{asked.memory[0]}" if len(asked.memory) == 1 else ""
    return "-".join(part for part in (name, *said, size) if part)


def drawing(
    figure: Figure, rows: Sequence[Row], caption: str, kinds: Sequence[str] = ("svg", "png")
) -> dict[str, bytes]:
    """Draw a figure with its caption, and return the content of a file of each kind."""
    with style.styled():
        drawn = figure.draw(rows)
        style.finish(drawn, caption)
        return {kind: style.content(drawn, kind) for kind in kinds}


def table(rows: Sequence[Row]) -> str:
    """Write the numbers as CSV; what a row does not have is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()
