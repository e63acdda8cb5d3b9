"""What `plot` draws of results: the numbers in R, with nothing cut."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mdcg.figures import style
from mdcg.figures.overview import overview
from mdcg.results.settings import Setting
from tests.fake_runs import finished, spec
from tests.figures.layout import touches_the_edge


def setting(label: str = "", seeds: int = 3, tasks: int = 5, **asked: Any) -> Setting:
    runs = tuple(finished(spec(seed=seed, **asked), (2,) * tasks) for seed in range(seeds))
    return Setting(runs, label or runs[0].spec.method, label or runs[0].spec.method)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("tasks", [1, 5, 20])
def test_one_setting(seeds: int, tasks: int) -> None:
    made = setting(seeds=seeds, tasks=tasks)
    drawing = overview([made])
    line, matrix = drawing.axes
    mean = made.matrices.mean(0)
    so_far = [float(np.mean(mean[task, : task + 1])) for task in range(tasks)]
    np.testing.assert_allclose(np.asarray(line.lines[0].get_ydata(), float), so_far)
    shown = np.ma.filled(np.ma.asarray(matrix.images[0].get_array()).astype(float), np.nan)
    np.testing.assert_allclose(shown, mean)
    words = [text.get_text() for text in matrix.texts]
    assert words == ([f"{mean[i, j]:.0f}" for i in range(tasks) for j in range(i + 1)] if tasks <= 10 else [])


def test_several_settings() -> None:
    made = [setting(method=method) for method in ("naive", "replay", "md-cg")]
    made += [setting("a name that is much longer than others are", method="md")]
    (panel,) = overview(made).axes
    assert [line.get_color() for line in panel.lines[:3]] == [
        style.look_of(one.spec.method, [])["color"] for one in made[:3]
    ]
    two = [setting(f"md-cg, memory {size}", memory=size) for size in (200, 500)]
    (panel,) = overview(two).axes
    assert len({line.get_color() for line in panel.lines}) == 2


def test_a_notebook_shows_it() -> None:
    picture, size = overview([setting()])._repr_png_()
    width, height = Image.open(BytesIO(picture)).size
    assert size == {"width": width // 2, "height": height // 2}
    assert not touches_the_edge(picture)
