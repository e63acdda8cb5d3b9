"""A scenario's models without its images: what they are given, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from mdcg.execute.context import Context
from mdcg.models import HEADS, Head, build_backbone
from mdcg.recipes.protocol import DIGITS, PAPER, protocol
from mdcg.recipes.recipe import Recipe
from mdcg.runs.spec import RunSpec
from mdcg.scenario import parse

Shape = tuple[int, int, int]  # channels, height, width
SHAPES: dict[str, Shape] = {
    "digits": (1, 8, 8),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "tinyimagenet": (3, 64, 64),
}


def given(asked: Recipe) -> tuple[Shape, str]:
    """Shape of the images, and the backbone: only a folder of images must be looked into."""
    name, _ = parse(asked.scenario)
    if name in SHAPES:
        shape, usual = SHAPES[name], DIGITS if name == "digits" else PAPER[name]
    else:
        dataset = Context(asked.out, asked.data).dataset(asked)
        shape, usual = dataset.shape, protocol(asked.scenario, dataset)
    return shape, asked.backbone or usual.backbone


def shape_of(spec: RunSpec) -> Shape:
    """Of a run's images; those of a folder are in colour and as large as was asked for."""
    name, _ = parse(spec.scenario)
    return SHAPES[name] if spec.image_size is None else (3, spec.image_size, spec.image_size)


@cache
def features(backbone: str, shape: Shape) -> int:
    """How many numbers the backbone gives to the head."""
    found: int = build_backbone(backbone, shape, [np.random.default_rng(0)]).features  # type: ignore[assignment]
    return found


def grown(head: str, features: int, sizes: Sequence[int]) -> Head:
    """One member of a head after tasks of so many classes."""
    kind = HEADS[head]
    settings = {name: [default] for name, (default, _) in kind.settings.items()}
    made = kind(1, features, **settings)
    made.total = sum(sizes)
    rngs = [np.random.default_rng(0)]
    for classes in sizes:
        made.grow(classes, rngs, rngs)
    return made.float()
