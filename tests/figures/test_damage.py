"""Runs that do not fit: a sentence in place of a traceback, and a report without that one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mdcg.errors import MdcgError
from mdcg.figures import FIGURES, RunFigure, make
from mdcg.figures.plots.bias import Bias
from mdcg.figures.plots.drift import Drift
from mdcg.figures.plots.floats import Floats
from mdcg.figures.plots.forgetting import Forgetting
from mdcg.figures.read import numbers
from mdcg.figures.selection import installed, side_by_side, usual
from mdcg.results.settings import gather
from mdcg.runs.finished import FinishedRun
from tests.fake_runs import finished, spec, with_rows
from tests.report.pages import page

LOOK = {"task": 2, "epoch": 0, "step": 0}
DAMAGED: list[list[dict[str, Any]]] = [
    [],
    [{}],
    [{"task": 2}],
    [{**LOOK, "task": "two"}],
    [{**LOOK, "kl": None, "counts": 3, "features": [], "logit": 1, "layers": None, "truth": 0}],
    [LOOK],
]
MEASURED = [name for name in FIGURES.names() if getattr(FIGURES[name], "probes", ())]


def renamed(run: FinishedRun, **changed: Any) -> FinishedRun:
    """As another version, or another package, would have left it."""
    return FinishedRun(run.folder, run.record.model_copy(update={"spec": run.spec.model_copy(update=changed)}))


@pytest.mark.parametrize("rows", DAMAGED)
@pytest.mark.parametrize("name", MEASURED)
def test_measurements_that_do_not_fit(name: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    figure = FIGURES[name]()
    assert isinstance(figure, RunFigure)
    (probe,) = figure.probes
    run = with_rows(finished(spec("der")), probe, rows, tmp_path)
    with pytest.raises(MdcgError) as raised:
        numbers(figure, [run])
    file = run.folder / "measured" / f"{probe}.json"
    assert f"what the probe {probe} measured of {run.folder.name} is damaged; remove {file}, and" in str(raised.value)


def test_the_run_to_blame_is_named(tmp_path: Path) -> None:
    rows = [LOOK | {"logit": [1.0], "memory_accuracy": [90.0], "test_accuracy": [80.0]}]
    good = with_rows(finished(spec(seed=0), (5, 5)), "memory", rows, tmp_path)
    bad = with_rows(finished(spec(seed=1), (5, 5)), "memory", [LOOK], tmp_path)
    assert len(numbers(Bias(), [good])) == 1
    with pytest.raises(MdcgError, match=bad.folder.name):
        numbers(Bias(), [good, bad])


def test_values_that_only_the_drawing_stumbles_over(tmp_path: Path) -> None:
    run = with_rows(finished(spec("md-cg")), "drift", [LOOK | {"kl": ["much"]}], tmp_path)
    figure = Drift()
    with pytest.raises(MdcgError, match="the figure drift cannot be drawn from what drift measured"):
        make._write(
            "drift", figure, numbers(figure, [run]), "", make._outputs(figure, tmp_path / "figures" / "drift-c10-5")
        )
    assert not (tmp_path / "figures").exists()


def test_a_report_without_that_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_rows(finished(spec("md-cg")), "drift", [LOOK | {"kl": ["much"]}], tmp_path)  # which numbers pass on
    with_rows(run, "memory", [LOOK], tmp_path)
    found = page(gather([run]), "a title")
    assert 'id="figure-0-forgetting"' in found
    assert '<p class="faint">drift is left out: it cannot be drawn (' in found
    assert '<p class="faint">bias is left out: what the probe memory measured of' in found

    def broken(*_: object) -> list[FinishedRun]:
        raise RuntimeError("no & no")

    monkeypatch.setattr(Forgetting, "pick", broken)
    assert "forgetting is left out: it cannot be drawn (RuntimeError: no &amp; no)." in page(gather([run]), "a title")


def test_runs_of_what_is_not_installed_are_left_out() -> None:
    run = finished(spec("replay"))
    gone = [renamed(run, method="gone"), renamed(run, head="gone")]
    assert installed([*gone, run]) == [run]
    assert '<div class="figures">' not in page(gather(gone), "a title")
    assert "left out" not in page(gather([*gone, run]), "a title")


def test_runs_of_a_dataset_that_is_not_here() -> None:
    """It was given in Python, for instance: only what needs the shape of its images cannot be drawn."""
    runs = [finished(spec("replay", memory=size)) for size in (50, 100)]
    elsewhere = [renamed(run, scenario="gone-5") for run in runs]
    assert len(Floats().pick(runs)) == 2
    assert not Floats().pick(elsewhere)
    found = page(gather(elsewhere), "a title")
    assert 'id="figure-0-forgetting"' in found
    assert "left out" not in found


def test_a_setting_that_a_method_no_longer_has() -> None:
    now = finished(spec("md-cg"))
    before = renamed(now, hyperparameters={**now.spec.hyperparameters, "warmth": 1.0})
    assert usual(now)
    assert not usual(before)
    assert side_by_side([before, now]) == [now]
    sizes = [finished(spec("md-cg", memory=size)) for size in (50, 100)]
    unknown = [renamed(run, hyperparameters={**run.spec.hyperparameters, "warmth": 1.0}) for run in sizes]
    elsewhere = [renamed(run, backbone="gone") for run in sizes]
    assert Floats().pick([*unknown, *elsewhere, *sizes]) == sizes
    assert "left out" not in page(gather(unknown), "a title")
