"""The parameters of a `Learner`: checked, and resolved to how its classifier is built and trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from mdcg.arguments import plain
from mdcg.data.content import statistics as measured
from mdcg.data.normalise import Named, Statistics, statistics
from mdcg.data.record import Preprocessing, Protocol
from mdcg.errors import InputError, MdcgError, unknown
from mdcg.files import path_of, shown
from mdcg.header import Setup
from mdcg.methods import METHODS, Method
from mdcg.methods.base import TRAINING, Passes, Value
from mdcg.models import HEADS
from mdcg.models.features import FEATURES
from mdcg.models.weights import WeightsFile
from mdcg.recipes.presets import usual_augment, with_own
from mdcg.recipes.recipe import LARGEST, methods_own, suited
from mdcg.recipes.settings import check_head, explain, resolve_settings
from mdcg.saved import SavedModel
from mdcg.stored import LARGEST as EXACT
from mdcg.train.augment import USUAL, parse_augment
from mdcg.train.group import Augmentation

KEPT = ("backbone", "head_settings", "outputs", "shape", "mean", "std", "tasks")
#: What a `Learner` has no parameters for, but `augment`: it goes on as the run was trained that its file is of.
OF_RUNS = ("optimizer", "schedule", "head_lr", "weight_decay", "warmup", "clip", "label_smoothing", "augment",
           "jitter_strength", "randaugment_n", "randaugment_m", "mix_alpha")  # fmt: skip
#: Of these, numbers that follow what suits a memory, as the classes become more.
FOLLOWING = ("weight_decay", "warmup", "clip", "label_smoothing")
#: A feature that varies by less, in parts of its mean or at all, is the same in all rows.
ROUNDING, SMALLEST = 1e-6, 1e-30
#: What the first task settles, of what a file keeps as it was given.
SETTLED = ("image_size", "resize", "normalise", "most_classes", "tasks")


#: What no file says, or is heard to say: where it is computed, and paths, which would be opened.
OF_THIS_CALL = {"device", "quiet", "weights"}


MOST_COUNTS = 2**27  # tasks times classes, which are counted in 1 GiB


class Params(BaseModel):
    """The parameters of a `Learner`, whose docstring tells what they mean, as they must be to be used."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    method: str
    memory: int = Field(ge=1, le=10_000_000)
    set: dict[str, Any] | None
    head: str | None
    backbone: str | None
    weights: Path | None
    backbone_lr: float | None = Field(ge=0, le=LARGEST)
    image_size: int | None = Field(ge=4, le=1024)
    resize: Literal["crop", "fit", "squash"]
    flip: bool
    augment: str | None
    normalise: Named | Statistics
    padding: int | None = Field(ge=0, le=1024)
    epochs: int | None = Field(ge=1, le=100_000)
    batch_size: int = Field(ge=2, le=100_000)
    lr: float | None = Field(gt=0, le=LARGEST)
    momentum: float = Field(ge=0, lt=1)
    passes: Passes
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp64"]
    seed: int = Field(ge=0, lt=2**31)
    device: Literal["auto", "cpu", "cuda"]
    hold_out: float = Field(ge=0, lt=1)
    held_out_images: int = Field(ge=0, le=EXACT)
    most_classes: int = Field(ge=2, le=1_000_000)
    tasks: int = Field(ge=1, le=1_000_000)
    on_error: Literal["stop", "skip"]
    warn_drop: float = Field(ge=0)
    quiet: bool

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: Path | None) -> Path | None:
        return path_of(value) if value else value

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Params:
        """Check what a `Learner` was given, or say what is wrong with it."""
        try:
            return cls(**{key: plain(value, key) for key, value in given.items()})
        except ValidationError as error:
            raise MdcgError(explain(error)) from error

    def as_json(self, weights: WeightsFile | None = None) -> dict[str, Any]:
        """The parameters as a file keeps them, with a digest of the weights that a network was made with.

        Where it is computed is not the file's matter, nor where other files lie.
        """
        kept = self.model_dump(mode="json", exclude=OF_THIS_CALL)
        return {**kept, **({"weights": weights.digest} if weights else {})}


def check_choices(params: Params, before: SavedModel | None) -> None:
    """Refuse unknown names and wrong settings, and changes of what the first task settled; no images are needed."""
    kind, head = _chosen(params)
    _, head_settings = resolve_settings(params.method, head, params.set or {}, _defaults(kind))
    _recolouring(params.augment)
    if before is not None:
        _refuse_changes(params, head, head_settings, before)
        if kind.starts_anew and before.params.get("weights") and not params.weights:
            raise MdcgError(
                f"{params.method} makes its network anew for every task, and has begun with weights from a file, which "
                "a model does not keep; give that file again with --weights (weights=)."
            )


def _chosen(params: Params) -> tuple[type[Method], str]:
    """The method and the name of the head."""
    if params.method not in METHODS.names():
        raise unknown("method", params.method, METHODS.names())
    kind = METHODS[params.method]
    head = params.head or kind.head
    if head not in HEADS.names():
        raise unknown("head", head, HEADS.names())
    check_head(params.method, head, bool(params.head))
    return kind, head


def _defaults(kind: type[Method]) -> dict[str, Value]:
    return {name: field.get_default() for name, field in kind.model_fields.items() if not field.is_required()}


def resolved(params: Params, before: SavedModel | None, images: Tensor, classes: int) -> Setup:
    """How the next task is trained: as these parameters say, on the network that there is, or on a new one.

    The parameters are checked (`check_choices`). With its `images` there are so many `classes`.
    """
    kind, head = _chosen(params)
    suits = suited(params.method, params.memory, classes, len(images)) if kind.uses_memory else {}
    defaults = _defaults(kind) | kind.fields_of(suits)
    hyperparameters, head_settings = resolve_settings(params.method, head, params.set or {}, defaults)
    _, height, width, channels = images.shape
    shape, own = (channels, height, width), methods_own(params.method)
    own |= {name: value for name, value in suits.items() if name in TRAINING}
    usual, more = Preprocessing.usual(shape), _recolouring(params.augment)
    featured = images.is_floating_point()
    if featured:
        usual, more = Preprocessing(0, False), ()
        _check_features(params)
    found = Setup(
        backbone=params.backbone or (FEATURES if featured else Protocol.usual(shape).backbone),
        head=head,
        head_settings=head_settings,
        outputs=params.most_classes,
        shape=shape,
        mean=(),
        std=(),
        seed=params.seed,
        method=params.method,
        hyperparameters=hyperparameters,
        memory=params.memory if kind.uses_memory else 0,
        tasks=params.tasks,
        batch_size=params.batch_size,
        lr=params.lr or own.get("lr", Setup.lr),
        momentum=params.momentum,
        backbone_lr=params.backbone_lr,
        passes=params.passes if kind.replays() else "joint",
        padding=usual.padding if params.padding is None else params.padding,
        flip=params.flip and usual.flip,
    )
    if before is None and featured:
        mean, std = statistics(params.normalise, _of_features(images))
        of_runs = {name: value for name, value in own.items() if name in OF_RUNS and name != "augment"}
        return replace(found, mean=mean, std=std, **of_runs)
    if before is None:
        mean, std = statistics(params.normalise, measured(images.numpy()))
        done = usual_augment(Preprocessing(found.padding, found.flip))
        if params.augment is None:
            more = tuple(word for word in with_own(done, kind) if word not in done)
        of_runs = {name: value for name, value in own.items() if name in OF_RUNS}
        return replace(found, mean=mean, std=std, **{**of_runs, "augment": more})
    was = before.setup
    kept = {name: getattr(was, name) for name in (*KEPT, *OF_RUNS, *([] if params.lr else ["lr"]))}
    if params.augment is not None and not featured:
        kept["augment"] = more
    if before.params:  # what was not begun by a run, with numbers that a person may have chosen
        kept |= {name: own[name] for name in FOLLOWING if name in own}
    return replace(found, **kept)


def _check_features(params: Params) -> None:
    """Refuse what features do not have: a network, a size, views."""
    asked = {
        "backbone": params.backbone,
        "weights": params.weights,
        "backbone_lr": params.backbone_lr,
        "image_size": params.image_size,
        "padding": params.padding or None,
        "augment": None if params.augment == USUAL else params.augment,
        "normalise": "imagenet" if params.normalise == "imagenet" else None,
    }
    for name, value in asked.items():
        if value is not None:
            raise InputError(f"{name} is for images, and these are features; leave it out.")


def _of_features(rows: Tensor) -> Statistics:
    """The mean and standard deviation of each feature; of one that is the same in all rows, 1."""
    columns = rows[:, 0, 0].double()
    mean, std = columns.mean(0), columns.std(0, correction=0)
    std[std <= ROUNDING * mean.abs() + SMALLEST] = 1
    return tuple(mean.tolist()), tuple(std.tolist())


def _recolouring(asked: str | None) -> tuple[Augmentation, ...]:
    """What is done with training images beside crop and flip, which have parameters of their own."""
    words = () if asked in (None, USUAL) else parse_augment(str(asked))
    if {*words} - {"jitter", "randaugment"}:
        raise MdcgError(
            f"augment takes jitter, randaugment or jitter+randaugment, or usual for neither, not '{asked}'; crop and "
            "flip are set by padding and flip."
        )
    return words


def _refuse_changes(params: Params, head: str, head_settings: Mapping[str, float], before: SavedModel) -> None:
    """Refuse other values of what was settled by the first task."""
    was = before.setup
    asked = {"method": params.method, "head": head, "backbone": params.backbone or was.backbone, "seed": params.seed}
    for name, value in asked.items():
        if value != getattr(was, name):
            raise MdcgError(
                f"what has begun with {name} '{shown(str(getattr(was, name)))}' cannot go on with '{value}'; leave "
                f"{name} as it was, or begin anew."
            )
    for name, value in was.head_settings.items():
        if name in (params.set or {}) and head_settings[name] != value:
            raise MdcgError(
                f"what has begun with {name} {value:g} cannot go on with {head_settings[name]:g}, a setting of the "
                f"head; leave {name} as it was, or begin anew."
            )
    settled, given = json.loads(json.dumps(params_of(before))), params.as_json()
    for name in SETTLED:
        if name == "image_size" and given[name] in (None, before.setup.shape[1]):
            continue
        if name in settled and given[name] != settled[name]:
            raise MdcgError(
                f"{name} was settled by the first task ({shown(str(settled[name]))}) and cannot become {given[name]}; "
                "leave it as it was, or begin anew."
            )


def params_of(saved: SavedModel) -> dict[str, Any]:
    """The parameters that a saved classifier was made with; of a run, those that go on as it was trained."""
    if saved.params:
        return {name: value for name, value in saved.params.items() if name not in OF_THIS_CALL}
    setup = saved.setup
    settings: dict[str, Value] = {**setup.hyperparameters, **setup.head_settings}
    return {
        "method": setup.method or "naive",
        "memory": setup.memory or 500,
        "set": settings or None,
        "head": setup.head,
        "backbone": setup.backbone,
        "flip": setup.flip,
        "padding": setup.padding,
        "normalise": (setup.mean, setup.std),
        "batch_size": setup.batch_size,
        "lr": setup.lr,
        "momentum": setup.momentum,
        "backbone_lr": setup.backbone_lr,
        "passes": setup.passes,
        "seed": setup.seed,
        "most_classes": max(2, setup.outputs),
        "tasks": setup.tasks,
        "resize": "squash",  # as images of a folder are for `mdcg run`
        "image_size": setup.shape[1],
    }


def check_room(setup: Setup, before: SavedModel | None, new: int) -> None:
    """Refuse a task that the method, its memory or its head has no room for."""
    kind, known = METHODS[setup.method], len(before.classes) if before else 0
    number, classes = len(before.sizes) if before else 0, known + new
    if kind.uses_memory and setup.memory < classes:
        raise MdcgError(
            f"a memory of {setup.memory} cannot hold one image of each of {classes} classes; give memory={classes} or "
            "more."
        )
    if setup.tasks * classes > MOST_COUNTS:
        raise MdcgError(
            f"a table of {setup.tasks:,} tasks and {classes:,} classes takes too much memory; begin anew with fewer "
            "tasks."
        )
    if before and before.kept and kind(**setup.hyperparameters).second_memory_size() and before.kept.second is None:
        raise MdcgError(f"{setup.method} has begun without a second memory, and cannot go on with one; begin anew.")
    if kind.gradient_per_task and number >= setup.tasks:
        raise MdcgError(
            f"{setup.method} has divided its memory among {setup.tasks} tasks for good, and this would be one more; "
            f"begin anew with tasks={number + 1} or more."
        )


def can_learn(saved: SavedModel) -> None:
    """Refuse a classifier that cannot learn another task, and say why."""
    setup = saved.setup
    reason = None
    if not setup.method:
        reason = "it was saved by an older version of mdcg, without its memory; repeat the run that made it"
    elif setup.method not in METHODS.names():
        reason = f"its method '{shown(setup.method)}' is not installed here; install it"
    elif len(set(saved.classes)) < len(saved.classes):
        reason = "two of its classes have the same name; rename their folders and begin anew"
    elif saved.kept is None and METHODS[setup.method].trains_on == "seen":
        reason = f"{setup.method} needs all earlier images, which a run does not keep; begin anew with all of them"
    elif saved.kept is None:
        reason = "it was saved without the images of its memory; save it with them"
    if reason:
        raise MdcgError(f"{saved.file or 'this model'} can classify images but learn no more: {reason}.")
