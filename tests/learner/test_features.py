"""A `Learner` of rows of features: standardised, learned, kept, saved, taken up again, and refused in a sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
import pytest
import torch
from PIL import Image

import mdcg
from mdcg.errors import InputError, MdcgError
from mdcg.learner import Learner
from mdcg.methods import METHODS
from mdcg.saved import SavedModel
from mdcg.tensors import content_of, pack, unpack

Rows = npt.NDArray[np.float64]


def rows(classes: int = 4, each: int = 20, features: int = 6, seed: int = 0) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Rows of classes that lie apart, each feature with a scale and an offset of its own."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    middle = np.random.default_rng(7).normal(size=(classes, features))
    found: Rows = (4 * middle[labels] + rng.normal(size=(len(labels), features))) * 10.0 ** np.arange(features) + 1000
    return found, labels


def quick(method: str = "replay", **words: Any) -> Learner:
    chosen: dict[str, Any] = {"memory": 30, "epochs": 20, "lr": 0.1, "quiet": True, **words}
    return mdcg.Learner(method, **chosen)


@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_learns_features(method: str, tmp_path: Path) -> None:
    X, y = rows()
    old = y < 2
    learner = quick(method, epochs=4, tasks=2).learn(X[old], y[old], save_to=tmp_path / "a")
    again = mdcg.Learner.load(tmp_path / "a").set_params(quiet=True)
    both = [one.learn(X[~old], y[~old]) for one in (learner, again)]
    assert (both[0].predict_proba(X) == both[1].predict_proba(X)).all()  # loaded, it goes on to the same bits
    assert both[1].classes_.tolist() == [0, 1, 2, 3]
    assert np.allclose(both[1].predict_proba(X).sum(1), 1)


def test_two_tasks_are_learned() -> None:
    (X, y), (test, labels) = rows(), rows(seed=1)
    old = y < 2
    learner = quick(hold_out=0.2).learn(X[old], y[old]).learn(X[~old], y[~old])
    assert learner.score(test, labels) > 0.9
    assert learner.evaluate(test, labels).accuracy == pytest.approx(100 * learner.score(test, labels), abs=0.01)
    assert learner.saved_.versions[-1].held_out == [4, 4, 4, 4]


def test_they_are_standardised_by_the_first_task_for_good() -> None:
    X, y = rows()
    X[:, 3] = 5  # the same in all rows
    old = y < 2
    learner = quick(hold_out=0.0).learn(X[old], y[old])
    single = X[old].astype(np.float32).astype(np.float64)
    usual = single.std(0)
    usual[3] = 1
    assert learner.saved_.setup.mean == pytest.approx(single.mean(0))
    assert learner.saved_.setup.std == pytest.approx(usual)
    before = learner.saved_.setup
    after = learner.learn(X[~old], y[~old]).saved_.setup
    assert (after.mean, after.std) == (before.mean, before.std)
    # The head sees them so: by hand, a linear map of what is standardised, and softmax.
    weights = {name: value[0].detach().double().numpy() for name, value in learner.saved_.model.head.named_parameters()}
    logits = (X - before.mean) / before.std @ weights["classifier.weight"] + weights["classifier.bias"]
    expected = np.exp(logits - logits.max(1, keepdims=True))
    assert learner.predict_proba(X) == pytest.approx(expected / expected.sum(1, keepdims=True), abs=1e-4)


def test_nothing_random_is_done_with_them() -> None:
    """Neither crop nor flip nor RandAugment, whatever the method brings: what is trained on are the rows."""
    X, y = rows()
    setup = quick("md-replay", epochs=1).learn(X, y).saved_.setup
    assert (setup.padding, setup.flip, setup.augment, setup.backbone) == (0, False, (), "features")


def test_memory_and_held_out_rows_are_the_rows_that_came(tmp_path: Path) -> None:
    X, y = rows()
    quick(hold_out=0.2, memory=12).learn(X, y, save_to=tmp_path / "a")
    saved = SavedModel.load(tmp_path / "a")
    assert saved.kept is not None
    assert saved.held_out is not None
    given = {row.tobytes(): int(label) for row, label in zip(X.astype(np.float32), y, strict=True)}
    for part, count in ((saved.kept.memory, 12), (saved.held_out, 16)):
        assert part.images.dtype == torch.float32
        assert part.images.shape == (count, 1, 1, 6)
        found = [given[row.numpy().tobytes()] for row in part.images[:, 0, 0]]
        assert found == part.positions.tolist()


def test_forms_of_rows() -> None:
    X, y = rows()
    learner = quick().learn(X, y)
    expected = learner.predict(X)
    assert learner.n_features_in_ == 6
    single = X.astype(np.float32)
    others = [
        X.tolist(),
        torch.tensor(X),
        pandas.DataFrame(X),
        X.astype(">f8"),
        X.astype(object),
        X.astype(np.longdouble),
    ]
    others += [np.asfortranarray(X), torch.tensor(single, requires_grad=True), single[:, ::-1][:, ::-1]]
    for given in others:
        assert (learner.predict(given) == expected).all()
    whole = np.random.default_rng(0).integers(0, 256, (40, 5))
    for kind in (np.uint8, np.int16, ">i4", np.int64):
        again = quick(epochs=1).learn(whole.astype(kind), np.arange(40) % 2)
        assert again.n_features_in_ == 5
        assert again.predict(whole).shape == (40,)
    assert learner.predict_proba(X[:0]).shape == (0, 4)


IMAGES = np.zeros((8, 4, 4, 1), np.uint8)
WRONG: dict[str, Any] = {
    "X has 5 features, but Learner is expecting 6 features": lambda x: x[:, :5],
    r"features must have shape \(n, 6\), one row each, not \(80, 6, 1\)": lambda x: x[..., None],
    r"features must have shape \(n, 6\), one row each, not \(6,\). Reshape": lambda x: x[0],
    r"features must have shape \(n, 6\), one row each, not \(8, 4, 4, 1\)": lambda x: IMAGES,
    "Input X contains NaN": lambda x: np.where(x == x.max(), np.nan, x),
    "Input X contains infinity": lambda x: np.where(x == x.max(), np.inf, x),
    "a value too large, beyond 1e\\+30": lambda x: np.where(x == x.max(), 1e31, x),
    "Complex data not supported": lambda x: x + 1j,
    "features must be numbers": lambda x: np.array([[{}, *row[1:]] for row in x], object),
    "takes rows of 6 features, not image files": lambda x: ["a.png"],
    "it is sparse": lambda x: torch.tensor(x).to_sparse(),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_no_row_of_its_features(said: str) -> None:
    X, y = rows()
    learner = quick(epochs=1).learn(X, y)
    before = learner.saved_
    given = WRONG[said](X)
    for call in (learner.predict, lambda wrong: learner.learn(wrong, y + 4), lambda wrong: learner.evaluate(wrong, y)):
        with pytest.raises(MdcgError, match=said) as told:
            call(given)
        assert str(told.value).endswith(".")
    assert learner.saved_ is before


def test_images_and_features_do_not_go_together(tmp_path: Path) -> None:
    X, y = rows()
    images = quick(epochs=1, backbone="smallconv").learn(IMAGES, np.arange(8) % 2)
    with pytest.raises(InputError, match=r"images must be uint8 .* not float64 of shape \(80, 6\)"):
        images.predict(X)
    with pytest.raises(InputError, match="images must be uint8"):
        images.learn(X, y + 2)
    assert not hasattr(images, "n_features_in_")
    (tmp_path / "cup").mkdir()
    Image.new("L", (5, 5)).save(tmp_path / "cup" / "1.png")
    features = quick(epochs=1).learn(X, y)
    for call in (lambda: features.learn(tmp_path), lambda: features.predict([tmp_path / "cup" / "1.png"])):
        with pytest.raises(InputError, match="takes rows of 6 features, not image files"):
            call()
    for to in ("onnx", "torch"):
        with pytest.raises(InputError, match="this model takes features; use save"):
            features.export(tmp_path / "made", to)
    assert "rows of" not in repr(features)


OPTIONS: dict[str, Any] = {
    "backbone": "resnet18",
    "weights": "weights.pth",
    "backbone_lr": 0.1,
    "image_size": 32,
    "padding": 2,
    "augment": "randaugment",
    "normalise": "imagenet",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_images(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": torch.ones(1)}, "weights.pth")
    X, y = rows()
    with pytest.raises(InputError, match=f"{name} is for images, and these are features; leave it out"):
        quick(**{name: OPTIONS[name]}).learn(X, y)
    assert quick(epochs=1, flip=False, padding=0, augment="usual").learn(X, y).n_features_in_ == 6


def test_nobody_asks_for_the_network_that_is_none(tmp_path: Path) -> None:
    X, y = rows()
    with pytest.raises(MdcgError, match="unknown backbone 'features'"):
        quick(backbone="features").learn(X, y)
    with pytest.raises(MdcgError, match="unknown backbone 'features'"):
        mdcg.run(scenario="digits-2", method="naive", backbone="features", out=tmp_path)


def test_what_is_known_already_is_no_task() -> None:
    X, y = rows()
    learner = quick(memory=200, epochs=1).learn(X, y)
    before = learner.saved_
    assert learner.partial_fit(X, y).saved_ is before
    with pytest.raises(InputError, match="none of these classes is new"):
        learner.learn(X, y)
    with pytest.raises(InputError, match="none of these classes is new"):
        learner.partial_fit(X + 1, y)  # others, of which nothing would be learned


def test_a_file_of_features_that_is_damaged(tmp_path: Path) -> None:
    X, y = rows()
    file = tmp_path / "a"
    quick(epochs=1).learn(X, y, save_to=file)
    with file.open("rb") as opened:
        tensors, header = unpack(content_of(opened))
    for change in (
        {"memory.images": tensors["memory.images"].to(torch.uint8)},
        {"memory.images": tensors["memory.images"] * torch.nan},
        {"held_out.images": tensors["held_out.images"][..., :3]},
    ):
        file.write_bytes(pack({**tensors, **change}, header))
        with pytest.raises(MdcgError, match=re.escape(str(file))):
            mdcg.Learner.load(file)
