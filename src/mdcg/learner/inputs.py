"""What a person gives a `Learner`: arrays, files or a folder, as images and labels that it can use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from mdcg.errors import InputError
from mdcg.saved import Label

LONGEST = 200  # characters of a class's name

Given = npt.ArrayLike | Tensor | Sequence[Path | str] | Path | str


def is_files(given: Any) -> bool:
    """Whether image files are named, not pixels given."""
    return isinstance(given, list | tuple | np.ndarray) and len(given) > 0 and isinstance(given[0], str | Path)


def as_images(given: Any, shape: tuple[int, int, int] | None) -> Tensor:
    """Pixels as (n, height, width, channels), of the shape (channels, height, width) that is known, if it is."""
    if isinstance(given, str | Path):
        raise InputError(f"'{given}' is one path; give a list of paths, for instance [{str(given)!r}].")
    x = given if isinstance(given, Tensor) else _as_tensor(given)
    wanted = f"(n, {shape[1]}, {shape[2]}, {shape[0]})" if shape else "(n, height, width, channels)"
    found = f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
    if shape and shape[0] == 1 and x.ndim == 3:
        x = x[..., None]
    if x.dtype != torch.uint8 or x.ndim not in (3, 4) or 0 in x.shape[1:]:
        raise InputError(f"images must be uint8 from 0 to 255, of shape {wanted}, not {found}.")
    x = x[..., None] if x.ndim == 3 else x
    if shape and (x.shape[3], x.shape[1], x.shape[2]) != shape:
        raise InputError(f"images must have shape {wanted}, as those that were learned, not {found}.")
    return x


def _as_tensor(given: Any) -> Tensor:
    try:
        return torch.from_numpy(np.require(np.asarray(given), requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise InputError(f"images must be an array of uint8 from 0 to 255 ({error}).") from error


def as_labels(given: Any, images: int) -> list[Label]:
    """One label for each image: names, or numbers."""
    if given is None:
        raise InputError("there are no labels; give one for each image.")
    if isinstance(given, str):
        raise InputError("the labels are one text; give a list with one label for each image.")
    try:
        column = column_or_1d(np.asarray(given.cpu() if isinstance(given, Tensor) else given), warn=True)
        check_classification_targets(column)
    except (TypeError, ValueError) as error:
        raise InputError(f"the labels cannot be used ({error}); give one name or number for each image.") from error
    if len(column) != images:
        raise InputError(f"there are {images} images and {len(column)} labels; give one label for each image.")
    return [_as_label(label) for label in column.tolist()]


def _as_label(label: Any) -> Label:
    if isinstance(label, str):
        if not label.strip() or len(label) > LONGEST or not label.isprintable():
            shown = repr(label if len(label) <= 40 else f"{label[:40]}…")
            raise InputError(f"{shown} cannot name a class; use a line of 1 to {LONGEST} printable characters.")
        return label
    if isinstance(label, bool | int) or (isinstance(label, float) and math.isfinite(label)):
        return label
    raise InputError(f"a label is {label!r}; give names or numbers.")


def new_classes(labels: Sequence[Label], known: Sequence[Label], order: Sequence[Label] | None) -> tuple[Label, ...]:
    """The classes that are not known yet: sorted, or in a given order."""
    distinct = set(labels)
    if len({isinstance(label, str) for label in (*distinct, *known)}) > 1:
        raise InputError("some classes have names and some have numbers; give all of them one or the other.")
    new = sorted(distinct - set(known))
    if order is None:
        return tuple(new)
    if sorted(order) != new:
        raise InputError(f"order names {len(order)} classes, and {len(new)} are new; name each new class once.")
    return tuple(order)
