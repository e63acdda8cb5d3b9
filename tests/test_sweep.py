"""Sweeps: what they mean, that nothing is lost or done twice, and what they say of bad recipes."""

from __future__ import annotations

import mdcg

RECIPE = """
scenario: digits-2
epochs: 6
seeds: 0-2
axes:
  method: [replay, md-cg]
  memory: [30, 60]
"""


def outcome(work: mdcg.Sweep) -> dict[str, tuple[object, ...]]:
    """All that a run's result says and that company or interruptions must not change."""
    return {name: (record.correct, record.history, record.memory) for name, record in work.records().items()}
