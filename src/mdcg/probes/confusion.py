"""The probe for which class is taken for which."""

from __future__ import annotations

import numpy as np

from mdcg.probes.base import PROBES, Measured, Probe, Snapshot


@PROBES.register("confusion")
class Confusion(Probe):
    """Images evaluated at the end of each task, by true and predicted class."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return epoch == epochs

    def look(self, snapshot: Snapshot) -> Measured:
        """Measure `counts`: [true][predicted], class positions so far. The diagonal is what the run has correct."""
        images = snapshot.test(range(snapshot.seen))
        found = []
        for logits, labels in zip(snapshot.logits(images), images.labels, strict=True):
            counts = np.zeros((snapshot.seen, snapshot.seen), np.int64)
            np.add.at(counts, (labels, logits.argmax(-1).cpu().numpy()), 1)
            found.append(counts.tolist())
        return {"counts": found}
