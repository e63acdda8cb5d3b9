"""MD-CG, the paper's proposal: Margin Dampening on a head of Cascaded Gates."""

from __future__ import annotations

from typing import ClassVar

from mdcg.methods.base import METHODS
from mdcg.methods.md import MarginDampening


@METHODS.register("md-cg")
class MDCG(MarginDampening):
    """Margin Dampening with Cascaded Gates, the paper's proposal."""

    head: ClassVar[str] = "cascaded-gates"
    forks: ClassVar[bool] = True
