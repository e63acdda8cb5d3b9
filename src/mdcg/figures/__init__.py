"""Figures: what the runs show, drawn."""

from __future__ import annotations

from mdcg.figures.base import FIGURES, Figure, ModelFigure, RunFigure
from mdcg.figures.plots import (  # noqa: F401 (each registers its own)
    bias,
    confusion,
    drift,
    embedding,
    floats,
    forgetting,
    gates,
    gradients,
    head_growth,
    head_time,
    margin,
    sigmoid,
    tradeoff,
)

__all__ = ["FIGURES", "Figure", "ModelFigure", "RunFigure"]
