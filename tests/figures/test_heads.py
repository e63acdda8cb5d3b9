"""Figures of heads alone: how many weights the gates have, and how long they take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdcg.figures.plots import head_time
from mdcg.figures.plots.head_growth import (
    COUNT,
    FORMULA,
    LINEAR,
    LINEAR_COUNT,
    MEMORY,
    HeadGrowth,
    counted,
    formula,
    linear,
)
from mdcg.figures.plots.head_time import GATES, ORDER, PER_GATE, PLAIN, SINGLE, WHOLE, HeadTime
from mdcg.figures.plots.module_per_gate import ModulePerGate
from mdcg.models import build_model
from mdcg.models.heads import CascadedGates, SingleOpenGate
from mdcg.recipes.recipe import make_recipe
from mdcg.train.precision import compute
from tests.figures.layout import drawn, faults


def test_growth_by_formula_and_by_count() -> None:
    cascade = counted(CascadedGates(1, 64, gamma=[1.0], beta=[10.0]), 10)
    single = counted(SingleOpenGate(1, 64, gamma=[1.0], cap=[1.0]), 10)
    heads = 0  # G(t) = t − 1 + G(t − 1)
    for tasks in range(1, 11):
        heads += tasks - 1
        assert formula(tasks, 64) == cascade[tasks - 1] == heads * 2 * 64
        assert linear(tasks, 64) == single[tasks - 1] == 2 * (tasks - 1) * 64


def test_growth_without_data_on_disk() -> None:
    rows = HeadGrowth().measure(make_recipe(scenario="c10-5"))
    found = {(row["what"], row.get("memory", row["tasks"])): row for row in rows}
    assert found[COUNT, 100]["floats"] == found[FORMULA, 100]["floats"] == 4950 * 2 * 64
    assert found[FORMULA, 1]["floats"] == found[LINEAR, 1]["floats"] == 0
    assert found[LINEAR_COUNT, 500]["floats"] == found[LINEAR, 500]["floats"] == 998 * 64
    for size in (200, 500, 1000, 2000):
        row = found[MEMORY, size]
        tasks, floats = row["tasks"], 3 * 32 * 32 * size
        assert row["floats"] == floats
        assert 64 * tasks * (tasks - 1) > floats >= 64 * (tasks - 1) * (tasks - 2)
        assert found[FORMULA, tasks]["floats"] > floats  # the drawing reaches so far
    assert found[MEMORY, 200]["tasks"] == 99


@pytest.mark.parametrize(("scenario", "memory"), [("c10-5", None), ("tym-50", [2000, 5000])])
def test_growth_draws(scenario: str, memory: object) -> None:
    figure = HeadGrowth()
    rows = figure.measure(make_recipe(scenario=scenario, memory=memory))
    assert faults(drawn(figure, rows)) == []


@pytest.mark.parametrize("sizes", [[2], [2, 2, 2, 2], [3, 2, 4]])
def test_one_module_per_gate_answers_as_cascaded_gates(sizes: list[int]) -> None:
    head = CascadedGates(1, 7, gamma=[0.7], beta=[0.3]).double()
    rngs = [np.random.default_rng(0)]
    for size in sizes:
        head.grow(size, rngs, rngs)
    features = 3 * torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, apart = head(features[None])[0], ModulePerGate(head)(features)
        plain = head.classifier(features[None])[0]
    torch.testing.assert_close(apart, together, rtol=1e-12, atol=1e-12)
    assert len(ModulePerGate(head).gates) == len(sizes) * (len(sizes) - 1) // 2
    assert (len(sizes) == 1) == torch.equal(together, plain)  # the gates do something


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 3 tasks, then 5 and 7, the latter without cascaded gates."""
    for name, value in {"TASKS": 3, "FAR": (5, 7), "CASCADED": 5, "FORWARDS": 2, "REPEATS": 3}.items():
        monkeypatch.setattr(head_time, name, value)


@pytest.mark.usefixtures("few")
def test_what_is_timed() -> None:
    """For every number of tasks a head of its own, which stays as it is when the next task comes."""
    where = compute("cpu", "fp64")
    models = {
        name: build_model("smallconv", head, (1, 8, 8), [0], dtype=where.dtype).eval()
        for name, head in ((GATES, "cascaded-gates"), (PLAIN, "incremental"), (SINGLE, "single-open-gate"))
    }
    with torch.no_grad():
        timed = dict(head_time._growing(models, (1, 8, 8), where))
        assert list(timed) == [1, 2, 3, 5, 7]
        for tasks, own in timed.items():
            answers: dict[str, torch.Tensor] = {name: forward() for name, (forward, _) in own.items()}  # type: ignore[misc]
            shapes = {answers[name].shape for name in (GATES, PLAIN, SINGLE) if name in answers}
            assert shapes == {(1, 32, 2 * tasks)}
            assert {name: times for name, (_, times) in own.items()} == dict.fromkeys(own, 2) | (
                {WHOLE: 1} if WHOLE in own else {}
            )
            if tasks <= 3:
                assert set(own) == set(ORDER)
                torch.testing.assert_close(answers[PER_GATE], answers[GATES][0])
                torch.testing.assert_close(answers[WHOLE], answers[GATES])
        assert set(timed[5]) == {GATES, PLAIN, SINGLE}
        assert set(timed[7]) == {PLAIN, SINGLE}


@pytest.mark.usefixtures("few")
def test_time_rows() -> None:
    figure = HeadTime()
    rows = figure.measure(make_recipe(scenario="digits-5", device="cpu"))
    heads = {1: ORDER, 2: ORDER, 3: ORDER, 5: (GATES, PLAIN, SINGLE), 7: (PLAIN, SINGLE)}
    expected = {(head, tasks, repeat) for tasks, own in heads.items() for head in own for repeat in range(1, 4)}
    assert {(row["head"], row["tasks"], row["repeat"]) for row in rows} == expected
    assert len(rows) == len(expected)
    assert all(row["milliseconds"] > 0 for row in rows)
    assert "batches of 32, 3 repeats" in figure.source(rows)
    assert "64 features" in figure.source(rows)
    assert faults(drawn(figure, rows)) == []


def test_a_forward_is_timed_as_often_as_asked() -> None:
    calls: list[int] = []
    milliseconds = head_time.milliseconds(lambda: calls.append(sum(range(20_000))), 7, compute("cpu", "fp32"))
    assert len(calls) == 7
    assert milliseconds > 0
