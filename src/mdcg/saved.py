"""A trained classifier as a file holds it: enough to classify images, and to learn more classes without any dataset.

The file is safetensors with a JSON header. Every tensor of the model has a leading axis of one member.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator, BaseModel, TypeAdapter, model_validator
from torch import Tensor

from mdcg.errors import MachineError, MdcgError
from mdcg.files import open_file, shown, write_atomic
from mdcg.memory import Exemplars
from mdcg.methods import METHODS
from mdcg.methods.base import Passes, Value
from mdcg.models import HEADS, Model, build_model
from mdcg.models.features import FEATURES
from mdcg.stored import Count, Counted, NotNegative, Number, Seed, Share, Whole, plain
from mdcg.tensors import below, check_kinds, content_of, pack, unpack
from mdcg.train.augment import Pixels
from mdcg.train.device_errors import OutOfMemory, device_errors_explained
from mdcg.train.group import Augmentation, Group, Numbers, OptimizerName, ScheduleName, Training
from mdcg.train.optimizer import fits, is_kind
from mdcg.train.precision import compute
from mdcg.train.state import State

VERSION = 3
MOST_PIXELS = 2**26  # and channels, of one image
PIXELS_AT_ONCE = 2**22  # of the images that are classified together: enough to keep a CPU busy
Probabilities = npt.NDArray[np.float64]
Label = str | int | float | bool  # of a class, as it was given


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

    def empty_model(self, sizes: Sequence[int]) -> Model:
        """A single member with a head of tasks of these sizes, to be filled with saved weights."""
        settings = {name: [value] for name, value in self.head_settings.items()}
        # Not to be trained as it is: so it may hold what only training forbids.
        model = build_model(
            self.backbone, self.head, self.shape, [self.seed], settings, classes=self.outputs, trained=False
        )
        for size in sizes:
            model.grow(size)
        return model


@dataclass(frozen=True)
class Kept:
    """What a classifier keeps of the past to learn the next task: images, logits, what the optimiser remembers."""

    optimizer: dict[str, Tensor]  # as `Optimizer.dump` gives it
    memory: Exemplars
    second: Exemplars | None = None  # of a method with two memories
    seen: Exemplars | None = None  # all images so far, of a method that trains on all of them
    logits: Tensor | None = None  # (n, outputs) stored with the memory's images,
    has_logits: Tensor | None = None  # (n,) of those for which they are known yet


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

    classes: Annotated[list[Label], AfterValidator(plain)]
    sizes: list[Counted]
    versions: list[Version]
    params: Annotated[dict[str, Any], AfterValidator(lambda given: plain(given, finite=False))]
    learns: bool

    @model_validator(mode="after")
    def _fits_together(self) -> Header:
        if len(self.classes) != sum(self.sizes):
            raise ValueError("its class names do not fit its outputs")
        known = len(self.classes)
        for version in reversed(self.versions):
            counted = {len(version.images), len(version.held_out), len(version.after)}
            known -= len(version.classes)
            if counted != {known + len(version.classes)} or len(version.before) not in (0, known) or known < 0:
                raise ValueError("what it has learned does not fit its classes")
        return self


_SETUP = TypeAdapter(Setup)


@dataclass(frozen=True)
class SavedModel:
    """A classifier with all that it needs: to classify images, and unless `kept` is None to learn the next task."""

    setup: Setup
    classes: tuple[Label, ...]  # in order of arrival
    model: Model
    kept: Kept | None = None
    held_out: Exemplars | None = None  # images that are never trained on
    versions: tuple[Version, ...] = ()  # call by call
    params: dict[str, Any] = field(default_factory=dict)  # of the `Learner`, as they were given

    @property
    def sizes(self) -> list[int]:
        """Classes of each task."""
        return self.model.head.sizes

    @classmethod
    def of(cls, group: Group, state: State, k: int, pixels: bool = True) -> SavedModel:
        """Member k of a trained group, on the CPU; without `pixels` it can learn nothing more."""
        member, training, dataset = group.members[k], group.training, group.dataset
        setup = Setup(
            backbone=training.backbone,
            head=training.head,
            head_settings=dict(member.head_settings),
            outputs=state.model.head.total,
            shape=dataset.shape,
            mean=dataset.mean,
            std=dataset.std,
            seed=member.seed,
            method=next((name for name in METHODS.names() if METHODS[name] is type(member.method)), ""),
            hyperparameters=member.method.model_dump(),
            memory=member.memory,
            tasks=training.tasks,
            batch_size=training.batch_size,
            passes=training.passes,
            padding=dataset.padding,
            flip=dataset.flip,
            optimizer=training.optimizer,
            schedule=training.schedule,
            augment=training.augment,
            randaugment_n=training.randaugment_n,
            **asdict(member.numbers),
        )
        model = setup.empty_model(state.model.head.sizes)
        weights = {name: value[k : k + 1].cpu() for name, value in state.model.state_dict().items()}
        model.to(next(iter(state.model.parameters())).dtype).load_state_dict(weights)
        order = group.views[k].scenario.order[: state.model.head.classes]
        kept = _kept(group, state, k) if pixels and member.method.trains_on != "seen" else None
        return cls(setup, tuple(dataset.class_names[label] for label in order), model, kept)

    @torch.no_grad()
    def probabilities(self, images: Tensor, device: str = "cpu") -> Probabilities:
        """What it answers to uint8 images (n, height, width, channels): (n, classes)."""
        where = compute(device, "fp32")
        model = self.model.to(where.device).eval()
        pixels = Pixels.of(self.setup, where.device, next(model.parameters()).dtype)
        channels, height, width = self.setup.shape
        each = channels if self.setup.is_features else height * width
        parts = [np.empty((0, len(self.classes)))]
        with _shortage_explained(), where.settings():
            size = max(1, PIXELS_AT_ONCE // each)
            for start in range(0, len(images), size):
                chunk = images[start : start + size].to(where.device)
                logits = model(pixels.normalise(chunk)[None])[0, :, : len(self.classes)]
                parts.append(logits.double().softmax(-1).cpu().numpy())
        answers = np.concatenate(parts)
        if not np.isfinite(answers).all():
            raise NotFinite("the model's answers are no numbers: it has learned nothing, or is damaged; begin anew.")
        return answers

    def save(self, path: Path) -> None:
        """Write one safetensors file, whole or not at all."""
        write_atomic(path, self.content())

    def content(self) -> bytes:
        """The bytes of its file; the same classifier always gives the same ones."""
        header = {
            "version": VERSION,
            **asdict(self.setup),
            "classes": self.classes,
            "sizes": self.sizes,
            "versions": [asdict(version) for version in self.versions],
            "params": self.params,
            "learns": self.kept is not None,
        }
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        exemplars = {"held_out": self.held_out}
        if self.kept is not None:
            exemplars |= {name: getattr(self.kept, name) for name in ("memory", "second", "seen")}
            tensors |= self.kept.optimizer
            if self.kept.logits is not None and self.kept.has_logits is not None:
                tensors |= {"logits": self.kept.logits, "has_logits": self.kept.has_logits}
        for name, images in exemplars.items():
            if images is not None:
                tensors |= {f"{name}.images": images.images, f"{name}.positions": images.positions}
        return pack(tensors, header)

    @classmethod
    def load(cls, path: Path, backbone: str | None = None) -> SavedModel:
        """Read what `save` wrote, in this format or an older one; a `backbone` takes the place of the one it names."""
        try:
            with open_file(path) as file:
                tensors, header = unpack(content_of(file))
            return _parsed(tensors, {**header, "backbone": backbone} if backbone else header)
        except OSError as error:
            raise MdcgError(f"cannot read {shown(path)}: {error.strerror}; check the path.") from error
        except MemoryError as error:
            raise MachineError(f"there is not enough memory to read {shown(path)}; close other programs.") from error
        except _Newer as error:
            raise MdcgError(f"{shown(path)} was written by a newer version of mdcg ({error}); update mdcg.") from error
        except MdcgError:
            raise  # an unknown backbone or head says so itself
        except Exception as error:  # a header with anything in it
            reason = shown((str(error) or type(error).__name__).splitlines()[0].rstrip(":."))
            why = f"is not a model saved by mdcg, or is damaged ({reason})"
            if backbone:
                why = f"cannot be read with the backbone '{backbone}' ({reason}); give the one that it was made with"
            raise MdcgError(f"{shown(path)} {why}.") from error


def refuse_to_lose(path: Path, classes: Collection[Label]) -> None:
    """Refuse to replace a file that is no model, or one with other classes than these: its memory may be all that is
    left of their images."""
    if not path.is_file():
        return
    try:
        with open_file(path) as file:
            _, header = unpack(content_of(file))
        known = _upgraded(header)["classes"] if header["version"] == 1 else header["classes"]
        lost = [label for label in known if label not in classes]
    except (OSError, MemoryError):
        return  # whoever writes there says more of it
    except Exception as error:  # a header with anything in it
        why = "is there already, and is not a model saved by mdcg, or is damaged; remove it, or name another file."
        raise MdcgError(f"{shown(path)} {why}") from error
    if lost:
        raise MdcgError(
            f"{shown(path)} is a model of {len(known)} classes, and the new one would not know '{lost[0]}'; let that "
            "one learn more (--from, Learner.load), or name another file."
        )


@contextlib.contextmanager
def _shortage_explained() -> Iterator[None]:
    try:
        with device_errors_explained():
            yield
    except OutOfMemory as error:
        raise MachineError("the memory is too small to classify these images; try another device.") from error


class NotFinite(MdcgError):
    """A model whose answers are no numbers."""


class _Newer(Exception):
    """A format that only a newer version can read."""


def _parsed(tensors: dict[str, Tensor], header: dict[str, Any]) -> SavedModel:
    version = header.pop("version")
    if version == 1:
        header = _upgraded(header)
    elif isinstance(version, int) and version > VERSION:
        raise _Newer(f"format {version}; this one reads up to {VERSION}")
    elif version not in (2, VERSION):  # the third has more of `Setup`, with defaults that say what was done before
        raise ValueError(f"there is no format {version}")
    head = Header(**{name: header.pop(name) for name in Header.model_fields})
    classes, sizes = tuple(head.classes), head.sizes
    setup = _SETUP.validate_python(asdict(Setup(**header)))  # which refuses names that it does not know
    weights = below("model.", tensors)
    _check_setup(setup, weights)
    model = setup.empty_model(sizes)
    check_kinds(weights, model.state_dict())
    model.to(weights["head.classifier.weight"].dtype).load_state_dict(weights)
    kept = None
    if head.learns:
        kept = Kept(
            optimizer={name: value for name, value in tensors.items() if is_kind(name.split(".")[0])},
            memory=_exemplars(tensors, "memory") or no_exemplars(setup),
            second=_exemplars(tensors, "second"),
            seen=_exemplars(tensors, "seen"),
            logits=tensors.get("logits"),
            has_logits=tensors.get("has_logits"),
        )
        _check_kept(kept, model)
    held_out = _exemplars(tensors, "held_out")
    for images in (held_out, *((kept.memory, kept.second, kept.seen) if kept else ())):
        _check(images, setup, len(classes))
    return SavedModel(setup, classes, model, kept, held_out, tuple(head.versions), head.params)


def _upgraded(header: Mapping[str, Any]) -> dict[str, Any]:
    """Format 1 had the names of all classes of a dataset, and nothing that is needed to learn more."""
    names = header["class_names"]
    left_out = {"class_names", "order", "total"}
    return {
        **{key: value for key, value in header.items() if key not in left_out},
        "outputs": header.get("total", 0),
        "classes": [names[label] for label in header["order"]],
        "versions": [],
        "params": {},
        "learns": False,
    }


def _check_setup(setup: Setup, weights: Mapping[str, Tensor]) -> None:
    """Refuse what cannot be, before a network is made that may be larger than the memory."""
    if math.prod(setup.shape) > MOST_PIXELS:
        raise ValueError(f"its images have shape {setup.shape}")
    if setup.is_features and setup.shape[1:] != (1, 1):
        raise ValueError(f"its features have shape {setup.shape}")
    if not len(setup.mean) == len(setup.std) == setup.shape[0] or min(setup.std) <= 0:
        raise ValueError("mean and std do not fit its images")
    kind = HEADS[setup.head]
    if not kind.grows and setup.outputs > weights["head.classifier.weight"].numel():
        raise ValueError("its weights do not fit its outputs")


def _exemplars(tensors: Mapping[str, Tensor], name: str) -> Exemplars | None:
    own = below(f"{name}.", tensors)
    return Exemplars(own["images"], own["positions"]) if "images" in own else None


def _check(held: Exemplars | None, setup: Setup, classes: int) -> None:
    """Refuse images that are not this classifier's, before they are trained on."""
    if held is None:
        return
    channels, height, width = setup.shape
    if held.images.dtype != setup.dtype or held.images.shape[1:] != (height, width, channels):
        raise ValueError("its images do not fit its network")
    if setup.is_features and not held.images.isfinite().all():
        raise ValueError("its features are no numbers")
    positions = held.positions
    if (positions.dtype, positions.shape) != (torch.int64, held.images.shape[:1]) or (
        len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < classes
    ):
        raise ValueError("its images do not fit its classes")


def _check_kept(kept: Kept, model: Model) -> None:
    """Refuse what an optimiser remembers, and logits, that are not this classifier's."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for name, value in kept.optimizer.items():
        kind, _, parameter = name.partition(".")
        if parameter not in shapes or not fits(kind, value, shapes[parameter]):
            raise ValueError("what its optimiser remembers does not fit its network")
    count = len(kept.memory.positions)
    if (kept.logits is None) != (kept.has_logits is None):
        raise ValueError("its logits do not fit its memory")
    if kept.logits is not None and kept.has_logits is not None:
        known = kept.has_logits
        if (
            not kept.logits.is_floating_point()
            or kept.logits.shape[:-1] != (count,)
            or (known.dtype, known.shape) != (torch.bool, (count,))
        ):
            raise ValueError("its logits do not fit its memory")


def no_exemplars(setup: Setup) -> Exemplars:
    """No images at all, of those that a classifier takes."""
    channels, height, width = setup.shape
    return Exemplars(torch.empty(0, height, width, channels, dtype=setup.dtype), torch.empty(0, dtype=torch.int64))


def _kept(group: Group, state: State, k: int) -> Kept:
    memory, images = state.memories[k], group.dataset.train.images
    logits = has_logits = None
    if state.stored_logits is not None:
        index = memory.indices()
        has_logits = torch.from_numpy(np.isin(index, state.stored_logits.index[k].numpy()))
        logits = state.stored_logits.of_member(k, index).cpu()
        logits[~has_logits] = 0
    return Kept(
        optimizer={name: value[k : k + 1].cpu().clone() for name, value in state.optimizer.dump().items()},
        memory=memory.copy(images),
        second=None if memory.second is None else memory.second.copy(images),
        logits=logits,
        has_logits=has_logits,
    )
