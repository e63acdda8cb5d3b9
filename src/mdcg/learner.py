"""A trained classifier to hold in the hand: predict, score, save, load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.data.decode import decode
from mdcg.draws import Ints
from mdcg.errors import MdcgError
from mdcg.files import write_atomic
from mdcg.memory import Exemplars
from mdcg.models import Model, build_model
from mdcg.tensors import below, pack, unpack
from mdcg.train.augment import Pixels
from mdcg.train.group import Group
from mdcg.train.state import State

VERSION = 1
BATCH = 512


@dataclass
class Learner:
    """One trained member, with all it needs to classify images.

    >>> import mdcg
    >>> learner = mdcg.run(scenario="digits-2", method="naive", epochs=1).learner  # doctest: +SKIP
    >>> learner.predict(images)  # doctest: +SKIP
    array([3, 1, 4])
    """

    model: Model
    backbone: str
    head: str
    head_settings: dict[str, float]
    shape: tuple[int, int, int]  # (channels, height, width)
    order: tuple[int, ...]  # dataset label of each output, in order of arrival
    class_names: tuple[str, ...]  # by dataset label
    mean: tuple[float, ...]
    std: tuple[float, ...]
    memory: Exemplars | None = field(default=None, repr=False)

    @classmethod
    def of(cls, group: Group, state: State, k: int) -> Learner:
        """Member k of a trained group, on the CPU."""
        member, dataset = group.members[k], group.dataset
        order = group.views[k].scenario.order[: state.model.head.classes]
        learner = cls(
            model=_empty_model(
                group.training.backbone,
                group.training.head,
                dict(member.head_settings),
                dataset.shape,
                member.seed,
                state.model.head.sizes,
                state.model.head.total,
            ),
            backbone=group.training.backbone,
            head=group.training.head,
            head_settings=dict(member.head_settings),
            shape=dataset.shape,
            order=order,
            class_names=dataset.class_names,
            mean=dataset.mean,
            std=dataset.std,
        )
        slices = {name: value[k : k + 1].cpu() for name, value in state.model.state_dict().items()}
        learner.model.to(next(iter(state.model.parameters())).dtype).load_state_dict(slices)
        return learner

    @property
    def classes(self) -> list[str]:
        """Names of the classes it knows, in order of arrival."""
        return [self.class_names[label] for label in self.order]

    def predict_proba(self, images: npt.ArrayLike | Tensor) -> npt.NDArray[np.float64]:
        """Probabilities (n, classes known), columns in the order of `classes`."""
        x = self._checked(images)
        if not len(x):
            return np.empty((0, len(self.order)))
        parameter = next(self.model.parameters())
        pixels = Pixels.of(self, parameter.device, parameter.dtype)
        self.model.eval()
        parts = []
        with torch.no_grad():
            for chunk in x.split(BATCH):
                logits = self.model(pixels.normalise(chunk.to(parameter.device))[None])[0, :, : len(self.order)]
                parts.append(logits.double().softmax(-1).cpu())
        return torch.cat(parts).numpy()

    def read(self, paths: Sequence[Path | str]) -> Tensor:
        """Image files of any size and kind as this learner's input: (n, H, W, C) uint8."""
        channels, height, _ = self.shape
        pixels = [decode(_content(Path(path)), str(path), height) for path in paths]
        images = torch.from_numpy(np.stack(pixels)) if pixels else torch.empty(0, *self.shape[1:], 3, dtype=torch.uint8)
        return images if channels == 3 else images.float().mean(-1, keepdim=True).to(torch.uint8)

    def predict(self, images: npt.ArrayLike | Tensor) -> Ints:
        """Dataset labels of images (n, H, W, C), uint8 from 0 to 255; `class_names[label]` is a label's name."""
        labels: Ints = np.asarray(self.order, np.int64)[self.predict_proba(images).argmax(1)]
        return labels

    def score(self, images: npt.ArrayLike | Tensor, labels: npt.ArrayLike) -> float:
        """Accuracy between 0 and 1, as in scikit-learn."""
        return float((self.predict(images) == np.asarray(labels)).mean())

    def save(self, path: Path | str) -> None:
        """Write one safetensors file, the memory's images included: it needs no dataset any more."""
        header = {
            "version": VERSION,
            "backbone": self.backbone,
            "head": self.head,
            "head_settings": self.head_settings,
            "shape": self.shape,
            "order": self.order,
            "class_names": self.class_names,
            "mean": self.mean,
            "std": self.std,
            "sizes": self.model.head.sizes,
            "seed": self.model.seeds[0],
            "total": self.model.head.total,
        }
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.memory is not None:
            tensors |= {"memory.images": self.memory.images, "memory.positions": self.memory.positions}
        write_atomic(Path(path), pack(tensors, header))

    @classmethod
    def load(cls, path: Path | str) -> Learner:
        """Read what `save` wrote; also a run's model.safetensors."""
        path = Path(path)
        try:
            tensors, header = unpack(path.read_bytes())
            if header.pop("version") != VERSION:
                raise ValueError(f"its format version is not {VERSION}")
            sizes, seed, total = header.pop("sizes"), header.pop("seed"), header.pop("total", 0)
            for name in ("shape", "order", "class_names", "mean", "std"):
                header[name] = tuple(header[name])
            weights = below("model.", tensors)
            model = _empty_model(
                header["backbone"], header["head"], header["head_settings"], header["shape"], seed, sizes, total
            )
            model.to(weights["head.classifier.weight"].dtype).load_state_dict(weights)
            memory = None
            if "memory.images" in tensors:
                memory = Exemplars(tensors["memory.images"], tensors["memory.positions"])
            learner = cls(model=model, memory=memory, **header)
            if len(learner.classes) != model.head.classes:
                raise ValueError("its class names do not fit its outputs")
        except OSError as error:
            raise MdcgError(f"cannot read {path}: {error.strerror}; check the path.") from error
        except MdcgError:
            raise  # an unknown backbone or head says so itself
        except Exception as error:  # a header with anything in it
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise MdcgError(f"{path} is not a model saved by mdcg, or is damaged ({reason}).") from error
        return learner

    def _checked(self, images: npt.ArrayLike | Tensor) -> Tensor:
        given = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
        channels, height, width = self.shape
        x = given[..., None] if channels == 1 and given.shape[1:] == (height, width) else given
        if x.dtype != torch.uint8 or x.shape[1:] != (height, width, channels):
            kind = str(given.dtype).removeprefix("torch.")
            raise MdcgError(
                f"images must be uint8 of shape (n, {height}, {width}, {channels}), not {kind} of shape "
                f"{tuple(given.shape)}; for image files use read(paths)."
            )
        return x


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror}; check the path.") from error


def _empty_model(
    backbone: str,
    head: str,
    settings: dict[str, float],
    shape: tuple[int, int, int],
    seed: int,
    sizes: Sequence[int],
    total: int,
) -> Model:
    """A single member with a head of the right size, to be filled with saved weights."""
    chosen = {name: [value] for name, value in settings.items()}
    model = build_model(backbone, head, shape, [seed], chosen, classes=total, trained=False)
    for size in sizes:
        model.grow(size)
    return model
