"""What figures say: captions that are true of any runs, names of files, and which tasks of many are drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from mdcg.errors import MachineError
from mdcg.figures import Figure
from mdcg.figures.base import Row, RunFigure
from mdcg.figures.make import _outputs, _stem, _writable, _write, drawing
from mdcg.figures.plots.confusion import Confusion
from mdcg.figures.plots.drift import Drift
from mdcg.figures.plots.floats import Floats
from mdcg.figures.plots.forgetting import Forgetting
from mdcg.figures.plots.gradients import Gradients
from mdcg.figures.plots.sigmoid import Sigmoid
from mdcg.figures.plots.tradeoff import Tradeoff
from mdcg.recipes.recipe import Recipe
from tests.fake_runs import finished, spec
from tests.figures.layout import drawn, faults

OF_RECORDS: list[RunFigure] = [Forgetting(), Floats(), Sigmoid(), Tradeoff()]


@pytest.mark.parametrize("figure", OF_RECORDS)
def test_a_caption_speaks_of_seeds_as_there_are(figure: RunFigure) -> None:
    one, other = ([finished(spec(memory=memory, seed=seed)) for memory in (200, 500)] for seed in (0, 1))
    assert "A single seed." in figure.caption(figure.numbers(one))
    assert "Mean over seeds" in figure.caption(figure.numbers([*one, *other]))
    for runs in (one, [*one, *other]):
        assert "test images" not in figure.caption(figure.numbers(runs))  # they may be held out


def test_seeds_that_are_nowhere_averaged() -> None:
    rows = Forgetting().numbers([finished(spec("replay", seed=0)), finished(spec("md-cg", seed=1))])
    assert "A single seed of each." in Forgetting().caption(rows)
    rows = Sigmoid().numbers([finished(spec(gamma=1, seed=0)), finished(spec(gamma=2, seed=1))])
    assert "A single seed of each." in Sigmoid().caption(rows)


def moment(seed: int) -> Row:
    """That has what three figures want of a row."""
    named: Row = {"method": "der", "memory": 50, "seed": seed, "task": 2, "epoch": 0, "epochs": 1, "tasks": 2}
    return named | {"past_task": 1, "kl": 0.5, "layer": "conv", "cosine": 0.1}


@pytest.mark.parametrize("figure", [Confusion(), Drift(), Gradients()])
def test_so_do_those_of_what_was_measured(figure: Figure) -> None:
    assert figure.caption([moment(0)]).endswith("A single seed.")
    assert "Mean over seeds" in figure.caption([moment(0), moment(1)])
    assert "test images" not in figure.caption([moment(0)])


@pytest.mark.parametrize("seeds", [1, 2])
def test_of_many_tasks_some_are_drawn(seeds: int) -> None:
    sizes = (2,) * 20
    runs = [finished(spec(method, seed=seed), sizes) for method in ("replay", "md-cg", "ld") for seed in range(seeds)]
    rows = Forgetting().numbers(runs)
    picture = drawn(Forgetting(), rows)
    lines = picture.axes[0].get_legend_handles_labels()[1]
    assert (lines[0], lines[-1], len(lines)) == ("task 1", "task 20", 9)
    assert faults(picture) == []
    assert "Of 20 tasks 9 are drawn." in Forgetting().caption(rows)
    assert "drawn" not in Forgetting().caption(Forgetting().numbers([finished(spec())]))


def test_names_of_files(tmp_path: Path) -> None:
    assert _stem("drift", Recipe(scenario="c10-5")) == "drift-c10-5"
    assert _stem("drift", Recipe(scenario="c10-5", memory=[500])) == "drift-c10-5-m500"
    assert _stem("floats", Recipe(scenario="c10-5", memory=[200, 500])) == "floats-c10-5"
    assert _stem("gates", Recipe(scenario="c10-5", memory=[500], head="my/own")) == "gates-c10-5-my-own-m500"
    halves = [_stem("gates", Recipe(scenario="c10-5", set={"cap": cap})) for cap in (1, 1.5, 2.0)]
    assert halves == ["gates-c10-5-cap-1", "gates-c10-5-cap-1.5", "gates-c10-5-cap-2"]  # none replaces another
    assert _stem("sigmoid", Recipe(scenario="c10-5", set={"bias": [1, 10]}, methods=["md", "ld"])) == "sigmoid-c10-5"
    long = _stem("drift", Recipe(scenario="folder:/a/" + "very long/" * 60 + "birds-3"))
    assert len(long) < 70
    assert long.endswith("-birds-3")
    rows = Forgetting().numbers([finished(spec())])
    stem = _stem("forgetting", Recipe(scenario="folder:$x$/y-5", memory=[500]))
    made = _write("forgetting", Forgetting(), rows, "Two $ in a name: $x$.", _outputs(Forgetting(), tmp_path / stem))
    assert {file.name for file in made.files} == {
        f"forgetting-folder-x-y-5-m500.{kind}" for kind in ("svg", "png", "csv")
    }
    assert all(file.is_file() for file in made.files)


def test_dollars_are_no_mathematics() -> None:
    """Which `$` alone would break, and which would lose its spaces."""
    rows = Forgetting().numbers([finished(spec())])
    assert drawing(Forgetting(), rows, "folder:/a$\\nothing$/b-5", ["svg"])["svg"].startswith(b"<?xml")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["a\x00b\x1b[31m", "日本語 🧪", "a--b -->", "\ufffe\u200b"])
def test_a_drawing_is_a_picture_whatever_its_caption(name: str) -> None:
    """The file holds the caption as a comment, and not every sign may stand in one."""
    rows = Forgetting().numbers([finished(spec())])
    ElementTree.fromstring(drawing(Forgetting(), rows, f"folder:/{name}-5", ["svg"])["svg"])


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    _writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    _writable(tmp_path)
    assert tmp_path.is_dir()
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("long" * 100)):
        with pytest.raises(MachineError, match=r"cannot write in .*; choose another folder with --out"):
            _writable(out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
