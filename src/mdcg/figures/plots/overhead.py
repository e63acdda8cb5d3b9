"""Additional floats: what a method keeps beyond the base model and the tasks' head (Appendix "Memory overhead").

Pixels of the images that the memory may hold, W·H·C·|M|; for a gated head also the weights of its gates,
I · Σ_i (i−1)·|Y^i| with I features: each task i has a gate for every class of the i−1 tasks before it. The formula
takes all of these tasks to be as large as task i. Where they are not, it is off, so gates are counted in a real head.
It leaves out the gates' biases, and so do we; they are told apart. For C10-5 it gives 64 · 20 = 1,280, and that is
what the head has; the appendix writes 64 · 2 · 15 = 1,920, which is what Σ i would give in place of Σ (i−1).

A teacher is no overhead: it exists only while a task is learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from pydantic import ValidationError

from mdcg.errors import MdcgError
from mdcg.figures.plots.models import features, has_known_shape, shape_of
from mdcg.methods import METHODS
from mdcg.models.heads import Simplex, grown_head
from mdcg.runs.spec import RunSpec


@dataclass(frozen=True)
class Overhead:
    """The additional floats of a method, counted in numbers, not bytes."""

    pixels: int  # of as many images as the memory may hold
    gate_weights: int  # or whatever else a head has beside its classifier
    gate_biases: int  # not part of `floats`
    logits: int  # kept with the images
    projection: int  # weights of the simplex head, whose classifiers themselves take no room

    @property
    def floats(self) -> int:
        return self.pixels + self.gate_weights + self.logits + self.projection


def can_be_counted(spec: RunSpec) -> bool:
    """Whether all parts of a run are known here: of another version they may have other settings, or be gone."""
    try:
        spec.built_method()
        return has_known_shape(spec) and features(spec.backbone, shape_of(spec)) > 0
    except (MdcgError, ValidationError):
        return False


def overhead(spec: RunSpec, sizes: Sequence[int]) -> Overhead:
    """The overhead of a run after its last task; `sizes` are the numbers of classes of each."""
    shape, kind = shape_of(spec), METHODS[spec.method]
    images = spec.memory + spec.built_method().second_memory_size()
    of_head = _in_head(spec.head, features(spec.backbone, shape), tuple(sizes))
    return Overhead(
        pixels=math.prod(shape) * images,
        gate_weights=of_head.gate_weights,
        gate_biases=of_head.gate_biases,
        logits=spec.memory * of_head.outputs if kind.stores_logits else 0,
        projection=of_head.projection,
    )


@dataclass(frozen=True)
class _InHead:
    outputs: int
    gate_weights: int
    gate_biases: int
    projection: int


@cache
def _in_head(name: str, features: int, sizes: tuple[int, ...]) -> _InHead:
    head = grown_head(name, features, sizes)
    beside = [(key, value.numel()) for key, value in head.named_parameters() if not key.startswith("classifier.")]
    with torch.no_grad():
        outputs = head(torch.zeros(1, 1, features)).shape[-1]
    return _InHead(
        outputs=outputs,
        gate_weights=sum(count for key, count in beside if not key.endswith("bias")),
        gate_biases=sum(count for key, count in beside if key.endswith("bias")),
        projection=head.classifier.weight.numel() if isinstance(head, Simplex) else 0,
    )
