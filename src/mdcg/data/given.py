"""What a person gives as a dataset of their own: arrays of images and their labels, brought to one form.

Images may be more than fit into memory: they are looked at, and where needed converted, piece by piece.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.arguments import plain, refuse_endless, refuse_larger_than_memory, texts
from mdcg.data.cache import write_arrays
from mdcg.data.content import (
    Arrays,
    digest_of,
    digest_of_pieces,
    held_out_rows,
    rows_per_piece,
    statistics,
    statistics_of,
)
from mdcg.draws import Ints
from mdcg.errors import InputError, reason_of, said, unknown
from mdcg.pixels.decode import ImageArray
from mdcg.tensors import Pieces

LONGEST = 200  # characters of a class's name
MOST_LISTED = 10**7  # values of a list, each of them an object
LARGEST_LABEL = 2**63  # whole numbers are below it
SLACK = 1e-6  # by which floats may leave 0..1: what resizing computes is not exact
Channels = Literal["first", "last"]
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Images:
    """Images as they were given; taken from here they are (n, height, width, channels), uint8 from 0 to 255."""

    array: npt.NDArray[Any]  # uint8, or floats from 0 to 1; with three axes they are grey
    channels: Channels  # where the fourth axis is
    what: str  # "training" or "test"
    rows: Ints | None = None  # those that are meant; None: all of them

    @classmethod
    def of(cls, given: Any, channels: Channels | None, what: str) -> Images:
        """Look at what was given, and refuse what cannot be images; `channels` says which axis they are."""
        array = as_array(given, f"the {what} images")
        if array.dtype != np.uint8 and array.dtype.kind != "f":
            raise InputError(f"the {what} images are {array.dtype}; give uint8 from 0 to 255, or floats from 0 to 1.")
        if array.ndim not in (3, 4) or 0 in array.shape:
            raise InputError(
                f"the {what} images have shape {array.shape}; give (n, height, width) or (n, height, width, channels), "
                "none of them 0."
            )
        return cls(array, _place_of_channels(array.shape, channels, what), what)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The number of images, their height, width and channels."""
        count = len(self.array if self.rows is None else self.rows)
        own = self.array.shape[1:]
        if len(own) == 2:
            return count, own[0], own[1], 1
        return (count, own[1], own[2], own[0]) if self.channels == "first" else (count, *own)

    @property
    def is_mapped(self) -> bool:
        """Whether the array is mapped from a file."""
        array: Any = self.array
        while isinstance(array, np.ndarray):
            if isinstance(array, np.memmap):
                return True
            array = array.base
        return False

    @property
    def is_ready(self) -> bool:
        """Whether the array can be used as it is, without a copy."""
        plain = self.array.dtype == np.uint8 and self.array.flags.c_contiguous
        return plain and self.rows is None and (self.array.ndim == 3 or self.channels == "last")

    def only(self, rows: Ints) -> Images:
        """A choice of the images."""
        return replace(self, rows=rows)

    def pieces(self) -> Iterator[ImageArray]:
        """The images, a few at a time."""
        count, step = self.shape[0], rows_per_piece(self.shape[1:])
        for start in range(0, count, step):
            chosen = slice(start, start + step)
            yield self._converted(self.array[chosen if self.rows is None else self.rows[chosen]])

    def tensor(self) -> Tensor:
        """All images at once: the array itself where it is ready, else a copy."""
        if self.is_ready:
            return _as_tensor(self.array.reshape(self.shape))
        refuse_larger_than_memory(math.prod(self.shape), f"the {self.what} images")
        whole, end = np.empty(self.shape, np.uint8), 0
        for piece in self.pieces():
            whole[end : end + len(piece)] = piece
            end += len(piece)
        return torch.from_numpy(whole)

    def _converted(self, piece: npt.NDArray[Any]) -> ImageArray:
        if piece.dtype != np.uint8:
            low, high = float(piece.min()), float(piece.max())
            if not (np.isfinite(low) and np.isfinite(high)):  # a minimum of what is no number is none
                raise InputError(
                    f"some pixels of the {self.what} images are no numbers; repair or remove these images."
                )
            if low < -SLACK or high > 1 + SLACK:
                raise InputError(
                    f"the pixels of the {self.what} images go from {low:g} to {high:g}; give floats from 0 to 1, not "
                    "normalised ones, or uint8 from 0 to 255."
                )
            piece = np.rint(piece.astype(np.float32, copy=False).clip(0, 1) * 255).astype(np.uint8)
        if piece.ndim == 3:
            return piece[..., None]
        return np.ascontiguousarray(piece.transpose(0, 2, 3, 1)) if self.channels == "first" else piece


def _place_of_channels(shape: tuple[int, ...], channels: Channels | None, what: str) -> Channels:
    if channels is not None:
        if not isinstance(channels, str) or channels not in get_args(Channels):
            raise unknown("place of the channels", channels, get_args(Channels))
        return channels
    if len(shape) == 3:
        return "last"
    first, last = (shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        raise InputError(
            f"the {what} images have shape {shape}, which does not tell the channels; say channels='first' for (n, "
            "channels, height, width) or channels='last' for (n, height, width, channels)."
        )
    return "first" if first else "last"


def as_array(
    given: Any, what: str = "images", kinds: str = "an array of uint8 from 0 to 255, all of one size"
) -> Numbers:
    """Numbers as one array, not copied where they are one already."""
    try:
        array = _dense(given) if isinstance(given, Tensor) else _gathered(given, what)
        if array.dtype.kind not in "biufc":
            raise TypeError(f"it holds {array.dtype}")
    except InputError:
        raise
    except Exception as error:  # objects of anybody's say what they like when they are asked for their numbers
        raise InputError(f"{what} must be {kinds} ({reason_of(error)}).") from error
    return array


def as_column(given: Any, what: str) -> npt.NDArray[Any]:
    """Labels as an array, of whatever kind they are; who asks says which kinds may be."""
    if given is None or isinstance(given, str | bytes):
        raise InputError(f"{what} are {'missing' if given is None else 'one text'}; give one for each image.")
    try:
        if isinstance(given, Mapping | Set):
            raise TypeError(f"it is a {type(given).__name__}, which has no order")
        labels = _dense(given) if isinstance(given, Tensor) else _gathered(given, what)
        if not labels.ndim and hasattr(type(given), "__iter__") and not isinstance(given, np.ndarray | Tensor):
            raise InputError(f"{what} are a {type(given).__name__}, which is no list; give a list, one for each image.")
        if not labels.ndim:
            raise InputError(f"{what} have shape (); give one for each image.")
        return labels
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{what} are no list of names or whole numbers ({reason_of(error)}); give one for each image."
        ) from error


def plain_label(label: Any) -> Any:
    """A label by Python's own type, where it is a name or a number."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, np.longdouble):
        return float(value)
    return plain(value, "a label") if isinstance(value, str | bool | int | float) else label


def _dense(given: Tensor) -> npt.NDArray[Any]:
    """The values of a tensor that has them, one beside the other."""
    if given.is_nested or given.layout is not torch.strided:
        raise TypeError("it is sparse or nested; give a dense tensor, as .to_dense() makes one")
    if given.is_meta:
        raise TypeError("it is on the device meta, without values")
    whole = given.detach().cpu().resolve_conj().resolve_neg()
    narrow = whole.is_floating_point() and (whole.dtype == torch.bfloat16 or whole.itemsize < 2)
    return (whole.float() if narrow else whole).numpy()  # numpy has no such floats


def _gathered(given: Any, what: str) -> npt.NDArray[Any]:
    refuse_endless(given, what)
    if hasattr(given, "toarray") and not isinstance(given, np.ndarray):
        raise TypeError("it is sparse; give a dense array, as .toarray() makes one")
    if isinstance(given, np.ma.MaskedArray) and given.mask is not np.ma.nomask and given.mask.any():
        raise TypeError("some of it is masked; fill it, as .filled(…) does, or leave it out")
    if not hasattr(given, "__array__") and isinstance(given, Sequence) and len(given) > MOST_LISTED:
        raise TypeError(f"it is a list of {len(given):,}; give an array")
    return np.asarray(given)


def _as_tensor(array: ImageArray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes into it
        return torch.from_numpy(array)


@dataclass(frozen=True)
class Parts:
    """Both splits of a dataset as it was given: images, and the numbers of their classes."""

    train: Images
    train_labels: Ints
    test: Images
    test_labels: Ints
    class_names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        train: tuple[Images, Any],
        test: tuple[Images, Any] | None,
        class_names: Sequence[str] | None,
    ) -> Parts:
        """Number the classes and, without a test set, hold a share of each out; refuse what cannot be trained on."""
        class_names = None if class_names is None else names_of(class_names)
        images, labels = train[0], _column(train[1], train[0])
        others = _column(test[1], test[0]) if test else None
        names, numbers = _classes(labels, others, class_names)
        counts = np.bincount(numbers[0], minlength=len(names))
        if not counts.all():
            raise InputError(f"class '{names[counts.argmin()]}' has no training image; add some, or leave it out.")
        if test is None:
            if counts.min() < 2:
                raise InputError(
                    f"class '{names[counts.argmin()]}' has a single image, which cannot serve both training and "
                    "testing; add images, or give a test set."
                )
            rows, held = held_out_rows(numbers[0])
            return cls(images.only(rows), numbers[0][rows], images.only(held), numbers[0][held], names)
        tested = np.bincount(numbers[1], minlength=len(names))
        if not tested.all():
            raise InputError(f"class '{names[tested.argmin()]}' has no test image; add some, or leave it out.")
        if test[0].shape[1:] != images.shape[1:]:
            raise InputError(
                f"the training images have shape {images.shape[1:]} (height, width, channels) and the test images "
                f"{test[0].shape[1:]}; bring them to one."
            )
        return cls(images, numbers[0], test[0], numbers[1], names)

    @property
    def is_mapped(self) -> bool:
        return self.train.is_mapped or self.test.is_mapped

    @property
    def is_ready(self) -> bool:
        return self.train.is_ready and self.test.is_ready

    @cached_property
    def digest(self) -> str:
        """The digest that `digest_of` makes of the arrays."""
        return digest_of_pieces(piece for _, _, pieces in self._tensors().values() for piece in pieces)

    @property
    def stamp(self) -> str:
        """A digest of images, labels and names: what a file of the cache is known by."""
        return hashlib.blake2b(repr((self.digest, self.class_names)).encode(), digest_size=10).hexdigest()

    def arrays(self) -> Arrays:
        """The arrays, in memory; an array that is ready stays where it is."""
        train, test = self.train.tensor(), self.test.tensor()
        labels = torch.from_numpy(self.train_labels), torch.from_numpy(self.test_labels)
        made = Arrays(train, labels[0], test, labels[1], self.class_names, *statistics(train.numpy()))
        return replace(made, digest=digest_of(made))

    def write(self, file: Path) -> None:
        """Write the arrays to a file of the cache, piece by piece."""
        measured = statistics_of(self.train.pieces(), self.train.shape[3])
        write_arrays(file, self._tensors(), self.class_names, measured, lambda: self.digest)

    def _tensors(self) -> Pieces:
        return {
            "train_images": (self.train.shape, torch.uint8, self.train.pieces()),
            "train_labels": (self.train_labels.shape, torch.int64, [self.train_labels]),
            "test_images": (self.test.shape, torch.uint8, self.test.pieces()),
            "test_labels": (self.test_labels.shape, torch.int64, [self.test_labels]),
        }


def _column(given: Any, images: Images) -> npt.NDArray[Any]:
    """One label for each image: all names, or all whole numbers."""
    what, count = f"the {images.what} labels", images.shape[0]
    labels = as_column(given, what)
    if labels.ndim != 1:
        raise InputError(f"{what} have shape {labels.shape}; give one name or whole number for each image, as (n,).")
    if len(labels) != count:
        raise InputError(f"there are {count} {images.what} images and {len(labels)} labels; give one for each image.")
    if labels.dtype.kind not in "biuf":
        single = [plain_label(label) for label in (given if isinstance(given, list | tuple) else labels)]
        if len({isinstance(label, str) for label in single}) > 1:
            raise InputError(f"some of {what} are names and some are not; give all of them one or the other.")
        if isinstance(single[0], str):
            return np.fromiter(single, object, count)
        labels = _numbers_of(single, labels)
    return _whole(labels, what)


def _numbers_of(labels: list[Any], otherwise: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels that came as objects, as an array of numbers if they are such."""
    if not all(type(label) in (int, float) for label in labels):
        return otherwise
    array = np.array(labels)
    return array if array.dtype.kind in "iuf" else otherwise


def _whole(labels: npt.NDArray[Any], what: str) -> Ints:
    if labels.dtype.kind == "f":
        odd = labels[~(np.isfinite(labels) & (labels == np.rint(labels)))]
        if len(odd):
            raise InputError(f"{what} are no whole numbers: one is {float(odd[0]):g}; give whole numbers, or names.")
        if np.abs(labels).max(initial=0) >= LARGEST_LABEL:
            raise InputError(f"{what} go up to {float(np.abs(labels).max()):g}; give smaller numbers, or names.")
    elif labels.dtype.kind not in "iu":
        kind = "true and false" if labels.dtype.kind == "b" else str(labels.dtype)
        raise InputError(f"{what} are {kind}; give whole numbers, or names.")
    elif labels.dtype.kind == "u" and labels.max(initial=0) >= LARGEST_LABEL:
        raise InputError(f"{what} go up to {labels.max()}; give smaller numbers, or names.")
    return labels.astype(np.int64)


def _classes(
    train: npt.NDArray[Any], test: npt.NDArray[Any] | None, names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Ints]]:
    """The names of the classes, and the labels of both splits as their numbers."""
    both = [train] if test is None else [train, test]
    if len({labels.dtype for labels in both}) > 1:
        raise InputError("the training labels are names and the test labels numbers, or the other way round; use one.")
    known = _known(train, names)
    if len(known) < 2:
        raise InputError(f"there is but one class, {next(iter(known), 'of no image')}; give images of at least two.")
    numbers = []
    for what, labels in zip(("training", "test"), both, strict=False):
        strange = next((label for label in dict.fromkeys(labels.tolist()) if label not in known), None)
        if strange is not None:
            which = "is none of the training images'" if names is None else "has no name in class_names"
            raise InputError(f"the label {strange!r} of the {what} images {which}; correct it.")
        numbers.append(np.array([known[label] for label in labels.tolist()], np.int64))
    return tuple(map(str, known)) if names is None else tuple(names), numbers


def _known(train: npt.NDArray[Any], names: Sequence[str] | None) -> dict[Any, int]:
    """The number of the class that a label means: by its order, or by that of the names."""
    named = train.dtype == object
    if names is None:
        found = sorted(set(train.tolist()))
        for name in found if named else ():
            check_class_name(name)
        return {label: number for number, label in enumerate(found)}
    for name in names:
        check_class_name(name)
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"class_names has '{twice}' twice; give each class a name of its own.")
    return {name if named else number: number for number, name in enumerate(names)}


def names_of(given: Any) -> list[str]:
    """The names of classes, in the order in which they are given: a list, or a column of a table."""
    try:
        is_list = not isinstance(given, str | Mapping | Set) and getattr(given, "ndim", 1) == 1
    except Exception:  # an object of anybody's
        is_list = False
    if not is_list:
        raise InputError("class_names must be a list of texts; give one for each class.")
    return texts(given, "class_names")


def check_class_name(name: str) -> None:
    """Refuse a text that cannot name a class."""
    if not name.strip() or len(name) > LONGEST or not name.isprintable():
        raise InputError(f"{said(name, 40)} cannot name a class; use a line of 1 to {LONGEST} printable characters.")
