"""What the file of a classifier says beside its tensors, and what no such file may say.

Whoever writes a file and whoever reads it go by the same rule, `parsed`. `refuse_unkeepable` asks it before anything is
trained: what a file could not give back is refused as long as it costs nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError, model_validator

from mdcg.errors import MdcgError
from mdcg.methods.base import Passes, Value
from mdcg.models import HEADS
from mdcg.models.features import FEATURES
from mdcg.stored import Count, Counted, NotNegative, Number, Seed, Share, Whole, plain
from mdcg.tensors import Damaged
from mdcg.train.group import Augmentation, Numbers, OptimizerName, ScheduleName, Training

VERSION = 3
MOST_PIXELS = 2**26  # and channels, of one image
LABELS = range(-(2**63), 2**64)  # whole numbers that an array can hold: ids of 64 bits among them


def _label(given: str | int | float | bool) -> str | int | float | bool:
    """A label that an array can hold, or a ValueError; however large, JSON gives it back exactly."""
    if (isinstance(given, int) and given not in LABELS) or (isinstance(given, float) and not math.isfinite(given)):
        raise ValueError("a label is no number of an array")
    return given


Label = Annotated[str | int | float | bool, AfterValidator(_label)]  # of a class, as it was given


@dataclass(frozen=True)
class Setup:
    """How a classifier is built and trained, the same for all of its tasks."""

    backbone: str
    head: str
    head_settings: dict[str, Number]
    outputs: Count  # of a head that has all of them from the start
    shape: tuple[Counted, Counted, Counted]  # (channels, height, width)
    mean: tuple[Number, ...]  # per channel, pixels in 0..1
    std: tuple[NotNegative, ...]
    seed: Seed
    method: str = ""  # empty: a file of before, which does not say
    hyperparameters: Annotated[dict[str, Value], AfterValidator(plain)] = field(default_factory=dict)
    memory: Whole = 0
    tasks: Counted = 1  # how many there may be, for a method that divides its memory among them
    batch_size: Counted = 32
    lr: NotNegative = 0.01  # learning rate
    momentum: Share = 0.8
    backbone_lr: NotNegative | None = None  # learning rate of the backbone; None: as `lr`, 0: it stays as it is
    passes: Passes = "joint"
    padding: Count = 0
    flip: bool = False
    optimizer: OptimizerName = "sgd"
    schedule: ScheduleName = "constant"
    head_lr: NotNegative | None = None  # the rest as in `Numbers`
    weight_decay: NotNegative = 0.0
    warmup: Share = 0.0
    clip: NotNegative = 0.0
    label_smoothing: Share = 0.0
    augment: tuple[Augmentation, ...] = ()
    randaugment_n: Count = Training.randaugment_n
    jitter_strength: NotNegative = Numbers.jitter_strength
    randaugment_m: NotNegative = Numbers.randaugment_m
    mix_alpha: NotNegative = Numbers.mix_alpha

    @property
    def is_features(self) -> bool:
        """Whether it takes rows of features: as images of one pixel, each feature a channel, in float32."""
        return self.backbone == FEATURES

    @property
    def dtype(self) -> torch.dtype:
        """The type of its images."""
        return torch.float32 if self.is_features else torch.uint8

    @property
    def white(self) -> int:
        """The value of a white pixel; 1 of features."""
        return 1 if self.is_features else 255

    @property
    def numbers(self) -> Numbers:
        """The numbers of training."""
        return Numbers(**{one.name: getattr(self, one.name) for one in fields(Numbers)})


@dataclass(frozen=True)
class Version:
    """What one call of `learn` has taught, and how the classifier fared. Lists are by class, in order of arrival."""

    classes: list[Label]  # the new ones
    images: list[Count]  # that came of each class
    held_out: list[Count]  # images of each class that both accuracies are of
    before: list[NotNegative | None]  # accuracy in percent of the classes known before; None: nothing was held out
    after: list[NotNegative | None]  # and of all classes
    epochs: Count
    steps: Whole
    seconds: NotNegative
    finished: str  # UTC, ISO 8601
    mdcg: str  # its version


class Header(BaseModel):
    """What a file says beside its `Setup`."""

    classes: list[Label]
    sizes: list[Counted]
    versions: list[Version]
    params: Annotated[dict[str, Any], AfterValidator(lambda given: plain(given, finite=False))]
    learns: bool

    @model_validator(mode="after")
    def _fits_together(self) -> Header:
        if len(self.classes) != sum(self.sizes):
            raise Damaged("its class names do not fit its outputs")
        known = len(self.classes)
        for version in reversed(self.versions):
            counted = {len(version.images), len(version.held_out), len(version.after)}
            known -= len(version.classes)
            if (
                not version.classes
                or counted != {known + len(version.classes)}
                or len(version.before) not in (0, known)
                or known < 0
            ):
                raise Damaged("what it has learned does not fit its classes")
        return self


_SETUP, _SETUP_FIELDS = TypeAdapter(Setup), {one.name for one in fields(Setup)}


class Newer(Exception):
    """A format that only a newer version can read."""


def values(
    setup: Setup,
    classes: Sequence[Label],
    sizes: Sequence[int],
    versions: Sequence[Version],
    params: Mapping[str, Any],
    learns: bool,
) -> dict[str, Any]:
    """The header of a file, as plain values."""
    return {
        "version": VERSION,
        **asdict(setup),
        "classes": list(classes),
        "sizes": list(sizes),
        "versions": [asdict(version) for version in versions],
        "params": dict(params),
        "learns": learns,
    }


def parsed(header: Mapping[str, Any]) -> tuple[Header, Setup]:
    """What `values` made, of this format or an older one; `Damaged` if it cannot be, `Newer` if it may be one day."""
    version = header.get("version")
    if version == 1:
        header = upgraded(header)
    elif isinstance(version, int) and version > VERSION:
        raise Newer(f"format {version}; this one reads up to {VERSION}")
    elif version not in (2, VERSION):  # the third has more of `Setup`, with defaults that say what was done before
        raise Damaged("there is no such format")
    own = {key: value for key, value in header.items() if key != "version"}
    head = {key: own.pop(key) for key in Header.model_fields if key in own}
    if strange := own.keys() - _SETUP_FIELDS:
        raise Damaged(f"it has {_quoted(strange)}, which no model has")
    try:
        found, setup = Header.model_validate(head), _SETUP.validate_python(own)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if isinstance(reason := first.get("ctx", {}).get("error"), Damaged):
            raise reason from error
        key = first["loc"][0] if first["loc"] else ""
        wrong = f"it lacks {_quoted([key])}" if first["type"] == "missing" else f"{_quoted([key])} cannot be as it says"
        raise Damaged(wrong) from error
    _check(setup)
    return found, setup


def refuse_unkeepable(setup: Setup, classes: Sequence[Label], sizes: Sequence[int], params: Mapping[str, Any]) -> None:
    """Refuse what a file could not give back, before it is trained."""
    told = values(setup, classes, sizes, (), params, learns=True)
    try:
        header, found = parsed(json.loads(json.dumps(told)))
        if (found, header.classes, header.params) != (setup, list(classes), json.loads(json.dumps(params))):
            raise Damaged("something would be another number when it is read again")
    except (TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, Damaged) else "a setting is no plain value"
        raise MdcgError(f"no file could keep this classifier: {reason}; choose a smaller or plainer value.") from error
    HEADS[setup.head].check_tasks(sizes, setup.outputs)


def _check(setup: Setup) -> None:
    """Refuse what cannot be, before a network is made that may be larger than the memory."""
    channels, height, width = setup.shape
    if math.prod(setup.shape) > MOST_PIXELS:
        raise Damaged(
            f"its images have {height:,} × {width:,} pixels in {channels:,} channels, more than {MOST_PIXELS:,} numbers"
        )
    if setup.is_features and (height, width) != (1, 1):
        raise Damaged(f"its features have shape {setup.shape}")
    if not len(setup.mean) == len(setup.std) == channels or min(setup.std) <= 0:
        raise Damaged("mean and std do not fit its images")


def upgraded(header: Mapping[str, Any]) -> dict[str, Any]:
    """Format 1 had the names of all classes of a dataset, and nothing that is needed to learn more."""
    left_out = {"class_names", "order", "total"}
    try:
        classes = [header["class_names"][label] for label in header["order"]]
    except (LookupError, TypeError) as error:
        raise Damaged("its class names do not fit its outputs") from error
    return {
        **{key: value for key, value in header.items() if key not in left_out},
        "outputs": header.get("total", 0),
        "classes": classes,
        "versions": [],
        "params": {},
        "learns": False,
    }


def _quoted(names: Any) -> str:
    return ", ".join(sorted(f"'{str(name)[:40]}'" for name in names))
