"""A group: members that train together as one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from mdcg.data import Dataset
from mdcg.draws import Ints, Purpose, hold_out
from mdcg.errors import MdcgError
from mdcg.memory import Draw, share_of_task
from mdcg.methods import Method
from mdcg.methods.base import Passes
from mdcg.models.weights import WeightsFile
from mdcg.scenario import Scenario

SMALL = 16  # pixels of an image's side
OptimizerName = Literal["sgd", "adamw"]
ScheduleName = Literal["constant", "cosine", "step"]
Augmentation = Literal["crop", "flip", "jitter", "randaugment", "mixup", "cutmix"]


@dataclass(frozen=True)
class Numbers:
    """The numbers of optimisation and augmentation, in which members of a group may differ; by default the paper's."""

    lr: float = 0.01  # learning rate
    momentum: float = 0.8  # of SGD
    backbone_lr: float | None = None  # learning rate of the backbone; None: as `lr`, 0: it stays as it is
    head_lr: float | None = None  # learning rate of the head; None: as `lr`
    weight_decay: float = 0.0
    warmup: float = 0.0  # the share of a task's steps in which the learning rate rises
    clip: float = 0.0  # the largest norm of a gradient; 0: any
    label_smoothing: float = 0.0
    jitter_strength: float = 0.4  # of brightness, contrast and saturation
    randaugment_m: float = 9.0  # magnitude, of 30
    mix_alpha: float = 1.0  # α of mixup and CutMix

    @property
    def frozen(self) -> bool:
        """Whether the backbone stays as it is."""
        return self.backbone_lr == 0


@dataclass(frozen=True)
class Member:
    """A run as a member of a group: everything in which members may differ."""

    seed: int
    memory: int
    method: Method
    head_settings: Mapping[str, float] = field(default_factory=dict)
    numbers: Numbers = Numbers()


@dataclass(frozen=True)
class Training:
    """The settings of training: everything in which members of a group agree."""

    tasks: int
    backbone: str
    head: str
    epochs: int
    batch_size: int
    hold_out: float = 0.0  # fraction of the training images that is evaluated on in place of the test images
    evaluate_every: int = 0  # epochs between evaluations within a task; 0: only at its end
    passes: Passes = "joint"  # whether memory images go through the network with the current ones or by themselves
    outputs: int | None = None  # of a head that has all from the start; None: as many as the dataset has classes
    weights: WeightsFile | None = None  # the backbone's at the beginning; None: each member's seed makes its own
    optimizer: OptimizerName = "sgd"
    schedule: ScheduleName = "constant"  # of the learning rate, within a task
    augment: tuple[Augmentation, ...] = ()  # beside crop and flip, of which the dataset tells
    randaugment_n: int = 2  # operations of RandAugment, one after the other


@dataclass(frozen=True)
class Group:
    """Members that train together on one dataset, each with its own order of the classes.

    A `scenario` is one order for all of them. Where the tasks before the last one are gone and only their memory is
    left, `no_past` says that all other images belong to the last task, those of classes known before too.
    """

    training: Training
    members: tuple[Member, ...]
    dataset: Dataset
    scenario: Scenario | None = None  # None: by each member's seed
    no_past: bool = False

    @property
    def method(self) -> Method:
        """The first member's method, which is that of the others too in all but its float fields."""
        return self.members[0].method

    @property
    def frozen(self) -> bool:
        """Whether the backbone stays as it is, in which members agree."""
        return self.members[0].numbers.frozen

    def differing(self, member: Member) -> dict[str, float]:
        """The numbers of a member in which others of the group differ from it."""
        own = asdict(member.numbers)
        return {
            name: value
            for name, value in own.items()
            if value is not None and any(getattr(other.numbers, name) != value for other in self.members)
        }

    @property
    def outputs(self) -> int:
        """Outputs of a head that has all of them from the start."""
        return self.training.outputs or self.dataset.classes

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of each task."""
        return self.views[0].scenario.sizes

    def memory_draws(self, task: int) -> list[Draw]:
        """The batches that every step of a task takes from memory."""
        if not self.method.gradient_per_task:
            return self.method.memory_draws(self.training.batch_size, self.sizes[:task])
        draws, most = [], np.sort(self.dataset.counts())[::-1]
        for past in range(task):
            share = share_of_task(self.members[0].memory, self.training.tasks, past)
            # No more than any task of this size can have: which classes it has is each member's own matter.
            size = min(share, int(most[: self.sizes[past]].sum()))
            draws.append(Draw(size, classes=self.views[0].scenario.positions(past)))
        return draws

    def passes(self, task: int) -> tuple[int, ...]:
        """The images of each forward pass of a step: the current ones with those that join them, then the others."""
        joint, own = self.training.batch_size, list[int]()
        for draw in self.memory_draws(task):
            if self.training.passes == "joint" or draw.joins:  # these come first, see `Method`
                joint += draw.size
            else:
                own.append(draw.size)
        return (joint, *own)

    @property
    def threads(self) -> int | None:
        """The threads on a CPU: one for small images, which gain nothing from more, so that machines do not matter."""
        return 1 if self.dataset.shape[1] <= SMALL else None

    @cached_property
    def views(self) -> tuple[MemberData, ...]:
        """The view that each member has of the dataset."""
        return tuple(
            MemberData(self.dataset, self._scenario(member), member.seed, self.training) for member in self.members
        )

    def _scenario(self, member: Member) -> Scenario:
        return self.scenario or Scenario.build(self.dataset.classes, self.training.tasks, member.seed)


class MemberData:
    """A member's view of the dataset: which images belong to which task, by class position."""

    def __init__(self, dataset: Dataset, scenario: Scenario, seed: int, training: Training) -> None:
        self.scenario = scenario
        position = self.scenario.position_of_label()
        train = np.arange(len(dataset.train))
        if training.hold_out:
            if not 0 < training.hold_out < 1:
                raise MdcgError(f"the held-out fraction must lie between 0 and 1, not {training.hold_out:g}.")
            train, held = hold_out(dataset.train.labels, training.hold_out, seed, Purpose.HOLD_OUT)
            self.eval_indices = held
            eval_labels = dataset.train.labels
        else:
            self.eval_indices = np.arange(len(dataset.test))
            eval_labels = dataset.test.labels
        self.train_positions = position[dataset.train.labels]  # of every training image
        self.eval_positions = position[eval_labels]  # of every image of the split evaluated on
        own = self.train_positions[train]
        self._train_of = [train[own == c] for c in range(dataset.classes)]
        seen = self.eval_positions[self.eval_indices]
        self.eval_total = np.bincount(seen, minlength=dataset.classes)

    def train_indices(self, positions: range) -> Ints:
        """The training images of these classes."""
        return np.concatenate([self._train_of[position] for position in positions])

    def by_class(self, positions: range) -> dict[int, Ints]:
        """The training images of each of these classes."""
        return {position: self._train_of[position] for position in positions}

    def eval_indices_of(self, classes: int) -> Ints:
        """The images to evaluate on, of the first `classes` positions."""
        return self.eval_indices[self.eval_positions[self.eval_indices] < classes]
