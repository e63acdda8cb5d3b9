"""Figures of heads alone: how many weights the gates have, and how long they take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mdcg.figures.plots import head_time
from mdcg.figures.plots.head_growth import COUNT, FORMULA, MEMORY, HeadGrowth, counted, formula
from mdcg.figures.plots.head_time import GATES, ORDER, PER_GATE, PLAIN, WHOLE, HeadTime
from mdcg.figures.plots.module_per_gate import ModulePerGate
from mdcg.models import build_model
from mdcg.models.heads import CascadedGates
from mdcg.recipes.recipe import make_recipe
from mdcg.train.precision import compute
from tests.figures.layout import drawn, faults


def test_growth_by_formula_and_by_count() -> None:
    grown = counted(64, 10)
    heads = 0  # G(t) = t − 1 + G(t − 1)
    for tasks in range(1, 11):
        heads += tasks - 1
        assert formula(tasks, 64) == grown[tasks - 1] == heads * 2 * 64


def test_growth_without_data_on_disk() -> None:
    rows = HeadGrowth().measure(make_recipe(scenario="c10-5"))
    found = {(row["what"], row.get("memory", row["tasks"])): row for row in rows}
    assert found[COUNT, 100]["floats"] == found[FORMULA, 100]["floats"] == 4950 * 2 * 64
    assert found[FORMULA, 1]["floats"] == 0
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


def test_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every number of tasks a head of its own, which stays as it is when the next task comes."""
    monkeypatch.setattr(head_time, "TASKS", 3)
    where = compute("cpu", "fp64")
    gated, plain = (
        build_model("smallconv", head, (1, 8, 8), [0], dtype=where.dtype).eval()
        for head in ("cascaded-gates", "incremental")
    )
    with torch.no_grad():
        timed = list(head_time._growing(gated, plain, (1, 8, 8), where))
        for tasks, own in enumerate(timed, start=1):
            answers = {name: forward() for name, (forward, _) in own.items()}
            assert all(isinstance(answer, torch.Tensor) for answer in answers.values())
            assert answers[GATES].shape == answers[PLAIN].shape == (1, 32, 2 * tasks)  # type: ignore[attr-defined]
            torch.testing.assert_close(answers[PER_GATE], answers[GATES][0])  # type: ignore[index]
            torch.testing.assert_close(answers[WHOLE], answers[GATES])
            assert {name: times for name, (_, times) in own.items()} == dict.fromkeys(ORDER, 100) | {WHOLE: 1}


def test_time_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TASKS": 3, "FORWARDS": 2, "REPEATS": 3}.items():
        monkeypatch.setattr(head_time, name, value)
    figure = HeadTime()
    rows = figure.measure(make_recipe(scenario="digits-5", device="cpu"))
    expected = {(head, tasks, repeat) for head in ORDER for tasks in range(1, 4) for repeat in range(1, 4)}
    assert {(row["head"], row["tasks"], row["repeat"]) for row in rows} == expected
    assert len(rows) == len(expected)
    assert all(row["milliseconds"] > 0 for row in rows)
    assert "batches of 32, 3 repeats" in figure.source(rows)
    assert "64 features" in figure.source(rows)


def test_a_forward_is_timed_as_often_as_asked() -> None:
    calls: list[int] = []
    milliseconds = head_time.milliseconds(lambda: calls.append(sum(range(20_000))), 7, compute("cpu", "fp32"))
    assert len(calls) == 7
    assert milliseconds > 0
