"""The probe for how far answers to past images move while a task is learned (the paper, Appendix "Regularising future
classes")."""

from __future__ import annotations

from typing import ClassVar

from mdcg.methods.base import kl_divergence
from mdcg.probes.base import PROBES, Measured, Probe, Snapshot


@PROBES.register("drift")
class Drift(Probe):
    """KL between what is predicted for past tasks' test images now and when the task began."""

    needs_start: ClassVar[bool] = True

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task > 0

    def look(self, snapshot: Snapshot) -> Measured:
        """Measure `kl`: of each past task, the mean over its test images of KL(p(x) ‖ p_0(x)) over the classes seen."""
        found: list[list[float]] = [[] for _ in range(snapshot.members)]
        for past in range(snapshot.task):
            images = snapshot.test(snapshot.positions(past))
            pairs = zip(snapshot.logits(images), snapshot.logits(images, snapshot.start), strict=True)
            for own, (now, then) in zip(found, pairs, strict=True):
                own.append(float(kl_divergence(now[None].double(), then[None].double())))
        return {"kl": found}
