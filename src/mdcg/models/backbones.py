"""Backbones by name: ours, and any module that a user registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from mdcg.errors import MdcgError, unknown
from mdcg.models.features import FEATURES, Features
from mdcg.models.layers import Conv2d
from mdcg.models.resnet import Projected, resnet18, resnet18_1000, small_resnet
from mdcg.models.smallconv import SmallConv
from mdcg.models.stacked import Stacked, member_seeds
from mdcg.registry import Registry

MEMBERED: dict[str, Callable[[int, int], nn.Module]] = {
    **{f"resnet{depth}": partial(small_resnet, depth) for depth in (20, 32, 44, 56)},
    "resnet18": resnet18,
    "resnet18-1000": resnet18_1000,
    "smallconv": SmallConv,
    FEATURES: Features,
}
SUMMARIES = {
    "resnet18": "18 layers, 7×7 stem, 512 features; for images of 64 pixels and more",
    "resnet18-1000": "the same with its 1,000-way layer as features, as in the paper's published code",
    "resnet20": "20 layers, 64 features; for 32×32 images",
    "resnet32": "32 layers, 64 features; for 32×32 images",
    "resnet44": "44 layers, 64 features; for 32×32 images",
    "resnet56": "56 layers, 64 features; for 32×32 images",
    "smallconv": "three convolutions, 64 features; for images of about 8×8",
}

Factory = Callable[[int], nn.Module]  # from the number of channels to a network

#: Backbones of users.
BACKBONES: Registry[Factory] = Registry("backbone", "mdcg.backbones")


def register_backbone(name: str, factory: Factory) -> None:
    """Make a network of your own available by name.

    >>> def tiny(channels):
    ...     return nn.Sequential(nn.Conv2d(channels, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> register_backbone("tiny", tiny)
    """
    if name in MEMBERED:
        raise MdcgError(f"there is already a backbone named '{name}'; choose another name.")
    BACKBONES.register(name)(factory)


def backbone_names() -> list[str]:
    """The names of all backbones that can be asked for: that of features is none of anybody's choice."""
    return sorted({*MEMBERED, *BACKBONES.names()} - {FEATURES})


def unknown_backbone(name: str) -> MdcgError:
    """The error for a name that this process does not know, with what to do about it."""
    if ":" not in name and "." not in name:  # a name that was registered, or misspelt
        return unknown("backbone", name, backbone_names(), about="backbone")
    example = name if ":" in name else "package.module:function"
    return MdcgError(
        f"the backbone '{name}' is code that this process has not been given, and nothing is imported because a file "
        f"names it; pass it yourself, as backbone= in Python or --backbone {example}, or make it an entry point of the "
        "group mdcg.backbones.",
        about="backbone",
    )


def has_kernels(name: str) -> bool:
    """Whether a backbone of this name has fused kernels: all of ours that are, or hold, a ResNet do."""
    return name in MEMBERED and MEMBERED[name] not in (SmallConv, Features)


def blank_backbone(name: str, shape: tuple[int, int, int]) -> nn.Module:
    """One member of a backbone whose values are yet to come from a file: of ours nothing is in memory yet.

    A user's own network has the values that it was made with.
    """
    if name not in MEMBERED:
        return build_backbone(name, shape, [np.random.default_rng(0)], trained=False)
    with torch.device("meta"):
        backbone = MEMBERED[name](1, shape[0])
        for module in backbone.modules():
            if isinstance(module, Projected):
                module.make_room()
    return backbone


def build_backbone(
    name: str, shape: tuple[int, int, int], rngs: Sequence[np.random.Generator], trained: bool = True
) -> nn.Module:
    """Build K members of a backbone, each initialised by its own generator.

    One that is not to be `trained` may hold what it cannot be trained with: dropout.
    """
    if name not in MEMBERED:
        if name not in BACKBONES.names():
            raise unknown_backbone(name)
        return Stacked(BACKBONES[name], shape, member_seeds(rngs), trained)
    backbone = MEMBERED[name](len(rngs), shape[0])
    for module in backbone.modules():
        if isinstance(module, Conv2d | Projected):
            module.initialise(rngs)
    return backbone
