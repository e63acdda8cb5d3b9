"""mdcg: class-incremental learning with Margin Dampening and Cascaded Gates, many runs at once.

>>> import mdcg
>>> result = mdcg.run(scenario="digits-5", method="md-cg", memory=100, seeds=range(5))  # doctest: +SKIP
>>> result.mean["ACC"]  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mdcg.api import Comparison, Result, Search, compare, load_runs, run, search
    from mdcg.data.dataset import Dataset
    from mdcg.data.registry import register_dataset
    from mdcg.errors import MdcgError
    from mdcg.execute.sweep import Sweep
    from mdcg.learner import Learner
    from mdcg.methods.base import METHODS, Method, Step
    from mdcg.models.backbones import register_backbone
    from mdcg.probes.base import PROBES, Measured, Probe, Snapshot

__all__ = [
    "METHODS",
    "PROBES",
    "Comparison",
    "Dataset",
    "Learner",
    "MdcgError",
    "Measured",
    "Method",
    "Probe",
    "Result",
    "Search",
    "Snapshot",
    "Step",
    "Sweep",
    "compare",
    "load_runs",
    "register_backbone",
    "register_dataset",
    "run",
    "search",
]

_HOMES = {
    "METHODS": "mdcg.methods",
    "PROBES": "mdcg.probes",
    "Comparison": "mdcg.api",
    "Dataset": "mdcg.data",
    "Learner": "mdcg.learner",
    "MdcgError": "mdcg.errors",
    "Measured": "mdcg.probes",
    "Method": "mdcg.methods",
    "Probe": "mdcg.probes",
    "Result": "mdcg.api",
    "Search": "mdcg.api",
    "Snapshot": "mdcg.probes",
    "Step": "mdcg.methods",
    "Sweep": "mdcg.execute.sweep",
    "compare": "mdcg.api",
    "load_runs": "mdcg.api",
    "register_backbone": "mdcg.models.backbones",
    "register_dataset": "mdcg.data",
    "run": "mdcg.api",
    "search": "mdcg.api",
}


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Load torch only when something of it is used: `mdcg --help` should not wait for it."""
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'mdcg' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
