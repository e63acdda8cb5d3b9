"""Datasets that are given in Python, from the call to the table, and their runs on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mdcg
from mdcg import Dataset, Sweep, compiler
from mdcg.data import record_of
from mdcg.errors import MdcgError
from mdcg.execute.context import Context
from mdcg.execute.ray import RayExecutor
from mdcg.execute.search import SearchResult, chosen_recipe
from mdcg.recipes.document import read_document, written
from tests.conftest import Cli

HOW: dict[str, Any] = {"epochs": 1, "backbone": "smallconv", "batch_size": 8, "device": "cpu", "quiet": True}


def blobs(classes: int = 4, each: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng, labels = np.random.default_rng(seed), np.arange(classes * each) % classes
    patterns = rng.integers(0, 256, (classes, 8, 8))
    noisy = patterns[labels] + rng.normal(0, 30, (len(labels), 8, 8))
    return noisy.clip(0, 255).astype(np.uint8), labels


def test_a_run_is_found_again_by_its_content(runs: Path) -> None:
    made = Dataset.from_arrays(blobs(), name="blobs")
    first = mdcg.run(data=made, scenario="blobs-2", method="replay", memory=8, out=runs, **HOW)
    assert first.R.shape == (1, 2, 2)
    assert first.dataset is made
    assert first.records[0].spec.fingerprint == made.fingerprint
    images, labels = blobs()
    same = Dataset.from_arrays((images / 255, labels), name="blobs")
    again = mdcg.run(data=same, scenario="blobs-02", method="replay", memory=8, out=runs, **HOW)
    assert again.records == first.records  # times and all: nothing was trained
    other = Dataset.from_arrays(blobs(seed=1), name="blobs")
    for changed in (other, Dataset.from_arrays(blobs(), name="blobs", flip=False)):
        another = mdcg.run(data=changed, scenario="blobs-2", method="replay", memory=8, out=runs, **HOW)
        assert another.records[0].spec.name != first.records[0].spec.name
    assert len(list(runs.glob("blobs-2_replay*"))) == 3


@pytest.mark.parametrize("scenario", ["blobs-2", {"tasks": [["0", "1"], ["2"], ["3"]]}])
def test_once_kernels_are_compiled_ahead(scenario: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, after the first training of a process, a sweep looks what is known of a dataset: by its record."""
    monkeypatch.setattr(compiler, "is_started", lambda: True)
    given: dict[str, Any] = {"data": Dataset.from_arrays(blobs(), name="blobs"), "scenario": scenario, "out": runs}
    how = given | HOW | {"memory": 8}
    for _ in range(2):  # the second time all runs are found
        assert len(mdcg.run(method="md-cg", **how).R) == 1
        assert list(mdcg.compare(methods=["naive", "replay"], **how)) == ["naive", "replay"]
        assert mdcg.search(method="md", set={"lam": [0.1, 1]}, hold_out=0.3, **how).results
    keys = {"method": "der", "memory": 8, "epochs": 1, "backbone": "smallconv", "batch_size": 8}
    sweep = Sweep.of(written(keys), **given)
    assert not sweep.run(quiet=True).failed
    assert len(sweep.records()) == 1


def test_the_same_images_train_the_same_however_they_are_given(runs: Path, tmp_path: Path) -> None:
    """As a folder of files, by its name, and as arrays."""
    rng = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / "shades" / name).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "shades" / name / f"{number}.png")
    by_name = mdcg.run(scenario=f"folder:{tmp_path}/shades-2", method="naive", image_size=8, out=runs, **HOW)
    made = Dataset.from_folder(tmp_path / "shades", size=8)
    assert made.name == "shades"
    found = by_name.dataset
    again = Dataset.from_arrays(
        (found.train.images, found.train.labels), (found.test.images, found.test.labels), name="shades",
        class_names=found.class_names,
    )  # fmt: skip
    assert again.fingerprint == made.fingerprint
    own = mdcg.run(data=made, scenario="shades-2", method="naive", out=runs, **HOW)
    assert (own.R[0][np.tril_indices(2)] == by_name.R[0][np.tril_indices(2)]).all()
    with pytest.raises(MdcgError, match=r"there is no folder .*nowhere"):
        Dataset.from_folder(tmp_path / "nowhere")


def test_what_takes_a_path_takes_a_dataset(runs: Path, tmp_path: Path) -> None:
    made = Dataset.from_arrays(blobs(), name="blobs", padding=1)
    found = mdcg.compare(
        data=made, scenario="blobs-2", methods=["naive", "md-cg"], memory=8, seeds=range(2), out=runs, **HOW
    )
    assert {label: result.R.shape for label, result in found.items()} == {"naive": (2, 2, 2), "md-cg": (2, 2, 2)}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "scenario: blobs-2\nepochs: 1\nbackbone: smallconv\naxes:\n  memory: [10, 12]\n  method: [replay]\n"
    )
    work = Sweep.read(recipe, data=made, out=runs, device="cpu")
    assert not work.run(quiet=True)
    assert len(work.records()) == 2
    held = Sweep.read(recipe, data=made, out=runs, device="cpu", hold_out=0.2)
    assert held.specs[0].fingerprint == made.fingerprint
    mixed = Sweep.of(read_document(recipe), only={"memory": ["10"]}, data=made, scenario=["blobs-2", "digits-2"])
    assert [spec.scenario for spec in mixed.specs] == ["blobs-2", "digits-2"]


def test_presets_and_protocol_of_such_a_dataset(runs: Path) -> None:
    made = Dataset.from_arrays(blobs(), name="blobs")
    for preset in ("paper", "published"):
        (spec,) = Sweep.of(written({}), data=made, scenario="blobs-2", method="md-cg", memory=8, preset=preset).specs
        assert (spec.backbone, spec.epochs, spec.batch_size, spec.augmentation) == ("resnet20", 20, 32, "paper")
        assert spec.image_size is None
    imagenet = mdcg.run(data=made, scenario="blobs-2", method="naive", normalise="imagenet", out=runs, **HOW)
    assert imagenet.records[0].spec.normalise == "imagenet"


def test_mistakes(runs: Path) -> None:
    made = Dataset.from_arrays(blobs(), name="blobs")

    def told(**asked: Any) -> str:
        with pytest.raises(MdcgError) as error:
            mdcg.run(**{"data": made, "scenario": "blobs-2", "method": "naive", "out": runs, **HOW, **asked})
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "the scenario digits-5 is not one of the dataset blobs, which is given as data; write blobs-5" in told(
        scenario="digits-5"
    )
    assert "image size of blobs is fixed" in told(image_size=16)
    assert "4 classes cannot make 5 tasks" in told(scenario="blobs-5")
    assert "published augmentation departs" in told(augmentation="published")
    assert "unknown dataset 'blobs'" in told(data=None)
    assert "data is ndarray; give a path, or a dataset as mdcg.Dataset.from_arrays makes one" in told(data=blobs()[0])
    assert "data is tuple; give a path, or a dataset" in told(data=blobs())


def test_a_cluster_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: pytest.fail("asked for Ray") if not names else None)
    context = Context(tmp_path, given=Dataset.from_arrays(blobs(), name="blobs"))
    with pytest.raises(MdcgError, match="blobs was given in Python and is in this process alone"):
        RayExecutor(None).prepare(context)


def test_the_recipe_of_a_search_leaves_the_images_out() -> None:
    made = Dataset.from_arrays(blobs(), name="blobs")
    found = [SearchResult(8, {"lam": [0.1, 1.0]}, {(0.1,): 20.0, (1.0,): 30.0})]
    recipe = chosen_recipe({"data": made, "scenario": "blobs-2", "method": "md-cg"}, found)
    assert recipe == {"scenario": "blobs-2", "method": "md-cg", "seeds": "0-4", "memory": 8, "set": {"lam": 1.0}}


def test_the_command_line_without_the_dataset(runs: Path, tmp_path: Path, cli: Cli) -> None:
    made = Dataset.from_arrays(blobs(), name="blobs")
    mdcg.compare(data=made, scenario="blobs-2", methods=["naive", "replay"], memory=8, seeds=[0, 1], out=runs, **HOW)
    assert cli("runs", "scenario=blobs-2", "--out", runs).out.count("blobs-2_") == 4
    (folder, *_) = runs.glob("blobs-2_replay*")
    assert "final accuracy of each class" in cli("show", folder).out
    assert cli("report", runs, "--out", tmp_path / "report").code == 0
    page = (tmp_path / "report" / "index.html").read_text("utf-8")
    assert "blobs-2" in page
    assert 'id="figure-0-forgetting"' in page
    assert cli("runs", "--out", runs, "--export", tmp_path / "runs.jsonl").code == 0
    again = cli("run", "--recipe", folder / "recipe.yaml", "--out", runs)
    assert "unknown dataset 'blobs'" in again.sentence()


def test_its_record_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Dataset.from_arrays(blobs(), name="blobs")
    monkeypatch.setattr(mdcg.data.DATASETS, "_known", dict(mdcg.data.DATASETS._known))
    mdcg.register_dataset(made.record)
    assert record_of("blobs").summary == "48 images, 8×8, 4 classes"
    assert mdcg.data.load("blobs").fingerprint == made.fingerprint
