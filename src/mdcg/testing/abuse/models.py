"""Classifiers of whatever a `Learner` may be given: refused before they are trained, or kept in a file that gives back
the same.

Labels of every kind, settings of every method and head, and numbers at and beyond every bound are drawn. Few of them
are changed at once, so that many classifiers come about; they learn from a handful of tiny images.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from mdcg.errors import MdcgError
from mdcg.learner import Learner
from mdcg.learner.setup import OF_THIS_CALL
from mdcg.learner.tables import described
from mdcg.learner.training import NothingLearned
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.tensors import unpack
from mdcg.testing.abuse.campaign import Failure, Part
from mdcg.train.loop import Trainer

IMAGES = 8  # of a task
SECOND = 0.3  # of the trials go on with a second task
USUAL: Mapping[str, Any] = {"memory": 6, "epochs": 1, "batch_size": 4, "backbone": "smallconv", "hold_out": 0.0}
WHOLE: tuple[Any, ...] = (
    0, 1, 2, 3, 7, -1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**60, 2**63, 2**64, 10**16, 10**30, 10**400,
)  # fmt: skip
DECIMAL: tuple[Any, ...] = (
    0.0, 0.5, 1.0, -1.0, -0.0, 1e-320, 1e-30, 1 - 2**-53, 2.5, 1e6, 1e30, 1.1e30, 1e38, 1e39, 1e100, 1.1e100, 1e150,
    1e308, -1e308, math.inf, math.nan,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None,
    "",
    "zz",
    "\ud800",
    "1",
    True,
    [],
    {},
    [1],
    np.int64(3),
    np.float32(0.5),
    np.float64(1e200),
)
#: Of whole numbers, those that cost no time. A bound is drawn itself, and what lies beyond.
BOUNDS: Mapping[str, tuple[Any, ...]] = {
    "memory": (2, 3, 5, 500, 10_000_000, 10_000_001),
    "epochs": (1, 100_001),
    "batch_size": (2, 3, 64, 100_000, 100_001),
    "seed": (0, 1, 2**31 - 1, 2**31),
    "padding": (0, 1, 3, 1025),
    "image_size": (4, 8, 1024, 3, 1025),
    "held_out_images": (0, 1, 5, 2**53, 2**53 + 1, 10**16),
    "most_classes": (2, 3, 8, 100, 63_999, 64_001, 1_000_000, 1_000_001),
    "tasks": (1, 2, 10, 1000, 1_000_000, 1_000_001),
}
RATES = ("lr", "backbone_lr", "momentum", "hold_out", "warn_drop")
WORDS: Mapping[str, tuple[Any, ...]] = {
    "resize": ("crop", "fit", "squash"),
    "augment": ("usual", "jitter", "randaugment", "jitter+randaugment", "crop", "mixup"),
    "passes": ("joint", "separate"),
    "precision": ("auto", "fp32", "fp64", "bf16", "tf32"),
    "on_error": ("stop", "skip"),
    "flip": (True, False),
    "backbone": ("smallconv", "smallconv", "resnet20", "resnet99", "../smallconv"),
}
LABELS: tuple[tuple[Any, ...], ...] = (
    ("a", "b", "c"), ("é", "日本", "𝔘"), ("", " ", "x"), ("a" * 200, "b" * 255, "c" * 256), ("a\n", "b\x1b[31m", "c"),
    ("\ud800", "b", "c"), (0, 1, 2), (-1, 0, 1), (2**53 - 1, 2**53, 2**53 + 1), (2**62, 2**62 + 1, 2**62 + 2),
    (2**63 - 1, 2**63 - 2, -(2**63)), (2**64 - 1, 2**63, 2**63 + 1), (-1, 2**63, 5), (2**64, 1, 2), (10**30, 1, 2),
    (True, False, 2), (0.0, 1.0, 2.0), (1e16, 2e16, 3e16), (0.5, 1.5, 2.0), (1e200, 2e200, 3e200), (math.nan, 1.0, 2.0),
    (math.inf, 1.0, 2.0), (1, "b", 2), (1, 2.0, 3), (b"a", b"b", b"c"), (None, 1, 2), (1 + 2j, 2, 3),
    (np.int64(2**62), np.int64(1), np.int64(2)), (np.uint64(2**64 - 1), np.uint64(1), np.uint64(2)),
)  # fmt: skip
KINDS = (None, "int8", "uint8", "int32", ">i8", "uint64", "float32", "float64", "object", "U3", "S3", "tensor", "tuple")


@dataclass
class Draw:
    """What a classifier is given."""

    labels: tuple[Any, ...]
    kind: str | None  # of the array that labels come in
    params: dict[str, Any]
    more: dict[str, Any] | None = None  # parameters that the second task changes; None: there is none
    shape: tuple[int, ...] = (8, 8, 1)

    def __str__(self) -> str:
        second = "" if self.more is None else f", then {self.more!a}"
        return f"labels {self.labels!a} as {self.kind}, {self.params!a}, images {self.shape}{second}"[:600]

    def fewer(self) -> Iterator[Draw]:
        """Draws that lack one thing that was chosen, each another one."""
        if self.more is not None:
            yield Draw(self.labels, self.kind, self.params, None, self.shape)
        for name in self.params.keys() - USUAL.keys() - {"method"}:
            rest = {key: value for key, value in self.params.items() if key != name}
            yield Draw(self.labels, self.kind, rest, self.more, self.shape)
        if self.labels != LABELS[0]:
            yield Draw(LABELS[0], None, self.params, self.more, self.shape)


class Models(Part):
    """Classifiers of anything a Learner may be given: refused before training, or loaded as they were."""

    name, usual = "models", 7000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._images = np.random.default_rng(0).integers(0, 256, (2 * IMAGES, 8, 8, 3), dtype=np.uint8)
        self._weights = folder / "weights.safetensors"
        made = Learner("naive", **{**USUAL, "quiet": True, "device": "cpu"})
        made.learn(self._pixels((8, 8, 1), 0), ["a", "b"] * (IMAGES // 2)).save(self._weights)

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        drawn = _draw(rng, self._weights)
        wrong = self._wrong(drawn)
        if wrong is None:
            return None
        for fewer in drawn.fewer():
            if (still := self._wrong(fewer)) is not None:
                drawn, wrong = fewer, still
                break
        return Failure(str(drawn), wrong)

    def _pixels(self, shape: tuple[int, ...], first: int) -> npt.NDArray[np.uint8]:
        height, width, channels = shape
        return self._images[first : first + IMAGES, :height, :width, :channels]

    def _wrong(self, drawn: Draw) -> str | None:
        """What is wrong with what comes of it, if anything is."""
        file = self.folder / "model.safetensors"
        file.unlink(missing_ok=True)
        try:
            made = Learner(**{**drawn.params, "quiet": True, "device": "cpu"})
            wrong = self._learned(made, drawn, 0, file)
            if wrong is not None or not file.exists() or drawn.more is None:
                return wrong
            again = Learner.load(file).set_params(**{"quiet": True, "device": "cpu", **drawn.more})
            return self._learned(again, drawn, 1, file)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"

    def _learned(self, made: Learner, drawn: Draw, task: int, file: Path) -> str | None:
        """What is wrong once a task was learned, or refused."""
        before = file.read_bytes() if file.exists() else None
        names = drawn.labels[:2] if task == 0 else drawn.labels[2:]
        labels = _as_kind([names[place % len(names)] for place in range(IMAGES)], drawn.kind)
        with _watched() as begun:
            try:
                made.learn(self._pixels(drawn.shape, task * IMAGES), labels, save_to=file)
            except NothingLearned:  # numbers so large that no weights come of them
                return None if (file.read_bytes() if file.exists() else None) == before else "the file has changed"
            except MdcgError as error:
                if begun:
                    return f"refused after it was trained: {error}"
                if (file.read_bytes() if file.exists() else None) != before or len(list(self.folder.iterdir())) > 2:
                    return f"refused, and something was written: {error}"
                return None if _is_sentence(str(error)) else f"its sentence is {str(error)!r}"
        return self._differs(made, file)

    def _differs(self, made: Learner, file: Path) -> str | None:
        """How the classifier of a file differs from the one that was saved there, if it does."""
        content = file.read_bytes()
        loaded = Learner.load(file)
        if loaded.saved_.content() != content or made.saved_.content() != content:
            return "saved again, it has other bytes"
        known, found = made.saved_.classes, loaded.saved_.classes
        if [(type(one), one) for one in known] != [(type(one), one) for one in found]:
            return f"its classes are {found}, and were {known}"
        if loaded.classes_.tolist() != list(known):
            return f"it answers with {loaded.classes_}, not with {known}"
        pixels = made.saved_.held_out.images if made.saved_.held_out is not None else None
        if pixels is None or not len(pixels):
            pixels = torch.zeros(2, *(made.saved_.setup.shape[axis] for axis in (1, 2, 0)), dtype=torch.uint8)
        if not np.array_equal(made.saved_.probabilities(pixels), loaded.saved_.probabilities(pixels)):
            return "it gives other answers"
        told = described(loaded.saved_, file)
        if json.loads(json.dumps(told))["classes"] != list(known):
            return "its classes are others in JSON"
        params = unpack(content)[1]["params"]
        if params.keys() & OF_THIS_CALL - {"weights"} or str(self.folder) in json.dumps(params):
            return "its header has a path, or where it was computed"
        return None


@contextlib.contextmanager
def _watched() -> Iterator[list[Trainer]]:
    """A list of what trains meanwhile."""
    begun: list[Trainer] = []
    train = Trainer.train

    def noted(trainer: Trainer, *given: Any, **named: Any) -> None:
        begun.append(trainer)
        train(trainer, *given, **named)

    with mock.patch.object(Trainer, "train", noted):
        yield begun


def _is_sentence(text: str) -> bool:
    return text.isprintable() and text.endswith((".", "?")) and "validation error" not in text


def _draw(rng: random.Random, weights: Path) -> Draw:
    """Draw what a classifier is given: often all is usual, but for one to three things."""
    method = rng.choice(METHODS.names())
    params: dict[str, Any] = {**USUAL, "method": method}
    labels, kind = (LABELS[0], None) if rng.random() < 0.5 else (rng.choice(LABELS), rng.choice((None, *KINDS)))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        _change(params, rng, weights)
    more: dict[str, Any] | None = None
    if rng.random() < SECOND:
        more = {}
        if rng.random() < 0.4:
            _change(more, rng, weights)
            more.pop("method", None)
    return Draw(labels, kind, params, more, rng.choice(((8, 8, 1),) * 4 + ((8, 8, 3), (4, 6, 2), (8, 7, 1))))


def _change(params: dict[str, Any], rng: random.Random, weights: Path) -> None:
    """Change one parameter, or one setting of method or head."""
    kind = rng.random()
    if kind < 0.25:
        name = rng.choice(list(BOUNDS))
        params[name] = _number(rng, BOUNDS[name])
    elif kind < 0.4:
        name = rng.choice(RATES)
        params[name] = rng.choice(DECIMAL) if rng.random() < 0.8 else rng.choice(ODD)
    elif kind < 0.5:
        name = rng.choice(list(WORDS))
        params[name] = rng.choice(WORDS[name] if rng.random() < 0.9 else ODD)
    elif kind < 0.6:
        params["normalise"] = _statistics(rng)
    elif kind < 0.65:
        params["weights"] = rng.choice((weights, str(weights), "nowhere", "", "~nobody/x", weights.parent))
    elif kind < 0.75:
        params["head"] = rng.choice([*HEADS.names(), "zz"])
    else:
        params["set"] = _settings(params, rng)
    if params.get("head", METHODS[params.get("method", "der")].head) == "fixed" and "most_classes" in params:
        params["most_classes"] = rng.choice((1, 2, 3, 100, 1_000_001))  # each of its outputs has weights


def _settings(params: Mapping[str, Any], rng: random.Random) -> Any:
    """Settings of the method and its head."""
    kind = METHODS[params.get("method", "md-cg")]
    head = params.get("head") or kind.head
    names = [*kind.model_fields, *(HEADS[head].settings if head in HEADS.names() else {})]
    found: dict[str, Any] = {"zz": 1} if rng.random() < 0.05 else {}
    for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2)))):
        place = rng.random()
        found[name] = rng.choice(DECIMAL if place < 0.6 else WHOLE if place < 0.9 else ODD)
    return found if rng.random() < 0.97 else rng.choice(ODD)


def _statistics(rng: random.Random) -> Any:
    """What pixels are normalised by."""
    if rng.random() < 0.2:
        return rng.choice(("data", "imagenet", *ODD))
    count = rng.choice((1, 1, 1, 2, 3))
    return tuple([rng.choice(DECIMAL) if rng.random() < 0.7 else 0.5 for _ in range(count)] for _ in range(2))


def _number(rng: random.Random, bounds: Sequence[Any]) -> Any:
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(bounds)
    if kind < 0.8:
        return rng.choice(ODD)
    return rng.choice((-1, 2**53 + 1, 2**63, 10**30, 10**400, 1.5, 1e300, math.inf, math.nan))


def _as_kind(labels: list[Any], kind: str | None) -> Any:
    """Labels as an array of some kind; as they are, where there is no such array."""
    if kind is None:
        return labels
    if kind == "tuple":
        return tuple(labels)
    with (
        contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError, UnicodeError),
        np.errstate(all="ignore"),
    ):
        if kind == "tensor":
            return torch.tensor(labels)
        return np.array(labels, dtype=kind)
    return labels
