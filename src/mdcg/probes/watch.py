"""Letting probes look, and keeping what they measure with the runs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.probes.base import Probe, ProbeError, Sight
from mdcg.train.state import Row, State


def look(probes: Mapping[str, Probe], sight: Sight, state: State) -> None:
    """Add what each probe measures to the members' rows, and the time that it takes to its account."""
    for name, probe in probes.items():
        started = time.perf_counter()
        columns = _measured(name, probe, sight)
        for k, rows in enumerate(state.measured):
            row: Row = {"probe": name, "task": sight.task + 1, "epoch": sight.epoch, "step": sight.step}
            rows.append(row | {key: values[k] for key, values in columns.items()})
        state.measuring[name] = state.measuring.get(name, 0.0) + time.perf_counter() - started


def _measured(name: str, probe: Probe, sight: Sight) -> dict[str, list[Any]]:
    try:
        columns = {key: _plain(values) for key, values in probe.look(sight).items()}
    except MdcgError:
        raise
    except Exception as error:  # whatever a user's probe may raise
        reason = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise ProbeError(
            f"the probe {name} failed ({type(error).__name__}: {reason}); mend it, or leave it out."
        ) from error
    for key, values in columns.items():
        if len(values) != sight.members:
            raise ProbeError(
                f"the probe {name} gave {len(values)} values of '{key}' for {sight.members} runs; "
                "it must give one for each."
            )
    return columns


def _plain(value: Any) -> Any:
    """As numbers and lists of numbers, fit for JSON; what is not finite is None."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
