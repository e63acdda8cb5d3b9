"""The training of one task, with checkpoints: killed at any moment, it goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mdcg.errors import MdcgError
from mdcg.files import locked, path_of, remove_folder, unlink_link
from mdcg.learner.inputs import listing
from mdcg.learner.task import NextTask
from mdcg.methods import METHODS
from mdcg.runs.fingerprint import fingerprint
from mdcg.saved import NotFinite, SavedModel
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.device_errors import OutOfMemory, device_errors_explained
from mdcg.train.display import TrainingDisplay
from mdcg.train.loop import Trainer
from mdcg.train.precision import Compute
from mdcg.train.rehearsal import rehearse_task
from mdcg.train.signals import Stopped, StopSignals

logger = logging.getLogger(__name__)
FOLDER = ".learning"  # suffix of the folder beside a file that is being made


class NothingLearned(MdcgError):
    """The training came to nothing, and would again."""


@contextlib.contextmanager
def checkpoint_folder(save_to: Path | None) -> Iterator[Path | None]:
    """A folder beside a file for as long as that is being made; it stays where there is something to go on with."""
    if save_to is None:
        yield None
        return
    folder = path_of(save_to.with_name(f".{save_to.name}{FOLDER}"))
    unlink_link(folder)  # what it leads to is not ours
    with locked(folder):
        try:
            yield folder
        except BaseException as error:
            if isinstance(error, NothingLearned) or not any(folder.glob("*/*.safetensors")):
                _remove(folder)  # there is nothing to go on with, or it would fail again
            raise
        _remove(folder)  # as long as it is locked: afterwards it may be another process's
    if sys.platform == "win32":  # which removes nothing that is open
        _remove(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        remove_folder(folder)


def train(task: NextTask, compute: Compute, folder: Path | None, quiet: bool) -> SavedModel:
    """The classifier that has learned the task; with a folder for checkpoints it goes on where it was stopped."""
    try:
        with device_errors_explained(), TrainingDisplay(quiet) as display:
            return _trained(task, compute, folder, display)
    except OutOfMemory as error:
        raise MdcgError("the memory is too small for this; try a smaller batch_size or image_size.") from error


def _trained(task: NextTask, compute: Compute, folder: Path | None, display: TrainingDisplay) -> SavedModel:
    epochs, title = task.group.training.epochs, f"learning {listing(task.new)}"
    rehearse_task(task.group, compute, task.begin)
    if folder is None:
        state = task.begin(compute)
        display.begin(title, task.group, epochs * task.steps, 0)
        Trainer(task.group, compute, watcher=display).train(state, tasks=task.number + 1)
    else:
        checkpoints = Checkpoints(folder / _digest(task, compute))
        _tell_of_others(folder, checkpoints.folder)
        state = checkpoints.restore(lambda _: task.group, compute) or task.begin(compute)
        done = state.epoch * task.steps + state.step if state.task == task.number else epochs * task.steps
        if done:
            logger.info("going on after %s of %s steps.", done, epochs * task.steps)
        display.begin(title, task.group, epochs * task.steps, done)
        with StopSignals() as stop:
            trainer = Trainer(task.group, compute, checkpoints.save, stop.requested, display)
            try:
                trainer.train(state, tasks=task.number + 1)
            except Stopped as stopped:
                stopped.signal = stop.signal or stopped.signal
                raise
    for reason in state.failures(task.group).values():
        raise NothingLearned(f"nothing was learned: {reason}")
    saved = task.finish(state)
    try:
        saved.probabilities(task.group.dataset.train.images[-task.group.training.batch_size :])
    except NotFinite as error:  # the loss is that of before the last step
        raise NothingLearned("nothing was learned: the weights have no bounds; lower the learning rate.") from error
    return saved


def _digest(task: NextTask, compute: Compute) -> str:
    """A name for this very task: other images, or another classifier to begin with, make another one."""
    group, dataset, digest = task.group, task.group.dataset, hashlib.blake2b(digest_size=16)
    pixels = dataset.mean, dataset.std, dataset.padding, dataset.flip
    training = group.training
    method = next(name for name in METHODS.names() if METHODS[name] is type(group.method))
    code = fingerprint(method, training.head, training.backbone, dataset.shape[0])  # of users' own
    for part in (training, group.members, task.classes, pixels, compute.precision, code):
        digest.update(repr(part).encode())
    digest.update(dataset.train.images.contiguous().numpy().data)
    digest.update(dataset.train.labels.data)
    if task.before is not None:
        digest.update(replace(task.before, versions=(), params={}).content())  # when it was taught is no matter
    return digest.hexdigest()


def _tell_of_others(folder: Path, own: Path) -> None:
    """Say that another task was begun for the same file: its checkpoints stay until this one is learned."""
    if any(re.fullmatch("[0-9a-f]{32}", other.name) and other != own for other in folder.iterdir()):
        logger.warning(
            "another training for this file was stopped, with other images or settings, and is kept until this one "
            "ends; to finish that one, stop this one and give its command again."
        )
