"""The probe for what becomes of the images in memory, and of the tasks that they stand for (the paper, Section 1,
Fig. 1)."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from mdcg.methods import Method
from mdcg.models import Head
from mdcg.probes.base import PROBES, Images, Measured, Probe, Snapshot


@PROBES.register("memory")
class MemoryProbe(Probe):
    """Ground-truth logit and accuracy on the memory's images, accuracy on past test images."""

    def wants(self, task: int, epoch: int, epochs: int) -> bool:
        return task > 0

    def unsuited(self, method: Method, head: type[Head]) -> str | None:
        return None if method.uses_memory else "it keeps no images in memory"

    def look(self, snapshot: Snapshot) -> Measured:
        """Measure of every past task: `logit`, the mean ground-truth logit of its images in memory; `memory_accuracy`,
        in percent, of the same images; `test_accuracy`, of its test images. The classes seen are told apart.
        """
        past = range(snapshot.positions(snapshot.task).start)
        held, test = snapshot.memory(past), snapshot.test(past)
        answers = snapshot.logits(held)
        truth = [
            own.gather(1, _on(own, labels)[:, None])[:, 0] for own, labels in zip(answers, held.labels, strict=True)
        ]
        return {
            "logit": _per_task(snapshot, held, truth),
            "memory_accuracy": _per_task(snapshot, held, _percent_right(answers, held)),
            "test_accuracy": _per_task(snapshot, test, _percent_right(snapshot.logits(test), test)),
        }


def _percent_right(answers: list[Tensor], images: Images) -> list[Tensor]:
    """The accuracy on each single image of each member: 100 or 0."""
    return [100.0 * (own.argmax(1) == _on(own, labels)) for own, labels in zip(answers, images.labels, strict=True)]


def _per_task(snapshot: Snapshot, images: Images, values: list[Tensor]) -> list[list[float]]:
    """The mean of each member over the images of each past task; NaN, where it has none."""
    tasks = [snapshot.positions(task) for task in range(snapshot.task)]
    return [
        [float(own[_on(own, (labels >= task.start) & (labels < task.stop))].double().mean()) for task in tasks]
        for own, labels in zip(values, images.labels, strict=True)
    ]


def _on(like: Tensor, array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).to(like.device)
