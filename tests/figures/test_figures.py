"""`mdcg figure`: runs trained once, numbers as CSV, a drawing of these numbers, a caption that is true."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Drawing
from PIL import Image

import mdcg
from mdcg.figures import FIGURES, Figure, make, style
from mdcg.figures.base import Row
from mdcg.figures.captions import of_runs
from mdcg.figures.plots import drift, floats, forgetting, head_time
from mdcg.figures.selection import one_protocol, side_by_side
from mdcg.methods import METHODS
from mdcg.metrics import Matrix
from mdcg.recipes.parsing import parse_seeds, spell_seeds
from mdcg.recipes.presets import own_training, settings_of_preset
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.environment import environment
from mdcg.runs.finished import FinishedRun
from mdcg.runs.store import MEASURED, RESULT, read_record
from mdcg.train.precision import compute
from tests.conftest import Cli
from tests.fake_runs import finished, spec
from tests.figures.layout import faults, touches_the_edge

SMALL = ("--scenario", "digits-3", "--memory", "30", "--epochs", "1")


def found(runs: Path) -> list[FinishedRun]:
    return [FinishedRun(path.parent, read_record(path.parent)) for path in sorted(runs.glob(f"*/{RESULT}"))]


def test_from_a_name_to_files(cli: Cli, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "figures"
    words = (*SMALL, "--methods", "replay,md-cg", "--seeds", "0,1", "--runs", runs, "--out", out)
    answer = cli("figure", "drift", "forgetting", *words)
    assert answer.code == 0, answer.err
    names = [f"{name}-digits-3-m30.{kind}" for name in ("drift", "forgetting") for kind in ("csv", "png", "svg")]
    assert sorted(path.name for path in out.iterdir()) == names
    for name in ("drift", "forgetting"):
        root = ElementTree.parse(out / f"{name}-digits-3-m30.svg").getroot()
        assert root.tag.endswith("svg")
        with Image.open(out / f"{name}-digits-3-m30.png") as image:
            assert image.size[0] > 1000
    # Runs that both figures need were trained once, as one sweep, with the probe of one of them.
    assert len(found(runs)) == 4
    assert all(run.has("drift") for run in found(runs))
    assert "4 runs on digits-3: md-cg (lam 0.25, gamma 1, beta 10); replay; memory 30; seeds 0-1 (n = 2" in answer.out
    assert "probes took" in answer.out.splitlines()[-1]
    assert "(drift" in answer.out.splitlines()[-1]

    rows = list(csv.DictReader((out / "forgetting-digits-3-m30.csv").open()))
    for run in found(runs):
        R = np.full((3, 3), np.nan)
        for row in rows:
            if (row["method"], int(row["seed"])) == (run.spec.method, run.spec.seed):
                R[int(row["learned"]) - 1, int(row["task"]) - 1] = float(row["accuracy"])
        np.testing.assert_allclose(R, run.record.R, atol=1e-4)

    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in runs.rglob("*.json")}
    pictures = {path: path.read_bytes() for path in out.iterdir()}
    (out / "drift-digits-3-m30.png").unlink()
    assert cli("figure", "drift", *words).code == 0
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in runs.rglob("*.json")}
    assert pictures == {path: path.read_bytes() for path in out.iterdir()}  # the same drawing, to the byte


def test_runs_that_can_train_together_do(cli: Cli, runs: Path, tmp_path: Path) -> None:
    """The map wants one seed, the matrix two: all are looked at by both probes, and train as one group."""
    words = ("figure", "confusion", "embedding", *SMALL, "--methods", "md-cg", "--seeds", "0,1")
    assert cli(*words, "--runs", runs, "--out", tmp_path / "figures").code == 0
    assert [run.record.members for run in found(runs)] == [2, 2]
    assert all(run.has("confusion") and run.has("features") for run in found(runs))


def test_another_head(cli: Cli, runs: Path, tmp_path: Path) -> None:
    """Its figure stands beside that of the method's own head, under a name of its own."""
    for head, name in ((), "gates-digits-3-m30"), (("--head", "open-gates"), "gates-digits-3-open-gates-m30"):
        answer = cli("figure", "gates", *SMALL, *head, "--seeds", 0, "--runs", runs, "--out", tmp_path / "figures")
        assert answer.code == 0, answer.err
        assert (tmp_path / "figures" / f"{name}.svg").exists()
        assert ("head open-gates" in answer.out) == bool(head)
    assert {run.spec.head for run in found(runs)} == {"cascaded-gates", "open-gates"}


def test_what_there_is(cli: Cli) -> None:
    paper = {"bias", "tradeoff", "floats", "gradients", "head-time", "head-growth", "sigmoid", "drift", "margin"}
    assert set(FIGURES.names()) == paper | {"forgetting", "confusion", "embedding", "gates"}
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
        (("figure", "gates", *SMALL, "--head", "open-gate"), "unknown head 'open-gate'; did you mean 'open-gates'?"),
        (("figure", "gates", *SMALL, "--head", "incremental"), "the probe gates cannot look at md-cg: its head has no"),
        (("figure", "gradients", *SMALL, "--methods", "replay"), "the probe gradients cannot look at replay: it"),
        (("figure", "gates", *SMALL, "--methods", "replay"), "the probe gates cannot look at replay: its head has no"),
        (("figure", "drift", *SMALL, "--memory", "3"), "a memory of 3 cannot hold one image of each"),
        (("figure", "sigmoid", *SMALL, "--methods", "replay"), "sigmoid varies gamma and beta, which replay does not"),
        (
            ("figure", "tradeoff", *SMALL, "--methods", "ld"),
            "tradeoff varies lam, which ld does not have; name another",
        ),
        (("figure", "floats", *SMALL, "--methods", "naive,gem"), "floats compares memories: leave out naive, without"),
        (("figure", "floats", *SMALL, "--methods", "gme"), "unknown method 'gme'; did you mean 'gem'?"),
        (("figure", "head-growth", *SMALL, "--methods", "md,nope"), "unknown method 'nope'"),
        (("figure", "head-time", *SMALL, "--set", "lambda=1"), "unknown setting"),
        (("figure", "head-time", *SMALL, "--backbone", "resnet21"), "unknown backbone 'resnet21'"),
    ],
)
def test_mistakes(cli: Cli, words: tuple[str, ...], said: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "figures"
    assert said in cli(*words, "--runs", runs, "--out", out).sentence()
    assert not runs.exists()
    assert not out.exists()


@pytest.mark.parametrize("name", ["bias", "drift", "embedding", "forgetting", "gradients", "margin", "sigmoid"])
def test_memory_sizes_are_not_averaged_as_if_they_were_seeds(cli: Cli, name: str, runs: Path) -> None:
    words = ("figure", name, "--scenario", "digits-3", "--memory", "30,40", "--runs", runs)
    said = f"the figure {name} shows one value of memory, not 2; give one."
    assert said in cli(*words).sentence()
    assert not runs.exists()


@pytest.mark.parametrize("name", ["bias", "confusion", "drift", "embedding", "floats", "forgetting", "gates", "margin"])
def test_nor_are_settings(cli: Cli, name: str, runs: Path) -> None:
    words = ("figure", name, *SMALL, "--set", "lam=1,0.5", "--runs", runs)
    assert f"the figure {name} shows one value of lam, not 2; give one." in cli(*words).sentence()
    assert not runs.exists()


@pytest.mark.parametrize("name", ["bias", "gates", "gradients", "margin", "sigmoid", "tradeoff"])
def test_nor_methods(cli: Cli, name: str, runs: Path) -> None:
    words = ("figure", name, *SMALL, "--methods", "der,md-cg", "--runs", runs)
    assert f"the figure {name} shows one method, not 2; name one." in cli(*words).sentence()
    assert not runs.exists()


@pytest.mark.parametrize("name", ["bias", "drift", "embedding", "gates", "gradients", "margin", "sigmoid", "tradeoff"])
def test_what_needs_a_second_task(cli: Cli, name: str, runs: Path) -> None:
    words = ("figure", name, "--scenario", "digits-1", "--memory", "30", "--runs", runs)
    said = f"the figure {name} needs 2 tasks, and digits-1 has fewer; name another scenario."
    assert said in cli(*words).sentence()
    assert not runs.exists()


def test_runs_that_fail_are_left_out_and_said(cli: Cli, runs: Path, tmp_path: Path) -> None:
    words = ("figure", "tradeoff", "--scenario", "digits-2", "--epochs", "1", "--memory", "20", "--seeds", "0")
    answer = cli(*words, "--set", "lam=1,1e30", "--runs", runs, "--out", tmp_path / "figures")
    assert answer.code == 0
    rows = list(csv.DictReader((tmp_path / "figures" / "tradeoff-digits-2-m20.csv").open()))
    assert [(row["memory"], row["lam"]) for row in rows] == [("20", "1.0")]
    assert "left out of the figure, until --retry tries it again: the loss of" in answer.err
    assert "n = 1" in answer.out
    answer = cli(*words, "--set", "lam=1e30", "--runs", tmp_path / "none", "--out", tmp_path / "none-drawn")
    assert answer.code == 2
    assert "no run that the figure tradeoff needs could be trained" in answer.err
    assert not (tmp_path / "none-drawn").exists()


def test_a_folder_that_cannot_be_written(cli: Cli, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("figure", "head-growth", "--scenario", "digits-5", "--runs", runs)
    assert str(tmp_path / "file") in cli(*words, "--out", tmp_path / "file").sentence()


def test_figures_in_a_report(cli: Cli, runs: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "scenario": "digits-2",
        "memory": 20,
        "epochs": 1,
        "batch_size": 64,
        "out": runs,
        "quiet": True,
    }
    mdcg.compare(methods=["naive", "md-cg"], seeds=range(2), probes=["drift"], **asked)
    mdcg.run(method="md-cg", set={"lam": 0.5}, probes=["gates"], **asked)
    assert cli("report", runs, "--out", tmp_path / "report").code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    for name in ("drift", "forgetting", "gates"):
        assert f'<figure id="figure-0-{name}"><img alt="' in page
    assert 'id="figure-0-bias"' not in page  # nobody measured that
    assert "4 runs on digits-2: md-cg (lam 0.25" in page  # and not those with another λ
    (damaged, *_) = runs.glob(f"*md-cg*/{MEASURED}/drift.json")
    damaged.write_text("[]")
    assert cli("report", runs, "--out", tmp_path / "report").code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "drift is left out:" in page
    assert 'id="figure-0-forgetting"' in page


def test_one_setting_of_each_method_and_one_memory_size() -> None:
    runs = [
        finished(spec("naive", 0)),
        *(finished(spec("replay", 200, seed)) for seed in (0, 1)),
        finished(spec("md-cg", 200)),
        finished(spec("md-cg", 200, lam=0.7)),
        finished(spec("md-cg", 200, head="incremental")),
        finished(spec("md-cg", 500)),
        finished(spec("replay", 200, 5, epochs=2)),
    ]
    usual = one_protocol(runs)
    assert usual == runs[:-1]
    assert side_by_side(usual) == runs[:4]
    assert side_by_side([]) == []


def test_methods_with_their_own_training_stand_beside_others() -> None:
    """Each with what suits its memory; but not where other training was asked for, nor for another number of epochs."""

    def own(memory: int, seed: int = 0, **others: Any) -> FinishedRun:
        brought = settings_of_preset("paper", "c100-10", "md-replay", memory, METHODS["md-replay"].head)
        words = ("lr", "schedule", "weight_decay", "augment", "randaugment_n", "randaugment_m")
        about = {"scenario": "c100-10", **{key: brought[key] for key in words}, **others}
        return finished(spec("md-replay", memory, seed, **about), (10,) * 10)

    def usual(method: str, memory: int, **others: Any) -> FinishedRun:
        return finished(spec(method, memory, **{"scenario": "c100-10", **others}), (10,) * 10)

    runs = [own(200), own(2000), usual("md-cg", 200), usual("replay", 200)]
    assert runs[0].spec.weight_decay != runs[1].spec.weight_decay
    others = [own(200, lr=0.03), own(200, epochs=3), usual("md-cg", 200, lr=0.03)]
    assert one_protocol([*others, *runs]) == runs
    assert one_protocol(runs[:2]) == runs[:2]
    assert one_protocol(others[-1:]) == others[-1:]
    assert one_protocol([own(200, seed, epochs=3) for seed in range(5)] + runs) == [
        own(200, seed, epochs=3) for seed in range(5)
    ]
    said = of_runs(runs)
    assert (
        "its own training: learning rate 0.1, schedule cosine, weight decay 0, 0.0005, augment crop+flip+rand" in said
    )
    assert "batches of 32, learning rate 0.01, momentum 0.8; evaluated" in said
    alone = of_runs(runs[:2])
    assert "own training" not in alone
    assert "learning rate 0.1, momentum 0.8; weight decay 0, 0.0005, schedule cosine" in alone


def test_a_search_does_not_outvote_a_comparison() -> None:
    """Many learning rates are as many protocols, whatever else is there."""
    search = [finished(spec("md-cg", lr=rate, epochs=1)) for rate in (0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007)]
    comparison = [finished(spec(method, seed=seed)) for method in ("md-cg", "replay", "er-ace") for seed in (0, 1)]
    brought: dict[str, Any] = {
        "lr": 0.1,
        "schedule": "cosine",
        "weight_decay": 0.0005,
        "augment": "crop+flip+randaugment",
    }
    own = finished(spec("md-replay", epochs=1, randaugment_n=2, randaugment_m=9.0, **brought))
    assert own_training(own.spec, 10)
    assert one_protocol([*search, *comparison]) == comparison
    assert one_protocol([*search, own, *comparison]) == comparison


def test_what_one_method_brings_the_next_must_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["replay"], "recipe", {"lr": 0.1})
    monkeypatch.setattr(METHODS["er-ace"], "recipe", {"clip": 1.0})
    monkeypatch.setattr(METHODS["er-ace"], "suited", classmethod(lambda *_: {"warmup": 0.25}))
    kept = [finished(spec("replay", lr=0.1)), finished(spec("er-ace", clip=1.0, warmup=0.25)), finished(spec("md-cg"))]
    asked = [finished(spec("replay", lr=0.1, clip=5.0)), finished(spec("er-ace", lr=0.7, clip=1.0, warmup=0.25))]
    assert one_protocol([*asked, *kept]) == kept
    said = of_runs(kept)
    assert "replay (its own training: learning rate 0.1)" in said
    assert "er-ace (its own training: clip 1, warmup 0.25)" in said
    assert "learning rate 0.01, momentum 0.8; evaluated" in said


def test_a_caption_says_what_differs() -> None:
    around = environment(compute("cpu", "fp32"))
    few = [spec(memory=20, seed=seed, scenario="digits-2", lam=0.1) for seed in (0, 2, 3)]
    many = spec(memory=1000, scenario="digits-2", lam=0.5, hold_out=0.25)
    runs = [FinishedRun(Path(), finished(of).record.model_copy(update={"environment": around})) for of in (*few, many)]
    said = of_runs(runs)
    for part in (
        "4 runs on digits-2: md-cg (lam 0.1, 0.5, gamma 1, beta 10);",
        "memory 20, 1,000",
        "seeds 0,2-3 (n = 1 to 3 per setting)",
        "resnet20, 20 epochs per task, batches of 32, learning rate 0.01, momentum 0.8",
        f"fp32 on {around.device}",
        "evaluated on test images and on 0.25 of the training images, held out.",
    ):
        assert part in said
    assert "1 epoch per task" in of_runs([finished(spec(epochs=1))])
    assert "c10-5: der (alpha 0.1, beta 0.5);" in of_runs(
        [finished(spec("der", 200))]
    )  # the teacher's settings are off
    taught = of_runs([finished(spec("der", 200, distils="all", temperature=2.0))])
    assert "der (distils all, temperature 2, alpha 0.1, beta 0.5);" in taught


@pytest.mark.parametrize("text", ["0", "0-4", "3,5-6,9", "0-1,3"])
def test_seeds_as_people_write_them(text: str) -> None:
    assert spell_seeds(parse_seeds(text)) == text


def test_lines_can_be_told_apart_without_colours() -> None:
    for one, other in itertools.combinations(style.LOOKS, 2):
        assert one["marker"] != other["marker"]
        assert one["linestyle"] != other["linestyle"]
        assert np.abs(np.subtract(to_rgb(one["color"]), to_rgb(other["color"]))).max() > 0.05
    drawn = ["a", *style.METHODS, "b", "c"]
    looks = [style.look_of(name, drawn) for name in drawn]
    assert all(one != other for one, other in itertools.combinations(looks, 2))
    many = ["replay", *"abcdefgh"]  # more than there are places after the paper's methods
    assert len({style.look_of(name, many)["color"] for name in many}) == 9
    assert style.look_of("replay", many) == style.look_of("replay", drawn)


def test_a_band_is_mean_and_deviation() -> None:
    values: Matrix = np.array([[1.0, 4.0], [3.0, 8.0], [5.0, 0.0]])
    drawn, (ax,) = style.panels()
    style.band(ax, [0, 1], values, "x", style.LOOKS[0])
    assert ax.lines[0].get_ydata() == pytest.approx([3, 4])
    edges = ax.collections[0].get_paths()[0].vertices
    assert isinstance(edges, np.ndarray)
    assert {(x, round(float(y), 6)) for x, y in edges.tolist()} == {(0, 1), (0, 5), (1, 0), (1, 8)}
    assert isinstance(drawn, Drawing)


def test_a_band_of_one_point_is_a_bar() -> None:
    _, (ax,) = style.panels()
    style.band(ax, [3], np.array([[1.0], [3.0], [5.0]]), "x", style.LOOKS[0])
    (bar,) = (bars.lines[2][0] for bars in ax.containers)  # type: ignore[attr-defined]
    assert bar.get_segments()[0].tolist() == [[3, 1], [3, 5]]
    assert ax.get_legend_handles_labels()[1] == ["x"]


def test_numbers_in_a_map() -> None:
    with style.styled():
        _, (ax,) = style.panels()
        style.heat_map(ax, np.array([[-1.25, np.nan], [99.96, 50.0]]), ["a", "b"], ["c", "d"], "title")
    assert [text.get_text() for text in ax.texts] == ["−1.2", "100.0", "50.0"]
    assert [text.get_color() for text in ax.texts][:2] == ["white", "black"]  # on the darkest and the lightest


@dataclass(frozen=True)
class Pictures:
    """All figures, made as `mdcg figure` makes them."""

    folder: Path
    drawn: list[tuple[str, Drawing]]  # by name, of two seeds and of one


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    folder = tmp_path_factory.mktemp("pictures")
    drawn: list[tuple[str, Drawing]] = []
    real, finish = make.drawing, style.finish

    def draw(figure: Figure, rows: list[Row], caption: str) -> dict[str, bytes]:
        name = next(name for name in FIGURES.names() if FIGURES[name] is type(figure))

        def kept(drawing: Drawing, caption: str) -> None:
            finish(drawing, caption)
            drawn.append((name, drawing))

        patch.setattr(style, "finish", kept)
        first = [row for row in rows if row.get("seed", 0) == 0]
        if len(first) < len(rows):
            real(figure, first, caption, [])
        return real(figure, rows, caption)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "drawing", draw)
        patch.setattr(style, "DPI", 100)
        patch.setattr(drift, "SHOWN", ("der", "replay", "md-cg"))  # that other figures train as well
        patch.setattr(forgetting, "SHOWN", ("naive", "replay", "md-cg"))
        patch.setattr(floats, "SHOWN", ("replay", "md-cg"))
        for name, value in {"TASKS": 6, "FAR": (12,), "FORWARDS": 2, "REPEATS": 2}.items():
            patch.setattr(head_time, name, value)
        small: dict[str, Any] = {"scenario": "digits-3", "memory": 30, "epochs": 1, "batch_size": 64, "seeds": [0, 1]}
        several: dict[str, dict[str, Any]] = {
            "floats": {"memory": [30, 40]},
            # A map looks the same whatever the number of seeds.
            "tradeoff": {"memory": [30, 40], "set": {"lam": [1, 0.25]}, "seeds": [0]},
            "sigmoid": {"set": {"gamma": [0.5, 1], "beta": [1, 10]}, "seeds": [0]},
        }
        together = [name for name in FIGURES.names() if name not in several]
        for names, own in [(together, {}), *(([name], own) for name, own in several.items())]:
            asked = make_recipe(**{**small, **own}, out=folder / "runs")
            make.make(names, asked, folder / "figures", seeds_given=True)
    return Pictures(folder / "figures", drawn)


def test_nothing_is_cut_or_covered(pictures: Pictures) -> None:
    once = ["head-growth", "head-time", "embedding", "sigmoid", "tradeoff"]  # of models, or of a single seed
    assert Counter(name for name, _ in pictures.drawn) == {name: 2 - (name in once) for name in FIGURES.names()}
    assert not [(name, fault) for name, drawn in pictures.drawn for fault in faults(drawn)]
    for name in FIGURES.names():
        stem = f"{name}-digits-3" if name in ("floats", "tradeoff") else f"{name}-digits-3-m30"  # of several sizes
        assert not touches_the_edge((pictures.folder / f"{stem}.png").read_bytes()), name
        root = ElementTree.parse(pictures.folder / f"{stem}.svg").getroot()
        assert root.tag.endswith("svg"), name


def test_what_a_kill_left_beside_figures_is_swept(cli: Cli, tmp_path: Path) -> None:
    """Also of a figure that is not drawn again."""
    (tmp_path / ".drift-digits-3.png.0123456789ab.partial").touch()
    assert cli("figure", "head-growth", "--out", tmp_path, "--runs", tmp_path / "runs").code == 0
    assert not list(tmp_path.glob(".*"))
    assert list(tmp_path.glob("head-growth*.png"))
