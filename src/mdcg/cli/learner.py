"""Commands for a classifier of one's own: teach it classes as they arrive, ask it, ship it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mdcg.cli.app import app
from mdcg.cli.options import FORCE, SHARED, option, own_backbone, print_json, with_options
from mdcg.cli.train import stopped_explained
from mdcg.compiler import start_early
from mdcg.errors import MdcgError
from mdcg.files import readable, shown
from mdcg.markup import cell
from mdcg.terminal import PlainConsole, plain, say

if TYPE_CHECKING:
    from mdcg.learner import Learner

#: Parameters of a `Learner`; those that are left out stay as they are.
PARAMETERS = {
    "method": option(str | None, help="Method, see 'mdcg list methods'.  [default: md-replay]"),
    "memory": option(int | None, help="Images of known classes that it may keep.  [default: 500]"),
    "image_size": option(int | None, help="Side in pixels that images are brought to.  [default: 64]"),
    "resize": option(str | None, help="crop to a square, fit into one, or squash.  [default: crop]"),
    "flip": option(bool | None, "--flip/--no-flip", help="Whether images may be mirrored; not text.  [default: flip]"),
    "augment": option(
        str | None,
        help="jitter, randaugment, jitter+randaugment, or usual: neither.  [default: as the method says]",
    ),
    "backbone": option(str | None, help="Backbone.  [default: resnet18; resnet20 for 48 pixels and less]"),
    "weights": SHARED["weights"],
    "backbone_lr": option(float | None, help="Learning rate of the backbone; 0: it stays as it is.  [default: --lr]"),
    "normalise": SHARED["normalise"],
    "head": SHARED["head"],
    "epochs": option(int | None, help="Epochs.  [default: 20, or more where there are few images]"),
    "batch_size": option(int | None, help="Images per batch.  [default: 32]"),
    "lr": option(float | None, help="Learning rate.  [default: as the method says; md-replay: 0.1, others: 0.01]"),
    "momentum": option(float | None, help="Momentum of SGD.  [default: 0.8]"),
    "passes": option(str | None, help="joint or separate, see 'mdcg run --help'.  [default: joint]"),
    "precision": SHARED["precision"],
    "seed": option(int | None, help="Seed.  [default: 0]"),
    "hold_out": option(float | None, help="Fraction of a new class's images to evaluate on.  [default: 0.1]"),
    "held_out_images": option(int | None, help="Most such images of all classes, beside the memory.  [default: 200]"),
    "most_classes": option(int | None, help="Outputs of a head that has all from the start.  [default: 100]"),
    "tasks": option(int | None, help="Tasks among which gem divides its memory.  [default: 10]"),
    "warn_drop": option(float | None, help="Warn of a class that loses more points of accuracy.  [default: 10]"),
    "on_error": option(str | None, help="stop at a file that cannot be read, or skip it.  [default: stop]"),
    "device": SHARED["device"],
}
MODEL = typer.Argument(help="A file that 'mdcg learn' wrote, or a run's model.safetensors.")
ON_ERROR = typer.Option(help="stop at a file that cannot be read, or skip it.")
BACKBONE = typer.Option(help="Its backbone as package.module:function, where a file alone cannot bring it.")
AS_JSON = typer.Option("--json", help="Print JSON and nothing else.")
OnError = Literal["stop", "skip"]


@app.command()
@with_options(PARAMETERS)
def learn(
    images: Annotated[Path, typer.Argument(help="A folder with one folder of images per class.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    model: Annotated[
        Path | None,
        typer.Option("--from", help="The model that is to learn more.  [default: a new one]"),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method or head, key=value.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: Annotated[bool, AS_JSON] = False,
    **parameters: Any,
) -> None:
    """Learn the classes that are new in a folder. Given again, an interrupted command goes on where it was."""
    start_early(parameters["device"], parameters["precision"])
    from mdcg.learner import Learner
    from mdcg.learner.tables import learned_table, summary_line
    from mdcg.outputs import Output
    from mdcg.recipes.parsing import parse_settings
    from mdcg.saved import model_file

    read = [path for path in (model, parameters["weights"], *_class_folders(images)) if path is not None]
    output = Output(out, model_file(), force, read)
    output.check()
    parameters["backbone"] = own_backbone(parameters["backbone"])
    learner = Learner() if model is None else Learner.load(model, backbone=parameters["backbone"])
    learner.set_params(**{key: value for key, value in parameters.items() if value is not None})
    if settings:
        learner.set_params(set={**(learner.set or {}), **parse_settings(settings)})
    stopped_explained(lambda: learner.learn(images, save_to=out, force=output.forced))
    if as_json:
        return print_json(_described(learner, out))
    _console().print(learned_table(learner.saved_))
    return say(summary_line(learner.saved_, out))


@app.command()
def predict(
    model: Annotated[Path, MODEL],
    images: Annotated[list[str], typer.Argument(help="Image files, and folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Classes to name of each image.")] = 1,
    on_error: Annotated[OnError, ON_ERROR] = "stop",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backbone: Annotated[str | None, BACKBONE] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
) -> None:
    """Classify image files, one line each: its path, the class, its probability."""
    if as_json and as_csv:
        raise MdcgError("give --json or --csv, not both.")
    learner = _loaded(model, backbone, device)
    reader = learner.reader(on_error)
    found = _ranked(learner, reader, images, top)
    if as_json:
        _print_json_list(
            {"path": path, "classes": [{"class": c, "probability": p} for c, p in best]} for path, best in found
        )
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        count = min(top, len(learner.classes_))
        numbers = ["" if count == 1 else f" {rank + 1}" for rank in range(count)]
        writer.writerow(["path", *(f"{name}{number}" for number in numbers for name in ("class", "probability"))])
        for path, best in found:
            answers = ((_label_cell(label), probability) for label, probability in best)
            writer.writerow([_cell(path), *(part for pair in answers for part in pair)])
    else:
        for path, best in found:
            say(f"{path}  " + ", ".join(f"{shown(str(name))} {100 * probability:.1f}%" for name, probability in best))
    if reader.skipped:
        say(f"mdcg: {reader.summary()}.", error=True)


@app.command()
def evaluate(
    model: Annotated[Path, MODEL],
    images: Annotated[Path, typer.Argument(help="A folder with one folder of images per class.")],
    before: Annotated[
        Path | None, typer.Option(help="An older version of the model, to tell what has fallen since.")
    ] = None,
    on_error: Annotated[OnError, ON_ERROR] = "stop",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backbone: Annotated[str | None, BACKBONE] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Tell how a model fares on labelled images: class by class, what is taken for what, and what has fallen."""
    from mdcg.learner.tables import confusion_table, evaluation_json, evaluation_table

    learner = _loaded(model, backbone, device)
    reader = learner.reader(on_error)
    now = learner.evaluate(images, reader=reader)
    then = None
    if before is not None:
        older = _loaded(before, backbone, device)
        then = older.evaluate(images, known_only=True, reader=older.reader(on_error))
    if as_json:
        return print_json(evaluation_json(now, then))
    console = _console()
    console.print(evaluation_table(now, then, learner.saved_))
    console.print(confusion_table(now, console.width))
    return say(f"{reader.summary()}.")


@app.command()
def export(
    model: Annotated[Path, MODEL],
    out: Annotated[Path, typer.Option(help="File to write, .onnx or .pt2 by custom.")],
    to: Annotated[Literal["onnx", "torch"], typer.Option(help="onnx, or torch for torch.export.")] = "onnx",
    force: Annotated[bool, FORCE] = False,
    backbone: Annotated[str | None, BACKBONE] = None,
) -> None:
    """Write a model as a file that needs no mdcg: uint8 images in, probabilities out, any number of them."""
    from mdcg.export import FORMATS
    from mdcg.outputs import Output

    output = Output(out, FORMATS[to], force, [model])
    output.check()
    learner = _loaded(model, backbone)
    learner.export(out, to, force=output.forced)
    channels, height, width = learner.saved_.setup.shape
    say(
        f"{out}: uint8 images (n, {height}, {width}, {channels}) in, probabilities (n, {len(learner.classes_)}) out, "
        f"{out.stat().st_size / 1e6:.1f} MB"
    )


@app.command()
def info(
    model: Annotated[Path, MODEL],
    backbone: Annotated[str | None, BACKBONE] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show what a model knows: its classes by task, its memory, how it was taught and how it fared."""
    from mdcg.learner.tables import info_panel

    learner = _loaded(model, backbone)
    if as_json:
        return print_json(_described(learner, model))
    return _console().print(info_panel(learner.saved_, model))


def _class_folders(images: Path) -> list[Path]:
    """The folders that images are read from."""
    try:
        return [folder for folder in images.iterdir() if folder.is_dir()]
    except (OSError, ValueError):  # which is said when they are read
        return []


def _loaded(model: Path, backbone: str | None, device: str = "cpu") -> Learner:
    from mdcg.learner import Learner

    learner = Learner.load(model, backbone=own_backbone(backbone))
    learner.set_params(device=device)
    return learner


def _console() -> PlainConsole:
    """A console that takes names as they are: brackets and colons in them are no markup."""
    return PlainConsole()


def _described(learner: Learner, path: Path) -> dict[str, Any]:
    from mdcg.learner.tables import described

    return described(learner.saved_, path)


def _ranked(
    learner: Learner, reader: Any, images: list[str], top: int
) -> Iterator[tuple[str, list[tuple[Any, float]]]]:
    """Each file with its most likely classes and their probabilities."""
    classes = learner.classes_.tolist()
    for paths, answers in learner.stream(reader.find(images), reader):
        for path, answer in zip(paths, answers, strict=True):
            best = (-answer).argsort(kind="stable")[:top].tolist()
            yield readable(path), [(classes[place], round(float(answer[place]), 6)) for place in best]


def _cell(value: object) -> object:
    """A value for CSV that may be read in a terminal."""
    return cell(plain(value) if isinstance(value, str) else value)


def _label_cell(label: object) -> object:
    """A class for CSV: what a model says is on one line."""
    return _cell(shown(label) if isinstance(label, str) else label)


def _print_json_list(items: Iterator[dict[str, Any]]) -> None:
    """One JSON list, an item at a time: however long it is, little is in memory."""
    lead = "["
    for item in items:
        print(lead + json.dumps(item, allow_nan=False), end="")
        lead = ",\n"
    say("]" if lead != "[" else "[]")
