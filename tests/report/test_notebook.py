"""What a notebook shows of results."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

import mdcg


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
