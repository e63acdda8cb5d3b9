"""The record of a dataset that a person gives in Python."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from mdcg.data.content import Arrays
from mdcg.data.record import NAME, Bundled, Preprocessing
from mdcg.data.registry import DATASETS
from mdcg.errors import InputError, unknown


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
    padding, flip = asked.get("padding", usual.padding), asked.get("flip", usual.flip)
    if not isinstance(padding, int) or not isinstance(flip, bool):
        raise InputError(f"padding is {padding!r} and flip {flip!r}; give a number of pixels, and True or False.")
    return Preprocessing(padding, flip, _numbers(asked.get("mean")), _numbers(asked.get("std")))


def _numbers(given: Sequence[float] | None) -> tuple[float, ...] | None:
    try:
        return None if given is None else tuple(map(float, given))
    except (TypeError, ValueError) as error:
        raise InputError(f"mean or std is {given!r}; give a list with a number for each channel.") from error


def check(name: str, prepared: Prepared) -> None:
    """Refuse, before anything is read, a name that means another dataset or none, and what cannot prepare pixels."""
    for key in prepared:
        if key not in Prepared.__annotations__:
            raise unknown("setting", key, Prepared.__annotations__)
    _preprocessing(prepared, Preprocessing(0, False))
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise InputError(f"'{name}' cannot name a dataset; use letters, digits, dots, dashes and underscores.")
    for other in DATASETS.values():
        if name in (other.name, other.scenario_name):
            raise InputError(f"there is already a dataset named '{name}'; choose another name.")


def name_of(folder: Path) -> str:
    """A name for a dataset after its folder.

    >>> name_of(Path("/my/birds of 2020"))
    'birds-of-2020'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._") or "folder"
