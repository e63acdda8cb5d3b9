"""The memory's promises, for any sequence of classes and any size."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdcg.memory import Draw, Memory, share_of_task

arrivals = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), min_size=1, max_size=6)


def filled(tasks: list[list[int]], size: int, seed: int) -> list[tuple[Memory, dict[int, set[int]]]]:
    """The memory after each task, and what was offered so far by class."""
    rng = np.random.default_rng(seed)
    offered: dict[int, set[int]] = {}
    memory, start, states = Memory(size), 0, []
    for counts in tasks:
        new = {}
        for count in counts:
            new[len(offered)] = np.arange(start, start + count)
            offered[len(offered)] = set(range(start, start + count))
            start += count
        memory.add(new, rng)
        states.append((Memory(size, dict(memory.by_class)), dict(offered)))
    return states


@given(arrivals, st.integers(1, 80), st.integers(0, 10**6))
def test_size_use_and_balance(tasks: list[list[int]], size: int, seed: int) -> None:
    previous: dict[int, set[int]] = {}
    for memory, offered in filled(tasks, size, seed):
        kept = {position: set(indices.tolist()) for position, indices in memory.by_class.items()}
        # what a class can still give: all its images when it arrives, later only what was kept of it
        available = {position: previous.get(position, offered[position]) for position in offered}
        assert len(memory) <= size
        assert len(memory) == min(size, sum(len(images) for images in available.values()))
        for position, indices in memory.by_class.items():
            assert len(kept[position]) == len(indices)  # no image twice
            assert kept[position] <= available[position]
        most = max(len(images) for images in kept.values())
        for position, images in kept.items():
            assert len(images) >= most - 1 or len(images) == len(available[position])
        previous = kept


@given(st.integers(2, 50), st.integers(1, 12), st.integers(0, 10**6))
def test_nothing_is_wasted_when_classes_are_large(size: int, classes: int, seed: int) -> None:
    memory, _ = filled([[100] * classes], size, seed)[-1]
    assert len(memory) == size


@given(arrivals, st.integers(1, 80), st.integers(1, 7), st.integers(1, 40), st.integers(0, 10**6))
def test_batches_are_balanced(tasks: list[list[int]], size: int, steps: int, batch: int, seed: int) -> None:
    memory, _ = filled(tasks, size, seed)[-1]
    if not len(memory):
        return
    class_of = {int(i): position for position, kept in memory.by_class.items() for i in kept}
    drawn = memory.draw(steps, Draw(batch), np.random.default_rng(seed))
    assert drawn.shape == (steps, batch)
    held = [position for position, kept in memory.by_class.items() if len(kept)]
    for row in drawn:
        counts = [sum(class_of[int(i)] == position for i in row) for position in held]
        assert max(counts) - min(counts) <= 1
    for position in held:
        uses = [int((drawn == image).sum()) for image in memory.by_class[position]]
        assert max(uses) - min(uses) <= 1  # over an epoch, all images of a class equally often


def test_odd_places_go_to_classes_at_random() -> None:
    memory = Memory(30)
    memory.add({c: np.arange(10 * c, 10 * c + 10) for c in range(3)}, np.random.default_rng(0))
    drawn = memory.draw(300, Draw(4), np.random.default_rng(1)) // 10
    extra = [int(np.bincount(row, minlength=3).argmax()) for row in drawn]
    assert min(np.bincount(extra, minlength=3)) > 60  # 100 each expected, σ ≈ 8


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 10**6))
def test_odd_places_to_one_class(classes: int, batch: int, seed: int) -> None:
    """As the published code: at least one of each class, and whatever is left over to one of them."""
    memory, _ = filled([[20] * classes], 5 * classes, seed)[-1]
    each = max(1, batch // classes)
    drawn = memory.draw(3, Draw(classes * each + batch % classes, odd_to_one=True), np.random.default_rng(seed)) // 20
    for row in drawn:
        assert sorted(np.bincount(row, minlength=classes)) == [each] * (classes - 1) + [each + batch % classes]


@given(arrivals, st.integers(1, 80), st.integers(1, 40), st.integers(0, 10**6))
def test_whole_batches_of_one_round(tasks: list[list[int]], size: int, batch: int, seed: int) -> None:
    """No image twice where the memory is at least a batch, fewer than a batch left out; else every image."""
    memory, _ = filled(tasks, size, seed)[-1]
    if not len(memory):
        return
    found = memory.rounds(Draw(batch, once=True), np.random.default_rng(seed))
    used = set(found.flatten().tolist())
    assert used <= set(memory.indices().tolist())
    assert found.shape == (max(1, len(memory) // batch), batch)
    assert len(used) == (found.size if len(memory) >= batch else len(memory))


@given(st.integers(1, 6), st.integers(12, 60), st.integers(0, 10**6))
def test_shares_for_good(tasks: int, size: int, seed: int) -> None:
    """Each task has its part of the memory, and nothing gives way."""
    memory, rng, before = Memory(size), np.random.default_rng(seed), 0
    shares = [share_of_task(size, tasks, task) for task in range(tasks)]
    assert sum(shares) == size
    assert max(shares) - min(shares) <= 1
    for task, share in enumerate(shares):
        held = dict(memory.by_class)
        memory.add(
            {2 * task: np.arange(before, before + 90), 2 * task + 1: np.arange(before + 90, before + 99)}, rng, share
        )
        before += 99
        assert all((memory.by_class[position] == kept).all() for position, kept in held.items())
        assert len(memory) == sum(shares[: task + 1])  # the smaller class leaves its surplus to the larger
        own = [int(i) for position in (2 * task, 2 * task + 1) for i in memory.by_class[position]]
        mine = range(2 * task, 2 * task + 2)
        assert memory.draw(2, Draw(share, classes=mine), rng).tolist() == [own] * 2
        for row in memory.draw(5, Draw(2 * share + 1, classes=mine), rng).tolist():
            assert sorted(row.count(image) for image in own) == [2] * (share - 1) + [3]


def test_no_image_is_favoured_where_places_are_left() -> None:
    memory = Memory(10)
    memory.add({0: np.arange(10)}, np.random.default_rng(0), share=10)
    drawn = memory.draw(4000, Draw(14, classes=range(1)), np.random.default_rng(1))
    counts = np.bincount(drawn.flatten(), minlength=10) / 4000
    assert np.abs(counts - 1.4).max() < 0.04  # σ of each is 0.008


def test_what_is_kept_is_random() -> None:
    """Each of 20 images survives two shrinkings about equally often."""
    survived = np.zeros(20)
    for seed in range(400):
        rng = np.random.default_rng(seed)
        memory = Memory(10)
        memory.add({0: np.arange(20)}, rng)
        memory.add({1: np.arange(20, 40)}, rng)
        survived[memory.by_class[0]] += 1
    assert survived.sum() == 400 * 5
    assert survived.min() > 60  # 100 expected, σ ≈ 8.7
    assert survived.max() < 140


def test_copy_holds_the_pixels() -> None:
    images = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1)
    memory = Memory(6)
    memory.add({0: np.arange(20), 1: np.arange(20, 40)}, np.random.default_rng(0))
    copy = memory.copy(images)
    images.zero_()
    assert copy.images.flatten().tolist() == memory.indices().tolist()
    assert copy.positions.tolist() == [0, 0, 0, 1, 1, 1]
