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
from mdcg.errors import InputError


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
        check_name(name)
        _, height, width, channels = content.train_images.shape
        images, classes = len(content.train_labels) + len(content.test_labels), len(content.class_names)
        usual = Preprocessing.usual((channels, height, width))
        chosen = {key: tuple(map(float, value)) if key in ("mean", "std") else value for key, value in prepared.items()}
        preprocessing = replace(usual, **chosen)
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


def check_name(name: str) -> None:
    """Refuse a name that cannot stand in a scenario, or that means another dataset there."""
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
