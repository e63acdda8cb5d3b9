"""The probe for where the backbone puts images, before a task and after it."""

from __future__ import annotations

import numpy as np

from mdcg.probes.base import PROBES, Images, Measured, Probe, Snapshot

PER_CLASS, MOST = 40, 400  # images; all features of all looks lie in one file


@PROBES.register("features")
class Features(Probe):
    """The backbone's features of some test images of each class, at the beginning and end of each task from task 2."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task > 0 and epoch in (0, epochs)

    def look(self, snapshot: Snapshot) -> Measured:
        """Measure `features` of each image, four digits of them, and its class position in `classes`.

        They are the same images at both moments: up to 40 of each class, fewer where there would be over 400.
        """
        images = _of_each_class(snapshot, min(PER_CLASS, max(1, MOST // snapshot.seen)))
        features = [
            [[float(f"{value:.4g}") for value in image] for image in own.tolist()] for own in snapshot.features(images)
        ]
        return {"classes": [own.tolist() for own in images.labels], "features": features}


def _of_each_class(snapshot: Snapshot, count: int) -> Images:
    parts = [snapshot.test(range(position, position + 1)).at_most(count) for position in range(snapshot.seen)]
    index = [np.concatenate([part.index[k] for part in parts]) for k in range(snapshot.members)]
    labels = [np.concatenate([part.labels[k] for part in parts]) for k in range(snapshot.members)]
    return Images(snapshot.test_pixels, index, labels)
