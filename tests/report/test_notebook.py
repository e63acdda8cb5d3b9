"""What a notebook shows of results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

import mdcg
from mdcg.execute.search import SearchResult
from mdcg.learner.tables import as_html
from mdcg.methods.base import Value
from mdcg.report.notebook import search_html


def test_results_in_a_notebook(tmp_path: Path) -> None:
    result = mdcg.run(
        scenario="digits-2", method="replay", memory=20, seeds=range(2), epochs=1, out=tmp_path, quiet=True
    )
    mean, std = result.mean, result.std
    said = f"ACC {mean['ACC']:.1f} ± {std['ACC']:.1f}, BWT {mean['BWT']:.1f} ± {std['BWT']:.1f}"
    assert repr(result) == f"<Result: replay on digits-2, memory 20, 2 seeds: {said}>"
    page = result._repr_html_()
    first, second = ElementTree.fromstring(page).iter("table")
    assert next(first.iter("td")).text == f"{mean['ACC']:.1f} ± {std['ACC']:.1f}"
    cells = [cell.text for cell in second.iter("td")]
    R = result.R.mean(0)
    assert cells == [f"{R[0, 0]:.1f}", None, f"{R[1, 0]:.1f}", f"{R[1, 1]:.1f}"]
    assert len(re.findall("background", page)) == np.isfinite(R).sum()


def test_names_are_no_markup(tmp_path: Path) -> None:
    recipe = tmp_path / "sweep.yaml"
    recipe.write_text("scenario: digits-2\nepochs: 1\naxes:\n  which:\n    '<b>': {method: naive}\n")
    sweep = mdcg.Sweep.read(recipe, out=tmp_path / "runs")
    assert repr(sweep) == f"<Sweep: sweep, 1 settings, 1 runs, in {tmp_path / 'runs'}>"
    from mdcg.api import results_of

    (result,) = results_of(sweep, quiet=True).values()
    assert "<b><b>" not in result._repr_html_()
    assert "&lt;b&gt;" in result._repr_html_()


def cells(page: str) -> list[list[str]]:
    """The texts of all tables, row by row."""
    return [["".join(cell.itertext()) for cell in row] for row in ElementTree.fromstring(page).iter("tr")]


def test_a_comparison(tmp_path: Path) -> None:
    found = mdcg.compare(
        scenario="digits-2", methods=["naive", "replay"], memory=20, epochs=1, out=tmp_path, quiet=True
    )
    ranked = sorted(found, key=lambda name: -found[name].mean["ACC"])
    head, *rows = cells(found._repr_html_())
    assert head == ["", "ACC ↑", "BWT", "BWT-final", "forgetting ↓"]
    assert [row[:2] for row in rows] == [[name, f"{found[name].mean['ACC']:.1f}"] for name in ranked]
    naive, replay = (f"{found[name].mean['ACC']:.1f}" for name in ("naive", "replay"))
    assert repr(found) == f"<Comparison: naive, ACC {naive}; replay, ACC {replay}>"
    named = mdcg.Comparison({"<mine>": found["replay"]})
    assert cells(named._repr_html_())[1][:2] == ["<mine>", replay]
    assert named.frame()["setting"].tolist() == ["<mine>"]


def test_a_sweep_half_done(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = mdcg.Sweep.read(recipe, only={"method": ["replay"]}, seeds="0-1", out=out)
    done.run(quiet=True)
    head, *rows = cells(mdcg.Sweep.read(recipe, out=out)._repr_html_())
    assert head == ["method", "memory", "runs finished", "ACC"]
    accs: dict[int, list[float]] = {spec.memory: [] for spec in done.specs}
    for record in done.records().values():
        accs[record.spec.memory].append(record.metrics["ACC"])
    told = {memory: f"{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}" for memory, found in accs.items()}
    assert rows == [
        *(["replay", str(memory), "2 of 3", told[memory]] for memory in (30, 60)),
        *(["md-cg", str(memory), "0 of 3", "–"] for memory in (30, 60)),
    ]


def test_a_sweep_without_axes(tmp_path: Path) -> None:
    recipe = tmp_path / "one.yaml"
    recipe.write_text("{scenario: digits-2, method: naive}")
    assert cells(mdcg.Sweep.read(recipe, out=tmp_path)._repr_html_())[1] == ["naive", "0 of 1", "–"]


def test_a_searched_grid() -> None:
    scores: dict[tuple[Value, ...], float] = {(0.1, "a"): 50.0, (0.1, "b"): 60.0, (1.0, "a"): 70.0}
    page = search_html([SearchResult(5, {"lam": [0.1, 1.0], "<kind>": ["a", "b"]}, scores)])
    assert cells(page) == [["lam ↓ <kind> →", "a", "b"], ["0.1", "50.0", "60.0"], ["1", "70.0*", ""]]
    assert "memory 5: lam 1, &lt;kind&gt; a, ACC 70.0, 10.0 above the second (lam at an end of the grid)" in page
    (line,) = [SearchResult(0, {"lam": [0.1, 1.0]}, {(0.1,): 50.0, (1.0,): 40.0})]
    assert cells(search_html([line])) == [["lam", "ACC"], ["0.1", "50.0*"], ["1", "40.0"]]


def test_a_learner() -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
    learner = mdcg.Learner("replay", memory=20, backbone="smallconv", epochs=1, quiet=True)
    assert repr(learner).startswith("Learner(backbone='smallconv', ")
    assert "memory" in learner._repr_mimebundle_()["text/html"]
    assert "memory" in learner._repr_html_()  # its parameters, as scikit-learn shows them
    learner.learn(images[:40], ["<cat>", "dog"] * 20).learn(images[40:], ["emu"] * 20)
    assert repr(learner) == "<Learner: replay, 3 classes in 2 tasks, memory of 20 of 20 images>"
    shown = learner._repr_mimebundle_()
    assert shown["text/plain"] == repr(learner)
    assert shown["text/html"] == learner._repr_html_()
    assert "memory of 20 of 20 images: percent of the images held out<" in shown["text/html"]
    assert "percent" not in as_html(replace(learner.saved_, versions=()))  # of a run's model, which held nothing out
    first, second = (version.after for version in learner.saved_.versions)
    assert cells(learner._repr_html_()) == [
        ["class", "after task 1", "after task 2"],
        *([name, f"{was:.1f}", f"{now:.1f}"] for name, was, now in zip(["<cat>", "dog"], first, second, strict=False)),
        ["emu", "–", f"{second[2]:.1f}"],
    ]
