"""Images on a device: there once, whoever uses them, and no longer than somebody does."""

from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mdcg.train.capacity import USABLE, Meter, members_that_fit
from mdcg.train.group import Group
from mdcg.train.images import kept_on_device, on_device
from mdcg.train.loop import Trainer
from mdcg.train.precision import Compute, compute
from tests.conftest import Copies, toy_dataset, toy_group

META = torch.device("meta")


def some_group() -> Group:
    return toy_group(toy_dataset([40, 35, 50, 40]), "md-cg", [(0, 12, {}), (1, 12, {})], tasks=2)


def some_images() -> Tensor:
    return torch.arange(48, dtype=torch.uint8).view(4, 2, 2, 3)


def test_one_copy_for_all_who_ask() -> None:
    images = some_images()
    first = on_device(images, META)
    assert (first.device, first.dtype, first.shape) == (META, torch.uint8, images.shape)
    assert on_device(images, META) is first
    assert on_device(images.clone(), META) is not first  # others, though they look the same
    assert on_device(images, torch.device("cpu")) is images


def test_it_is_gone_with_the_last_who_has_it() -> None:
    images = some_images()
    first, second = on_device(images, META), on_device(images, META)
    copy = weakref.ref(first)
    del first
    assert copy() is second
    del second
    assert copy() is None
    assert on_device(images, META).shape == images.shape  # made anew


def test_the_images_themselves_are_not_held() -> None:
    images = some_images()
    copy, source = on_device(images, META), weakref.ref(images)
    del images
    assert source() is None
    assert copy.shape == (4, 2, 2, 3)


def test_what_is_kept_is_gone_at_the_end() -> None:
    images, others = some_images(), some_images()
    before = weakref.ref(on_device(others, META))
    assert before() is None
    with kept_on_device():
        copy = weakref.ref(on_device(images, META))
        assert copy() is not None
        assert on_device(images, META) is copy()
    assert copy() is None
    with contextlib.suppress(ZeroDivisionError), kept_on_device():
        copy = weakref.ref(on_device(images, META))
        raise ZeroDivisionError
    assert copy() is None


@pytest.mark.parametrize("hold_out", [0.0, 0.2])
def test_trainers_share_them(hold_out: float) -> None:
    """With images held out of those to train on, the test images stay away."""
    group, machine = some_group(), Compute(META, "fp32")
    group = replace(group, training=replace(group.training, hold_out=hold_out))
    first, second = Trainer(group, machine), Trainer(replace(group, members=group.members[:1]), machine)
    assert first.images.device == META
    assert first.images.dtype == torch.uint8
    assert second.images is first.images
    assert second.eval_images is first.eval_images
    assert (first.eval_images is first.images) == (hold_out > 0)
    copies = [weakref.ref(first.images), weakref.ref(first.eval_images)]
    del first
    gc.collect()
    assert copies[0]() is second.images
    assert copies[1]() is second.eval_images
    del second
    gc.collect()
    assert [copy() for copy in copies] == [None, None]


def test_trainers_on_the_cpu_copy_nothing() -> None:
    group = some_group()
    trainer = Trainer(group, compute("cpu", "fp32"))
    assert trainer.images is group.dataset.train.images
    assert trainer.eval_images is group.dataset.test.images


class Memory(Meter):
    """A device of 50,000 bytes, with images on it and members of 700 bytes."""

    def __init__(self, copies: Copies) -> None:
        self.copies, self.lowest = copies, 0

    def used(self) -> int:
        return self.copies.bytes()

    def free(self) -> int:
        return 50_000 - self.used()

    def restart(self) -> None:
        self.lowest = self.used()

    def peak(self) -> int:
        return max(self.lowest, self.used()) + 700


@pytest.mark.parametrize("there_before", [False, True])
def test_as_many_members_fit_whether_images_are_there_or_not(copies: Copies, there_before: bool) -> None:
    """They are taken off what is free, once, and are no member's."""
    group, machine = some_group(), compute("cpu", "fp32")
    other = Trainer(group, machine) if there_before else None
    images = group.dataset.train.images.numel() + group.dataset.test.images.numel()
    assert copies.bytes() == (images if other else 0)
    assert members_that_fit(group, machine, Memory(copies)) == int(USABLE * (50_000 - images) / 700)
    assert copies.made == 2
    assert images > 10_000  # enough for a wrong count to be seen
