"""The recipe: what a person asks for, and the runs it means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mdcg.data import DATASETS, Dataset, record_of
from mdcg.data.normalise import Named
from mdcg.errors import MdcgError, unknown
from mdcg.methods import METHODS
from mdcg.methods.base import Passes, Preset, Value
from mdcg.models import HEADS
from mdcg.models.naming import backbone_name
from mdcg.models.weights import WeightsFile
from mdcg.recipes import presets
from mdcg.recipes.document import Document, key_name, written
from mdcg.recipes.parsing import number, parse_seeds, read_value
from mdcg.runs.fingerprint import fingerprint
from mdcg.runs.spec import RunSpec
from mdcg.scenario import canonical, parse, task_sizes
from mdcg.train.precision import PRECISIONS


class Recipe(BaseModel):
    """A recipe of what a person asks for; whatever is left out follows the paper's protocol.

    Of methods, memory sizes and settings there may be several: `grid.expand` makes one recipe of each combination, and
    what `resolve` takes is such a recipe of one setting.

    >>> Recipe(scenario="digits-5", method="replay", memory="100,200", seeds="0-2").memory
    [100, 200]
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    title: str | None = Field(None, description="Title of the tables.")
    scenario: str
    method: str | None = Field(None, description="Method; several as a list, each of which is then trained.")
    methods: list[str] = Field([], description="Methods, as the keyword of `compare`; the same as a list of `method`.")
    memory: list[Annotated[int, Field(ge=1, strict=True)]] = []
    seeds: list[int] = [0]
    preset: Preset = "paper"
    set: dict[str, Any] = Field(
        {}, description="Settings of the method or head by name; of a list each value is tried."
    )
    head: str | None = None
    backbone: str | None = None
    weights: Path | None = None  # the backbone's initial ones
    epochs: int | None = Field(None, ge=1, le=100_000, strict=True)
    batch_size: int | None = Field(None, ge=2, le=100_000, strict=True)
    lr: float | None = Field(None, gt=0)  # learning rate
    backbone_lr: float | None = Field(None, ge=0)  # of the backbone, in place of `lr`; 0: it stays as it is
    momentum: float | None = Field(None, ge=0, lt=1)
    precision: str = "auto"
    hold_out: float = Field(0.0, ge=0, lt=1)
    evaluate_every: int = Field(0, ge=0)
    image_size: int | None = None
    normalise: Named = "data"
    augmentation: Preset | None = None
    passes: Passes | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    out: Path = Path("runs")
    data: Path | None = None

    @field_validator("scenario")
    @classmethod
    def _canonical(cls, value: str) -> str:
        try:
            return canonical(value)
        except MdcgError as error:
            raise MdcgError(str(error), about="scenario") from error

    @field_validator("out", "data", "weights")
    @classmethod
    def _home(cls, value: Path | None) -> Path | None:
        try:
            if value and "\0" in str(value):
                raise ValueError("a path cannot hold a zero byte")
            return value.expanduser() if value else value
        except RuntimeError as error:
            raise ValueError(str(error)) from error

    @field_validator("methods", mode="before")
    @classmethod
    def _methods(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("memory", mode="before")
    @classmethod
    def _memories(cls, value: object) -> object:
        if isinstance(value, str):
            value = [read_value(part.strip()) for part in value.split(",")]
        return value if isinstance(value, list | tuple) else [value]

    @field_validator("memory")
    @classmethod
    def _memories_usable(cls, value: list[int]) -> list[int]:
        if not value:
            raise ValueError("give at least one size")
        return list(dict.fromkeys(value))

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, value: object) -> object:
        if isinstance(value, list) and any(isinstance(seed, str) for seed in value):
            value = ",".join(map(str, value))
        if isinstance(value, str):
            try:
                return parse_seeds(value)
            except MdcgError as error:
                raise MdcgError(str(error), about="seeds") from error
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("seeds")
    @classmethod
    def _seeds_usable(cls, value: list[int]) -> list[int]:
        if not value:
            raise ValueError("give at least one seed")
        if min(value) < 0 or max(value) >= 2**31:
            raise ValueError("seeds go from 0 to 2147483647")
        return list(dict.fromkeys(value))

    @field_validator("set")
    @classmethod
    def _set_plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key, setting in value.items():
            several = setting if isinstance(setting, list) else [setting]
            if not several or not all(isinstance(one, bool | int | float | str) for one in several):
                raise ValueError(f"'{key}' must be a number, a word or true or false, or a list of these")
        return value

    @field_validator("precision")
    @classmethod
    def _precision(cls, value: str) -> str:
        if value not in PRECISIONS:
            raise ValueError(str(unknown("precision", value, PRECISIONS)))
        return value

    def document(self) -> Document:
        """The keys of the recipe as a document to be expanded; keys that were left out still are."""
        return written({key: value for key, value in self.model_dump(exclude_unset=True).items() if value != []})

    def named_method(self) -> str:
        """The method of a recipe that means one setting."""
        names = list(dict.fromkeys([*self.methods, *([self.method] if self.method else [])]))
        if not names:
            raise MdcgError(
                "no method was named; give --method md-cg (for 'compare': --methods naive,md-cg), "
                "see 'mdcg list methods'."
            )
        if len(names) > 1:
            raise MdcgError(f"one method is asked for here, not {', '.join(names)}; name one.", about="method")
        return names[0]

    def settings(self) -> list[str]:
        """The names of the settings that its method and head have."""
        name = self.named_method()
        return [*METHODS[name].model_fields, *HEADS[self._head(name)].settings]

    def resolve(self, dataset: Dataset) -> list[RunSpec]:
        """The runs of a recipe that means one setting: one for each seed."""
        self.check_names()
        first = self._resolved(dataset)
        return [first.model_copy(update={"seed": seed}) for seed in self.seeds]

    def check_names(self) -> None:
        """Refuse all that can be known to be wrong before the dataset is loaded."""
        name = self.named_method()
        kind, head = METHODS[name], self._head(name)
        check_settings(name, head, self.set)
        if kind.uses_memory and not self.memory:
            raise MdcgError(
                f"{name} needs a memory; give its size in images, for instance --memory 500.", about="method"
            )
        check_head(name, head, asked=bool(self.head))
        if self.backbone:
            backbone_name(self.backbone, may_import=False)

    def _resolved(self, dataset: Dataset) -> RunSpec:
        name = self.named_method()
        kind = METHODS[name]
        memory = self.memory[0] if kind.uses_memory else 0
        known, tasks = parse(self.scenario)
        record = record_of(known)
        try:
            task_sizes(dataset.classes, tasks)
        except MdcgError as error:
            raise MdcgError(str(error), about="scenario") from error
        head, published = self._head(name), self.preset == "published"
        usual = record.protocol_for(dataset.shape)
        backbone = self.backbone or (
            presets.PUBLISHED_BACKBONES.get(usual.backbone, usual.backbone) if published else usual.backbone
        )
        augmentation = self.augmentation or self.preset
        if kind.uses_memory and memory < dataset.classes:
            raise MdcgError(
                f"a memory of {memory} cannot hold one image of each of the {dataset.classes} classes; "
                f"give --memory {dataset.classes} or more.",
                about="memory",
            )
        if augmentation == "published" and self.augmentation and not record.published:
            others = " and ".join(other.name for other in DATASETS.values() if other.published)
            raise MdcgError(
                f"the published augmentation departs from the paper's on {others} only; leave "
                f"--augmentation out for {self.scenario}.",
                about="augmentation",
            )
        preset = presets.defaults(self.preset, kind, self.scenario, memory, usual.epochs)
        hyperparameters, settings = resolve_settings(name, head, self.set, preset.settings)
        lr = self.lr or usual.lr
        return RunSpec(
            format=record.format,
            scenario=self.scenario,
            fingerprint=dataset.fingerprint,
            image_size=None if record.shape else dataset.shape[1],
            method=name,
            hyperparameters=hyperparameters,
            memory=memory,
            head=head,
            head_settings=settings,
            backbone=backbone,
            epochs=self.epochs or preset.epochs,
            batch_size=self.batch_size or usual.batch_size,
            lr=lr,
            momentum=usual.momentum if self.momentum is None else self.momentum,
            precision=self.precision,
            hold_out=self.hold_out,
            evaluate_every=self.evaluate_every,
            augmentation=augmentation if record.published else "paper",
            passes=self.passes or preset.passes if kind.replays() else "joint",
            code=fingerprint(name, head, backbone, dataset.shape[0]),
            backbone_lr=None if self.backbone_lr == lr else self.backbone_lr,
            weights=WeightsFile.of(self.weights).digest if self.weights else None,
            normalise=self.normalise,
            seed=self.seeds[0],
        )

    def _head(self, name: str) -> str:
        head = self.head or METHODS[name].head
        return presets.PUBLISHED_HEADS.get(head, head) if self.preset == "published" else head


def check_settings(method: str, head: str, chosen: Mapping[str, Any]) -> None:
    """Refuse a setting that neither the method nor the head has."""
    known = [*METHODS[method].model_fields, *HEADS[head].settings]
    for key in chosen:
        if key not in known:
            raise unknown(f"setting of {method}", key, known, about=f"set.{key}")


def check_head(method: str, head: str, asked: bool) -> None:
    """Refuse a head that the method cannot take, whether it was `asked` for or is the method's own."""
    wanted = METHODS[method].needs_head
    if wanted == ("fixed" if HEADS[head].grows else "growing"):
        which = {"growing": "that grows with the classes", "fixed": "that has all classes from the start"}
        advice = "leave --head out" if asked else "give one with --head"
        raise MdcgError(f"{method} needs a head {which[wanted]}, and '{head}' is none; {advice}.", about="head")


def resolve_settings(
    method: str, head: str, chosen: Mapping[str, Any], usual: Mapping[str, Value]
) -> tuple[dict[str, Value], dict[str, float]]:
    """The settings of method and head: those that were chosen, the `usual` ones of the method, the head's defaults."""
    check_settings(method, head, chosen)
    kind = METHODS[method]
    given = {key: value for key, value in chosen.items() if key in kind.model_fields}
    try:
        built = kind(**{**usual, **given})
    except ValidationError as error:
        field = error.errors()[0]["loc"]
        raise MdcgError(f"method {method}: {explain(error)}", about=f"set.{field[0]}" if field else "method") from error
    own = {key: default for key, (default, _) in HEADS[head].settings.items()}
    return built.model_dump(), own | {key: number(key, value) for key, value in chosen.items() if key in own}


def make_recipe(**keys: Any) -> Recipe:
    """Make a checked recipe; keys that are None count as left out."""
    keys = {key_name(key): value for key, value in keys.items()}
    for key in keys:
        if key not in Recipe.model_fields:
            raise _unknown_key(key)
    if keys.get("scenario") is None:
        raise MdcgError("no scenario was named; give --scenario, for instance digits-5, see 'mdcg list scenarios'.")
    try:
        return Recipe(**{key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        raise MdcgError(explain(error), about=str(error.errors()[0]["loc"][0])) from error


def _unknown_key(key: str) -> MdcgError:
    if key == "learning_rate":
        return MdcgError(f"unknown setting '{key}'; the learning rate is called 'lr'.", about=key)
    settings = {name: default for head in HEADS.names() for name, (default, _) in HEADS[head].settings.items()}
    for method in METHODS.names():
        settings |= {name: field.default for name, field in METHODS[method].model_fields.items()}
    if key in settings:
        example = f"set: {{{key}: {settings[key]}}}"
        return MdcgError(
            f"'{key}' is a setting of a method or head; put it under set, for instance {example}.", about=key
        )
    return unknown("setting", key, Recipe.model_fields, about=key)


def explain(error: ValidationError) -> str:
    """Turn the first complaint of a validation into one sentence."""
    first = error.errors()[0]
    where = ".".join(part for part in first["loc"] if isinstance(part, str) and "[" not in part)  # no kinds of a union
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    given = first["input"]
    value = f", not {given!r}" if isinstance(given, str | int | float) and str(given) not in message else ""
    return (f"'{where}' is wrong: " if where else "") + f"{message[0].lower()}{message[1:]}{value}."
