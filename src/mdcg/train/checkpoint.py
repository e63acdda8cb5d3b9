"""Checkpoints: the state after an epoch, in one file that says by its own name whether it is whole.

The name ends in a digest of the content. Two are kept: should the newest be cut short or altered, the one
before it is used.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.files import remove_partial, write_atomic
from mdcg.tensors import pack, unpack
from mdcg.train.device_errors import is_out_of_memory
from mdcg.train.group import Group
from mdcg.train.precision import Compute
from mdcg.train.state import PlainValues, State, restore

logger = logging.getLogger(__name__)

VERSION = 5
KEPT = 2
MEMBERS = "members.json"  # the names of the group's runs
DONE = ".done"  # suffix of a folder that is being removed


class Checkpoints:
    """The checkpoints of one group, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, tensors: dict[str, Tensor], values: PlainValues) -> None:
        """Write a checkpoint, and remove those that are no longer needed."""
        content = pack(tensors, {"version": VERSION, **values})
        place = "-".join(f"{values[part]:08d}" for part in ("task", "epoch", "step"))
        write_atomic(self.folder / f"{place}.{_digest(content)}.safetensors", content)
        for old in self._files()[KEPT:]:
            old.unlink(missing_ok=True)

    def newest(self) -> tuple[Path, dict[str, Tensor], PlainValues] | None:
        """The newest whole checkpoint, if there is one; those that cannot be used are removed."""
        if not self.folder.exists():
            return None
        remove_partial(self.folder)
        for file in self._files():
            try:
                content = file.read_bytes()
                if _digest(content) != file.name.split(".")[1]:
                    raise ValueError("its content does not match its name")
                tensors, values = unpack(content)
                if values.get("version") != VERSION:
                    raise ValueError(f"it has format version {values.get('version')}, not {VERSION}")
                return file, tensors, values
            except (OSError, ValueError) as error:
                self.refuse(file, str(error))
        return None

    def restore(self, group_of: Callable[[PlainValues], Group], compute: Compute) -> State | None:
        """The newest state that fits its group, which the values of a checkpoint tell; None where there is none."""
        while (saved := self.newest()) is not None:
            file, tensors, values = saved
            try:
                return restore(tensors, values, group_of(values), compute)
            except (RuntimeError, KeyError, TypeError, ValueError) as error:
                if is_out_of_memory(error):
                    raise  # the checkpoint is not to blame
                self.refuse(file, f"it does not fit this network: {str(error).splitlines()[0]}")
        return None

    def refuse(self, file: Path, reason: str) -> None:
        """Remove a checkpoint that cannot be used, and say so: left behind, it would pass for newer than the next."""
        file.unlink(missing_ok=True)
        then = "going back to the one before it" if self._files() else "starting from the beginning"
        logger.warning("checkpoint %s cannot be used (%s); %s.", file, reason, then)

    def discard(self) -> None:
        """Remove all checkpoints: the run is finished, or is to start anew."""
        done = self.folder.with_name(self.folder.name + DONE)
        try:
            self.folder.rename(done)  # at once: from now on the group does not count as begun
            shutil.rmtree(done)
        except FileNotFoundError:
            return
        except OSError as error:
            raise MdcgError(f"cannot remove {self.folder}: {error.strerror}; remove it by hand.") from error

    def _files(self) -> list[Path]:
        """The files of the checkpoints, newest first."""
        return sorted(self.folder.glob("*.safetensors"), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
