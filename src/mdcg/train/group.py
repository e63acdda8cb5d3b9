"""A group: members that train together as one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from mdcg.data import Dataset
from mdcg.draws import Ints, Purpose, hold_out, permutation, stream
from mdcg.errors import MdcgError
from mdcg.memory import Draw, share_of_task
from mdcg.methods import Method
from mdcg.methods.base import Passes
from mdcg.models.weights import WeightsFile
from mdcg.scenario import Scenario, Stream
from mdcg.train.online import OnlineStream, Stages, find_stages

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
    outputs: int | None = None  # of a head that has all from the start; None: as many as there are classes
    weights: WeightsFile | None = None  # the backbone's at the beginning; None: each member's seed makes its own
    optimizer: OptimizerName = "sgd"
    schedule: ScheduleName = "constant"  # of the learning rate, within a task
    augment: tuple[Augmentation, ...] = ()  # beside crop and flip, of which the dataset tells
    randaugment_n: int = 2  # operations of RandAugment, one after the other
    stream: Stream = field(default_factory=Stream)  # how classes and images come


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
        return self.training.outputs or self.classes

    @property
    def classes(self) -> int:
        """The number of classes that come in all tasks together."""
        return len(self.views[0].scenario.order)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes that are new in each stage, which is a task unless the method finds its own."""
        return self.stages.sizes

    @property
    def online(self) -> bool:
        """Whether each image comes once."""
        return self.training.stream.online

    @property
    def boundaries(self) -> bool:
        """Whether the method is told where tasks begin: always, but in an online stream only if it needs that."""
        return not self.online or self.method.needs_boundaries

    @property
    def looks_ahead(self) -> int:
        """The batches that the method looks ahead for new classes, where it is not told of tasks; 0: it is."""
        return self.method.looks_ahead() if self.online else 0

    def modules(self, task: int) -> int:
        """The tasks whose classes the head has during a task: where borders are blurry, the next one's have come."""
        ahead = self.training.stream.blurry > 0 and not self.looks_ahead
        return min(task + 2, len(self.sizes)) if ahead else task + 1

    def begins_anew(self, task: int) -> bool:
        """Whether the method takes this for a new task, not for more of the one before."""
        return not self.looks_ahead or self.sizes[task] > 0

    def past(self, task: int) -> tuple[int, ...]:
        """The classes of each past task that had new ones, for a method that knows of tasks."""
        before = self.stages.latest(task) if self.looks_ahead else task
        return tuple(size for size in self.sizes[:before] if size) if self.boundaries else ()

    @property
    def revisits(self) -> bool:
        """Whether current images may be of past classes: by the stream, or where a task's classes were found apart."""
        found = self.stages
        apart = any(
            size and of == before
            for size, of, before in zip(found.sizes[1:], found.tasks[1:], found.tasks, strict=False)
        )
        return self.training.stream.revisits or apart

    def check_arrivals(self) -> None:
        """Refuse a stream in which a task brings nothing to learn from."""
        for member, view in zip(self.members, self._told, strict=True):
            for task in range(self.training.tasks):
                images, batch = len(view.task_images(task)), self.training.batch_size
                if self.online and images < batch:
                    raise MdcgError(
                        f"task {task + 1} of seed {member.seed} brings {images} images, too few for a batch of "
                        f"{batch}; give a smaller --batch-size.",
                        about="batch_size",
                    )
                if not images:
                    raise MdcgError(
                        f"task {task + 1} of seed {member.seed} brings no image; give its classes more images, or it "
                        "other classes.",
                        about="tasks",
                    )
        if self.looks_ahead:
            for member, view, coming in zip(self.members, self._told, self._streams, strict=True):
                never = set(range(len(view.scenario.order))) - set(view.train_positions[coming.images].tolist())
                for position in never:
                    raise MdcgError(
                        f"no image of class '{self.dataset.class_names[view.scenario.order[position]]}' is in a whole "
                        f"batch of the stream of seed {member.seed}; give a smaller --batch-size.",
                        about="batch_size",
                    )

    def memory_draws(self, task: int) -> list[Draw]:
        """The batches that every step of a task takes from memory."""
        if not self.method.gradient_per_task:
            # Where nobody tells of tasks, what came a moment ago may be in memory.
            known = self.past(task) if self.boundaries else self.sizes[: task + 1]
            return self.method.memory_draws(self.training.batch_size, known)
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
        if self.looks_ahead:
            return tuple(view.renumbered(order) for view, (_, order) in zip(self._told, self._found, strict=True))
        return self._told

    @cached_property
    def stages(self) -> Stages:
        """What the members go through one after the other."""
        if self.looks_ahead:
            (stages,) = {stages for stages, _ in self._found}  # `RunSpec.group_key` sees to that
            return stages
        sizes = self._told[0].scenario.sizes
        return Stages(sizes, tuple(range(len(sizes))))

    @cached_property
    def streams(self) -> tuple[OnlineStream, ...]:
        """The online stream that each member sees."""
        streams = self._streams
        if self.looks_ahead:
            streams = tuple(one.in_stages(stages) for one, (stages, _) in zip(streams, self._found, strict=True))
        return tuple(one.sparing_the_past() for one in streams) if self.boundaries else streams

    @cached_property
    def _told(self) -> tuple[MemberData, ...]:
        """The view of each member, classes numbered as the scenario lists them."""
        return tuple(
            MemberData(self.dataset, self._scenario(member), member.seed, self.training) for member in self.members
        )

    @cached_property
    def _streams(self) -> tuple[OnlineStream, ...]:
        """The online streams in tasks."""
        tasks, batch = range(self.training.tasks), self.training.batch_size
        return tuple(
            OnlineStream.of([view.task_images(task) for task in tasks], own.seed, batch, own.memory)
            for view, own in zip(self._told, self.members, strict=True)
        )

    @cached_property
    def _found(self) -> list[tuple[Stages, list[int]]]:
        """The stages that the method finds in each stream, and the order in which classes arrive there."""
        return [
            find_stages(
                view.train_positions[coming.images].reshape(-1, coming.batch), coming.starts[:-1], self.looks_ahead
            )
            for view, coming in zip(self._told, self._streams, strict=True)
        ]

    @property
    def places(self) -> int:
        """The places of the largest memory."""
        return max(member.memory for member in self.members)

    def _scenario(self, member: Member) -> Scenario:
        training = self.training
        return self.scenario or Scenario.of(training.stream, training.tasks, self.dataset.class_names, member.seed)


class MemberData:
    """A member's view of the dataset: which images come in which task, by class position.

    Every image comes in one task. Those of a class that is in several tasks are shared out among them; where borders
    are blurry, a share of each class's images comes in the task before or after its own.
    """

    def __init__(self, dataset: Dataset, scenario: Scenario, seed: int, training: Training) -> None:
        self.scenario, self.seed, self.blurry = scenario, seed, training.stream.blurry
        self._dataset, self._training = dataset, training
        position = self.scenario.position_of_label(dataset.classes)
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
        self.eval_indices = self.eval_indices[self.eval_positions[self.eval_indices] >= 0]
        own, classes = self.train_positions[train], len(scenario.order)
        self._train_of = [train[own == c] for c in range(classes)]
        seen = self.eval_positions[self.eval_indices]
        self.eval_total = np.bincount(seen, minlength=classes)

    def train_indices(self, positions: range) -> Ints:
        """The training images of these classes."""
        return np.concatenate([np.empty(0, np.int64), *(self._train_of[position] for position in positions)])

    def arrivals(self, task: int) -> dict[int, Ints]:
        """The training images that come in a task, by class."""
        return {position: images[task] for position, images in self._by_task.items() if len(images[task])}

    def task_images(self, task: int) -> Ints:
        """All training images that come in a task."""
        return np.concatenate([np.empty(0, np.int64), *self.arrivals(task).values()])

    def renumbered(self, order: Sequence[int]) -> MemberData:
        """Number the classes in this order of their positions; which images come when stays as it is.

        What is new in a task need not be one range of outputs then.
        """
        old, tasks = self.scenario, range(len(self.scenario.sizes))
        place = {position: number for number, position in enumerate(order)}
        of_tasks = tuple(tuple(place[position] for position in old.classes_of(task)) for task in tasks)
        scenario = Scenario(tuple(old.order[position] for position in order), old.sizes, of_tasks)
        view = MemberData(self._dataset, scenario, self.seed, self._training)
        view._by_task = {place[position]: parts for position, parts in self._by_task.items()}
        return view

    def eval_indices_of(self, classes: int) -> Ints:
        """The images to evaluate on, of the first `classes` positions."""
        return self.eval_indices[self.eval_positions[self.eval_indices] < classes]

    @cached_property
    def _by_task(self) -> dict[int, list[Ints]]:
        """The images of each class that come in each task."""
        tasks = range(len(self.scenario.sizes))
        of_task = [set(self.scenario.classes_of(task)) for task in tasks]
        found = {}
        for position, images in enumerate(self._train_of):
            own = [task for task in tasks if position in of_task[task]]
            parts = [np.empty(0, np.int64) for _ in tasks]
            if len(own) == 1:
                parts[own[0]] = images
            else:
                shuffled = images[permutation(len(images), stream(self.seed, Purpose.RETURN, position))]
                for task, part in zip(own, np.array_split(shuffled, len(own)), strict=True):
                    parts[task] = np.sort(part)
            found[position] = self._blurred(parts, position) if self.blurry else parts
        return found

    def _blurred(self, parts: list[Ints], position: int) -> list[Ints]:
        """Move a share of each task's images to its neighbours, half to each, or all to the only one."""
        rng = stream(self.seed, Purpose.BLUR, position)
        last, blurred = len(parts) - 1, [list[Ints]() for _ in parts]
        for task, images in enumerate(parts):
            shuffled = images[permutation(len(images), rng)]
            moved = round(self.blurry * len(images)) if last else 0
            before = 0 if task == 0 else moved if task == last else moved // 2
            blurred[max(task - 1, 0)].append(shuffled[:before])
            blurred[min(task + 1, last)].append(shuffled[before:moved])
            blurred[task].append(np.sort(shuffled[moved:]))
        return [np.concatenate(own) for own in blurred]
