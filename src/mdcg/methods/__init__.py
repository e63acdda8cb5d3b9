"""Methods, one file each: what a method needs and its loss. Nothing of loops, graphs or logging."""

from mdcg.methods import (  # noqa: F401 (each registers its method)
    cumulative,
    der,
    er_ace,
    er_lode,
    gdumb,
    gem,
    ld,
    md,
    md_cg,
    md_replay,
    naive,
    replay,
    rpc,
    ss_il,
)
from mdcg.methods.base import METHODS, Method, Step, cross_entropy, kl_divergence, stack

__all__ = ["METHODS", "Method", "Step", "cross_entropy", "kl_divergence", "stack"]
