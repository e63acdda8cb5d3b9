"""Backbones and heads, each holding K members in one module. Knows nothing of losses or data."""

from mdcg.models.backbones import BACKBONES, build_backbone, register_backbone
from mdcg.models.heads import HEADS, Head
from mdcg.models.model import Model, build_model, model_of
from mdcg.models.naming import Given, backbone_name

__all__ = [
    "BACKBONES",
    "HEADS",
    "Given",
    "Head",
    "Model",
    "backbone_name",
    "build_backbone",
    "build_model",
    "model_of",
    "register_backbone",
]
