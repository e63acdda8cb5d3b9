"""Figures: what the runs show, drawn."""

from __future__ import annotations

from mdcg.figures import drift, floats, forgetting, head_growth, head_time, sigmoid, tradeoff  # noqa: F401 (each registers its own)
from mdcg.figures.base import FIGURES, Figure, OfModels, OfRuns, Run

__all__ = ["FIGURES", "Figure", "OfModels", "OfRuns", "Run"]
