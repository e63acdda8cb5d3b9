"""Datasets of one's own: what a record says, leaves out and may not say."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdcg.data import (
    DATASETS,
    Arrays,
    Bundled,
    Preprocessing,
    Protocol,
    arrays,
    content,
    load,
    record_of,
    register_dataset,
)
from mdcg.errors import MdcgError
from mdcg.figures.base import memories, memory, usual_memory
from mdcg.figures.plots.models import given as given_models
from mdcg.recipes.recipe import make_recipe
from mdcg.scenario import canonical, parse, scenario_names
from mdcg.testing import check_dataset
from tests.conftest import Cli

Split = tuple[Any, Any]


def squares(classes: int = 4, each: int = 3, side: int = 8, channels: int = 1) -> Split:
    labels = np.arange(classes * each) % classes
    return np.random.default_rng(0).integers(0, 256, (len(labels), side, side, channels), np.uint8), labels


@dataclass(frozen=True, kw_only=True)
class Own(Bundled):
    """Read by whatever function it is given."""

    reader: Callable[[], Any]

    def read(self) -> Arrays:
        content: Arrays = self.reader()
        return content


def own(reader: Callable[[], Any] | None = None, **changes: Any) -> Own:
    usual: dict[str, Any] = {"name": "own", "summary": "Squares of four kinds", "shape": (1, 8, 8)}
    return Own(**(usual | changes), reader=reader or (lambda: arrays(squares(), squares(), list("abcd"))))


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(DATASETS, "_known", dict(DATASETS._known))


@pytest.mark.usefixtures("door")
def test_a_dataset_of_ones_own(cli: Cli, runs: Path) -> None:
    register_dataset(own(short="o", tasks=(2,), protocol=Protocol("smallconv", epochs=1, batch_size=4)))
    assert "Squares of four kinds" in cli("list", "datasets").out
    assert re.search("o-2 +own in 2 tasks", cli("list", "scenarios").out)
    assert cli("data", "verify", "own").out == "own: 24 images.\n"
    assert "12 training and 12 test images of 4 classes, ready" in cli("data", "get", "own").out
    assert "o-2_naive_m0_s0" in cli("run", "--scenario", "own-02", "--method", "naive", "--out", runs).out
    assert "4 classes cannot make 5 tasks" in cli("run", "--scenario", "o-5", "--method", "naive").sentence()
    assert "image size of own is fixed" in cli("data", "verify", "own", "--image-size", 8).sentence()
    dataset = load("own")
    assert (dataset.padding, dataset.flip) == (1, True)
    assert dataset.mean[0] == pytest.approx(squares()[0].mean() / 255)


@pytest.mark.usefixtures("door")
def test_ours_pass_the_check(photos: Path) -> None:
    check_dataset(f"folder:{photos}", size=16)
    check_dataset(own())
    check_dataset(own().name)


@pytest.mark.usefixtures("door")
def test_figures_follow_from_the_record() -> None:
    register_dataset(own(shape=(2, 64, 64), tasks=(2,), memories=(10, 20, 40)))
    asked = make_recipe(scenario="own-2")
    assert given_models(asked) == ((2, 64, 64), "resnet18")
    assert (memories(asked), memory(asked)) == ([10, 20, 40], [20])
    register_dataset(own(name="other"))
    assert usual_memory("other-2") == usual_memory("own-1") == 500
    with pytest.raises(MdcgError, match="nothing says how large the memory should be for other-2"):
        memories(make_recipe(scenario="other-2"))


def wrong(change: Callable[[Split], Split]) -> Callable[[], Arrays]:
    return lambda: arrays(change(squares()), squares(), list("abcd"))


BAD: dict[str, Callable[[], Any]] = {
    "its training images are float64, not uint8": wrong(lambda s: (s[0] / 255, s[1])),
    r"its training images have shape \(12, 8, 8\), not \(images, height": wrong(lambda s: (s[0][..., 0], s[1])),
    r"its training images have shape \(1, 8, 7\), not \(1, 8, 8\)": wrong(lambda s: (s[0][:, :, 1:], s[1])),
    r"its training images have shape \(0, 8": wrong(lambda s: (s[0][:0], s[1][:0])),
    "it has 12 training images and 11 labels": wrong(lambda s: (s[0], s[1][1:])),
    "its training labels are float64 of shape": wrong(lambda s: (s[0], s[1] + 0.5)),
    r"its training labels are int64 of shape \(12, 1\)": wrong(lambda s: (s[0], s[1][:, None])),
    "its training labels go from 1 to 4, but 4 classes are 0 to 3": wrong(lambda s: (s[0], s[1] + 1)),
    "its training labels go from -1 to 2": wrong(lambda s: (s[0], s[1] - 1)),
    "its class 'd' has no training image": wrong(lambda s: (s[0], s[1] % 3)),
    "its class 'e' has no training image": lambda: arrays(squares(), squares(), list("abcde")),
    "its class 'd' has no test image": lambda: arrays(squares(), squares(3), list("abcd")),
    "its class names are not two or more texts": lambda: arrays(squares(1), squares(1), ["a"]),
    "'read' returned tuple, not what mdcg.data.arrays makes": squares,
    "'read' returned NoneType": lambda: None,
    r"cannot be read \(ZeroDivisionError: division by zero\)": lambda: 1 / 0,
    r"cannot be read \(FileNotFoundError: .*\)": lambda: Path("/no/such/file").read_bytes(),
}


@pytest.mark.parametrize("said", BAD)
@pytest.mark.usefixtures("door")
def test_bad_images_are_told(said: str, cli: Cli) -> None:
    register_dataset(own(BAD[said]))
    with pytest.raises(MdcgError, match=said) as told:
        load("own")
    assert "\n" not in str(told.value)
    assert "fix its 'read'" in cli("run", "--scenario", "own-2", "--method", "naive").sentence()
    with pytest.raises(AssertionError, match=said):
        check_dataset("own")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "a b"}, "'a b' cannot name a dataset"),
        ({"name": ""}, "'' cannot name a dataset"),
        ({"short": "-x"}, "'-x' cannot name a dataset"),
        ({"short": "x:y"}, "'x:y' cannot name a dataset"),
        ({"summary": "two\nlines"}, "summary of one line"),
        ({"shape": (8, 8)}, r"\(channels, height, width\)"),
        ({"shape": (1, 0, 8)}, r"\(channels, height, width\)"),
        ({"tasks": (0,)}, "tasks of own cannot be"),
        ({"format": 0}, "format of own cannot be 0"),
        ({"preprocessing": Preprocessing(1, True, (0.5,) * 3, (0.5,) * 3)}, "one number for each of 1 channel"),
    ],
)
def test_bad_records_are_told(change: dict[str, Any], said: str) -> None:
    with pytest.raises(MdcgError, match=said) as told:
        own(**change)
    assert "\n" not in str(told.value)


@given(st.integers(-3, 3), st.lists(st.floats(), max_size=3), st.lists(st.floats(), max_size=3))
def test_only_numbers_that_can_normalise(padding: int, mean: list[float], std: list[float]) -> None:
    usable = padding >= 0 and len(mean) == len(std) and all(abs(one) <= 1e100 for one in (*mean, *std))  # NaN is not
    if usable and all(one > 0 for one in std):
        Preprocessing(padding, True, tuple(mean), tuple(std))
        return
    with pytest.raises(MdcgError, match=r"cannot|belong together"):
        Preprocessing(padding, True, tuple(mean), tuple(std))


def test_protocols_that_train_nothing() -> None:
    for change in ({"epochs": 0}, {"batch_size": 1}, {"lr": float("nan")}, {"lr": 0.0}, {"momentum": 1.0}):
        with pytest.raises(MdcgError, match="nothing can be trained by"):
            dataclasses.replace(Protocol("resnet20", 20, 32), **change)


@given(st.integers(1, 4), st.integers(1, 256))
def test_what_a_record_leaves_out(channels: int, side: int) -> None:
    record = own(shape=(channels, side, side))
    usual = record.protocol_for((channels, side, side))
    assert (usual.backbone, usual.epochs, usual.batch_size) == ("resnet18" if side > 48 else "resnet20", 20, 32)
    assert record.preprocessing_for((channels, side, side)) == Preprocessing(max(1, side // 8), True)


@given(st.data(), st.integers(2, 6), st.integers(1, 5), st.integers(1, 3))
def test_arrays_hold_what_they_are_given(data: st.DataObject, classes: int, side: int, channels: int) -> None:
    """In whatever order and with whatever kind of whole numbers; mean and std are those of the pixels."""
    labels = data.draw(st.permutations([*range(classes), *range(classes)]))
    kind = data.draw(st.sampled_from([np.int64, np.int32, np.uint8]))
    images = np.random.default_rng(side).integers(0, 256, (len(labels), side, side, channels), np.uint8)
    images.setflags(write=False)
    made = arrays((images, np.array(labels, kind)), (images[::-1], labels[::-1]), list("abcdef")[:classes])
    content.check(made, (channels, side, side))
    assert made.train_labels.tolist() == labels
    assert (made.test_images.numpy() == images[::-1]).all()
    np.testing.assert_allclose(made.mean, images.mean((0, 1, 2)) / 255)
    np.testing.assert_allclose(made.std, np.maximum(images.std((0, 1, 2)) / 255, 1e-3))


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True), st.integers(1, 999_999), st.booleans())
def test_every_name_can_stand_in_a_scenario(name: str, tasks: int, short: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DATASETS, "_known", {})
        record = register_dataset(own(name="own-dataset" if short else name, short=name if short else ""))
        one = f"{name}-{tasks}"
        for spelled in (one, f"{record.name}-{tasks}", f"{record.name}-{tasks:06}"):
            assert parse(spelled) == (record.name, tasks)
            assert canonical(spelled) == one


@pytest.mark.usefixtures("door")
def test_names_that_clash() -> None:
    register_dataset(own(short="o"))
    with pytest.raises(MdcgError, match="already a dataset named 'own'"):
        register_dataset(own())
    for name, short in (("o", ""), ("other", "o"), ("other", "own")):
        with pytest.raises(MdcgError, match="could not tell the dataset"):
            register_dataset(own(name=name, short=short))
    with pytest.raises(MdcgError, match="is registered as 'mine'; use one name"):
        DATASETS.register("mine")(own())
    with pytest.raises(MdcgError, match="register 'npz:PATH', for all"):
        register_dataset(own(name="npz:/a/b"))
    assert register_dataset(own(name="npz:PATH")).name == "npz:PATH"
    assert record_of("npz:/a/b").name == "npz:/a/b"
    with pytest.raises(MdcgError, match="no instance of DatasetRecord"):
        DATASETS.register("kind")(Own)  # type: ignore[arg-type]
    assert "other" not in DATASETS.names()
    with pytest.raises(AssertionError, match="another dataset is already registered as 'own'"):
        check_dataset(own())


ENTRY = own(name="from-outside", tasks=(2,))


@pytest.mark.usefixtures("door")
def test_datasets_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def bring(**points: str) -> None:
        found = [EntryPoint(name.replace("_", "-"), value, "mdcg.datasets") for name, value in points.items()]
        monkeypatch.setattr("mdcg.registry.entry_points", lambda group: found)
        monkeypatch.setattr(DATASETS, "_entry_points_read", False)

    bring(from_outside=f"{__name__}:ENTRY")
    assert record_of("from-outside") is ENTRY
    assert scenario_names()[-1] == "from-outside-2"
    bring(digits=f"{__name__}:ENTRY")
    with pytest.raises(MdcgError, match="use one name for both"):
        parse("digits-5")
    bring(broken="no_such_module:X")
    with pytest.raises(MdcgError, match="the dataset 'broken' of no_such_module:X could not be loaded"):
        parse("digits-5")


@pytest.mark.usefixtures("door")
def test_what_the_check_finds() -> None:
    rng = np.random.default_rng()

    def another() -> Arrays:
        images = rng.integers(0, 256, (12, 8, 8, 1), np.uint8)
        return arrays((images, squares()[1]), squares(), list("abcd"))

    for record, said in (
        (own(another, name="random"), "random differs from one reading to the next"),
        (own(name="crowded", tasks=(5,)), "4 classes cannot make 5 tasks"),
        (own(name="lost", protocol=Protocol("resnet21", 1, 2)), "backbone 'resnet21' in the protocol of lost"),
    ):
        with pytest.raises(AssertionError, match=said):
            check_dataset(record)
    with pytest.raises(AssertionError, match="unknown dataset 'nobody'"):
        check_dataset("nobody")
