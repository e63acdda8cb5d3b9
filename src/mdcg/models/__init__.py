"""Backbones and heads, each holding K members in one module. Knows nothing of losses or data."""

from mdcg.models.backbones import BACKBONES, build_backbone, register_backbone
from mdcg.models.heads import HEADS, Head
from mdcg.models.model import Model, build_model

__all__ = [
    "BACKBONES",
    "HEADS",
    "Head",
    "Model",
    "build_backbone",
    "build_model",
    "register_backbone",
]
