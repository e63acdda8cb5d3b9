"""Datasets that give one image after the other, as those of torch and of Hugging Face's `datasets` do.

What they give goes into a file of the cache: no more than one of their images is in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mdcg.arguments import refuse_larger_than_memory
from mdcg.data.cache import cache_folder, cached
from mdcg.data.content import Arrays
from mdcg.data.given import Channels, Images, Parts, as_array
from mdcg.errors import InputError, MachineError, MdcgError, reason_of, unknown
from mdcg.pixels.decode import VERSION, ImageArray, ImageFormat, pixels_of

LOOKED_AT_TWICE = 8  # images, to find out whether a dataset always gives the same ones
Item = tuple[Any, Any]  # an image and its label


@dataclass(frozen=True)
class Items:
    """One split of such a dataset: how many items it has, and how to get each."""

    count: int
    get: Callable[[int], Item]
    what: str  # "training" or "test"
    class_names: Sequence[str] | None = None  # if the dataset has them
    stamp: str = ""  # changes when the items do, if the dataset has such

    def __iter__(self) -> Iterator[Item]:
        return map(self.item, range(self.count))

    def item(self, number: int) -> Item:
        try:
            return self.get(number)
        except MdcgError:
            raise
        except Exception as error:  # a dataset is anybody's code
            raise InputError(
                f"the {self.what} image {number} cannot be read ({type(error).__name__}: {reason_of(error)}); repair "
                "the dataset."
            ) from error


def of_torch(data: Any, what: str) -> Items:
    """The items of a map-style dataset of torch."""
    try:
        count, get = len(data), data.__getitem__
    except Exception as error:  # a dataset is anybody's code
        raise InputError(
            f"the {what} dataset is {type(data).__name__}, which has no length or no items by number; give a map-style "
            "dataset, for instance the one that a DataLoader has as .dataset."
        ) from error

    def item(number: int) -> Item:
        found = get(number)
        if not isinstance(found, tuple | list) or len(found) != 2:
            kind = f"{len(found)} things" if isinstance(found, tuple | list) else type(found).__name__
            raise InputError(
                f"item {number} of the {what} dataset is {kind}; give a dataset whose items are (image, label)."
            )
        return found[0], found[1]

    names = getattr(data, "classes", None)
    named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return Items(count, item, what, names if named else None)


def of_huggingface(data: Any, image: str, label: str, what: str) -> Items:
    """The items of a `datasets.Dataset`: two of its columns, read row by row."""
    try:
        columns, count = list(data.column_names), len(data)
        names = getattr((getattr(data, "features", None) or {}).get(label), "names", None)
        stamp = str(getattr(data, "_fingerprint", "") or "")
    except Exception as error:  # whatever it is, it is no such dataset
        raise InputError(
            f"the {what} dataset is {type(data).__name__}, no datasets.Dataset; give one that is not streamed."
        ) from error
    for column in (image, label):
        if not isinstance(column, str) or column not in columns:
            raise unknown(f"column of the {what} dataset", column, columns)

    def item(number: int) -> Item:
        row = data[number]
        return row[image], row[label]

    return Items(count, item, what, names, stamp)


def splits_of(data: Any, test: Any) -> tuple[Any, Any]:
    """The training and the test set: a `DatasetDict` may bring both."""
    if not isinstance(data, Mapping):
        return data, test
    if "train" not in data:
        raise InputError(f"there is no split 'train' among {', '.join(map(str, data))}; give the one to train on.")
    return data["train"], data.get("test") if test is None else test


def stored(
    name: str,
    train: Items,
    test: Items | None,
    class_names: Sequence[str] | None,
    channels: Channels | None,
    format: ImageFormat | None,
) -> Arrays:
    """All images in the cache, under the dataset's name; where they lie there already they are not kept once more."""
    place = Path(name)  # no file, but one of a kind all the same
    splits = [train] if test is None else [train, test]
    if all(split.stamp for split in splits):
        told = [VERSION, class_names, channels, format, *((split.stamp, split.class_names) for split in splits)]
        stamp = hashlib.blake2b(repr(told).encode(), digest_size=10).hexdigest()

        def write(file: Path) -> None:
            with _parts(train, test, class_names, channels, format) as parts:
                parts.write(file)

        return cached(name, place, stamp, write)
    with _parts(train, test, class_names, channels, format) as parts:
        return cached(name, place, parts.stamp, parts.write)


@contextlib.contextmanager
def _parts(
    train: Items,
    test: Items | None,
    class_names: Sequence[str] | None,
    channels: Channels | None,
    format: ImageFormat | None,
) -> Iterator[Parts]:
    with contextlib.ExitStack() as stack:
        read = [stack.enter_context(_spooled(train, channels, format))]
        if test is not None:
            read.append(stack.enter_context(_spooled(test, channels, format, read[0][0].shape[1:])))
        labels = [own for _, own in read]
        if class_names is None and train.class_names is not None:
            labels, class_names = _named(labels, train.class_names)
        given = [(images, own) for (images, _), own in zip(read, labels, strict=True)]
        yield Parts.of(given[0], given[1] if test is not None else None, class_names)


def _named(splits: list[list[Any]], names: Sequence[str]) -> tuple[list[list[Any]], Sequence[str]]:
    """The labels of both splits by the names that their dataset has, and those of the names that occur.

    A number without a name is left, for all labels to be refused with it.
    """
    if not all(type(label) is int and 0 <= label < len(names) for labels in splits for label in labels):
        return splits, names
    occur = {label for labels in splits for label in labels}
    return [[names[label] for label in labels] for labels in splits], [names[label] for label in sorted(occur)]


@contextlib.contextmanager
def _spooled(
    items: Items, channels: Channels | None, format: ImageFormat | None, shape: tuple[int, ...] = ()
) -> Iterator[tuple[Images, list[Any]]]:
    """The images of a split, in a file that is gone once they were used, and their labels.

    Their shape is that of the first one, if none is given.
    """
    _refuse_unsteady(items, channels, format)
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_folder()) as file:
            labels = []
            for number, (image, label) in enumerate(items):
                pixels = _pixels(image, items.what, number, channels, format)
                if shape and isinstance(image, Image.Image) and (pixels.shape[2], shape[2]) == (1, 3):
                    pixels = np.repeat(pixels, 3, axis=2)  # a grey one among others in colour
                if shape and pixels.shape != shape:
                    raise InputError(
                        f"the {items.what} image {number} has shape {pixels.shape} (height, width, channels), and the "
                        f"first training image {shape}; bring all of them to one, pictures with size=…."
                    )
                shape = pixels.shape
                file.write(np.ascontiguousarray(pixels).data)
                labels.append(_single(label, items.what, number))
            if not labels:
                raise InputError(f"the {items.what} dataset has no image; give one that has some.")
            file.flush()
            mapped = np.memmap(file, np.uint8, "r", shape=(len(labels), *shape))
            yield Images(mapped, "last", items.what), labels
    except OSError as error:
        raise MachineError(
            f"cannot write into {cache_folder()}: {error.strerror or error}; make room there, or choose another folder "
            "with $MDCG_CACHE."
        ) from error


def _single(label: Any, what: str, number: int) -> Any:
    """A label without the array around it, where it is in one."""
    try:
        return label.item() if getattr(label, "ndim", None) == 0 else label
    except Exception as error:  # a tensor without values, anybody's object
        raise InputError(
            f"the label of the {what} image {number} cannot be read ({reason_of(error)}); repair the dataset."
        ) from error


def _pixels(image: Any, what: str, number: int, channels: Channels | None, format: ImageFormat | None) -> ImageArray:
    """One image as (height, width, channels)."""
    name = f"the {what} image {number}"
    if isinstance(image, Image.Image):
        return pixels_of(image, name, format)
    if format:
        raise InputError(f"{name} is no picture but {type(image).__name__}; leave out size, which is for pictures.")
    try:
        (pixels,) = next(Images.of(as_array(image, name)[None], channels, what).pieces())
    except InputError as error:
        raise InputError(f"{name} cannot be used: {error}") from error
    refuse_larger_than_memory(pixels.nbytes, name)  # a view may say more than it holds
    return np.asarray(pixels)


def _refuse_unsteady(items: Items, channels: Channels | None, format: ImageFormat | None) -> None:
    """Refuse a dataset that augments: it would be another one every time, and its test images too."""
    for number in range(min(items.count, LOOKED_AT_TWICE)):
        first, second = (_pixels(items.item(number)[0], items.what, number, channels, format) for _ in range(2))
        if not np.array_equal(first, second):
            raise InputError(
                f"the {items.what} dataset gives another image {number} each time; leave what is random out of its "
                "transform, and say padding=… and flip=… for a random crop and flip."
            )
