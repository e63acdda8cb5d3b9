"""One more task for a saved classifier: from what it kept and the images that came to a group, and back.

The group is one member whose training images are those of its memory, then those that came. Classes are numbered by
arrival, so that the group's scenario is that of the stream so far, whatever became of the older images.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mdcg.data import Dataset, Split
from mdcg.draws import Ints, Purpose, permutation, stream
from mdcg.header import Label, Setup
from mdcg.memory import Exemplars, Memory
from mdcg.methods import METHODS
from mdcg.models.weights import WeightsFile
from mdcg.saved import Kept, SavedModel, no_exemplars
from mdcg.scenario import Scenario
from mdcg.train import state as states
from mdcg.train.epoch import steps_per_epoch
from mdcg.train.group import Group, Member, Training
from mdcg.train.precision import Compute
from mdcg.train.state import State

FEWEST_EPOCHS, MOST_EPOCHS, ENOUGH_STEPS = 20, 200, 600


@dataclass(frozen=True)
class Arrived:
    """The images of one task: those of new classes, and perhaps some more of classes that are known."""

    images: Tensor  # (n, height, width, channels) uint8; features (n, 1, 1, features) float32
    positions: Ints  # (n,) class of each, in order of arrival
    new: tuple[Label, ...]  # the new classes, in this order

    def of(self, chosen: Ints) -> Arrived:
        """The images with these numbers, in this order."""
        return Arrived(self.images[torch.from_numpy(chosen)], self.positions[chosen], self.new)


Relabelled = Counter[tuple[int, int]]  # images by the class that they were learned as, and the one they come as now


@dataclass(frozen=True)
class NextTask:
    """A task that can be trained: its group, and the state to begin with."""

    group: Group
    number: int  # from 0 on
    new: tuple[Label, ...]  # the classes that it brings
    classes: tuple[Label, ...]  # all of them, in order of arrival
    held_out: Exemplars  # of all classes, never trained on
    before: SavedModel | None

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return int(steps_per_epoch(self.group, self.number)[0])

    def begin(self, compute: Compute) -> State:
        """The state before the task's first step; more images of known classes are in memory already."""
        if self.before is None:
            return states.fresh(self.group, compute)
        state = states.restore(*_as_checkpoint(self.before, self.group, compute.dtype), self.group, compute)
        arrived = self._arrived_again()
        if arrived and self.group.method.uses_memory:
            _refresh(state.memories[0], arrived, self.group, self.number)
        return state

    def finish(self, state: State) -> SavedModel:
        """The classifier that has learned it."""
        saved = SavedModel.of(self.group, state, 0)
        kept = saved.kept
        if self.group.method.trains_on == "seen":
            train = self.group.dataset.train
            remembered = {name: value.cpu().clone() for name, value in state.optimizer.dump().items()}
            seen = Exemplars(train.images, torch.from_numpy(train.labels))
            kept = Kept(remembered, no_exemplars(saved.setup), seen=seen)
        return replace(saved, classes=self.classes, kept=kept, held_out=self.held_out)

    def _arrived_again(self) -> dict[int, Ints]:
        """The images that came of classes known before, by class."""
        assert self.before is not None
        first = len(_past_images(self.before).positions)
        view, known = self.group.views[0], range(len(self.before.classes))
        own = {c: view.train_indices(range(c, c + 1)) for c in known}
        came = {c: images[images >= first] for c, images in own.items()}
        return {c: images for c, images in came.items() if len(images)}


def next_task(
    before: SavedModel | None,
    setup: Setup,
    arrived: Arrived,
    *,
    hold_out: float,
    held_out_images: int,
    epochs: int | None,
    weights: WeightsFile | None,
) -> NextTask:
    """The task of what has arrived; without `epochs`, so many that even few images give enough steps.

    A fraction of each new class's images is held out, and so many are kept of all classes to evaluate on. Where a
    network is made anew, `weights` are its backbone's.
    """
    sizes = [*(before.sizes if before else ()), len(arrived.new)]
    classes = (*(before.classes if before else ()), *arrived.new)
    number = len(sizes) - 1
    kept_out, train = _hold_out(before, arrived, hold_out, held_out_images, setup, number)
    past = _past_images(before) if before else no_exemplars(setup)
    dataset = Dataset(
        name="",
        train=Split(torch.cat([past.images, train.images]), np.concatenate([past.positions.numpy(), train.positions])),
        test=Split(kept_out.images, kept_out.positions.numpy()),
        class_names=tuple(map(str, classes)),
        mean=setup.mean,
        std=setup.std,
        padding=setup.padding,
        flip=setup.flip,
        fingerprint="",
    )
    method = METHODS[setup.method](**setup.hyperparameters)
    training = Training(
        tasks=max(setup.tasks, len(sizes)),
        backbone=setup.backbone,
        head=setup.head,
        epochs=1,
        batch_size=setup.batch_size,
        weights=weights if before is None or method.starts_anew else None,
        passes=setup.passes,
        outputs=setup.outputs,
        optimizer=setup.optimizer,
        schedule=setup.schedule,
        augment=setup.augment,
        randaugment_n=setup.randaugment_n,
    )
    group = Group(
        training,
        (Member(setup.seed, setup.memory, method, setup.head_settings, setup.numbers),),
        dataset,
        scenario=Scenario(tuple(range(len(classes))), tuple(sizes)),
        no_past=not method.uses_memory,
    )
    chosen = epochs or enough_epochs(int(steps_per_epoch(group, number)[0]))
    return NextTask(
        replace(group, training=replace(training, epochs=chosen)), number, arrived.new, classes, kept_out, before
    )


def without_known_images(before: SavedModel, arrived: Arrived) -> tuple[Arrived, Relabelled]:
    """What has arrived, less the images that the classifier has already: in its memory, or held out.

    A folder that only grows brings them again; what is held out must not be trained on, nor anything held twice. What
    it has with another label is counted.
    """
    labels: dict[bytes, set[int]] = {}
    for part in (_past_images(before), *([before.held_out] if before.held_out else [])):
        for image, position in zip(part.images, part.positions.tolist(), strict=True):
            labels.setdefault(image.numpy().tobytes(), set()).add(position)
    fresh, relabelled = [], Relabelled()
    for number, (image, now) in enumerate(zip(arrived.images, arrived.positions.tolist(), strict=True)):
        known = labels.get(image.numpy().tobytes(), set())
        if known and now not in known:
            relabelled[min(known), now] += 1
        if not known or now >= len(before.classes):
            fresh.append(number)
    return arrived.of(np.array(fresh, np.int64)), relabelled


def enough_epochs(steps: int) -> int:
    """Epochs of so many steps: the paper's 20, or more where these are too few steps to learn anything.

    >>> enough_epochs(313), enough_epochs(12), enough_epochs(1)
    (20, 50, 200)
    """
    return min(MOST_EPOCHS, max(FEWEST_EPOCHS, -(-ENOUGH_STEPS // steps)))


def _hold_out(
    before: SavedModel | None, arrived: Arrived, fraction: float, most: int, setup: Setup, task: int
) -> tuple[Exemplars, Arrived]:
    """What is held out of all classes, and what is left to train on.

    Of more images of a known class nothing is held out: it has some already. What was held out before is cut back to
    make room, as a memory is, and is never trained on. New images for which there is no room are trained on.
    """
    known = len(before.classes) if before else 0
    old = before.held_out if before and before.held_out else no_exemplars(setup)
    images = torch.cat([old.images, arrived.images])
    held = Memory(most, _by_class(old.positions.numpy()))
    taken: dict[int, Ints] = {}
    for position in range(known, known + len(arrived.new)):
        own = np.flatnonzero(arrived.positions == position)
        shuffled = own[permutation(len(own), stream(setup.seed, Purpose.HOLD_OUT, task, position))]
        taken[position] = shuffled[: min(round(fraction * len(own)), len(own) - 1)]
    held.add({c: own + len(old.positions) for c, own in taken.items()}, stream(setup.seed, Purpose.KEEP_HELD_OUT, task))
    left = np.setdiff1d(np.arange(len(arrived.positions)), held.indices() - len(old.positions))
    return held.copy(images), arrived.of(left)


def _by_class(positions: Ints, start: int = 0) -> dict[int, Ints]:
    """Indices from `start` on of images with these classes, which lie class after class."""
    return {int(c): start + np.flatnonzero(positions == c) for c in dict.fromkeys(positions.tolist())}


def _past_images(before: SavedModel) -> Exemplars:
    """All images that a classifier has kept to train on: its memories', or all it has seen."""
    assert before.kept is not None
    parts = [part for part in (before.kept.memory, before.kept.second, before.kept.seen) if part is not None]
    return Exemplars(torch.cat([part.images for part in parts]), torch.cat([part.positions for part in parts]))


def _as_checkpoint(
    before: SavedModel, group: Group, dtype: torch.dtype
) -> tuple[dict[str, Tensor], states.PlainValues]:
    """A saved classifier as the checkpoint of a group whose images are those that it kept, then those that came."""
    kept, weights = before.kept, before.model.state_dict()
    assert kept is not None
    memory = _by_class(kept.memory.positions.numpy())
    second = None if kept.second is None else _by_class(kept.second.positions.numpy(), len(kept.memory.positions))
    held = {"memory.0": memory} | ({"second.0": second} if second is not None else {})
    tensors = {
        **{f"model.{name}": value for name, value in weights.items()},
        **kept.optimizer,
        **{name: torch.from_numpy(Memory(0, by_class).indices()) for name, by_class in held.items()},
        "correct": torch.zeros(1, group.training.tasks, group.dataset.classes, dtype=torch.int64),
        "loss_sum": torch.zeros(1, dtype=dtype),
        "hits": torch.zeros(1, dtype=torch.int64),
        "measured.0": torch.frombuffer(bytearray(json.dumps([]).encode()), dtype=torch.uint8),
    }
    if kept.logits is not None and kept.has_logits is not None:
        tensors["kept.index"] = kept.has_logits.nonzero()[:, 0][None]
        tensors["kept.logits"] = kept.logits[kept.has_logits][None]
    values: states.PlainValues = {
        "task": len(before.sizes),
        "epoch": 0,
        "step": 0,
        "seconds": 0.0,
        "forked": True,
        "begun": False,
        "within": [[]],
        "sizes": before.sizes,
        "has_teacher": False,
        "has_start": False,
        "memories": {name: [(c, len(own)) for c, own in by_class.items()] for name, by_class in held.items()},
        "history": [[]],
        "measuring": {},
    }
    return tensors, values


def _refresh(memory: Memory, arrived: dict[int, Ints], group: Group, task: int) -> None:
    seed, shared_out = group.members[0].seed, not group.method.gradient_per_task
    memory.refresh(arrived, stream(seed, Purpose.REFRESH, task), shared_out)
    if memory.second is not None:
        memory.second.refresh(arrived, stream(seed, Purpose.REFRESH_SECOND, task))
