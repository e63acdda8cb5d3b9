"""Additional floats against calculations by hand, and the figure of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mdcg.data import load
from mdcg.data.cifar import CIFAR10, CIFAR100, PIXELS
from mdcg.data.digits import DIGITS
from mdcg.errors import MdcgError
from mdcg.figures.plots.floats import Floats
from mdcg.figures.plots.head_growth import formula
from mdcg.figures.plots.models import given
from mdcg.figures.plots.overhead import overhead
from mdcg.figures.style import styled
from mdcg.models import build_model
from mdcg.recipes.recipe import make_recipe
from tests.fake_runs import finished, spec

C10_5 = (2, 2, 2, 2, 2)


@pytest.mark.parametrize(
    ("method", "head", "beyond_pixels"),
    [
        ("replay", None, 0),
        ("er-ace", None, 0),
        ("ld", None, 0),  # its teacher exists only while a task is learned
        ("gem", None, 0),
        ("der", None, 500 * 10),  # ten logits of each image
        ("rpc", None, 64 * 1000),
        ("md", None, 0),
        ("md-cg", None, 64 * (0 + 2 + 4 + 6 + 8)),
        ("md-cg", "single-gate", 64 * 8),  # one for each class that is past
        ("md-cg", "scalar-gates", 64 * (0 + 1 + 2 + 3 + 4)),
        ("md-cg", "cascaded-gates-with-own", 64 * (0 + 4 + 6 + 8 + 10)),
    ],
)
def test_floats_of_c10_5_by_hand(method: str, head: str | None, beyond_pixels: int) -> None:
    found = overhead(spec(method, 500, head=head), C10_5)
    assert found.pixels == 500 * 3072
    assert found.floats == 500 * 3072 + beyond_pixels


def test_the_formula_its_sentence_and_a_real_head() -> None:
    """The appendix writes 64 × 2 × 15 = 1,920 for C10-5, and a formula that gives 1,280."""
    assert 64 * sum(i * classes for i, classes in enumerate(C10_5, start=1)) == 64 * 2 * 15  # with i for (i − 1)
    assert formula(5, 64) == 64 * (0 * 2 + 1 * 2 + 2 * 2 + 3 * 2 + 4 * 2) == 1280
    model = build_model("resnet20", "cascaded-gates", (3, 32, 32), [0])
    for classes in C10_5:
        model.grow(classes)
    parameters = dict(model.head.named_parameters())
    assert parameters["gates.weight"].numel() == 1280
    found = overhead(spec("md-cg", 500), C10_5)
    assert (found.gate_weights, found.gate_biases) == (1280, parameters["gates.bias"].numel()) == (1280, 20)
    assert 1280 + 20 + parameters["classifier.weight"].numel() + 10 == sum(one.numel() for one in parameters.values())


def test_where_tasks_differ_the_head_is_counted() -> None:
    sizes = (3, 2, 2)  # task 2 has gates for 3 classes, task 3 for 5
    assert overhead(spec("md-cg", 100), sizes).gate_weights == 64 * (3 + 5)  # by the formula 64 · (2 + 2 · 2)


def test_larger_images_and_features() -> None:
    of = spec("md-cg", 2000, scenario="tym-20", backbone="resnet18")
    assert overhead(of, (10,) * 20).floats == 3 * 64 * 64 * 2000 + 512 * 10 * sum(range(20))
    folder = spec("replay", 40, scenario="folder:/birds-3", image_size=48)
    assert overhead(folder, (2, 2, 2)).floats == 3 * 48 * 48 * 40


def test_shapes_are_those_of_the_datasets() -> None:
    assert load("digits").shape == DIGITS.shape
    assert CIFAR10.shape == CIFAR100.shape == (3, 32, 32)
    assert np.prod(CIFAR10.shape) == PIXELS
    assert given(make_recipe(scenario="c10-5")) == ((3, 32, 32), "resnet20")
    assert given(make_recipe(scenario="digits-5", backbone="resnet32")) == ((1, 8, 8), "resnet32")


def points(methods: tuple[str, ...], memories: tuple[int, ...], seeds: int, **settings: Any) -> list[Any]:
    return [
        finished(spec(method, memory, seed, **settings))
        for method in methods
        for memory in memories
        for seed in range(seeds)
    ]


def test_pick_has_one_setting_for_each_point() -> None:
    usual = points(("md-cg",), (200, 500), 2)
    ablation, other = points(("md-cg",), (200,), 2, head="single-gate"), points(("md-cg",), (200,), 2, lam=0.7)
    assert Floats().pick([*ablation, *other, *usual]) == usual
    more = points(("md-cg",), (200,), 3, lam=0.7)
    assert Floats().pick([*more, *usual]) == [*more, *usual[2:]]
    without = [finished(spec("naive", 0))]
    assert Floats().pick([*without, *usual]) == usual
    assert not Floats().pick([*without, *usual[:2]])  # a single point


def test_what_is_wanted() -> None:
    (found,) = Floats().wanted(make_recipe(scenario="digits-5", methods="rpc,der"))
    assert (found.methods, found.memory) == (["rpc", "der"], [50, 100, 200])
    (found,) = Floats().wanted(make_recipe(scenario="digits-5", methods="gem", memory=30))
    assert (found.methods, found.memory) == (["gem"], [30])
    (found,) = Floats().wanted(make_recipe(scenario="digits-5"))
    assert found.methods == ["replay", "der", "er-ace", "er-lode", "md-cg"]  # the paper's
    with pytest.raises(MdcgError, match="floats compares memories: leave out naive, cumulative, without any"):
        Floats().wanted(make_recipe(scenario="digits-5", methods="naive,gem,cumulative"))


@pytest.mark.parametrize("seeds", [1, 3])
def test_floats_draw(seeds: int) -> None:
    figure, runs = Floats(), points(("replay", "der", "md-cg"), (200, 500, 2000), seeds)
    rows = figure.numbers(runs)
    with styled():
        (ax,) = figure.draw(rows).axes
    drawn = {str(bars.get_label()): bars.lines[0] for bars in ax.containers}  # type: ignore[attr-defined]
    x, y = drawn["der"].get_data()
    assert list(x) == [memory * 3072 + memory * 10 for memory in (200, 500, 2000)]
    at_500 = [run.record.metrics["ACC"] for run in runs if (run.spec.method, run.spec.memory) == ("der", 500)]
    assert y[1] == pytest.approx(sum(at_500) / seeds, abs=1e-3)
