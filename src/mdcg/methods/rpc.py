"""RPC (Pernici et al., 2021): replay with fixed classifiers at equal angles; only features are learned."""

from __future__ import annotations

from typing import ClassVar

from mdcg.methods.base import METHODS
from mdcg.methods.replay import Replay


@METHODS.register("rpc")
class Rpc(Replay):
    """Replay on a regular polytope classifier: fixed corners of a simplex, all of them in the softmax."""

    head: ClassVar[str] = "simplex"
    forks: ClassVar[bool] = True
