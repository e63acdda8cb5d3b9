"""What an epoch draws, by counting: every crop is as likely as any other, a flip as likely as none.

Seeds are fixed. Bounds are five standard deviations of a count: some of a hundred would be met by chance in one of
ten thousand seeds.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt
import pytest

from mdcg.data import Dataset
from mdcg.memory import Memory
from mdcg.train.epoch import draw_epoch
from tests.conftest import toy_dataset, toy_group

EPOCHS = 40
Drawn = npt.NDArray[np.int64]


def drawn(padding: int, flip: bool = True, method: str = "replay") -> tuple[Drawn, Drawn, Drawn]:
    """The image, offset and flip of every place of two members, over many epochs of task 2.

    (member, epoch, place), those of the offset with an axis more; places of current images come first.
    """
    dataset: Dataset = dataclasses.replace(toy_dataset([48] * 4), padding=padding, flip=flip)
    group = toy_group(dataset, method, [(3, 24, {}), (4, 24, {})], tasks=2, epochs=EPOCHS)
    memories = [Memory(24), Memory(24)]
    for memory, view in zip(memories, group.views, strict=True):
        memory.add(view.arrivals(0), np.random.default_rng(0))
    epochs = [draw_epoch(group, memories, 1, epoch) for epoch in range(EPOCHS)]
    parts = [[getattr(epoch, name).numpy() for epoch in epochs] for name in ("index", "corner", "flipped")]
    index, corner, flipped = (np.stack(part, 1) for part in parts)  # (member, epoch, step, place)
    return index, corner, flipped


def as_likely(found: Drawn, number: int) -> None:
    """Refuse counts of 0 … number − 1 that are not all alike."""
    counts = np.bincount(found.ravel(), minlength=number)
    assert len(counts) == number, f"{len(counts) - 1} was drawn, more than {number - 1}"
    share = 1 / number
    deviation = np.sqrt(found.size * share * (1 - share))
    assert (np.abs(counts - found.size * share) < 5 * deviation).all(), counts


@pytest.mark.parametrize("places", [slice(16), slice(16, None)], ids=["current", "memory"])
@pytest.mark.parametrize("padding", [1, 4])
def test_crops_are_uniform_over_all_offsets(padding: int, places: slice) -> None:
    """Rows and columns are independent of each other, so that all (2 padding + 1)² places are as likely."""
    _, corner, flipped = drawn(padding)
    rows, columns = corner[..., places, 0], corner[..., places, 1]
    number = 2 * padding + 1
    as_likely(rows * number + columns, number**2)
    as_likely((rows * number + columns) * 2 + flipped[..., places], 2 * number**2)  # nor does a flip hang on them


def test_without_padding_nothing_is_cropped() -> None:
    _, corner, _ = drawn(0)
    assert not corner.any()


@pytest.mark.parametrize("places", [slice(16), slice(16, None)], ids=["current", "memory"])
def test_flips_are_a_fair_coin(places: slice) -> None:
    as_likely(drawn(1)[2][..., places].astype(np.int64), 2)


def test_where_nothing_is_flipped() -> None:
    """Of digits, whose mirror image is another thing; crops stay what they are."""
    plain, still = drawn(1), drawn(1, flip=False)
    assert plain[2].any()
    assert not still[2].any()
    assert (plain[1] == still[1]).all()


@pytest.mark.parametrize("apart", ["members", "epochs", "images", "of memory and current"])
def test_draws_are_independent(apart: str) -> None:
    """Both of two flips, both of two offsets: as likely as any other pair."""
    _, corner, flipped = drawn(1)
    for found, number in ((flipped.astype(np.int64), 2), (corner[..., 0], 3), (corner[..., 1], 3)):
        one, other = {
            "members": (found[0], found[1]),
            "epochs": (found[:, :-1], found[:, 1:]),
            "images": (found[..., :15], found[..., 1:16]),
            "of memory and current": (found[..., :16], found[..., 16:32]),
        }[apart]
        as_likely(one * number + other, number**2)


def test_every_image_has_crops_of_its_own() -> None:
    """An image does not keep its view from epoch to epoch: of some it is seen in all nine places."""
    index, corner, _ = drawn(1, method="naive")
    for image in np.unique(index)[:8]:
        seen = {tuple(offset) for offset in corner[index == image].tolist()}
        assert seen == set(itertools.product(range(3), repeat=2))


def test_the_order_is_another_in_every_epoch_and_of_every_member() -> None:
    """As likely in one place as in another: which half of its class an image is of says nothing of when it comes."""
    index = drawn(1)[0][..., :16].reshape(2, EPOCHS, -1)
    assert not (index[:, 0] == index[:, 1]).all(1).any()
    first_half = index[..., : index.shape[-1] // 2]
    as_likely((first_half % 2).astype(np.int64), 2)
