"""How long runs will take, from how long others took.

A run's work is counted in images that pass through the network, memory images included. What one image costs is
measured: the finished runs in the store say it, and a sweep goes on measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from mdcg.data import Dataset
from mdcg.experiments.runner import group_of
from mdcg.experiments.spec import RunSpec
from mdcg.experiments.store import Record
from mdcg.train.epoch import steps_per_epoch
from mdcg.train.group import Group


def images_per_step(group: Group, task: int) -> int:
    """Of one member."""
    return group.training.batch_size + sum(draw.size for draw in group.memory_draws(task))


def work(group: Group) -> int:
    """Images of all members, tasks and epochs."""
    tasks = range(group.training.tasks)
    return group.training.epochs * sum(
        int(steps_per_epoch(group, task).sum()) * images_per_step(group, task) for task in tasks
    )


def seconds_per_image(
    specs: Sequence[RunSpec], dataset: Dataset, records: Iterable[Record], gpu: str | None
) -> float | None:
    """Measured on this GPU, or on a CPU, with this network and number format; of this method, if it was among them."""
    wanted = specs[0]
    alike = [
        record
        for record in records
        if (record.spec.fingerprint, record.spec.backbone) == (wanted.fingerprint, wanted.backbone)
        and (record.spec.precision, record.environment.hardware.gpu) == (wanted.precision, gpu)
    ]
    own = [record for record in alike if record.spec.method == wanted.method]
    # One of each setting is enough: runs of other seeds cost the same.
    chosen = {record.spec.model_copy(update={"seed": 0}).digest(): record for record in own or alike}
    costs = [record.seconds / work(group_of([record.spec], dataset)) for record in chosen.values()]
    return median(costs) if costs else None
