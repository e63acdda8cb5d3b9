"""The cache: one memory-mapped uint8 file per dataset, so that a second start reads nothing it does not use.

The file is safetensors: a JSON header and raw arrays, never code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pooch
from safetensors import SafetensorError, safe_open

from mdcg.data.content import Arrays, Statistics, chunks, digest_of
from mdcg.errors import MdcgError
from mdcg.files import atomic_file, remove_partial
from mdcg.tensors import Pieces, values_of, write_pieces

VERSION = 1


def cache_folder() -> Path:
    """The folder `$MDCG_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("MDCG_CACHE") or pooch.os_cache("mdcg"))


def write_cache(path: Path, content: Arrays) -> None:
    """Write the arrays to the cache."""
    pieces = {name: (tuple(tensor.shape), tensor.dtype, chunks(tensor)) for name, tensor in content.tensors().items()}
    write_arrays(path, pieces, content.class_names, (content.mean, content.std), digest_of(content))


def write_arrays(path: Path, tensors: Pieces, class_names: Sequence[str], measured: Statistics, digest: str) -> None:
    """Write to the cache what comes piece by piece: the four tensors of `Arrays`, by name."""
    mean, std = measured
    values = {"version": VERSION, "class_names": class_names, "mean": mean, "std": std, "digest": digest}
    with atomic_file(path) as partial:
        write_pieces(partial, tensors, values)


def read_cache(path: Path) -> Arrays | None:
    """The cached arrays, mapped not read; None where there is no usable file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            values = values_of(file.metadata())
            if values["version"] != VERSION:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            names, mean, std = (tuple(values[key]) for key in ("class_names", "mean", "std"))
            return Arrays(**tensors, class_names=names, mean=mean, std=std, digest=values["digest"])
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None  # cut short or foreign: made anew from the source
    except OSError as error:
        raise MdcgError(f"cannot read {path}: {error.strerror or error}; delete it and try again.") from error


def cache_file(label: str, source: Path, stamp: str) -> Path:
    """The file in the cache for what lies at `source` and has this stamp."""
    place = hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()
    return cache_folder() / f"{label}-{place}-{stamp}.safetensors"


def cached(label: str, source: Path, stamp: str, write: Callable[[Path], None]) -> Arrays:
    """The arrays in the cache, written there first where they are not; those of another stamp are outdated."""
    file = cache_file(label, source, stamp)
    content = read_cache(file)
    if content is None:
        write(file)
        for outdated in set(file.parent.glob(cache_file(label, source, "*").name)) - {file}:
            outdated.unlink(missing_ok=True)  # the source has changed since
        remove_partial(file.parent)
        content = read_cache(file)
        if content is None:
            raise MdcgError(f"{file} could not be read back just after it was written; check the disk.")
    return content
