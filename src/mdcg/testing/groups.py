"""The toy groups to try parts on, and the checks of every part that trains in one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdcg.data import Dataset, Split
from mdcg.methods import METHODS, Method
from mdcg.models import HEADS
from mdcg.tensors import pack, unpack
from mdcg.train import state as states
from mdcg.train.group import Group, Member, Numbers, Training
from mdcg.train.loop import Trainer, total_steps
from mdcg.train.precision import compute
from mdcg.train.signals import Stopped
from mdcg.train.state import State

Settings = Mapping[str, Any]
CPU = compute("cpu", "fp32")


def toy_dataset(counts: Sequence[int], side: int = 8, channels: int = 1, seed: int = 0) -> Dataset:
    """Make noisy images around one random pattern per class; as many of each class as asked for."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (len(counts), side, side, channels))

    def split(sizes: Sequence[int]) -> Split:
        labels = np.repeat(np.arange(len(sizes)), sizes)
        noisy = patterns[labels] + rng.normal(0, 60, (len(labels), side, side, channels))
        return Split(torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)), labels.astype(np.int64))

    return Dataset(
        name="toy",
        train=split(counts),
        test=split([5 + i % 3 for i in range(len(counts))]),
        class_names=tuple(f"class {i}" for i in range(len(counts))),
        mean=(0.5,) * channels,
        std=(0.3,) * channels,
        padding=1,
        flip=True,
        fingerprint="toy",
    )


def toy_group(
    dataset: Dataset,
    method: str | type[Method],
    members: Sequence[tuple[int, int, Settings]],
    tasks: int = 3,
    head: str | None = None,
    numbers: Sequence[Settings] = (),
    **training: Any,
) -> Group:
    """Make a group of members given as (seed, memory, hyperparameters), and perhaps the `numbers` of each.

    What else is given is the same for all of them: numbers, and settings of training.
    """
    kind = METHODS[method] if isinstance(method, str) else method
    chosen = head or kind.head
    settings = {name: default for name, (default, _) in HEADS[chosen].settings.items()}
    given: dict[str, Any] = {"backbone": "smallconv", "epochs": 2, "batch_size": 16, "lr": 0.05, **training}
    shared = {field.name: given.pop(field.name) for field in dataclasses.fields(Numbers) if field.name in given}
    own = [Numbers(**{**shared, **each}) for each in numbers or [{}] * len(members)]
    return Group(
        Training(tasks=tasks, head=chosen, **given),
        tuple(
            Member(seed, memory, kind(**hyper), settings, each)
            for (seed, memory, hyper), each in zip(members, own, strict=True)
        ),
        dataset,
    )


@contextlib.contextmanager
def named_in_errors(name: str) -> Iterator[None]:
    """Begin the message of every AssertionError within with this name."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error.__cause__


def require(holds: object, wrong: str) -> None:
    if not holds:
        raise AssertionError(wrong)


def reason(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0].rstrip('.')}" if said else type(error).__name__


@contextlib.contextmanager
def no_global_draws(what: str) -> Iterator[None]:
    def generators() -> list[object]:
        _, words, *others = np.random.get_state(legacy=True)  # noqa: NPY002
        return [torch.get_rng_state().numpy().tobytes(), (np.asarray(words).tobytes(), others), random.getstate()]

    before = generators()
    yield
    for whose, was, now in zip(("torch", "numpy", "random"), before, generators(), strict=True):
        require(
            was == now,
            f"{what} draws from the global generator of {whose}, so that a run depends on its company; draw nothing.",
        )


def trained(group: Group, method: Method | None = None) -> State:
    trainer = Trainer(group, CPU)
    if method:
        trainer.method = method
    with no_global_draws("it"):
        return train_from(trainer, states.fresh(group, CPU))


def train_from(trainer: Trainer, state: State, tasks: int | None = None) -> State:
    try:
        return trainer.train(state, tasks)
    except (AssertionError, Stopped):
        raise
    except Exception as error:
        raise AssertionError(f"training fails in task {state.task + 1} ({reason(error)}).") from error


def check_finite(group: Group, state: State) -> None:
    require(
        not state.failures(group),
        "its loss is not finite after some steps of training; look for log(0), 0 / 0 and gradients that explode.",
    )


def same_member(one: State, k: int, other: State, j: int) -> bool:
    """Whether two members are the same to the bit: weights, answers, memory and history."""
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    return (
        all(torch.equal(ours[name][k], theirs[name][j]) for name in ours)
        and np.array_equal(one.correct[k], other.correct[j])
        and np.array_equal(one.memories[k].indices(), other.memories[j].indices())
        and one.history[k] == other.history[j]
    )


def check_company(group: Group, together: State) -> None:
    for k, member in enumerate(group.members):
        alone = trained(dataclasses.replace(group, members=(member,)))
        require(
            same_member(alone, 0, together, k),
            "a member comes to another result in company than alone; let members have no part in each other: no "
            "mean over the first axis, nothing random, nothing kept from one call to the next.",
        )
    one, other = group.members[-2:]
    if group.method.uses_memory and one != other:
        weights = together.model.state_dict()["head.classifier.weight"]
        require(
            not torch.equal(weights[-2], weights[-1]),
            "neither its memory nor its settings make any difference; use them, or declare no uses_memory.",
        )


def check_resumed(group: Group, undisturbed: State) -> None:
    """Check training that is stopped three times, saved, and resumed by methods built anew, as by another process."""
    saved: list[tuple[dict[str, Tensor], states.PlainValues]] = []
    state, steps = states.fresh(group, CPU), total_steps(group) // 4
    for _ in range(3):
        stop = itertools.chain(itertools.repeat(False, steps), itertools.repeat(True)).__next__
        with contextlib.suppress(Stopped):
            train_from(Trainer(group, CPU, lambda *dumped: saved.append(dumped), stop), state)
        members = [
            dataclasses.replace(one, method=type(one.method)(**one.method.model_dump())) for one in group.members
        ]
        group = dataclasses.replace(group, members=tuple(members))
        state = states.restore(*unpack(pack(*saved[-1])), group, CPU)
    train_from(Trainer(group, CPU), state)
    require(
        all(same_member(state, k, undisturbed, k) for k in range(len(group.members))),
        "stopped and resumed it comes to another result; keep no state but what is saved: parameters and buffers.",
    )
