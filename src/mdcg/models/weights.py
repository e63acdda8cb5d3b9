"""Initial weights of a backbone from a file, safetensors or PyTorch's own, by the names that people have.

A ResNet takes torchvision's names, any other network of ours or of a user's its own; all of them also below a prefix
(`module.`, `backbone.`, …), which is found by looking. A classifier that the file has besides is left out.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors.torch import load
from torch import Tensor, nn

from mdcg.errors import InputError, MachineError, MdcgError
from mdcg.files import open_file, path_of
from mdcg.models.resnet import Projected, ResNet
from mdcg.models.stacked import CLASSIFIERS, Stacked
from mdcg.tensors import content_of

ZIPPED = b"PK\x03\x04"  # what PyTorch's files begin with
COUNT = "num_batches_tracked"  # of BatchNorm, which with a momentum does not use it
SHOWN = 3  # names in an error

Names = dict[str, str]  # from names in a file to those of a backbone's state


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights, and what it held when it was named: all members begin with it, whatever their seed."""

    path: Path
    digest: str  # of names and values: the same weights in another file are the same

    @classmethod
    def of(cls, path: Path | str) -> WeightsFile:
        try:
            whole = path_of(path_of(path, home=True).absolute())
        except InputError as error:
            raise MdcgError(str(error), about="weights") from error
        known = whole.stat() if whole.exists() else None
        return cls(whole, _digest(whole, known and (known.st_mtime_ns, known.st_size)))

    @torch.no_grad()
    def into(self, backbone: nn.Module) -> None:
        """Make them the weights of every member of a backbone; an error says what is missing or does not fit."""
        tensors = read(self.path)
        if digest_of(tensors) != self.digest:
            raise MdcgError(f"the weights {self.path} have changed since they were named; give the command again.")
        state = backbone.state_dict()
        found = _matched(tensors, backbone, self.path)
        first = next((key for key, value in state.items() if value.ndim == 5), "")  # convolution
        wrong = []
        for key, value in found.items():
            wanted = state[key].shape[1:]
            if value.shape == (1, *wanted):  # a model that mdcg saved
                value = value[0]
            if key == first and wanted[1] == 1 and value.ndim == 4 and value.shape[1] == 3:
                value = value.sum(1, keepdim=True)  # what it would see if all three channels were the grey one
            if value.shape == wanted:
                state[key].copy_(value)
            else:
                wrong.append(f"'{key}' is {tuple(value.shape)} and should be {tuple(wanted)}")
        if wrong:
            raise MdcgError(
                f"the weights {self.path} do not fit the backbone: {_first(wrong)}; give those of the same network, "
                "for images with as many channels."
            )


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Nothing but tensors is read, whatever else the file holds."""
    try:
        with open_file(path) as file:
            start = file.read(4)
            if start == ZIPPED:
                _refuse_compressed(file)
            file.seek(0)
            pickled = start in (ZIPPED, b"\x80\x02\x8a\x0a")  # PyTorch's formats, now and before
            content = torch.load(file, map_location="cpu", weights_only=True) if pickled else load(content_of(file))
    except OSError as error:
        raise MdcgError(
            f"cannot read the weights {path}: {error.strerror}; give the path of a file.", about="weights"
        ) from error
    except Exception as error:  # a file with anything in it
        if isinstance(error, MemoryError) or "allocate memory" in str(error):  # PyTorch's words for it
            raise MachineError(f"there is not enough memory for the weights {path}; close other programs.") from error
        raise MdcgError(
            f"{path} is no file of weights, or holds more than tensors, which is not read; save them with "
            "torch.save(model.state_dict(), PATH) or as safetensors.",
            about="weights",
        ) from error
    for nested in (content, *(content.values() if isinstance(content, dict) else ())):  # as {"state_dict": {…}}
        if isinstance(nested, dict) and any(isinstance(value, Tensor) for value in nested.values()):
            return {str(name): value for name, value in nested.items() if isinstance(value, Tensor)}
    raise MdcgError(f"{path} holds no weights by name; save model.state_dict().", about="weights")


def _refuse_compressed(file: BinaryIO) -> None:
    """Refuse a file that holds more than its size: PyTorch compresses nothing, and little can unpack to a lot."""
    with zipfile.ZipFile(file) as members:
        if sum(member.file_size for member in members.infolist()) > os.fstat(file.fileno()).st_size:
            raise ValueError("its tensors are compressed")


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A digest of names, kinds, shapes and values."""
    content = hashlib.blake2b(digest_size=10)
    for name, value in sorted(tensors.items()):
        content.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        content.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


@lru_cache
def _digest(path: Path, stamp: tuple[int, int] | None) -> str:
    """Read once, while the file is the same."""
    return digest_of(read(path))


def _matched(tensors: Mapping[str, Tensor], backbone: nn.Module, path: Path) -> dict[str, Tensor]:
    """The file's tensors by the backbone's names, all of them."""
    ways = [(prefix, names) for names in _namings(backbone) for prefix in _prefixes(tensors, names)]
    prefix, names = max(ways, key=lambda way: sum(f"{way[0]}{name}" in tensors for name in way[1]))
    missing = [f"'{prefix}{name}'" for name in names if f"{prefix}{name}" not in tensors]
    if missing:
        some = _first([f"'{name}'" for name in tensors])
        raise MdcgError(f"the weights {path} lack {_first(missing)} of the backbone; they have {some}.")
    own = (name.removeprefix(prefix) for name in tensors if name.startswith(prefix) and not name.endswith(COUNT))
    more = [f"'{prefix}{name}'" for name in own if name not in names and name.split(".")[0] not in CLASSIFIERS]
    if more:
        raise MdcgError(
            f"the weights {path} are of another network: the backbone has no {_first(more)}; choose the backbone that "
            "they are of."
        )
    found = {key: tensors[f"{prefix}{name}"] for name, key in names.items()}
    if isinstance(backbone, Projected) and "fc.weight" in names:
        found["linear.weight"] = found["linear.weight"].T  # ours has a row for each input
    return found


def _prefixes(tensors: Mapping[str, Tensor], names: Names) -> list[str]:
    """All below which the first of these names is found, the shortest first; and none."""
    first = next(iter(names), "")
    return sorted(
        {"", *(name.removesuffix(first) for name in tensors if name.endswith(f".{first}"))},
        key=lambda prefix: (len(prefix), prefix),
    )


def _namings(backbone: nn.Module) -> Iterator[Names]:
    """The names that a file may have for what is in a backbone."""
    keys = [key for key in backbone.state_dict() if not key.endswith(COUNT)]
    if isinstance(backbone, Stacked):
        yield {backbone.names[key]: key for key in keys}
    elif isinstance(backbone, ResNet):
        yield _torchvision(backbone, keys)
    elif isinstance(backbone, Projected):
        own = [key.removeprefix("resnet.") for key in keys if key.startswith("resnet.")]
        resnet = {name: f"resnet.{key}" for name, key in _torchvision(backbone.resnet, own).items()}
        yield resnet | {"fc.weight": "linear.weight", "fc.bias": "linear.bias"}
    yield {key: key for key in keys}  # as mdcg saves them


def _torchvision(net: ResNet, keys: list[str]) -> Names:
    """The names of torchvision for parts of a ResNet: our blocks.2.shortcut.1.bias is layer2.0.downsample.1.bias."""
    theirs = {"conv": "conv1", "norm": "bn1", "norm1": "bn1", "norm2": "bn2", "shortcut": "downsample"}
    names = {}
    for key in keys:
        first, *rest = key.split(".")
        if first == "blocks":
            stage, block = divmod(int(rest[0]), net.blocks_per_stage)
            parts = [f"layer{stage + 1}", str(block), theirs.get(rest[1], rest[1]), *rest[2:]]
        else:
            parts = [theirs[first], *rest]
        names[".".join(parts)] = key
    return names


def _first(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
