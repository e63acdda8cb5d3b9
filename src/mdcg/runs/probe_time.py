"""The time that probes took, beside that of training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mdcg.errors import MdcgError
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store, read_measurements


@dataclass(frozen=True)
class ProbeTime:
    """The seconds of some runs, and beside them those of the probes that looked at them."""

    training: float
    probes: Mapping[str, float]

    @classmethod
    def of(cls, watched: Iterable[tuple[Store, RunSpec]]) -> ProbeTime | None:
        """Sum over finished runs, each with a store whose probes looked at it; None where none did."""
        training, probes = 0.0, dict[str, float]()
        for store, spec in watched:
            record = store.finished(spec) if store.probes else None
            if record is not None:
                training += record.seconds
                for probe in store.probes:
                    with contextlib.suppress(MdcgError):  # damaged: no reason to say nothing of the others
                        seconds = read_measurements(store.folder(spec), probe).seconds
                        probes[probe] = probes.get(probe, 0.0) + seconds
        return cls(training, dict(sorted(probes.items()))) if training else None

    def __str__(self) -> str:
        total = sum(self.probes.values())
        each = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.probes.items())
        share = total / (total + self.training)
        return f"probes took {total:.1f} s beside {self.training:.1f} s of training, {share:.0%} of all ({each})"
