"""The probe for what Margin Dampening asks of the current images, and how far it is met (the paper, Appendix "MD
regularisation effects").
"""

from __future__ import annotations

import torch

from mdcg.methods.md import margin_loss
from mdcg.probes.base import PROBES, Measured, Probe, Snapshot

MOST = 2000  # images of each member: enough for means, and cheap beside an epoch


@PROBES.register("margin")
class Margin(Probe):
    """Probabilities of the truth and of past classes on the current task's images, and their margin loss."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task > 0

    def look(self, snapshot: Snapshot) -> Measured:
        """Measure means over the current task's training images, as they are, whatever loss the method itself has:
        `truth`, the probability of the truth among all classes seen; `past`, the largest of a past class; `loss`, the
        margin loss (Eq. 4); `above_zero`, the share of images whose margin loss is not zero.
        """
        current = snapshot.positions(snapshot.task)
        images = snapshot.train(current).at_most(MOST)
        found: dict[str, list[float]] = {"truth": [], "past": [], "loss": [], "above_zero": []}
        for logits, labels in zip(snapshot.logits(images), images.labels, strict=True):
            own = logits.double()
            target = torch.from_numpy(labels).to(own.device)
            p = own.softmax(1)
            loss = margin_loss(own[None], target[None], current.start)[0]
            found["truth"].append(float(p.gather(1, target[:, None]).mean()))
            found["past"].append(float(p[:, : current.start].amax(1).mean()))
            found["loss"].append(float(loss.mean()))
            found["above_zero"].append(float((loss > 0).double().mean()))
        return found
