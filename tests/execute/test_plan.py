"""Which runs train together."""

from __future__ import annotations

from pathlib import Path

import pytest

import mdcg
from mdcg.execute.plan import default_members
from mdcg.recipes.document import Document
from mdcg.testing import toy_dataset


@pytest.mark.parametrize(
    ("side", "device", "most"),
    [(8, "cpu", 64), (16, "cpu", 64), (17, "cpu", 1), (32, "cpu", 1), (17, "cuda", 64), (64, "cuda", 64)],
)
def test_only_small_images_gain_from_company_on_a_cpu(side: int, device: str, most: int) -> None:
    assert default_members(toy_dataset([2, 2], side=side), device) == most


@pytest.mark.parametrize(("side", "groups"), [(16, [3]), (17, [1, 1, 1])])
def test_how_many_train_together_on_a_cpu(side: int, groups: list[int], tmp_path: Path) -> None:
    """Large images take memory for each, and are no faster for it."""
    made = toy_dataset([6, 6], side=side)
    data = mdcg.Dataset.from_arrays((made.train.images, made.train.labels), name="pictures")
    asked = {"scenario": "pictures-2", "method": "naive", "seeds": "0-2", "backbone": "smallconv"}
    sweep = mdcg.Sweep.of(Document(asked), data=data, out=tmp_path, device="cpu")
    assert [len(job.specs) for job in sweep.plan().jobs] == groups
