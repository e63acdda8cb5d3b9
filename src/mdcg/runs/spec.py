"""The specification of one run, resolved to its last setting."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from mdcg.data.normalise import Named
from mdcg.errors import MdcgError
from mdcg.methods import METHODS, Method
from mdcg.methods.base import Passes, Preset, Value, shared_settings
from mdcg.scenario import Stream, parse
from mdcg.stored import HUGE, Counted, NotNegative, Number, Seed, Share, Whole, plain
from mdcg.train.augment import NONE, USUAL, parse_augment
from mdcg.train.group import Member, Numbers, OptimizerName, ScheduleName, Training

OLDER = {"lr": "rate"}  # settings by the names that are part of a run's identity
#: Settings of optimisation and augmentation, with the paper's values.
TUNED: dict[str, Value | None] = {
    "optimizer": "sgd",
    "weight_decay": 0.0,
    "schedule": "constant",
    "warmup": 0.0,
    "clip": 0.0,
    "label_smoothing": 0.0,
    "head_lr": None,
    "augment": None,
    "jitter_strength": None,
    "randaugment_n": None,
    "randaugment_m": None,
    "mix_alpha": None,
}
#: Settings that came later, as `Method.added`.
ADDED: dict[str, Value | dict[str, object] | None] = {
    "passes": "joint",
    "code": "",
    "backbone_lr": None,
    "weights": None,
    "normalise": "data",
    **TUNED,
    "stream": {},
}
NUMBERS = tuple(one.name for one in fields(Numbers))  # in which runs of a group may differ
CONTAINERS = {"hyperparameters", "head_settings", "stream"}  # fields that hold several settings


class RunSpec(BaseModel):
    """A run, resolved to the last setting. Two equal specs are the same run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Counted = 1  # that of its dataset when it was made, see `DatasetRecord.format`
    scenario: str
    fingerprint: str  # of the dataset's content
    image_size: Counted | None
    method: str
    hyperparameters: Annotated[dict[str, Value], AfterValidator(plain)]
    memory: Whole
    head: str
    head_settings: dict[str, Number]
    backbone: str
    epochs: Counted
    batch_size: Counted
    lr: NotNegative
    momentum: Share
    precision: str
    hold_out: Share
    evaluate_every: Whole
    augmentation: Preset = "paper"
    passes: Passes = "joint"
    code: str = ""  # fingerprint of what is not mdcg's own, see `fingerprint.py`
    backbone_lr: NotNegative | None = None  # None: as `lr`
    weights: str | None = None  # digest of the backbone's initial ones, see `WeightsFile`
    normalise: Named = "data"
    stream: Stream = Stream()
    optimizer: OptimizerName = "sgd"
    weight_decay: NotNegative = 0.0
    schedule: ScheduleName = "constant"
    warmup: NotNegative = 0.0
    clip: NotNegative = 0.0  # 0: none
    label_smoothing: NotNegative = 0.0
    head_lr: NotNegative | None = None  # None: as `lr`
    augment: str | None = None  # None: crop and flip as the dataset's record says
    jitter_strength: NotNegative | None = None  # this and what follows: None where it means nothing
    randaugment_n: Whole | None = None
    randaugment_m: NotNegative | None = None
    mix_alpha: NotNegative | None = None
    seed: Seed

    @field_validator("hyperparameters")
    @classmethod
    def _with_later_ones(cls, value: dict[str, Value], info: ValidationInfo) -> dict[str, Value]:
        """Complete older results, which do not name the settings that came later and may name some that are gone."""
        kind = _kind(info.data.get("method", ""))
        if kind is None:
            return value
        return {**kind.added, **{key: one for key, one in value.items() if (key, one) not in kind.removed.items()}}

    @classmethod
    def of(cls, **settings: Any) -> RunSpec:
        """The spec with these settings, or the error that says which of them no run can have."""
        try:
            return cls(**settings)
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            raise MdcgError(
                f"'{key}' has a number that no run can have; give one that is finite, and no larger than {HUGE:g}.",
                about="set" if key in ("hyperparameters", "head_settings") else key,
            ) from error

    def digest(self) -> str:
        """The run's identity. Settings that came later count only where they are not as before, so that older results
        keep their names."""
        whole = self.model_dump() | {"stream": self.stream.told()}
        content = {OLDER.get(key, key): value for key, value in whole.items() if (key, value) not in ADDED.items()}
        own, kind = self.hyperparameters, _kind(self.method)
        if kind is not None:
            own = {key: value for key, value in own.items() if (key, value) not in kind.added.items()}
            own = {**kind.removed, **own}
        return _digest({**content, "hyperparameters": own})

    @property
    def name(self) -> str:
        """A folder name that tells a reader what it holds."""
        usual = METHODS[self.method].head if self.method in METHODS.names() else ""  # it may be gone with its package
        parts = [self.scenario, self.method, *([self.head] if self.head != usual else [])]
        parts += [f"m{self.memory}", f"s{self.seed}", self.digest()]
        return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-")[-60:] for part in parts)

    @property
    def task_sequence(self) -> str:
        """What was learned, in words: the scenario and, where it is not as its name says, the stream."""
        return ", ".join(filter(None, [self.scenario, self.stream.in_words()]))

    def built_method(self) -> Method:
        """The method with its hyperparameters."""
        return METHODS[self.method](**self.hyperparameters)

    def member(self) -> Member:
        """The member that this run is in a group."""
        return Member(self.seed, self.memory, self.built_method(), self.head_settings, self.numbers())

    def numbers(self) -> Numbers:
        """The numbers in which it may differ from its group."""
        return Numbers(**{name: value for name in NUMBERS if (value := getattr(self, name)) is not None})

    def training(self) -> Training:
        """The settings in which it agrees with its group; of a file of weights it knows the digest only."""
        return Training(
            tasks=parse(self.scenario)[1],
            backbone=self.backbone,
            head=self.head,
            epochs=self.epochs,
            batch_size=self.batch_size,
            hold_out=self.hold_out,
            evaluate_every=self.evaluate_every,
            passes=self.passes,
            optimizer=self.optimizer,
            schedule=self.schedule,
            augment=tuple(word for word in parse_augment(self.augment or NONE) if word not in ("crop", "flip")),
            randaugment_n=self.randaugment_n or Training.randaugment_n,
            stream=self.stream,
        )

    def group_key(self) -> str:
        """The key of groups: runs with the same one can train together."""
        method = self.built_method()
        own = {"seed", "hyperparameters", "head_settings", *NUMBERS}
        if not method.gradient_per_task:  # its steps bring the whole memory
            own.add("memory")
        if method.looks_ahead():  # what it finds there depends on the stream, which is the seed's
            own.remove("seed")
        agreed = {"shared": shared_settings(method), "frozen": self.numbers().frozen}
        return _digest(self.model_dump(exclude=own) | agreed)

    def settings(self) -> dict[str, Value | None]:
        """Every setting by name, those of method and head as set.NAME."""
        own = self.model_dump(exclude=CONTAINERS)
        own["augment"] = self.augment or USUAL
        own |= {"stream": self.stream.in_words(most=10**6), "blurry": self.stream.blurry, "online": self.stream.online}
        return own | {f"set.{name}": value for name, value in {**self.hyperparameters, **self.head_settings}.items()}

    def as_recipe(self) -> dict[str, Any]:
        """The recipe that repeats this run."""
        hidden = {"format", "fingerprint", "code", "hyperparameters", "head_settings", "seed", "stream"}
        if not self.memory:
            hidden.add("memory")
        if self.stream.online:
            hidden.add("epochs")
        kind = _kind(self.method)
        own = kind is not None and "augment" in kind.recipe and self.augment is None  # it would not be as usual
        return {
            **self.model_dump(exclude=hidden),
            **({"augment": USUAL} if own else {}),
            **self.stream.told(),
            "seeds": [self.seed],
            "set": {**self.hyperparameters, **self.head_settings},
        }


#: The names of every run's settings (`RunSpec.settings`), but for those of its method and head.
SETTINGS = {*(set(RunSpec.model_fields) - CONTAINERS), "stream", "blurry", "online"}


def _kind(method: str) -> type[Method] | None:
    """The class of a method; None for one whose package is gone."""
    return METHODS[method] if method in METHODS.names() else None


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
