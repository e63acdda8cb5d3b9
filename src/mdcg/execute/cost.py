"""The cost: how long runs will take, from how long others took.

A run's work is counted in images that pass through the network, memory images included. What one image costs is
measured: the finished runs in the store say it, and a sweep goes on measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from mdcg.data import Dataset
from mdcg.data.normalise import normalised
from mdcg.models.weights import WeightsFile
from mdcg.recipes.presets import augmented, cropped_and_flipped
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.train.epoch import steps_per_epoch
from mdcg.train.group import Group

#: Where nothing was measured yet: on two cores of a CPU, and on an H200 with 20 members in bf16.
ROUGH = {("smallconv", "cpu"): 7e-5, ("resnet20", "cpu"): 2.2e-3, ("resnet20", "cuda"): 3.5e-6}


@dataclass(frozen=True)
class Cost:
    """The seconds that one image takes, and whether that was measured here."""

    seconds: float
    measured: bool


def group_of(specs: Sequence[RunSpec], dataset: Dataset, weights: WeightsFile | None = None) -> Group:
    """The group in which these runs train together; only to train them does it take the weights' file."""
    first = specs[0]
    shown = cropped_and_flipped(augmented(dataset, first.augmentation), first.augment)
    images = normalised(shown, first.normalise)
    return Group(replace(first.training(), weights=weights), tuple(spec.member() for spec in specs), images)


def images_per_step(group: Group, task: int) -> int:
    """The number of images that pass through one member's network in a step, those from memory included."""
    return group.training.batch_size + sum(draw.size for draw in group.memory_draws(task))


def work(group: Group) -> int:
    """The number of images that pass through the networks while a group trains: of all members, tasks and epochs."""
    tasks = range(len(group.sizes))
    return group.training.epochs * sum(
        int(steps_per_epoch(group, task).sum()) * images_per_step(group, task) for task in tasks
    )


def cost_per_image(
    specs: Sequence[RunSpec], dataset: Dataset, records: Iterable[Record], device: str, gpu: str | None
) -> Cost | None:
    """The cost measured on a CPU or on this GPU (on any, if `gpu` is None), with this network and precision.

    Where runs of this method were measured, only they count.
    """
    wanted = specs[0]
    alike = [
        record
        for record in records
        if expense(record.spec) == expense(wanted) and _same_device(record.environment.hardware.gpu, device, gpu)
    ]
    own = [record for record in alike if record.spec.method == wanted.method]
    for those in (own, alike):
        # One of each setting is enough: runs of other seeds cost the same.
        chosen = {record.spec.model_copy(update={"seed": 0}).digest(): record for record in those}
        costs = [cost for record in chosen.values() if (cost := _cost_of(record, dataset)) is not None]
        if costs:
            return Cost(median(costs), measured=True)
    rough = ROUGH.get((wanted.backbone, device))
    return None if rough is None else Cost(rough, measured=False)


def expense(spec: RunSpec) -> tuple[object, ...]:
    """What images cost depends on, their number and the method apart."""
    return spec.fingerprint, spec.backbone, spec.precision, spec.backbone_lr == 0, spec.augment, spec.optimizer


def _cost_of(record: Record, dataset: Dataset) -> float | None:
    """The seconds that an image took; None where that cannot be told.

    A run may be older than its scenario, method or settings, and a method is anybody's code: to guess a time is worth
    no error of theirs.
    """
    try:
        return record.seconds / work(group_of([record.spec], dataset))
    except Exception:
        return None


def _same_device(measured_on: str | None, device: str, gpu: str | None) -> bool:
    if device == "cpu":
        return measured_on is None
    return measured_on is not None and gpu in (None, measured_on)
