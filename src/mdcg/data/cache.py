"""The cache: one memory-mapped uint8 file per dataset, so that a second start reads nothing it does not use.

The file is safetensors: a JSON header and raw arrays, never code. What is damaged is made anew. The header and the
labels are checked against their digest whenever they are read. All images are, too, but once for each size and time of
a file that was found, which are noted in `.checked.json` beside it: Tiny-ImageNet's 1.35 GB take 1.7 s, and would at
every start. A file that was just written is noted at once: to read it back would check the memory, not the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pooch
import torch
from pydantic import BaseModel, Field, RootModel
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mdcg.data.content import Arrays, Statistics, check, chunks, digest_of
from mdcg.errors import MdcgError, machine_trouble
from mdcg.files import atomic_file, open_file, remove_partial, write_atomic
from mdcg.stored import NotNegative, Number, read_as, warn_of
from mdcg.tensors import KINDS, Pieces, values_of, write_pieces

VERSION = 1
NO_DIGEST = 32 * "0"  # as long as one
TRIES = 3  # to write a file, while others empty the cache
CHECKED = ".checked.json"  # the files whose images were checked
AXES = {"train_images": 4, "train_labels": 1, "test_images": 4, "test_labels": 1}


class CacheHeader(BaseModel):
    """What a file in the cache says beside its tensors."""

    version: Literal[1]
    class_names: Annotated[list[str], Field(min_length=2)]
    mean: list[Number]
    std: list[NotNegative]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]  # of all tensors
    small: str | None = None  # digest of all but the images; None: a file of before

    def fits(self, content: Arrays) -> bool:
        """Whether it belongs to these tensors, their images aside."""
        channels = content.train_images.shape[3]
        alike = len(self.mean) == len(self.std) == channels and min(self.std) > 0
        return alike and self.small in (None, _digest_of_small(self, content.train_labels, content.test_labels))


class Checked(RootModel[dict[str, tuple[int, int]]]):
    """The size and time of each file whose images were checked, by name."""


def cache_folder() -> Path:
    """The folder `$MDCG_CACHE`, or the user's cache folder."""
    try:
        return Path(os.environ.get("MDCG_CACHE") or pooch.os_cache("mdcg"))
    except RuntimeError as error:
        raise MdcgError("this user has no home folder for the cache; name a folder with $MDCG_CACHE.") from error


def write_cache(path: Path, content: Arrays) -> None:
    """Write the arrays to the cache, while their digest is made."""
    pieces = {name: (tuple(tensor.shape), tensor.dtype, chunks(tensor)) for name, tensor in content.tensors().items()}
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(digest_of, content)
        write_arrays(path, pieces, content.class_names, (content.mean, content.std), digest.result)


def write_arrays(
    path: Path, tensors: Pieces, class_names: Sequence[str], measured: Statistics, digest: Callable[[], str]
) -> None:
    """Write to the cache what comes piece by piece: the four tensors of `Arrays`, by name.

    Their digest is asked for when they are written.
    """
    labels = {name: list(pieces) for name, (_, _, pieces) in tensors.items() if name.endswith("labels")}
    tensors = {name: (*about[:2], labels.get(name, about[2])) for name, about in tensors.items()}
    mean, std = map(list, measured)
    first = CacheHeader(version=1, class_names=list(class_names), mean=mean, std=std, digest=NO_DIGEST, small=NO_DIGEST)

    def last() -> dict[str, object]:
        header = first.model_copy(update={"digest": digest()})
        train, test = (torch.from_numpy(np.concatenate(labels[f"{split}_labels"])) for split in ("train", "test"))
        header.small = _digest_of_small(header, train, test)
        return header.model_dump()

    with atomic_file(path) as file:
        write_pieces(file, tensors, first.model_dump(), last)


def _digest_of_small(header: CacheHeader, *labels: Tensor) -> str:
    """The digest of labels, names and statistics."""
    digest = hashlib.blake2b(json.dumps(header.model_dump(exclude={"small"})).encode(), digest_size=16)
    for own in labels:
        digest.update(np.ascontiguousarray(own.numpy()).data)
    return digest.hexdigest()


def read_cache(path: Path) -> Arrays | None:
    """The cached arrays, mapped not read; None where there is no usable file. Only their images are not checked."""
    if not path.exists():
        return None
    try:
        open_file(path).close()  # what is wrong with the machine is told apart from what is wrong with the file
        with safe_open(path, framework="pt") as file:
            header = CacheHeader.model_validate(values_of(file.metadata()))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        about = {"class_names": tuple(header.class_names), "mean": tuple(header.mean), "std": tuple(header.std)}
        if not _are_arrays(tensors):
            return None
        content = Arrays(**tensors, **about, digest=header.digest)  # type: ignore[arg-type]
        check(content, None)
        return content if header.fits(content) else None
    except (SafetensorError, TypeError, ValueError):
        return None  # cut short or foreign: made anew from the source
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise machine_trouble(error) or MdcgError(
            f"cannot read {path}: {error.strerror or error}; delete it and try again."
        ) from error


def _are_arrays(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these are the tensors of `Arrays`: their names, types and axes, none of them empty."""
    return tensors.keys() == AXES.keys() and all(
        tensor.ndim == AXES[name]
        and tensor.numel() > 0
        and KINDS.get(tensor.dtype) == ("U8" if "images" in name else "I64")
        for name, tensor in tensors.items()
    )


def read_whole(path: Path) -> Arrays | None:
    """The cached arrays, images checked; None where there is no file, or, with a warning, none that can be used."""
    content = read_cache(path)
    try:
        seen = _seen(path)
    except (FileNotFoundError, NotADirectoryError):  # none yet, or another process empties the cache
        return None
    if content is not None and _checked(path.parent).get(path.name) != seen:
        content = content if digest_of(content) == content.digest else None
        if content is not None:
            note_checked(path.parent, {path.name: seen})
    if content is None:
        warn_of(path, f"{path}, a dataset in the cache, is damaged; it is made anew from its source.")
    return content


def _seen(path: Path) -> tuple[int, int]:
    """The size and time by which a file that was checked is known."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _checked(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder whose images were checked, with size and time; none where the note cannot be used."""
    try:
        return read_as(Checked, folder / CHECKED).root
    except (OSError, ValueError):
        return {}


def note_checked(folder: Path, files: Mapping[str, tuple[int, int]] | None = None) -> None:
    """Write down that these files were checked, and leave out what is gone.

    In a folder that is not ours to write, files are checked every time.
    """
    known = {**_checked(folder), **(files or {})}
    there = {name: about for name, about in known.items() if (folder / name).exists()}
    with contextlib.suppress(MdcgError, OSError):
        if there:
            write_atomic(folder / CHECKED, json.dumps(there).encode())
        else:
            (folder / CHECKED).unlink(missing_ok=True)


def cache_file(label: str, source: Path, stamp: str) -> Path:
    """The file in the cache for what lies at `source` and has this stamp."""
    place = hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()
    return cache_folder() / f"{label}-{place}-{stamp}.safetensors"


def cached(label: str, source: Path, stamp: str, write: Callable[[Path], None]) -> Arrays:
    """The arrays in the cache, written there first where they are not; those of another stamp are outdated."""
    file = cache_file(label, source, stamp)
    remove_partial(file.parent)
    for _ in range(TRIES):
        if (content := read_whole(file)) is not None:
            return content
        write(file)
        with contextlib.suppress(FileNotFoundError):  # another process has just emptied the cache
            note_checked(file.parent, {file.name: _seen(file)})  # the digest was made of what was written
        for outdated in set(file.parent.glob(cache_file(label, source, "*").name)) - {file}:
            outdated.unlink(missing_ok=True)  # the source has changed since
        if (content := read_whole(file)) is not None:
            return content
        if file.exists():  # else another process has just emptied the cache
            break
    raise MdcgError(f"{file} could not be read back just after it was written; check the disk.")
