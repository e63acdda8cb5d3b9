"""The options that `run`, `compare` and `search` share: all that a recipe may say, and how to train."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from mdcg.errors import MdcgError

if TYPE_CHECKING:
    from mdcg.recipes.document import Document


def option(kind: object, *names: str, **declared: Any) -> object:
    return Annotated[kind, typer.Option(*names, **declared)]


def tuned(metavar: str, *names: str, help: str) -> object:
    return option(str | None, *names, metavar=metavar, help=help)


FORCE = typer.Option("--force", help="Replace what is there, whatever it is.")
CHECK_PROBES = "Compare all that a probe could change, to the bit, before and after each look; a change is an error."

#: Options that may have several values, as 0.01,0.1: each of them is trained.
TUNED = {
    "optimizer": tuned(
        "NAME",
        help="sgd or adamw. Here, and down to --mix-alpha, several values as sgd,adamw. Some methods have defaults of "
        "their own for what follows, see 'mdcg list methods'.  [default: sgd]",
    ),
    "lr": tuned("NUMBER", "--lr", "--rate", help="Learning rate.  [default: the protocol's; of adamw 0.001]"),
    "backbone_lr": tuned("NUMBER", help="Learning rate of the backbone; 0: it stays as it is.  [default: --lr]"),
    "head_lr": tuned("NUMBER", help="Learning rate of the head.  [default: --lr]"),
    "momentum": tuned("NUMBER", help="Momentum of SGD."),
    "weight_decay": tuned("NUMBER", help="Decay of the weights: L2 with sgd, decoupled with adamw.  [default: 0]"),
    "schedule": tuned("NAME", help="Learning rate within a task: constant, cosine or step.  [default: constant]"),
    "warmup": tuned("NUMBER", help="Share of a task's steps in which the learning rate rises.  [default: 0]"),
    "clip": tuned("NUMBER", help="Largest norm of a gradient; 0: any.  [default: 0]"),
    "label_smoothing": tuned("NUMBER", help="Share of a label that all classes have.  [default: 0]"),
    "augment": tuned(
        "WORDS",
        help="What is done with training images: crop, flip, jitter, randaugment, mixup or cutmix, with + between "
        "them, none, or usual: crop+flip, or as the dataset's record says.  [default: usual, or as the method says]",
    ),
    "jitter_strength": tuned("NUMBER", help="Strength of jitter, up to 1.  [default: 0.4]"),
    "randaugment_n": tuned("NUMBER", help="Operations of randaugment.  [default: 2]"),
    "randaugment_m": tuned("NUMBER", help="Magnitude of randaugment, up to 30.  [default: 9]"),
    "mix_alpha": tuned("NUMBER", help="α of mixup and cutmix, whose weights are from Beta(α, α).  [default: 1]"),
}
SHARED = {
    "scenario": option(str | None, help="DATASET-TASKS, for instance digits-5 or folder:PATH-4."),
    "order": option(str | None, help="Classes in the order in which they come, as cat,dog,….  [default: by the seed]"),
    "sizes": option(str | None, help="Classes of each task, as 5,1,4.  [default: as even as can be]"),
    "first": option(int | None, help="Classes of the first task; the others share the rest."),
    "blurry": option(float | None, help="Share of each task's images that comes in its neighbours.  [default: 0]"),
    "online": option(bool | None, "--online", help="Each image comes once; the memory is a reservoir of the stream."),
    "memory": option(str | None, help="Images the memory may hold; several sizes as 200,500."),
    "seeds": option(str | None, help="Seeds, for instance 0-4 or 0,2,5.  [default: 0]"),
    "preset": option(str | None, help="paper, or published: as the paper's published code where it departs from it."),
    "settings": option(
        list[str] | None, "--set", help="A setting of the method or head, key=value or key=value,value."
    ),
    "epochs": option(int | None, help="Epochs per task."),
    "batch_size": option(int | None, help="Images per batch."),
    **TUNED,
    "backbone": option(
        str | None, help="Backbone, in place of the protocol's: a name, or package.module:function of your own."
    ),
    "weights": option(Path | None, help="File with the backbone's initial weights, safetensors or PyTorch's."),
    "head": option(str | None, help="Head, in place of the method's own."),
    "hold_out": option(float | None, help="Evaluate on this fraction of the training images, for tuning."),
    "evaluate_every": option(int | None, help="Also evaluate every so many epochs, or batches if --online."),
    "image_size": option(int | None, help="Side in pixels to which a folder's images are resized.  [default: 32]"),
    "normalise": option(str | None, help="data: by the images' own statistics; imagenet: by ImageNet's."),
    "augmentation": option(str | None, help="paper or published, of Tiny-ImageNet.  [default: as --preset]"),
    "passes": option(
        str | None,
        help="joint: memory images go through the network with the current ones; separate: by themselves, with "
        "BatchNorm's statistics of their own.  [default: joint, or as --preset]",
    ),
    "device": option(str | None, help="auto, cpu or cuda.  [default: auto]"),
    "precision": option(str | None, help="auto, fp32, tf32, bf16 or fp64.  [default: auto]"),
    "out": option(Path | None, help="Folder for runs.  [default: runs]"),
    "data": option(Path | None, help="Folder or archive of the dataset."),
    "recipe": option(Path | None, help="YAML file with these settings, all but those below."),
    "log": option(list[str] | None, "--log", help="Also tell a tracker: tensorboard or mlflow. May be repeated."),
    "probe": option(list[str] | None, "--probe", help="Measure as it trains, see 'mdcg list probes'. May be repeated."),
    "check_probes": option(bool, "--check-probes", help=CHECK_PROBES),
    "members": option(int | None, "--members", min=1, help="Most runs to train together."),
    "no_pixels": option(bool, "--no-pixels", help="Keep no images in the models' files, which then cannot learn more."),
    "fresh": option(bool, "--fresh", help="Repeat finished runs; what probes measured of them goes too."),
    "as_json": option(bool, "--json", help="Print one JSON object and nothing else."),
}
NOT_IN_RECIPE = {"recipe", "settings", "fresh", "as_json", "members", "log", "probe", "check_probes", "no_pixels"}


def with_options(options: Mapping[str, object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options from a table; it receives them as keywords."""

    def given(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if get_args(kind)[0] is bool else None,
                annotation=kind,
            )
            for name, kind in options.items()
        ]
        command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return command

    return given


shares_options = with_options(SHARED)


def asked(options: dict[str, Any], **methods: Any) -> tuple[Document, dict[str, Any]]:
    """The recipe file, overridden by what was given on the command line."""
    from mdcg.recipes.document import Document, read_document
    from mdcg.recipes.parsing import parse_settings, read_values

    document = read_document(options["recipe"]) if options["recipe"] else Document({})
    if "axes" in document.content:
        raise MdcgError(f"{document.path} has axes; give it to 'mdcg sweep'.")
    said = {**options, **methods, "backbone": own_backbone(options["backbone"])}
    given = {key: value for key, value in said.items() if key not in NOT_IN_RECIPE and value is not None}
    given |= {key: read_values(given[key]) for key in given.keys() & TUNED.keys()}
    if {"method", "methods"} & set(given):
        document.content.pop("methods", None)
        document.content.pop("method", None)
    if options["settings"]:
        given["set"] = parse_settings(options["settings"])
    return document, given


def own_backbone(text: str | None) -> str | None:
    """A backbone that was named on the command line; `package.module:function` may lie in the folder of the command."""
    if text and ":" in text:
        from mdcg.models.naming import backbone_name

        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        return backbone_name(text, may_import=True)
    return text


def how(options: dict[str, Any]) -> dict[str, Any]:
    """The options that say how to train, as `Sweep.of` takes them."""
    return {
        "members": options["members"],
        "log": tuple(options["log"] or ()),
        "probes": tuple(options["probe"] or ()),
        "check_probes": options["check_probes"],
        "fresh": options["fresh"],
        "pixels": not options["no_pixels"],
    }


def inputs_of(options: Mapping[str, Any], document: Document, given: Mapping[str, Any]) -> list[Path]:
    """The files and folders that a command reads: its recipe, finished runs, images, a dataset, weights."""
    keys = {**document.content, **given}
    read = [options["recipe"], keys.get("out") or "runs", keys.get("data"), keys.get("weights")]
    read.append(os.environ.get("MDCG_DATA"))
    scenarios = keys.get("scenario")
    for scenario in scenarios if isinstance(scenarios, list) else [scenarios]:
        if isinstance(scenario, str) and scenario.startswith("folder:"):
            read.append(scenario.removeprefix("folder:").rpartition("-")[0])
    return [Path(one) for one in read if isinstance(one, str | Path) and one]


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, allow_nan=False))
