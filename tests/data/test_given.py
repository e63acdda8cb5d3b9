"""Arrays as a dataset: every form means the same pixels, and what cannot be meant is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdcg import Dataset
from mdcg.data import content
from mdcg.data.cache import cache_folder
from mdcg.data.given import Images, Parts
from mdcg.draws import Purpose, hold_out
from mdcg.errors import MdcgError

Pixels = npt.NDArray[np.uint8]


def pixels(count: int, side: int = 8, channels: int = 3, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, channels), np.uint8)


#: Other ways to write the same images.
FORMS: dict[str, Callable[[Pixels], Any]] = {
    "uint8": lambda x: x,
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.uint8).reshape(x.shape),
    "backwards in memory": lambda x: x[::-1].copy()[::-1],
    "float64": lambda x: x / 255,
    "float32": lambda x: (x / 255).astype(np.float32),
    "channels first": lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2)),
    "a tensor of floats, channels first": lambda x: torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255,
    "a tensor": torch.from_numpy,
    "a list": lambda x: list(x),
}


@pytest.mark.parametrize("form", FORMS)
@given(channels=st.sampled_from([1, 3]), count=st.integers(4, 12), seed=st.integers(0, 99))
def test_every_form_means_the_same_pixels(form: str, channels: int, count: int, seed: int) -> None:
    images, labels = pixels(count, 8, channels, seed), np.arange(count) % 2
    plain = Dataset.from_arrays((images, labels), (images, labels), name="own")
    made = Dataset.from_arrays((FORMS[form](images), labels), (images, labels), name="own")
    assert (made.train.images.numpy() == images).all()
    assert made.fingerprint == plain.fingerprint
    np.testing.assert_allclose(made.mean, images.mean((0, 1, 2)) / 255)
    np.testing.assert_allclose(made.std, np.maximum(images.std((0, 1, 2)) / 255, 1e-3))


def test_grey_images_need_no_channels() -> None:
    images, labels = pixels(6, channels=1), [0, 1] * 3
    made = Dataset.from_arrays((images[..., 0], labels), (images[..., 0] / 255, labels), name="own")
    assert made.shape == (1, 8, 8)
    assert (made.train.images.numpy() == images).all()
    assert (made.test.images.numpy() == images).all()


def test_channels_that_the_shape_does_not_tell() -> None:
    images, labels = pixels(4, side=3), [0, 1, 0, 1]
    with pytest.raises(MdcgError, match="does not tell the channels; say channels='first'"):
        Dataset.from_arrays((images, labels), (images, labels), name="own")
    first, last = (
        Dataset.from_arrays((images, labels), (images, labels), name="own", channels=place)
        for place in ("first", "last")
    )
    assert (first.train.images.numpy() == images.transpose(0, 2, 3, 1)).all()
    assert (last.train.images.numpy() == images).all()
    with pytest.raises(MdcgError, match="unknown place of the channels 'middle'"):
        Dataset.from_arrays((images, labels), name="own", channels="middle")  # type: ignore[arg-type]
    bands = pixels(4, channels=13)
    assert Dataset.from_arrays((bands, labels), (bands, labels), name="own", channels="last").shape == (13, 8, 8)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_without_a_test_set_a_share_of_each_class_is_held_out(more: list[int]) -> None:
    labels = np.array([0, 1, 2, 3, 0, 1, 2, 3, *more])
    images = pixels(len(labels), side=4)
    made = Dataset.from_arrays((images, labels), name="own")
    rows, held = hold_out(labels, 0.2, 0, Purpose.TEST_SPLIT)
    assert (made.train.images.numpy() == images[rows]).all()
    assert (made.test.images.numpy() == images[held]).all()
    assert made.train.labels.tolist() == labels[rows].tolist()
    assert made.test.labels.tolist() == labels[held].tolist()


@given(st.permutations(["cat", "ant", "bee", "cat", "ant", "bee"]), st.permutations(["cat", "ant", "bee"]))
def test_names_and_numbers_of_classes(labels: list[str], order: list[str]) -> None:
    images = pixels(6, side=4)
    made = Dataset.from_arrays((images, labels), (images, np.array(labels)), name="own")
    assert made.class_names == ("ant", "bee", "cat")
    assert [made.class_names[label] for label in made.train.labels] == labels
    assert made.test.labels.tolist() == made.train.labels.tolist()
    chosen = Dataset.from_arrays((images, labels), (images, labels), name="own", class_names=order)
    assert chosen.class_names == tuple(order)
    assert [order[label] for label in chosen.train.labels] == labels
    numbers = [order.index(label) for label in labels]
    for same_numbers in (*(np.array(numbers, kind) for kind in "lBf"), torch.tensor(numbers)):
        same = Dataset.from_arrays((images, same_numbers), (images, numbers), name="own", class_names=order)
        assert same.fingerprint == chosen.fingerprint
    sparse = Dataset.from_arrays((images, 10 * np.array(numbers) - 5), (images, 10 * np.array(numbers) - 5), name="own")
    assert sparse.class_names == ("-5", "5", "15")
    assert sparse.train.labels.tolist() == numbers


def spread(low: float, high: float, like: Pixels) -> npt.NDArray[np.float64]:
    return np.where(like > 127, float(high), float(low))


IMAGES, LABELS = pixels(8), np.arange(8) % 4
Change = Callable[[Pixels, Any], tuple[Any, Any]]

MISTAKES: dict[str, Change] = {
    r"the training images have shape \(8, 64\); give \(n, height, width\)": lambda x, y: (
        x[:, 0, 0].repeat(64, 1)[:, :64],
        y,
    ),
    r"the training images have shape \(8, 1, 8, 8, 3\)": lambda x, y: (x[:, None], y),
    r"the training images have shape \(0, 8, 8, 3\)": lambda x, y: (x[:0], y[:0]),
    r"the training images have shape \(8, 8, 0, 3\)": lambda x, y: (x[:, :, :0], y),
    "the training images are int64; give uint8 from 0 to 255, or floats": lambda x, y: (x.astype(np.int64), y),
    "the training images are bool; give uint8": lambda x, y: (x > 9, y),
    "the training images are complex128": lambda x, y: (x * 1j, y),
    "the training images must be an array of uint8 from 0 to 255, all of one size": lambda x, y: (
        [x[0, 1:], *x[1:]],
        y,
    ),
    r"the training images must be .* \(it holds object\)": lambda x, y: (None, y),
    r"the training images must be .* \(it holds <U3\)": lambda x, y: ("abc", y),
    "some pixels of the training images are no numbers": lambda x, y: (
        np.where(x == x[0, 0, 0, 0], np.nan, x / 255),
        y,
    ),
    "go from 0 to 255; give floats from 0 to 1, not normalised ones": lambda x, y: (spread(0, 255, x), y),
    "the pixels of the training images go from -1 to 1;": lambda x, y: (spread(-1, 1, x), y),
    "there are 8 training images and 7 labels": lambda x, y: (x, y[1:]),
    "the training labels are missing": lambda x, y: (x, None),
    "the training labels are one text": lambda x, y: (x, "abcdabcd"),
    r"the training labels have shape \(8, 1\)": lambda x, y: (x, y[:, None]),
    r"the training labels have shape \(8, 4\)": lambda x, y: (x, np.eye(4)[y]),
    r"the training labels have shape \(\)": lambda x, y: (x, 3),
    "the training labels are no list of names": lambda x, y: (x, [[1], *y[1:]]),
    "the training labels are no whole numbers: one is 0.5; give whole numbers, or names": lambda x, y: (x, y + 0.5),
    "the training labels are no whole numbers: one is nan": lambda x, y: (x, np.where(y > 2, np.nan, y)),
    "the training labels are no whole numbers: one is inf": lambda x, y: (x, np.where(y > 2, np.inf, y)),
    "the training labels are true and false": lambda x, y: (x, y > 1),
    "the training labels are object": lambda x, y: (x, np.array([None] * 8)),
    "some of the training labels are names and some are not": lambda x, y: (x, ["a", "b", *y[2:]]),
    "there is but one class, 7; give images of at least two": lambda x, y: (x, [7] * 8),
    "class '9' has a single image, which cannot serve both training and testing": lambda x, y: (
        x,
        [9, 0, 0, 0, 1, 1, 1, 1],
    ),
    "'' cannot name a class": lambda x, y: (x, ["", "a", "b", "c"] * 2),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_sentence(said: str) -> None:
    with pytest.raises(MdcgError, match=said) as told:
        Dataset.from_arrays(MISTAKES[said](IMAGES, LABELS), name="own")
    assert "\n" not in str(told.value)
    assert str(told.value).endswith(".")


BOTH: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "the training set is ndarray; give a pair": (IMAGES, None, {}),
    "the test set is tuple; give a pair": ((IMAGES, LABELS), (IMAGES, LABELS, 1), {}),
    r"the training images have shape \(8, 8, 3\) .* and the test images \(8, 8, 1\)": (
        (IMAGES, LABELS),
        (IMAGES[..., :1], LABELS),
        {},
    ),
    "the label 4 of the test images is none of the training images'": ((IMAGES, LABELS), (IMAGES, LABELS + 2), {}),
    "class '3' has no test image": ((IMAGES, LABELS), (IMAGES[:3], LABELS[:3]), {}),
    "the training labels are names and the test labels numbers": ((IMAGES, list("abcdabcd")), (IMAGES, LABELS), {}),
    "class 'e' has no training image": ((IMAGES, LABELS), None, {"class_names": list("abcde")}),
    "the label 3 of the training images has no name in class_names": (
        (IMAGES, LABELS),
        None,
        {"class_names": ["ab", "cd", "ef"]},
    ),
    "the label 'd' of the training images has no name": (
        (IMAGES, list("abcdabcd")),
        None,
        {"class_names": list("abc")},
    ),
    "class_names has 'a' twice": ((IMAGES, LABELS), None, {"class_names": list("abca")}),
    "class_names must be a list of texts": ((IMAGES, LABELS), None, {"class_names": "abcd"}),
    "'a b' cannot name a dataset": ((IMAGES, LABELS), None, {"name": "a b"}),
    "'folder:x' cannot name a dataset": ((IMAGES, LABELS), None, {"name": "folder:x"}),
    "there is already a dataset named 'digits'": ((IMAGES, LABELS), None, {"name": "digits"}),
    "there is already a dataset named 'c10'": ((IMAGES, LABELS), None, {"name": "c10"}),
    "unknown setting 'pading'; did you mean 'padding'": ((IMAGES, LABELS), None, {"pading": 1}),
    "the padding of a random crop cannot be -1": ((IMAGES, LABELS), None, {"padding": -1}),
    "padding is 1.5; give a number of pixels": ((IMAGES, LABELS), None, {"padding": 1.5}),
    "mean or std is 0.5; give a list": ((IMAGES, LABELS), None, {"mean": 0.5, "std": 0.5}),
    "mean and std belong together": ((IMAGES, LABELS), None, {"mean": [0.5] * 3}),
    "mean and std of own need one number for each of 3": ((IMAGES, LABELS), None, {"mean": [0.5], "std": [0.5]}),
}


@pytest.mark.parametrize("said", BOTH)
def test_mistakes_about_both_splits_and_names(said: str) -> None:
    train, test, how = BOTH[said]
    with pytest.raises(MdcgError, match=said) as told:
        Dataset.from_arrays(train, test, **{"name": "own", **how})
    assert "\n" not in str(told.value)


def test_preprocessing_is_the_usual_one_or_as_asked_for() -> None:
    usual = Dataset.from_arrays((IMAGES, LABELS), name="own")
    assert (usual.padding, usual.flip) == (1, True)
    asked = Dataset.from_arrays((IMAGES, LABELS), name="own", padding=3, flip=False, mean=[0.5] * 3, std=(0.25,) * 3)
    assert (asked.padding, asked.flip, asked.mean, asked.std) == (3, False, (0.5,) * 3, (0.25,) * 3)


def test_the_fingerprint_is_of_all_that_runs_depend_on() -> None:
    other = IMAGES.copy()
    other[-1, -1, -1, -1] ^= 1
    made = [
        Dataset.from_arrays((IMAGES, LABELS), name="own"),
        Dataset.from_arrays((other, LABELS), name="own"),
        Dataset.from_arrays((IMAGES, LABELS[::-1]), name="own"),
        Dataset.from_arrays((IMAGES, LABELS), name="own", class_names=list("abcd")),
        Dataset.from_arrays((IMAGES, LABELS), name="own", flip=False),
        Dataset.from_arrays((IMAGES, LABELS), name="own", padding=0),
        Dataset.from_arrays((IMAGES, LABELS), name="own", mean=[0.5] * 3, std=[0.5] * 3),
        Dataset.from_arrays((IMAGES, LABELS), (IMAGES, LABELS), name="own"),
    ]
    assert len({one.fingerprint for one in made}) == len(made)
    assert Dataset.from_arrays((IMAGES.copy(), LABELS), name="own").fingerprint == made[0].fingerprint


# ------------------------------------------------------------------ larger than memory


def mapped(file: Path, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    np.save(file, array)
    found: npt.NDArray[Any] = np.load(file, mmap_mode="r")
    return found


def test_a_mapped_array_stays_where_it_is(tmp_path: Path) -> None:
    train, test = mapped(tmp_path / "train.npy", IMAGES), mapped(tmp_path / "test.npy", IMAGES)
    made = Dataset.from_arrays((train, LABELS), (test, LABELS), name="own")
    assert made.train.images.data_ptr() == train.ctypes.data
    assert made.test.images.data_ptr() == test.ctypes.data
    assert not cache_folder().exists() or not list(cache_folder().iterdir())
    assert made.fingerprint == Dataset.from_arrays((IMAGES, LABELS), (IMAGES, LABELS), name="own").fingerprint


@pytest.mark.parametrize("form", ["uint8", "float32", "channels first"])
def test_what_must_be_split_or_converted_goes_into_the_cache(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "PIECE", 3 * IMAGES[0].size)  # pieces of three images
    images, labels = pixels(40), np.arange(40) % 4
    whole = Dataset.from_arrays((images, labels), name="own")
    given = mapped(tmp_path / "train.npy", FORMS[form](images))
    made = Dataset.from_arrays((given, labels), name="own")
    assert made.fingerprint == whole.fingerprint
    assert torch.equal(made.train.images, whole.train.images)
    assert torch.equal(made.test.images, whole.test.images)
    assert (made.mean, made.std) == (whole.mean, whole.std)
    (file,) = cache_folder().glob("own-*.safetensors")
    before = file.stat().st_mtime_ns
    again = Dataset.from_arrays((given, labels), name="own")
    assert again.fingerprint == made.fingerprint
    assert file.stat().st_mtime_ns == before  # found again
    named = Dataset.from_arrays((given, labels), name="own", class_names=list("abcd"))
    assert named.class_names == tuple("abcd")
    assert not file.exists()  # outdated
    assert len(list(cache_folder().glob("own-*.safetensors"))) == 1


def test_no_piece_is_larger_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken of a mapped array at a time is counted where it is taken."""
    monkeypatch.setattr(content, "PIECE", 2 * IMAGES[0].size)
    taken = []

    class Counted(np.memmap):
        def __getitem__(self, rows: Any) -> Any:
            found = super().__getitem__(rows)
            taken.append(len(found))
            return found

    (tmp_path / "raw").write_bytes(pixels(40).tobytes())
    array = Counted(tmp_path / "raw", np.uint8, "r", shape=(40, 8, 8, 3))
    parts = Parts.of((Images(array, "last", "training"), np.arange(40) % 4), None, None)
    parts.write(tmp_path / "own.safetensors")
    assert max(taken) == 2
