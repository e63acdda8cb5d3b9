"""Checkpoints: the state after an epoch, in one file that says by its own name whether it is whole.

The name ends in a digest of the content. Two are kept: should the newest be cut short or altered, the one
before it is used.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from mdcg.errors import TROUBLE, MachineError, MdcgError, machine_trouble
from mdcg.files import open_file, remove_folder, remove_partial, shown, unlink_link, write_atomic
from mdcg.tensors import pack, unpack
from mdcg.train.checked import check_fits, check_whole
from mdcg.train.device_errors import is_out_of_memory
from mdcg.train.group import Group
from mdcg.train.precision import Compute
from mdcg.train.state import PlainValues, State, restore

logger = logging.getLogger(__name__)

VERSION = 5
KEPT = 2
MEMBERS = "members.json"  # the names of the group's runs
NAME = re.compile(r"\d{8,}-\d{8,}-\d{8,}\.[0-9a-f]{32}\.safetensors", re.ASCII)  # place and digest
DONE = ".done"  # suffix of a folder that is being removed


class Checkpoints:
    """The checkpoints of one group, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, tensors: dict[str, Tensor], values: PlainValues) -> None:
        """Write a checkpoint, and remove those that are no longer needed."""
        content = pack(tensors, {"version": VERSION, **values})
        place = "-".join(f"{values[part]:08d}" for part in ("task", "epoch", "step"))
        unlink_link(self.folder)  # what it leads to is nobody's checkpoints
        write_atomic(self.folder / f"{place}.{_digest(content)}.safetensors", content)
        for old in self._files()[KEPT:]:
            old.unlink(missing_ok=True)

    def newest(self) -> tuple[Path, dict[str, Tensor], PlainValues] | None:
        """The newest whole checkpoint, if there is one; those that cannot be used are removed."""
        if self.folder.is_symlink() or not self.folder.exists():
            return None
        remove_partial(self.folder)
        for file in self._files():
            try:
                with open_file(file) as opened:
                    content = opened.read()
                if _digest(content) != file.name.split(".")[1]:
                    raise ValueError("its content does not match its name")
                tensors, values = unpack(content)
                if values.get("version") != VERSION:
                    raise ValueError(f"it has format version {shown(str(values.get('version')), 20)}, not {VERSION}")
                return file, tensors, check_whole(tensors, values).model_dump()
            except (OSError, ValueError) as error:
                if trouble := machine_trouble(error):
                    raise trouble from error  # the checkpoint is not to blame
                self.refuse(file, _reason(error))
        return None

    def restore(self, group_of: Callable[[PlainValues], Group], compute: Compute) -> State | None:
        """The newest state that fits its group, which the values of a checkpoint tell; None where there is none."""
        while (saved := self.newest()) is not None:
            file, tensors, values = saved
            try:
                group = group_of(values)
                check_fits(tensors, values, group)
                return restore(tensors, values, group, compute)
            except (RuntimeError, LookupError, TypeError, ValueError, MdcgError) as error:
                if is_out_of_memory(error):
                    raise  # the checkpoint is not to blame
                self.refuse(file, f"it does not fit this network: {_reason(error)}")
        return None

    def refuse(self, file: Path, reason: str) -> None:
        """Remove a checkpoint that cannot be used, and say so: left behind, it would pass for newer than the next."""
        file.unlink(missing_ok=True)
        then = "going back to the one before it" if self._files() else "starting from the beginning"
        logger.warning("checkpoint %s cannot be used (%s); %s.", file, reason, then)

    def discard(self) -> None:
        """Remove all checkpoints: the run is finished, or is to start anew."""
        done = self.folder.with_name(f"{self.folder.name}.{secrets.token_hex(6)}{DONE}")
        try:
            self.folder.rename(done)  # at once: from now on the group does not count as begun
            remove_folder(done)
        except FileNotFoundError:
            return
        except OSError as error:
            advice = TROUBLE.get(error.errno or 0, "remove it by hand")
            raise MachineError(f"cannot remove {self.folder}: {error.strerror}; {advice}.") from error

    def _files(self) -> list[Path]:
        """The files of the checkpoints, newest first."""
        if self.folder.is_symlink():
            return []
        return sorted((file for file in self.folder.glob("*.safetensors") if NAME.fullmatch(file.name)), reverse=True)


def _reason(error: Exception) -> str:
    """Why a checkpoint cannot be used, on one line; of pydantic's several lines the first thing that is wrong."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"its header is damaged: {shown('.'.join(map(str, first['loc'])), 60)}"
    return shown((str(error).splitlines() or [type(error).__name__])[0])


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
