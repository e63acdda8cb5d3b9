"""Probes: what can be measured of runs as they train, without touching them."""

from __future__ import annotations

from mdcg.probes import confusion, drift, features, gates, gradients, margin, memory  # noqa: F401 (each registers its own)
from mdcg.probes.base import PROBES, Images, Measured, Probe, ProbeError, Snapshot
from mdcg.probes.probe_set import ProbeSet, probes_for

__all__ = ["PROBES", "Images", "Measured", "Probe", "ProbeError", "ProbeSet", "Snapshot", "probes_for"]
