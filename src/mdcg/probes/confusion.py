"""Which class is taken for which."""

from __future__ import annotations

import numpy as np

from mdcg.probes.base import PROBES, Measured, Probe, Sight


@PROBES.register("confusion")
class Confusion(Probe):
    """Images evaluated at the end of each task, by true and predicted class."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return epoch == epochs

    def look(self, sight: Sight) -> Measured:
        """`counts`: [true][predicted], class positions so far. Its diagonal is what the run counts as correct."""
        images = sight.test(range(sight.seen))
        found = []
        for logits, labels in zip(sight.logits(images), images.labels, strict=True):
            counts = np.zeros((sight.seen, sight.seen), np.int64)
            np.add.at(counts, (labels, logits.argmax(-1).cpu().numpy()), 1)
            found.append(counts.tolist())
        return {"counts": found}
