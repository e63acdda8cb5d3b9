"""Methods, one file each: what a method needs and its loss. Nothing of loops, devices or logging."""

from mdcg.methods import cumulative, md, md_cg, naive, replay  # noqa: F401 (each registers its method)
from mdcg.methods.base import METHODS, Method, Step, stack

__all__ = ["METHODS", "Method", "Step", "stack"]
