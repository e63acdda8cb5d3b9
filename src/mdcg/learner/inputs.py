"""What a person gives a `Learner`: arrays, files or a folder, as images and labels that it can use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from mdcg.arguments import plain, refuse_larger_than_memory
from mdcg.data.given import as_array, as_column, check_class_name, plain_label
from mdcg.data.images import ImageReader, OnError, path_named
from mdcg.draws import Ints
from mdcg.errors import InputError, MdcgError, reason_of, said
from mdcg.files import check_replaceable, path_of, shown
from mdcg.header import Label, Setup
from mdcg.pixels.decode import ImageArray, ImageFormat, Resize

DEFAULT_SIZE = 64  # pixels of the side to which images of files are brought
LARGEST = 1e30  # of a feature: its square is still a number
Shape = tuple[int, int, int]  # channels, height, width

Given = npt.ArrayLike | Tensor | Sequence[Path | str] | Path | str


def is_files(given: Any) -> TypeGuard[Sequence[Path | str]]:
    """Whether image files are named, not pixels given."""
    sized = isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim == 1)
    return sized and len(given) > 0 and isinstance(given[0], str | Path)


def reader_of(setup: Setup | None, size: int | None, resize: Resize, on_error: OnError) -> ImageReader:
    """What reads image files in the form that a classifier takes, or will take once it has learned some."""
    if setup is None:
        return ImageReader(ImageFormat(size or DEFAULT_SIZE, resize), on_error)
    channels, height, width = setup.shape
    if setup.is_features:
        raise InputError(
            f"this model takes rows of {channels} features, not image files; give an array (n, {channels})."
        )
    if height != width:
        raise InputError(f"this model takes images of {height} × {width} pixels; give arrays, files become squares.")
    if channels not in (1, 3):
        raise InputError(f"this model takes images of {channels} channels; give arrays, files have one or three.")
    return ImageReader(ImageFormat(height, resize), on_error)


def read_files(
    given: Sequence[Path | str] | Path | str,
    labels: npt.ArrayLike | None,
    reader: ImageReader,
    shape: Shape | None,
    expect: Callable[[Sequence[Label]], object] = lambda labels: None,
) -> tuple[Tensor, list[Label]]:
    """Images and one label for each, of a folder with one folder per class or of a list of files.

    Before any image is read, `expect` is told the labels.
    """
    if isinstance(given, str | Path):
        _no_labels(labels)
        classes = reader.find_classes(given)
        names = [_as_label(name) for name in classes]
        expect(names)
        images, places = reader.read_classes(classes)
        return with_channels(images, shape), [names[place] for place in places]
    named = as_labels(labels, len(given))
    expect(named)
    images, places = reader.read(given)
    if not len(images):
        raise InputError(f"no image can be read ({reader.summary()}); give others.")
    return with_channels(images, shape), [named[place] for place in places]


def _no_labels(labels: npt.ArrayLike | None) -> None:
    if labels is not None:
        raise InputError("labels are given with a folder, whose folders are the classes; leave them out.")


def labelled_files(
    given: Sequence[Path | str] | Path | str, labels: npt.ArrayLike | None, reader: ImageReader
) -> dict[Label, list[Path]]:
    """Image files by their label, of a folder with one folder per class or of a list."""
    if isinstance(given, str | Path):
        _no_labels(labels)
        classes = reader.find_classes(given)
        return {_as_label(name): files for name, files in classes.items()}
    found: dict[Label, list[Path]] = {}
    for file, label in zip(given, as_labels(labels, len(given)), strict=True):
        found.setdefault(label, []).append(path_named(file))
    return found


def positions_of(labels: Sequence[Label], place: Mapping[Label, int], known_only: bool) -> Ints:
    """The classes of labels, in order of arrival: -1 of one that is not known, if that may be."""
    strange = [] if known_only else sorted({label for label in labels if label not in place}, key=str)
    if strange:
        raise InputError(
            f"the model does not know {listing([repr(label) for label in strange])}; it knows {listing(list(place))}."
        )
    return np.array([place.get(label, -1) for label in labels], np.int64)


def with_channels(images: ImageArray, shape: Shape | None) -> Tensor:
    """Pixels of files, which have three channels, as a classifier of grey images takes them too."""
    pixels = torch.from_numpy(images)
    return pixels.float().mean(-1, keepdim=True).to(torch.uint8) if shape and shape[0] == 1 else pixels


def as_images(given: Any, setup: Setup | None) -> Tensor:
    """Images as (n, height, width, channels) uint8, or features as (n, 1, 1, features) float32.

    Rows of numbers, (n, features), are features; what a classifier was taught, it goes on with.
    """
    if isinstance(given, str | Path):
        raise InputError(f"'{shown(given)}' is one path; give a list of paths, for instance [{said(str(given))}].")
    if setup and setup.is_features:
        return _as_features(_numbers(given), setup)
    x = as_array(given) if setup else _numbers(given)
    if x.ndim == 2 and not setup:
        return _as_features(x, None)
    shape = setup.shape if setup else None
    wanted = f"(n, {shape[1]}, {shape[2]}, {shape[0]})" if shape else "(n, height, width, channels)"
    found = f"{x.dtype} of shape {x.shape}"
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or 0 in x.shape[1:]:
        raise InputError(f"images must be uint8 from 0 to 255, of shape {wanted}, not {found}.")
    x = x[..., None] if x.ndim == 3 else x
    if shape and (x.shape[3], x.shape[1], x.shape[2]) != shape:
        raise InputError(f"images must have shape {wanted}, as those that were learned, not {found}.")
    refuse_larger_than_memory(x.nbytes, "the images")
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))


class NotNumbers(InputError, TypeError):
    """Features that are no numbers; a TypeError too, as scikit-learn's users expect."""


def _numbers(given: Any) -> npt.NDArray[Any]:
    """An array, also of numbers that came as objects, as some columns of a table do."""
    try:
        return as_array(given)
    except InputError:
        objects = given
        if type(given).__name__ == "DataFrame":  # columns of different kinds
            objects = np.asarray(given)
        if not (isinstance(objects, np.ndarray) and objects.dtype == object and objects.ndim == 2):
            raise
        try:
            return objects.astype(np.float64)
        except Exception as error:
            raise NotNumbers(f"features must be numbers ({reason_of(error)}); give floats or integers.") from error


def _as_features(rows: npt.NDArray[Any], setup: Setup | None) -> Tensor:
    """Features, as scikit-learn's estimators take them, and refuse them in its words."""
    count = setup.shape[0] if setup else None
    if rows.dtype.kind == "c":
        raise InputError("Complex data not supported: features must be real numbers.")
    if rows.ndim != 2:
        wanted = f"(n, {count or 'features'})"
        raise InputError(f"features must have shape {wanted}, one row each, not {rows.shape}. Reshape your data.")
    if 0 in rows.shape:
        what = "sample" if not len(rows) else "feature"
        if what == "feature" or setup is None:
            raise InputError(f"there are 0 {what}(s) (shape={rows.shape}) while a minimum of 1 is required; give some.")
    if count is not None and rows.shape[1] != count:
        raise InputError(
            f"X has {rows.shape[1]} features, but Learner is expecting {count} features as input, those of the rows "
            "that were learned."
        )
    refuse_larger_than_memory(rows.size * 4, "the features")
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.array(rows, np.float32, order="C")  # a copy: who gave them may change them
    if np.isnan(found).any():
        raise InputError("Input X contains NaN; repair or remove these rows.")
    if not (np.abs(found) <= LARGEST).all():
        raise InputError(f"Input X contains infinity or a value too large, beyond {LARGEST:g}; scale or remove it.")
    return torch.from_numpy(found)[:, None, None]


def as_labels(given: Any, images: int) -> list[Label]:
    """One label for each image: names, or numbers."""
    if isinstance(given, list | tuple) and len({isinstance(label, str) for label in given}) > 1:
        raise InputError("some labels are names and some are not; give all of them one or the other.")
    if given is None:
        raise InputError(
            "there are no labels: learning requires y to be passed, but the target y is None; give one each."
        )
    column = as_column(given, "the labels")
    if column.ndim and len(column) != images:
        raise InputError(f"there are {images} images and {len(column)} labels; give one label for each image.")
    if column.dtype.kind not in "biufUOT":  # T: numpy's texts of any length
        raise InputError(f"the labels are {column.dtype}; give one name or number for each image.")
    try:
        column = column_or_1d(column, warn=True)
        check_classification_targets(column)
    except Exception as error:  # of objects that cannot be compared, anything
        raise InputError(
            f"the labels cannot be used ({reason_of(error)}); give one name or number for each image."
        ) from error
    return [_as_label(label) for label in column.tolist()]


def as_weights(given: Any, images: int) -> npt.NDArray[np.float64]:
    """How much each image counts."""
    try:
        weights = as_array(given, "sample_weight", "numbers, one for each image")
    except InputError as error:
        try:
            weights = np.asarray(given).astype(np.float64)  # numbers that came as objects
        except Exception:  # of anybody's
            raise error from None
    if weights.shape == (images,) and weights.dtype.kind != "c":
        weights = weights.astype(np.float64)
        if np.isfinite(weights).all() and weights.min() >= 0 and 0 < weights.sum() < np.inf:
            return weights
    raise InputError(f"sample_weight must be {images} numbers from 0 on, one for each image and not all of them 0.")


def as_file(path: Path | str) -> Path:
    """Where a file is to be written; a folder is refused before any work is done for it."""
    file = path_of(path)
    if not file.name or file.is_dir():
        raise MdcgError(f"{shown(file)} is a folder; name a file to write.")
    check_replaceable(file)
    return file


def _as_label(given: Any) -> Label:
    label = plain_label(given)
    if type(label) is str:
        check_class_name(label)
        return label
    if type(label) in (bool, int) or (type(label) is float and math.isfinite(label)):
        return cast(Label, label)
    raise InputError(f"a label is {said(label)}; give names or numbers.")


def listing(classes: Sequence[Label], most: int = 6) -> str:
    """Classes as a sentence names them, not too many of them.

    >>> listing(["cat", "dog"]), listing(range(9), most=3)
    ('cat, dog', '0, 1, 2 and 6 more')
    """
    named = ", ".join(shown(str(name)) for name in classes[:most])
    return named if len(classes) <= most else f"{named} and {len(classes) - most} more"


def number_of(count: int, thing: str) -> str:
    """A number of things in words.

    >>> number_of(1, "epoch"), number_of(20, "step")
    ('1 epoch', '20 steps')
    """
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def new_classes(labels: Sequence[Label], known: Sequence[Label], order: Sequence[Label] | None) -> tuple[Label, ...]:
    """The classes that are not known yet: sorted, or in a given order."""
    distinct = set(labels)
    if len({isinstance(label, str) for label in (*distinct, *known)}) > 1:
        raise InputError("some classes have names and some have numbers; give all of them one or the other.")
    new = sorted(distinct - set(known))
    if order is None:
        return tuple(new)
    try:
        places = {label: label for label in new}
        chosen = [places[label] for label in plain(order, "order", 1)]  # as the labels are, not as 1.0 for 1
    except (KeyError, TypeError, InputError) as error:
        raise InputError(f"order must be a list of the new classes, {listing(new)}, each once.") from error
    if sorted(chosen) != new:
        raise InputError(f"order names {len(chosen)} classes, and {len(new)} are new; name each new class once.")
    return tuple(chosen)
