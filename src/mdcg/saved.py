"""A trained classifier as a file holds it: enough to classify images, and to learn more classes without any dataset.

The file is safetensors with a JSON header. Every tensor of the model has a leading axis of one member.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.errors import MachineError, MdcgError
from mdcg.files import open_file, shown, write_atomic
from mdcg.header import Label, Newer, Setup, Version, parsed, upgraded, values
from mdcg.memory import Exemplars
from mdcg.methods import METHODS
from mdcg.models import Model, model_of
from mdcg.outputs import Kind
from mdcg.tensors import Damaged, below, content_of, mapped, pack, unpack
from mdcg.train.augment import Pixels
from mdcg.train.device_errors import OutOfMemory, device_errors_explained
from mdcg.train.group import Group
from mdcg.train.optimizer import fits, is_kind
from mdcg.train.precision import compute
from mdcg.train.state import State

PIXELS_AT_ONCE = 2**22  # of the images that are classified together: enough to keep a CPU busy
PIECE = 2**20  # bytes that are read back at once
LONGEST = 1000  # letters of what another part of ours says of a file
REPLACE = "restore it from a copy, or learn it anew with 'mdcg learn'"
Probabilities = npt.NDArray[np.float64]


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
class SavedModel:
    """A classifier with all that it needs: to classify images, and unless `kept` is None to learn the next task."""

    setup: Setup
    classes: tuple[Label, ...]  # in order of arrival
    model: Model
    kept: Kept | None = None
    held_out: Exemplars | None = None  # images that are never trained on
    versions: tuple[Version, ...] = ()  # call by call
    params: dict[str, Any] = field(default_factory=dict)  # of the `Learner`, as they were given
    file: str = field(default="", compare=False)  # that it was read from, for sentences

    @property
    def sizes(self) -> list[int]:
        """Classes of each task."""
        return self.model.head.sizes

    @classmethod
    def of(cls, group: Group, state: State, k: int, pixels: bool = True) -> SavedModel:
        """Member k of a trained group, on the CPU; without `pixels` it can learn nothing more."""
        setup = setup_of(group, k, state.model.head.total)
        weights = {name: value[k : k + 1].cpu() for name, value in state.model.state_dict().items()}
        model = model_with(weights, setup, state.model.head.sizes)
        order = group.views[k].scenario.order[: state.model.head.classes]
        kept = _kept(group, state, k) if pixels and group.members[k].method.trains_on != "seen" else None
        return cls(setup, tuple(group.dataset.class_names[label] for label in order), model, kept)

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
            who = f"the answers of {self.file}" if self.file else "the model's answers"
            raise NotFinite(f"{who} are no numbers: it has learned nothing, or is damaged; begin anew.")
        return answers

    def save(self, path: Path) -> None:
        """Write one safetensors file, whole or not at all, and in place of none that could not be read again."""
        content = self.content()
        write_atomic(path, content, lambda partial: _read_back(partial, content, path))

    def content(self) -> bytes:
        """The bytes of its file; the same classifier always gives the same ones."""
        header = values(self.setup, self.classes, self.sizes, self.versions, self.params, self.kept is not None)
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
        name = shown(path)
        try:
            with open_file(path) as file:
                tensors, header = unpack(content_of(file))
            return replace(_parsed(tensors, {**header, "backbone": backbone} if backbone else header), file=name)
        except OSError as error:
            raise MdcgError(f"cannot read {name}: {error.strerror}; check the path.") from error
        except Newer as error:
            raise MdcgError(f"{name} was written by a newer version of mdcg ({error}); update mdcg.") from error
        except MdcgError as error:  # a backbone or head that is not known here, or has no room
            raise MdcgError(f"cannot use {name}: {shown(str(error), LONGEST)}") from error
        except Exception as error:  # a header with anything in it
            if isinstance(error, MemoryError) or "allocate memory" in str(error):  # PyTorch's words for it
                raise MachineError(f"there is not enough memory to read {name}; close other programs.") from error
            reason = shown(_reason(error))
            if backbone:
                known = f"the backbone '{shown(backbone)}' ({reason})"
                why = f"cannot be read with {known}; give the one that it was made with."
            else:
                why = f"is not a model saved by mdcg, or is damaged ({reason}); {REPLACE}."
            raise MdcgError(f"{name} {why}") from error


def setup_of(group: Group, k: int, outputs: int) -> Setup:
    """How member k of a group is built and trained, with a head that has so many outputs from the start."""
    member, training, dataset = group.members[k], group.training, group.dataset
    return Setup(
        backbone=training.backbone,
        head=training.head,
        head_settings=dict(member.head_settings),
        outputs=outputs,
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


def model_with(weights: Mapping[str, Tensor], setup: Setup, sizes: Sequence[int]) -> Model:
    """The network that has these weights, after tasks of so many classes; `Damaged` if they are of another one."""
    settings = setup.head_settings
    return model_of(
        weights, setup.backbone, setup.head, setup.shape, setup.seed, settings, classes=setup.outputs, sizes=sizes
    )


def model_file(classes: Collection[Label] | None = None) -> Kind:
    """The kind of these files. One with other classes than these would be lost: its memory may be all that is left of
    their images."""

    def lost(file: BinaryIO) -> str:
        _, header = unpack(content_of(file))
        known = upgraded(header)["classes"] if header["version"] == 1 else header["classes"]
        gone = [label for label in known if classes is not None and label not in classes]
        if not gone:
            return ""
        return (
            f"is a model of {len(known)} classes, and the new one would not know '{shown(str(gone[0]))}'; let that one "
            "learn more (--from, Learner.load), name another file"
        )

    return Kind("a model saved by mdcg", lost)


@contextlib.contextmanager
def _shortage_explained() -> Iterator[None]:
    try:
        with device_errors_explained():
            yield
    except OutOfMemory as error:
        raise MachineError("the memory is too small to classify these images; try another device.") from error


class NotFinite(MdcgError):
    """A model whose answers are no numbers."""


def _parsed(tensors: dict[str, Tensor], header: Mapping[str, Any]) -> SavedModel:
    head, setup = parsed(header)
    classes, sizes = tuple(head.classes), head.sizes
    model = model_with(below("model.", tensors), setup, sizes)
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


def _read_back(partial: Path, content: bytes, path: Path) -> None:
    """Refuse a file that was just written, and would take the place of another, if it cannot be read as it should.

    Its tensors stay on the disk meanwhile: those of a large model are not in memory once more.
    """
    try:
        whole = memoryview(content)
        with partial.open("rb") as file:
            places = range(0, len(whole), PIECE)
            if not all(file.read(PIECE) == whole[start : start + PIECE] for start in places) or file.read(1):
                raise Damaged("the disk gives back something else")
        with mapped(partial) as (tensors, header):
            _parsed(tensors, header)
    except Exception as error:  # whatever a user's network may raise, too
        if isinstance(error, OSError | MachineError):
            raise
        raise MdcgError(
            f"the model could not be read again once it is at {shown(path)} ({shown(_reason(error))}), so that nothing "
            "was written there; check the disk and the backbone, then give the same command again."
        ) from error


def _reason(error: Exception) -> str:
    """Why a file cannot be used, in words that name none of our internals."""
    return str(error) if isinstance(error, Damaged | MdcgError) else "its parts do not fit together"


def _exemplars(tensors: Mapping[str, Tensor], name: str) -> Exemplars | None:
    own = below(f"{name}.", tensors)
    return Exemplars(own["images"], own["positions"]) if "images" in own else None


def _check(held: Exemplars | None, setup: Setup, classes: int) -> None:
    """Refuse images that are not this classifier's, before they are trained on."""
    if held is None:
        return
    channels, height, width = setup.shape
    if held.images.dtype != setup.dtype or held.images.shape[1:] != (height, width, channels):
        raise Damaged("its images do not fit its network")
    if setup.is_features and not held.images.isfinite().all():
        raise Damaged("its features are no numbers")
    positions = held.positions
    if (positions.dtype, positions.shape) != (torch.int64, held.images.shape[:1]) or (
        len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < classes
    ):
        raise Damaged("its images do not fit its classes")


def _check_kept(kept: Kept, model: Model) -> None:
    """Refuse what an optimiser remembers, and logits, that are not this classifier's."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for name, value in kept.optimizer.items():
        kind, _, parameter = name.partition(".")
        if parameter not in shapes or not fits(kind, value, shapes[parameter]):
            raise Damaged("what its optimiser remembers does not fit its network")
    count = len(kept.memory.positions)
    if (kept.logits is None) != (kept.has_logits is None):
        raise Damaged("its logits do not fit its memory")
    if kept.logits is not None and kept.has_logits is not None:
        known = kept.has_logits
        if (
            not kept.logits.is_floating_point()
            or kept.logits.shape[:-1] != (count,)
            or (known.dtype, known.shape) != (torch.bool, (count,))
        ):
            raise Damaged("its logits do not fit its memory")


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
