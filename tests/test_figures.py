"""`mdcg figure`: runs trained once, numbers as CSV, a drawing of these numbers, a caption that is true."""

from __future__ import annotations

import csv
import itertools
import json
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Drawing
from PIL import Image

import mdcg
from mdcg.experiments.store import MEASURED, RESULT, read_record
from mdcg.experiments.words import parse_seeds, spell_seeds
from mdcg.figures import FIGURES, OfRuns, Run, style
from mdcg.figures.make import drawing
from mdcg.figures.pick import one_protocol, side_by_side
from mdcg.figures.source import of_runs
from mdcg.metrics import Matrix
from tests.conftest import Cli

SMALL = ("--scenario", "digits-3", "--memory", "30", "--epochs", "2")


def found(runs: Path) -> list[Run]:
    return [Run(path.parent, read_record(path.parent)) for path in sorted(runs.glob(f"*/{RESULT}"))]


def test_from_a_name_to_files(cli: Cli, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "figures"
    words = ("figure", "drift", "forgetting", *SMALL, "--methods", "replay,md-cg", "--seeds", "0,1")
    answer = cli(*words, "--runs", runs, "--out", out)
    assert answer.code == 0, answer.err
    names = [f"{name}-digits-3.{kind}" for name in ("drift", "forgetting") for kind in ("csv", "png", "svg")]
    assert sorted(path.name for path in out.iterdir()) == names
    for name in ("drift", "forgetting"):
        root = ElementTree.parse(out / f"{name}-digits-3.svg").getroot()
        assert root.tag.endswith("svg")
        with Image.open(out / f"{name}-digits-3.png") as image:
            assert image.size[0] > 1000
    # Runs that both figures need were trained once, as one sweep, with the probe of one of them.
    assert len(found(runs)) == 4
    assert all(run.has("drift") for run in found(runs))
    assert "4 runs on digits-3: md-cg (lam 0.25, gamma 1, beta 10); replay; memory 30; seeds 0-1 (n = 2" in answer.out
    assert "probes took" in answer.out.splitlines()[-1]
    assert "(drift" in answer.out.splitlines()[-1]

    rows = list(csv.DictReader((out / "forgetting-digits-3.csv").open()))
    for run in found(runs):
        R = np.full((3, 3), np.nan)
        for row in rows:
            if (row["method"], int(row["seed"])) == (run.spec.method, run.spec.seed):
                R[int(row["learned"]) - 1, int(row["task"]) - 1] = float(row["accuracy"])
        np.testing.assert_allclose(R, run.record.R, atol=1e-4)

    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in runs.rglob("*.json")}
    pictures = {path: path.read_bytes() for path in out.iterdir()}
    assert cli(*words, "--runs", runs, "--out", out).code == 0
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in runs.rglob("*.json")}
    assert pictures == {path: path.read_bytes() for path in out.iterdir()}  # the same drawing, to the byte


def test_what_there_is(cli: Cli) -> None:
    paper = {"bias", "tradeoff", "floats", "gradients", "head-time", "head-growth", "sigmoid", "drift", "margin"}
    assert set(FIGURES.names()) == paper | {"forgetting", "confusion", "embedding"}
    listed = cli("figure", "--list").out
    assert all(name in listed and FIGURES[name].summary() in " ".join(listed.split()) for name in FIGURES.names())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("figure",), "no figure was named"),
        (("figure", "drfit"), "unknown figure 'drfit'; did you mean 'drift'?"),
        (("figure", "drift", "--scenario", "digits-3"), "give --memory"),
        (("figure", "drift", *SMALL, "--seeds", "x"), "not a list of seeds"),
        (("figure", "drift", *SMALL, "--set", "lambda=1"), "unknown setting"),
        (("figure", "drift", *SMALL, "--methods", "replya"), "unknown method 'replya'; did you mean 'replay'?"),
        (("figure", "gradients", *SMALL, "--methods", "replay"), "gradients cannot look at replay"),
        (("figure", "drift", *SMALL, "--memory", "3"), "a memory of 3 cannot hold one image of each"),
    ],
)
def test_mistakes(cli: Cli, words: tuple[str, ...], said: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "figures"
    assert said in cli(*words, "--runs", runs, "--out", out).sentence()
    assert not runs.exists()
    assert not out.exists()


def test_runs_that_fail_are_left_out_and_said(cli: Cli, runs: Path, tmp_path: Path) -> None:
    words = ("figure", "tradeoff", "--scenario", "digits-2", "--epochs", "1", "--memory", "20,40", "--seeds", "0")
    answer = cli(*words, "--set", "lam=1,1e30", "--runs", runs, "--out", tmp_path / "figures")
    assert answer.code == 0
    assert "left out of the figure: the loss of" in answer.err
    assert "n = 1" in answer.out
    answer = cli(*words, "--set", "lam=1e30,1e31", "--runs", tmp_path / "none", "--out", tmp_path / "none-drawn")
    assert answer.code == 2
    assert "no run that the figure tradeoff needs could be trained" in answer.err
    assert not (tmp_path / "none-drawn").exists()


def test_a_folder_that_cannot_be_written(cli: Cli, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("figure", "head-growth", "--scenario", "digits-5", "--runs", runs)
    assert str(tmp_path / "file") in cli(*words, "--out", tmp_path / "file").sentence()


def test_figures_in_a_report(cli: Cli, runs: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"scenario": "digits-2", "memory": 20, "epochs": 1, "out": runs, "quiet": True}
    mdcg.compare(methods=["naive", "md-cg"], seeds=range(2), probes=["drift"], **asked)
    mdcg.run(method="md-cg", set={"lam": 0.5}, **asked)
    assert cli("report", runs, "--out", tmp_path / "report").code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    for name in ("drift", "forgetting"):
        assert f'<figure id="figure-{name}"><img alt="' in page
    assert 'id="figure-bias"' not in page  # nobody measured that
    assert "4 runs on digits-2: md-cg (lam 0.25" in page  # and not those with another λ
    (damaged, *_) = runs.glob(f"*md-cg*/{MEASURED}/drift.json")
    damaged.write_text("[]")
    assert cli("report", runs, "--out", tmp_path / "report").code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "drift is left out:" in page
    assert 'id="figure-forgetting"' in page


def test_one_setting_of_each_method_and_one_memory_size(runs: Path) -> None:
    asked: dict[str, Any] = {"scenario": "digits-2", "epochs": 1, "out": runs, "quiet": True}
    mdcg.run(method="naive", **asked)
    mdcg.run(method="replay", memory=20, seeds=range(2), **asked)
    mdcg.run(method="md-cg", memory=20, set={"lam": 0.25}, **asked)
    mdcg.run(method="md-cg", memory=20, set={"lam": 0.5}, **asked)
    mdcg.run(method="md-cg", memory=20, head="incremental", **asked)
    mdcg.run(method="md-cg", memory=30, **asked)
    mdcg.run(method="replay", memory=20, seeds=5, **{**asked, "epochs": 2})
    usual = one_protocol(found(runs))
    assert {run.spec.epochs for run in usual} == {1}
    picked = {(run.spec.method, run.spec.memory, run.spec.seed) for run in side_by_side(usual)}
    assert picked == {("naive", 0, 0), ("replay", 20, 0), ("replay", 20, 1), ("md-cg", 20, 0)}
    (chosen,) = [run for run in side_by_side(usual) if run.spec.method == "md-cg"]
    assert (chosen.spec.hyperparameters["lam"], chosen.spec.head) == (0.25, "cascaded-gates")


def test_a_caption_says_what_differs(runs: Path) -> None:
    asked: dict[str, Any] = {"scenario": "digits-2", "method": "md-cg", "epochs": 1, "out": runs, "quiet": True}
    mdcg.run(memory=20, seeds=[0, 2, 3], set={"lam": 0.1}, **asked)
    mdcg.run(memory=1000, seeds=0, set={"lam": 0.5}, hold_out=0.25, **asked)
    said = of_runs(found(runs))
    for part in (
        "4 runs on digits-2: md-cg (lam 0.1, 0.5, gamma 1, beta 10)",
        "memory 20, 1,000",
        "seeds 0,2-3 (n = 1 to 3 per setting)",
        "smallconv, 1 epochs per task, batches of 32, learning rate 0.05, momentum 0.8",
        "fp32 on cpu (1 thread)",
        "0.25 of the training images, held out",
    ):
        assert part in said


@pytest.mark.parametrize("text", ["0", "0-4", "3,5-6,9", "0-1,3"])
def test_seeds_as_people_write_them(text: str) -> None:
    assert spell_seeds(parse_seeds(text)) == text


def test_lines_can_be_told_apart_without_colours() -> None:
    for one, other in itertools.combinations(style.LOOKS, 2):
        assert one["marker"] != other["marker"]
        assert one["linestyle"] != other["linestyle"]
        assert np.abs(np.subtract(to_rgb(one["color"]), to_rgb(other["color"]))).max() > 0.05
    assert len(style.LOOKS) == len(style.METHODS)


def test_a_band_is_mean_and_deviation() -> None:
    values: Matrix = np.array([[1.0, 4.0], [3.0, 8.0], [5.0, 0.0]])
    drawn, (ax,) = style.panels()
    style.band(ax, [0, 1], values, "x", style.LOOKS[0])
    assert ax.lines[0].get_ydata() == pytest.approx([3, 4])
    edges = ax.collections[0].get_paths()[0].vertices
    assert isinstance(edges, np.ndarray)
    assert {(x, round(float(y), 6)) for x, y in edges.tolist()} == {(0, 1), (0, 5), (1, 0), (1, 8)}
    assert isinstance(drawn, Drawing)


def test_numbers_in_a_map() -> None:
    with style.styled():
        _, (ax,) = style.panels()
        style.heat_map(ax, np.array([[-1.25, np.nan], [99.96, 50.0]]), ["a", "b"], ["c", "d"], "title")
    assert [text.get_text() for text in ax.texts] == ["−1.2", "100.0", "50.0"]
    assert [text.get_color() for text in ax.texts][:2] == ["white", "black"]  # on the darkest and the lightest


@pytest.mark.parametrize("name", ["drift", "forgetting"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_nothing_is_cut_or_covered(name: str, seeds: int, runs: Path) -> None:
    """Every text lies inside the picture, and no legend over a panel."""
    mdcg.run(
        scenario="digits-5",
        method="md-cg",
        memory=20,
        epochs=1,
        seeds=range(seeds),
        out=runs,
        probes=["drift"],
        quiet=True,
    )
    figure = FIGURES[name]()
    assert isinstance(figure, OfRuns)
    rows = json.loads(json.dumps(figure.numbers(found(runs))))
    with style.styled():
        drawn = figure.draw(rows)
        style.finish(drawn, "A caption that is long enough to go on to a second line, and then to a third. " * 4)
        drawn.draw_without_rendering()
        whole = drawn.get_tightbbox()
        scale = drawn.dpi
        keys = [key.get_window_extent() for key in drawn.legends]
        for ax in drawn.axes:
            assert not any(key.overlaps(ax.get_window_extent()) for key in keys)
            labels = ax.xaxis.get_tightbbox()
            assert labels is None or not any(key.overlaps(labels) for key in keys)
            for text in [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels()]:
                if text.get_text() and text.get_visible():
                    box = text.get_window_extent()
                    assert box.x0 >= whole.x0 * scale - 1
                    assert box.x1 <= whole.x1 * scale + 1
        (below,) = drawn.texts
        assert not any(key.overlaps(below.get_window_extent()) for key in keys)
    picture = drawing(figure, rows, "caption", ["png"])["png"]
    pixels = np.asarray(Image.open(BytesIO(picture)).convert("L"))
    frame = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert frame.min() == 255  # a white edge: nothing touches it
