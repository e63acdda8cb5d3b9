"""Recipes, planning many runs, and the store of finished ones."""

from mdcg.experiments.recipe import Recipe
from mdcg.experiments.record import Record
from mdcg.experiments.runner import run_specs
from mdcg.experiments.spec import RunSpec
from mdcg.experiments.store import Store

__all__ = ["Recipe", "Record", "RunSpec", "Store", "run_specs"]
