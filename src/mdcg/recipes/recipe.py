"""The recipe: what a person asks for, and the runs it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from mdcg.data import DATASETS, Dataset, record_of
from mdcg.data.normalise import Named
from mdcg.errors import InputError, MdcgError, unknown
from mdcg.files import path_of
from mdcg.methods import METHODS
from mdcg.methods.base import TRAINING, Method, Passes, Preset, Value
from mdcg.models import HEADS
from mdcg.models.naming import backbone_name
from mdcg.models.weights import WeightsFile
from mdcg.recipes import presets
from mdcg.recipes.document import Document, key_name, written
from mdcg.recipes.parsing import parse_seeds, read_value
from mdcg.recipes.settings import check_head, check_settings, explain, resolve_settings
from mdcg.runs.fingerprint import fingerprint
from mdcg.runs.spec import RunSpec
from mdcg.scenario import Scenario, Stream, canonical, make_stream, parse
from mdcg.train.augment import NONE, USUAL, parse_augment, spell_augment
from mdcg.train.group import Group, Numbers, OptimizerName, ScheduleName, Training
from mdcg.train.precision import PRECISIONS
from mdcg.train.recolour import STRONGEST

LARGEST = 1e30  # of the optimiser's numbers: float32 ends at 3.4e38
ADAMW_LR = 1e-3  # learning rate of AdamW where none is given, torch's; the protocols' are of SGD

#: The keys of a scenario that is written as a table.
TABLE = ("dataset", "tasks", "order", "sizes", "first", "returning", "blurry", "online")


class Recipe(BaseModel):
    """A recipe of what a person asks for; whatever is left out follows the paper's protocol.

    Of methods, memory sizes and settings there may be several: `grid.expand` makes one recipe of each combination, and
    what `resolve` takes is such a recipe of one setting.

    >>> Recipe(scenario="digits-5", method="replay", memory="100,200", seeds="0-2").memory
    [100, 200]
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    title: str | None = Field(None, description="Title of the tables.")
    scenario: str  # DATASET-TASKS; a table says dataset, tasks and what follows here
    tasks: list[list[str]] | None = Field(
        None, description="Names of each task's classes; in a scenario that is a table, or their number."
    )
    order: list[str] | None = None  # names of the classes as they come, in place of the seed's order
    sizes: list[Annotated[int, Field(strict=True)]] | None = None  # classes of each task
    first: int | None = Field(None, strict=True)  # classes of the first task, the others sharing the rest
    returning: bool = Field(False, description="Whether `tasks` may name a class several times: it then comes back.")
    blurry: float = Field(0.0, ge=0, lt=1)  # share of a task's images that comes in its neighbours
    online: bool = False  # each image comes once, the memory is a reservoir of the stream
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
    lr: float | None = Field(None, gt=0, le=LARGEST)  # learning rate
    backbone_lr: float | None = Field(None, ge=0, le=LARGEST)  # of the backbone, in place of `lr`; 0: it stays as it is
    head_lr: float | None = Field(None, gt=0, le=LARGEST)  # of the head, in place of `lr`
    optimizer: OptimizerName = "sgd"
    momentum: float | None = Field(None, ge=0, lt=1)  # of SGD
    weight_decay: float = Field(0.0, ge=0, le=LARGEST)
    schedule: ScheduleName = "constant"  # of the learning rates, within a task
    warmup: float = Field(0.0, ge=0, lt=1)  # share of a task's steps
    clip: float = Field(0.0, ge=0, le=LARGEST)  # largest norm of a gradient; 0: any
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    augment: str | None = None  # words with + between them, none, or usual: as the dataset's record says
    jitter_strength: float = Field(Numbers.jitter_strength, gt=0, le=1)
    randaugment_n: int = Field(Training.randaugment_n, ge=1, le=14, strict=True)  # operations
    randaugment_m: float = Field(Numbers.randaugment_m, ge=0, le=STRONGEST)  # magnitude
    mix_alpha: float = Field(Numbers.mix_alpha, gt=0)  # of mixup and CutMix
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

    @model_validator(mode="before")
    @classmethod
    def _with_table(cls, keys: dict[str, Any]) -> dict[str, Any]:
        table = keys.get("scenario")
        return {**keys, **_scenario_keys(table, keys)} if isinstance(table, Mapping) else keys

    @field_validator("tasks", "order", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        """Class names as YAML and a command line give them: `7` is a name, too."""
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")]
        if not isinstance(value, list | tuple):
            return value
        return [cls._names(one) if isinstance(one, list | tuple) else _as_name(one) for one in value]

    @field_validator("sizes", mode="before")
    @classmethod
    def _sizes(cls, value: object) -> object:
        return [read_value(part.strip()) for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("scenario")
    @classmethod
    def _canonical(cls, value: str) -> str:
        try:
            return canonical(value)
        except MdcgError as error:
            raise MdcgError(str(error), about="scenario") from error

    @field_validator("out", "data", "weights")
    @classmethod
    def _home(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        try:
            return path_of(value, home=True) if value else value
        except InputError as error:  # which would pass for a complaint of pydantic's
            raise MdcgError(f"'{info.field_name}' is wrong: {error}", about=info.field_name) from error

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

    @field_validator("augment")
    @classmethod
    def _augment(cls, value: str | None) -> str | None:
        return value if value in (None, USUAL) else spell_augment(parse_augment(str(value)))

    @field_validator("precision")
    @classmethod
    def _precision(cls, value: str) -> str:
        if value not in PRECISIONS:
            raise unknown("precision", value, PRECISIONS, about="precision")
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
        suited = self._suited(dataset)
        first = self._with_methods_own(suited)._resolved(dataset, suited)
        if first.stream != Stream():
            members = [replace(first.member(), seed=seed) for seed in self.seeds]
            for member in members:  # each by itself: what a method finds there depends on the seed
                Group(first.training(), (member,), dataset).check_arrivals()
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
        mixing = "mixup" if "mixup" in (self.augment or "") else "cutmix" if "cutmix" in (self.augment or "") else None
        if mixing and kind.gradient_per_task:
            raise MdcgError(
                f"{mixing} needs one loss of all images of a step, and {name} has one for each task; leave {mixing} "
                "out of --augment.",
                about="augment",
            )
        if mixing and kind.stores_logits and self.online:
            raise MdcgError(
                f"{name} keeps what was answered to each image as it comes, and {mixing} leaves none as it is; leave "
                f"{mixing} out of --augment.",
                about="augment",
            )
        if self.backbone:
            backbone_name(self.backbone, may_import=False)

    def _suited(self, dataset: Dataset) -> dict[str, Value]:
        """What suits the stream and its memory, see `Method.suited`; a dataset known by name is as its record says."""
        name, (known, tasks) = self.named_method(), parse(self.scenario)
        if self.online or not METHODS[name].uses_memory:
            return {}
        record = dataset.own or record_of(known)
        classes, images = (record.classes, record.images) if record.images else (dataset.classes, len(dataset.train))
        scenario = Scenario.of(self._stream(dataset, tasks), tasks, dataset.class_names, self.seeds[0])
        learned = min(len(scenario.order), classes)
        return suited(name, self.memory[0], learned, images * learned // classes // len(scenario.sizes))

    def _with_methods_own(self, suited: Mapping[str, Value]) -> Recipe:
        """The recipe with what its method sets where nothing else is asked for."""
        left = ("augment", "lr") if self.optimizer != "sgd" else ("augment",)  # which waits for the dataset
        own = {} if self.online else methods_own(self.named_method())
        own |= {key: value for key, value in suited.items() if key in TRAINING}
        own = {key: value for key, value in own.items() if key not in left}
        return Recipe(**{**own, **self.model_dump(exclude_unset=True)}) if own else self

    def _resolved(self, dataset: Dataset, suited: Mapping[str, Value]) -> RunSpec:
        name = self.named_method()
        kind = METHODS[name]
        memory = self.memory[0] if kind.uses_memory else 0
        known, tasks = parse(self.scenario)
        record = dataset.own or record_of(known)
        stream = self._stream(dataset, tasks)
        classes = len(Scenario.of(stream, tasks, dataset.class_names, self.seeds[0]).order)
        head, published = self._head(name), self.preset == "published"
        usual = record.protocol_for(dataset.shape)
        backbone = self.backbone or (
            presets.PUBLISHED_BACKBONES.get(usual.backbone, usual.backbone) if published else usual.backbone
        )
        augmentation = self.augmentation or self.preset
        if kind.uses_memory and memory < classes:
            raise MdcgError(
                f"a memory of {memory} cannot hold one image of each of the {classes} classes; "
                f"give --memory {classes} or more.",
                about="memory",
            )
        if augmentation == "published" and self.augmentation and not record.published:
            others = " and ".join(other.name for other in DATASETS.values() if other.published)
            raise MdcgError(
                f"the published augmentation departs from the paper's on {others} only; leave "
                f"--augmentation out for {self.scenario}.",
                about="augmentation",
            )
        preset = presets.defaults(self.preset, kind, self.scenario, memory, usual.epochs, suited)
        hyperparameters, settings = resolve_settings(name, head, self.set, preset.settings)
        kind(**hyperparameters).check_stream(name, stream)
        if stream.online and HEADS[head].fitted_layer:
            raise MdcgError(
                f"the head '{head}' is fitted as each task ends, and an online stream does not tell when that is; take "
                "another one with --head.",
                about="head",
            )
        batch_size = self.batch_size or usual.batch_size
        if stream.online and self.epochs not in (None, 1):
            raise MdcgError("in an online stream each image comes once; leave --epochs out.", about="epochs")
        if hyperparameters.get("look_ahead") and (self.schedule != "constant" or self.warmup):
            raise MdcgError(
                f"schedule and warm-up go by tasks, of which {name} with look_ahead is not told; leave them out.",
                about="schedule",
            )
        usual_words = presets.usual_augment((record.published if augmentation == "published" else None) or dataset)
        words = usual_words
        if self.augment is None and not stream.online:
            words = presets.with_own(usual_words, kind)
        elif self.augment not in (None, USUAL):
            words = parse_augment(self.augment)
        sgd = self.optimizer == "sgd"
        lr = self.lr or (usual.lr if sgd else ADAMW_LR)
        return RunSpec.of(
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
            epochs=1 if stream.online else self.epochs or preset.epochs,
            batch_size=batch_size,
            lr=lr,
            momentum=self.momentum if sgd and self.momentum is not None else usual.momentum,
            precision=self.precision,
            hold_out=self.hold_out,
            evaluate_every=self.evaluate_every,
            augmentation=augmentation if record.published else "paper",
            passes=self.passes or preset.passes if kind.replays() else "joint",
            code=fingerprint(name, head, backbone, dataset.shape[0]),
            backbone_lr=None if self.backbone_lr == lr else self.backbone_lr,
            weights=WeightsFile.of(self.weights).digest if self.weights else None,
            normalise=self.normalise,
            stream=stream,
            optimizer=self.optimizer,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            warmup=self.warmup,
            clip=self.clip,
            label_smoothing=self.label_smoothing,
            head_lr=None if self.head_lr == lr else self.head_lr,
            seed=self.seeds[0],
            **presets.augment_settings(
                words, usual_words, self.jitter_strength, self.randaugment_n, self.randaugment_m, self.mix_alpha
            ),
        )

    def _stream(self, dataset: Dataset, tasks: int) -> Stream:
        try:
            return make_stream(
                dataset.class_names,
                tasks,
                tasks=self.tasks,
                order=self.order,
                sizes=self.sizes,
                first=self.first,
                returning=self.returning,
                blurry=self.blurry,
                online=self.online,
            )
        except MdcgError as error:
            raise MdcgError(str(error), about=error.about or "scenario") from error

    def _head(self, name: str) -> str:
        head = self.head or METHODS[name].head
        return presets.PUBLISHED_HEADS.get(head, head) if self.preset == "published" else head


def _scenario_keys(table: Mapping[str, Any], besides: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a recipe that a scenario written as a table stands for."""
    for key in table:
        if key not in TABLE:
            raise unknown("key of a scenario", str(key), TABLE, about="scenario")
        if key in besides:
            raise MdcgError(f"'{key}' is given in the scenario and beside it; keep one.", about=str(key))
    tasks = table.get("tasks")
    lists = tasks if isinstance(tasks, list | tuple) else table.get("sizes")
    count = len(lists) if isinstance(lists, list | tuple) else tasks
    if "dataset" not in table or not isinstance(count, int) or isinstance(count, bool):
        raise MdcgError(
            "a scenario needs a dataset and its tasks, for instance {dataset: digits, tasks: 5} or {dataset: digits, "
            "sizes: [6, 2, 2]}.",
            about="scenario",
        )
    own = {
        key: value
        for key, value in table.items()
        if value is not None and key != "dataset" and (key != "tasks" or value is lists)
    }
    return {**own, "scenario": f"{table['dataset']}-{count}"}


def _as_name(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def methods_own(name: str) -> dict[str, Any]:
    """What a method sets of its training, see `checked_recipe`."""
    try:
        return checked_recipe(METHODS[name])
    except MdcgError as error:
        raise MdcgError(f"the recipe of method {name} is wrong: {error}", about="method") from error


def suited(name: str, memory: int, classes: int, images: int) -> dict[str, Value]:
    """What suits a memory by the method's rule (`Method.suited`), if all of it can be set."""
    kind = METHODS[name]
    found = kind.suited(memory, classes, max(1, images))
    training = {key: value for key, value in found.items() if key not in kind.model_fields}
    try:
        if not training.keys() <= set(TRAINING) - {"augment"}:
            raise MdcgError(f"beside its fields it may name {', '.join(key for key in TRAINING if key != 'augment')}.")
        make_recipe(scenario="digits-5", **training)
    except MdcgError as error:
        raise MdcgError(f"what suits method {name} is wrong: {error}", about="method") from error
    return found


def checked_recipe(kind: type[Method]) -> dict[str, Any]:
    """What a method sets of its training (`Method.recipe`), if all of it can be set."""
    if not isinstance(kind.recipe, Mapping) or not kind.recipe.keys() <= set(TRAINING):
        raise MdcgError(f"it may name {', '.join(TRAINING)}.")
    own = make_recipe(scenario="digits-5", **kind.recipe)
    if "augment" in kind.recipe:
        if own.augment in (None, NONE, USUAL):
            raise MdcgError("augment names what is added to crop and flip.")
        if {"mixup", "cutmix"} & set(parse_augment(own.augment)) and kind.gradient_per_task:
            raise MdcgError("images cannot be mixed where each task has a loss of its own.")
    return {key: getattr(own, key) for key in kind.recipe}


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
