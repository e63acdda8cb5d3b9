"""Class orders, task sizes and names of scenarios; held-out splits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdcg.draws import Purpose, hold_out
from mdcg.errors import MdcgError
from mdcg.scenario import Scenario, class_order, parse, task_sizes


def test_order_is_the_published_one() -> None:
    assert class_order(10, 0) == (4, 1, 7, 5, 3, 9, 0, 8, 6, 2)
    torch.manual_seed(3)
    assert class_order(100, 3) == tuple(torch.randperm(100).tolist())


def test_order_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    class_order(10, 0)
    assert torch.equal(torch.rand(1), expected)


@given(st.integers(2, 300), st.integers(1, 100))
def test_sizes(classes: int, tasks: int) -> None:
    if classes < tasks:
        with pytest.raises(MdcgError, match=f"ask for at most {classes}"):
            task_sizes(classes, tasks)
        return
    sizes = task_sizes(classes, tasks)
    assert len(sizes) == tasks
    assert sum(sizes) == classes
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(("classes", "tasks", "each"), [(10, 5, 2), (100, 10, 10), (200, 10, 20), (200, 50, 4)])
def test_the_papers_scenarios(classes: int, tasks: int, each: int) -> None:
    assert task_sizes(classes, tasks) == (each,) * tasks


def test_positions_follow_arrival() -> None:
    scenario = Scenario.build(11, 4, seed=2)
    assert [list(scenario.positions(t)) for t in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    position = scenario.position_of_label(11)
    assert all(scenario.order[position[label]] == label for label in range(11))


@pytest.mark.parametrize(
    ("name", "dataset", "tasks"),
    [
        ("digits-5", "digits", 5),
        ("c10-5", "cifar10", 5),
        ("c100-10", "cifar100", 10),
        ("tym-50", "tinyimagenet", 50),
        ("cifar100-20", "cifar100", 20),
        ("folder:/a/b-c/d-e-3", "folder:/a/b-c/d-e", 3),
    ],
)
def test_parse(name: str, dataset: str, tasks: int) -> None:
    assert parse(name) == (dataset, tasks)


@pytest.mark.parametrize("name", ["digits", "digits-", "-5", "digits-five", ""])
def test_parse_refuses(name: str) -> None:
    with pytest.raises(MdcgError, match="DATASET-TASKS"):
        parse(name)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.floats(0.01, 0.9), st.integers(0, 99))
def test_hold_out_is_stratified(counts: list[int], fraction: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    kept, held = hold_out(labels, fraction, seed, Purpose.HOLD_OUT)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        out = int((labels[held] == label).sum())
        assert 1 <= out <= count - 1
        assert abs(out - fraction * count) <= 1
