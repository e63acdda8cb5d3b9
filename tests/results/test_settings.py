"""Finished runs as settings: what belongs together, what it is called, and the paper's numbers beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mdcg import metrics, paper
from mdcg.recipes.recipe import make_recipe
from mdcg.report.files import csv_table
from mdcg.results.settings import Setting, gather, paper_cell
from mdcg.results.statistics import Spread
from mdcg.runs.finished import FinishedRun
from mdcg.runs.spec import RunSpec
from mdcg.scenario import Stream
from tests.conftest import toy_dataset
from tests.fake_runs import made_run

PAPERS: dict[str, Any] = {"lr": 0.01, "schedule": "constant", "weight_decay": 0.0, "augment": "usual"}


def settings(*runs: FinishedRun) -> list[Setting]:
    return [setting for section in gather(runs) for setting in section.settings]


def names(*runs: FinishedRun) -> set[str]:
    found = settings(*runs)
    assert len({setting.label for setting in found}) == len(found)
    return {setting.name for setting in found}


def test_runs_of_other_seeds_are_one_setting() -> None:
    runs = [made_run(acc, seed=seed) for seed, acc in enumerate((40, 50, 66))]
    (setting,) = settings(*runs)
    expected = [run.record.metrics for run in runs]
    for name in ("ACC", "BWT", "BWT_final", "forgetting", "anytime"):
        values = [one[name] for one in expected]
        assert setting.stats[name] == Spread(3, *metrics.mean_std(values))
    assert setting.stats["ACC"].mean == pytest.approx(52)
    assert setting.stats["ACC"].std == pytest.approx(np.std([40, 50, 66], ddof=1))
    assert setting.stats["seconds"] == Spread(3, 2.0, 0.0)
    assert (setting.name, setting.label) == ("md-cg", "md-cg, memory 500")
    np.testing.assert_allclose(setting.matrices[:, -1], [[40] * 2, [50] * 2, [66] * 2])


@pytest.mark.parametrize("field", sorted(set(RunSpec.model_fields) - {"seed", "hyperparameters", "head_settings"}))
def test_runs_that_differ_in_anything_else_never_mix(field: str) -> None:
    other: dict[str, Any] = {
        "scenario": "c10-2", "method": "md", "head": "single-gate", "precision": "bf16", "backbone": "resnet32",
        "augmentation": "published", "fingerprint": "g", "hold_out": 0.1, "format": 7, "image_size": 64, "lr": 0.1,
        "momentum": 0.5, "passes": "separate", "code": "method:1", "weights": "1a2b", "normalise": "imagenet",
        "optimizer": "adamw", "schedule": "cosine", "augment": "none", "stream": Stream(blurry=0.1),
    }  # fmt: skip
    one, two = made_run(), made_run(seed=1, **{field: other.get(field, 333)})
    sections = gather([one, two])
    shown = {(section.title, setting.name, setting.spec.memory) for section in sections for setting in section.settings}
    assert len(shown) == 2
    if field in ("scenario", "stream", "hold_out", "fingerprint"):  # other images: their accuracies are no rivals
        assert len(sections) == 2
    assert len({line.split(",ACC")[0] for line in csv_table(sections).splitlines()[1:]}) == 2


def test_held_out_images_are_named() -> None:
    titles = [section.title for section in gather([made_run(hold_out=0.125), made_run()])]
    assert titles == ["c10-5", "c10-5, on 12.5% of the training images held out"]


def test_names_say_what_differs_and_no_more() -> None:
    assert names(made_run(), made_run(method="naive", memory=0)) == {"md-cg", "naive"}
    assert names(made_run(method="md", head="cascaded-gates"), made_run(method="md")) == {"md, cascaded-gates", "md"}
    # The paper chose another λ for each memory: that is one setting as people see it.
    assert paper.chosen("md")["lam"]["c10-5"][500] != paper.chosen("md")["lam"]["c10-5"][2000]
    assert names(made_run(memory=500), made_run(memory=2000)) == {"md-cg"}
    grid = [made_run(hyperparameters={"lam": lam}) for lam in (0.1, 0.25, 1.0)]
    assert names(*grid) == {"md-cg, lam 0.1", "md-cg", "md-cg, lam 1"}  # 0.25 is the paper's
    assert names(*grid, made_run(memory=2000)) == {"md-cg", "md-cg, lam 0.1", "md-cg, lam 1"}
    assert names(made_run(), made_run(memory=200, epochs=1), made_run(memory=2000)) == {"md-cg", "md-cg, epochs 1"}
    assert names(made_run(), made_run(evaluate_every=5)) == {"md-cg, evaluated every 0", "md-cg, evaluated every 5"}
    assert names(made_run(), made_run(memory=200, evaluate_every=5)) == {"md-cg"}
    assert names(made_run(code="method:1"), made_run(code="method:2")) == {
        "md-cg, code method:1",
        "md-cg, code method:2",
    }
    assert names(made_run(code="head:1"), made_run(method="naive", memory=0)) == {"md-cg", "naive"}
    assert names(made_run(method="of a package that is gone")) == {"of a package that is gone, incremental"}


def test_training_of_its_own_is_named_as_such() -> None:
    """Also where settings of the method were changed; numbers of an augmentation only where they are not as usual."""
    cifar = replace(toy_dataset([500] * 10, side=32, channels=3), name="cifar10")

    def run(method: str, **words: Any) -> FinishedRun:
        (spec,) = make_recipe(scenario="c10-5", method=method, memory=500, **words).resolve(cifar)
        return made_run(**spec.model_dump(exclude={"head_settings"}))

    papers = [run(method) for method in ("replay", "der", "er-ace", "er-lode", "md-cg")]
    runs = [*papers, run("md-replay"), run("md-replay", set={"temperature": 1.0})]
    own = {"md-replay, its own training", "md-replay, temperature 1, its own training"}
    usual = {"replay", "der", "er-ace", "er-lode", "md-cg"} | own
    assert names(*runs) == usual
    assert names(papers[0], *runs[-2:]) == {"replay, lr 0.01, weight decay 0, schedule constant, augment usual"} | own
    (section,) = gather([papers[0], papers[1], runs[-2]])
    assert section.shared.endswith("momentum 0.8, except where a name says otherwise")
    less, plain = run("md-replay", weight_decay=0.0), run("md-replay", **PAPERS)
    assert names(*runs, less) - usual == {"md-replay, its own training but weight decay 0"}
    assert names(*runs, plain) - usual == {"md-replay, not its own training"}
    not_flipped = [run("md-replay", augment=words) for words in ("crop+randaugment", "randaugment")]
    assert names(*runs, *not_flipped) - usual == {
        "md-replay, its own training but augment crop+randaugment",
        "md-replay, its own training but augment randaugment",
    }
    training = {"lr": 0.1, "schedule": "cosine", "weight_decay": 5e-4, "augment": "crop+flip+randaugment"}
    assert names(*runs, run("er-ace", **training)) - usual == {"er-ace, md-replay's training"}
    weak = [run(method, augment="crop+flip+randaugment", randaugment_m=5.0) for method in ("er-ace", "er-lode", "der")]
    strong = run("er-ace", augment="crop+flip+randaugment")
    assert names(*runs, weak[0]) - usual == {"er-ace, augment crop+flip+randaugment, randaugment m 5"}
    assert names(made_run(), made_run(method="md-replay", augment="of a later version")) == {
        "md-cg",
        "md-replay, not its own training, augment of a later version",
    }
    brought: dict[str, Any] = {"method": "md-replay", **training, "randaugment_n": 2, "randaugment_m": 9.0}
    elsewhere = [
        made_run(**{**brought, "scenario": "gone-5", "augment": own}) for own in ("crop+randaugment", "randaugment")
    ]
    assert len(names(*elsewhere)) == 2  # whether images are cropped there as usual, nobody knows
    assert names(*weak, strong) == {"er-ace", "er-lode", "der", "er-ace, randaugment m 9"}
    (section,) = gather(runs)
    assert section.shared.endswith("the methods' default settings, except where a name says otherwise")


def test_the_published_preset_has_a_name() -> None:
    """In place of all that it sets; other settings are told from the default as if it were not there."""
    cifar = replace(toy_dataset([4] * 10, side=32, channels=3), name="cifar10")

    def run(method: str, **words: Any) -> FinishedRun:
        (spec,) = make_recipe(scenario="c10-5", method=method, memory=500, **words).resolve(cifar)
        return made_run(**spec.model_dump(exclude={"head_settings"}))

    for method in ("er-ace", "er-lode", "ss-il", "ld", "md-cg"):  # epochs, passes, heads and settings
        assert names(run(method), run(method, preset="published")) == {method, f"{method}, published"}
    past_only = run("er-ace", set={"current_in_memory": False})
    assert names(run("er-ace"), past_only, run("er-ace", preset="published")) == {
        "er-ace",
        "er-ace, current_in_memory False",
        "er-ace, published",
    }
    assert names(run("replay"), run("replay", passes="separate")) == {"replay", "replay, passes separate"}


def test_what_is_not_default_is_named_even_where_all_have_it() -> None:
    """A table of nothing but runs with an older default must not pass for one of the present."""
    assert names(made_run(hyperparameters={"divergence": "student-teacher"})) == {"md-cg, divergence student-teacher"}
    (section,) = gather([made_run(passes="separate"), made_run(passes="separate", memory=200)])
    assert "memory images in passes of their own" in section.shared
    (section,) = gather([made_run()])
    assert "passes" not in section.shared


def test_papers_numbers() -> None:
    (setting,) = settings(*[made_run(acc, seed=seed) for seed, acc in enumerate((64.5, 65, 66))])
    cell = paper.cell("c10-5", "md-cg", 500)
    assert cell is not None
    assert setting.paper == cell
    assert setting.difference == pytest.approx(np.mean([64.5, 65, 66]) - cell.acc)
    sample = stats.ttest_ind_from_stats(
        np.mean([64.5, 65, 66]), np.std([64.5, 65, 66], ddof=1), 3, cell.acc, cell.acc_std, paper.RUNS, equal_var=False
    )
    assert setting.p == pytest.approx(sample.pvalue)
    assert setting.verdict == f"no, p = {sample.pvalue:.3f}"
    (far,) = settings(*[made_run(20 + seed / 10, seed=seed) for seed in range(5)])
    assert far.verdict == "yes, p < 0.001"
    (alone,) = settings(made_run(20))
    assert (alone.p, alone.verdict) == (None, "n too small")


def test_only_runs_of_the_papers_protocol_are_compared_with_it() -> None:
    def cell(**asked: Any) -> paper.Cell | None:
        return paper_cell(made_run(**asked).record.spec)

    assert cell() == paper.cell("c10-5", "md-cg", 500)
    assert cell(head="single-gate") == paper.cell("c10-5", "md-cg", 500, "single-gate")
    assert cell(method="naive", memory=0) == paper.cell("c10-5", "naive", 0)
    assert cell(method="er-ace", head="cascaded-gates") == paper.cell("c10-5", "er-ace", 500, "cascaded-gates")
    for departure in (
        {"hold_out": 0.1}, {"epochs": 1}, {"backbone": "resnet32"}, {"batch_size": 64}, {"lr": 0.1},
        {"momentum": 0.9}, {"memory": 123}, {"head": "incremental"}, {"scenario": "digits-5"}, {"method": "foreign"},
        {"hyperparameters": {"lam": 1000.0}}, {"head": "cascaded-gates-with-own"}, {"head": "scalar-gates"},
    ):  # fmt: skip
        assert cell(**departure) is None, departure
