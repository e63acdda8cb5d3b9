"""The record of a dataset that a person gives in Python."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from mdcg.arguments import flag, plain
from mdcg.data.content import Arrays
from mdcg.data.record import NAME, Bundled, Preprocessing
from mdcg.data.registry import DATASETS
from mdcg.errors import InputError, said, unknown
from mdcg.stored import HUGE

MOST_PADDING = 1024  # pixels


class Prepared(TypedDict, total=False):
    """How pixels are prepared, see `Preprocessing`; what is left out is as usual, mean and std are measured."""

    padding: int
    flip: bool
    mean: Sequence[float]
    std: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Own(Bundled):
    """A dataset whose images were given: the record that brings them."""

    content: Arrays = field(repr=False, compare=False)

    @classmethod
    def of(cls, name: str, content: Arrays, prepared: Prepared) -> Own:
        """Make the record; its digest is of all that runs depend on: images, classes, and how pixels are prepared."""
        _, height, width, channels = content.train_images.shape
        images, classes = len(content.train_labels) + len(content.test_labels), len(content.class_names)
        preprocessing = _preprocessing(prepared, Preprocessing.usual((channels, height, width)))
        told = [content.digest, content.class_names, vars(preprocessing)]
        digest = hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()
        return cls(
            name=name,
            summary=f"{images:,} images, {height}×{width}, {classes} classes",
            shape=(channels, height, width),
            preprocessing=preprocessing,
            content=replace(content, digest=digest),
        )

    def read(self) -> Arrays:
        return self.content


def _preprocessing(asked: Prepared, usual: Preprocessing) -> Preprocessing:
    """The usual preprocessing, but for what is asked for."""
    padding = plain(asked.get("padding", usual.padding), "padding")
    if type(padding) is not int or not padding <= MOST_PADDING:
        raise InputError(f"padding is {said(padding)}; give a number of pixels, up to {MOST_PADDING}.")
    flip = flag(asked.get("flip", usual.flip), "flip")
    return Preprocessing(padding, flip, _numbers(asked.get("mean")), _numbers(asked.get("std")))


def _numbers(given: Sequence[float] | None) -> tuple[float, ...] | None:
    numbers = plain(given, "mean or std")
    if numbers is None:
        return None
    if not isinstance(numbers, list) or not all(type(one) in (int, float) and abs(one) < HUGE for one in numbers):
        raise InputError(f"mean or std is {said(given)}; give a list with a number for each channel.")
    return tuple(map(float, numbers))


def check(name: str, prepared: Prepared) -> None:
    """Refuse, before anything is read, a name that means another dataset or none, and what cannot prepare pixels."""
    for key in prepared:
        if key not in Prepared.__annotations__:
            raise unknown("setting", key, Prepared.__annotations__)
    _preprocessing(prepared, Preprocessing(0, False))
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise InputError(f"{said(name)} cannot name a dataset; use letters, digits, dots, dashes and underscores.")
    for other in DATASETS.values():
        if name in (other.name, other.scenario_name):
            raise InputError(f"there is already a dataset named '{name}'; choose another name.")


def name_of(folder: Path) -> str:
    """A name for a dataset after its folder.

    >>> name_of(Path("/my/birds of 2020"))
    'birds-of-2020'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._") or "folder"
