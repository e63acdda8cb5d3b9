"""The models of a scenario without its images: what they are given, and what comes out."""

from __future__ import annotations

from functools import cache

import numpy as np

from mdcg.data import is_known, record_of
from mdcg.data.record import Shape
from mdcg.execute.context import Context
from mdcg.models import build_backbone
from mdcg.recipes.recipe import Recipe
from mdcg.runs.spec import RunSpec
from mdcg.scenario import parse


def given(asked: Recipe) -> tuple[Shape, str]:
    """The shape of the images, and the backbone: only a folder of images must be looked into."""
    record = record_of(parse(asked.scenario)[0])
    shape = record.shape or Context(asked.out, asked.data).dataset(asked).shape
    return shape, asked.backbone or record.protocol_for(shape).backbone


def has_known_shape(spec: RunSpec) -> bool:
    """Whether the shape of a run's images is known: not if the dataset was given in Python, or its package is gone."""
    return spec.image_size is not None or is_known(parse(spec.scenario)[0])


def shape_of(spec: RunSpec) -> Shape:
    """The shape of a run's images; those of a folder are in colour and as large as was asked for."""
    if spec.image_size is not None:
        return 3, spec.image_size, spec.image_size
    shape = record_of(parse(spec.scenario)[0]).shape
    assert shape is not None  # else the size would be part of the spec
    return shape


@cache
def features(backbone: str, shape: Shape) -> int:
    """The number of features that the backbone gives to the head."""
    found: int = build_backbone(backbone, shape, [np.random.default_rng(0)]).features  # type: ignore[assignment]
    return found
