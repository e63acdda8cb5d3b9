"""Datasets of torch and of Hugging Face, read item by item into the cache."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from mdcg import Dataset
from mdcg.data import content
from mdcg.data.cache import cache_folder
from mdcg.errors import MachineError, MdcgError

COUNT = 24
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (COUNT, 6, 6, 3), np.uint8)
GREY = RNG.integers(0, 256, (COUNT, 6, 6), np.uint8)
LABELS = np.arange(COUNT) % 4


class Listed(TorchDataset[Any]):
    """Items as they are listed."""

    def __init__(self, images: Any, labels: Any = LABELS, **more: Any) -> None:
        self.images, self.labels, self.asked = images, labels, 0
        vars(self).update(more)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        self.asked += 1
        return self.images[number], self.labels[number]


#: Other ways in which items may hold the same images.
COLOURED: dict[str, Callable[[], list[Any]]] = {
    "pictures": lambda: [Image.fromarray(image) for image in COLOUR],
    "arrays": lambda: list(COLOUR),
    "tensors": lambda: list(torch.from_numpy(COLOUR)),
    "tensors, channels first": lambda: list(torch.from_numpy(COLOUR).permute(0, 3, 1, 2)),
    "floats, channels first": lambda: list(torch.from_numpy(COLOUR).permute(0, 3, 1, 2) / 255),
    "pictures with an alpha channel": lambda: [Image.fromarray(image).convert("RGBA") for image in COLOUR],
}
SHADES: dict[str, Callable[[], list[Any]]] = {
    "pictures": lambda: [Image.fromarray(image) for image in GREY],
    "arrays": lambda: list(GREY),
    "floats with a channel": lambda: list(torch.from_numpy(GREY)[:, None] / 255),
    "16 bits": lambda: [Image.fromarray(image.astype(np.uint16) << 8) for image in GREY],
}


@pytest.mark.parametrize("form", COLOURED)
def test_images_in_colour(form: str) -> None:
    plain = Dataset.from_arrays((COLOUR, LABELS), (COLOUR, LABELS), name="own")
    made = Dataset.from_torch(Listed(COLOURED[form]()), Listed(COLOURED[form]()), name="own")
    assert (made.train.images.numpy() == COLOUR).all()
    assert made.fingerprint == plain.fingerprint
    assert (made.mean, made.std, made.class_names) == (plain.mean, plain.std, plain.class_names)


@pytest.mark.parametrize("form", SHADES)
def test_images_in_grey(form: str) -> None:
    made = Dataset.from_torch(Listed(SHADES[form]()), Listed(SHADES[form]()), name="own")
    assert made.shape == (1, 6, 6)
    assert (made.train.images.numpy()[..., 0] == GREY).all()


def test_grey_pictures_among_others_in_colour() -> None:
    pictures = COLOURED["pictures"]()
    pictures[5] = pictures[5].convert("L")
    made = Dataset.from_torch(Listed(pictures), Listed(pictures), name="own")
    assert (made.train.images[5].numpy() == np.asarray(pictures[5])[..., None]).all()
    tested = Dataset.from_torch(Listed(pictures), Listed(pictures[5:]), name="own")  # of which the first is grey
    assert (tested.test.images[0].numpy() == np.asarray(pictures[5])[..., None]).all()
    with pytest.raises(
        MdcgError, match=r"the training image 1 has shape \(6, 6, 3\) .* the first training image \(6, 6, 1\)"
    ):
        Dataset.from_torch(Listed(pictures[5:]), name="own")


def test_pictures_of_any_size_are_brought_to_one() -> None:
    pictures = [Image.new("RGB" if number % 2 else "L", (4 + number, 9)) for number in range(COUNT)]
    assert Dataset.from_torch(Listed(pictures), name="own", size=8).shape == (3, 8, 8)
    with pytest.raises(MdcgError, match=r"the training image 1 has shape .*; bring all of them to one, pictures with"):
        Dataset.from_torch(Listed(pictures), name="own")
    with pytest.raises(MdcgError, match="is no picture but ndarray; leave out size"):
        Dataset.from_torch(Listed(COLOUR), name="own", size=8)


def test_a_picture_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    for number, image in enumerate(COLOUR):
        Image.fromarray(image).save(tmp_path / f"{number}.png", exif=exif)
    pictures = [Image.open(tmp_path / f"{number}.png") for number in range(COUNT)]
    made = Dataset.from_torch(Listed(pictures), Listed(COLOUR), name="own")
    assert (made.train.images.numpy() == COLOUR[:, ::-1, ::-1]).all()


def test_the_held_out_ones_are_those_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PIECE", 5 * COLOUR[0].size)
    made = Dataset.from_torch(Listed(COLOUR), name="own")
    assert made.fingerprint == Dataset.from_arrays((COLOUR, LABELS), name="own").fingerprint


@pytest.mark.parametrize(
    "labels", [LABELS.tolist(), LABELS, torch.from_numpy(LABELS), LABELS.astype(float), [f"c{n}" for n in LABELS]]
)
def test_labels(labels: Any) -> None:
    made = Dataset.from_torch(Listed(COLOUR, labels), Listed(COLOUR, labels), name="own")
    assert made.train.labels.tolist() == LABELS.tolist()
    assert made.class_names == (("c0", "c1", "c2", "c3") if labels[0] == "c0" else tuple("0123"))


def test_names_that_a_dataset_has() -> None:
    made = Dataset.from_torch(Listed(COLOUR, classes=["ant", "bee", "cat", "dog"]), Listed(COLOUR), name="own")
    assert made.class_names == ("ant", "bee", "cat", "dog")
    classes = ["egg", "dog", "cat", "bee", "ant", "fox"]  # not sorted, and more than there are images of
    some = Dataset.from_torch(Listed(COLOUR, LABELS + 1, classes=classes), Listed(COLOUR, LABELS + 1), name="own")
    assert some.class_names == ("dog", "cat", "bee", "ant")
    assert some.train.labels.tolist() == LABELS.tolist()
    part = Subset(Listed(COLOUR, classes=["ant", "bee", "cat", "dog"]), range(12))
    assert Dataset.from_torch(part, name="own").class_names == tuple("0123")
    chosen = Dataset.from_torch(Listed(COLOUR, classes=list("efgh")), name="own", class_names=list("abcd"))
    assert chosen.class_names == tuple("abcd")


def test_torchs_own_datasets() -> None:
    tensors = TensorDataset(torch.from_numpy(COLOUR), torch.from_numpy(LABELS))
    made = Dataset.from_torch(tensors, tensors, name="own")
    assert (made.train.images.numpy() == COLOUR).all()


class Streamed(IterableDataset[Any]):
    """A dataset that can only be gone through."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Random(Listed):
    """A dataset that augments."""

    def __getitem__(self, number: int) -> Any:
        return np.roll(COLOUR[number], np.random.default_rng().integers(6), axis=1), 0


class Broken(Listed):
    """A dataset whose fourth file is missing."""

    def __getitem__(self, number: int) -> Any:
        if number == 3:
            raise FileNotFoundError("no file 3.png\nwhatever")
        return super().__getitem__(number)


MISTAKES: dict[str, Callable[[], Any]] = {
    "the training dataset is Streamed, which has no length": Streamed,
    "the training dataset is DataLoader, .* has as .dataset": lambda: DataLoader(Listed(COLOUR)),
    "the training dataset is NoneType": lambda: None,
    "item 0 of the training dataset is Tensor; give a dataset whose items are": lambda: torch.from_numpy(COLOUR),
    "item 0 of the training dataset is 3 things": lambda: TensorDataset(*[torch.zeros(COUNT)] * 3),
    r"the training dataset gives another image \d each time; leave what is random out": lambda: Random(COLOUR),
    r"the training image 3 cannot be read \(FileNotFoundError: no file 3.png\)": lambda: Broken(COLOUR),
    "the training dataset has no image": lambda: Listed([]),
    "the training image 0 cannot be used: the training images are int64": lambda: Listed(COLOUR.astype(int)),
    "the training image 0 cannot be used: the pixels .* not normalised ones": lambda: Listed(COLOUR / 9),
    "the training image 9 cannot be used: some pixels": lambda: Listed([*COLOUR[:9] / 255, np.full((6, 6), np.nan)]),
    "the training image 0 must be an array|the training image 0 cannot be used": lambda: Listed(["a.png"] * 8),
    "the training image 1 is not a readable image": lambda: Listed([Image.fromarray(COLOUR[0]), cut_short()]),
    "the pixels of the training image 0 are floating-point numbers": lambda: Listed([Image.new("F", (6, 6))] * 8),
    r"the training labels have shape \(24, 4\)": lambda: Listed(COLOUR, np.eye(4)[LABELS]),
    "the training labels are no whole numbers": lambda: Listed(COLOUR, LABELS + 0.5),
    "the training labels are object": lambda: Listed(COLOUR, [None] * COUNT),
}


def cut_short() -> Image.Image:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)).save(file, "PNG")
    return Image.open(io.BytesIO(file.getvalue()[:300]))


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_sentence(said: str) -> None:
    with pytest.raises(MdcgError, match=said) as told:
        Dataset.from_torch(MISTAKES[said](), name="own")
    assert "\n" not in str(told.value)
    assert not cache_folder().exists() or not list(cache_folder().iterdir())  # nothing is left there


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MDCG_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(MachineError, match=r"cannot write into .*cache: Not a directory; .* with \$MDCG_CACHE"):
        Dataset.from_torch(Listed(COLOUR), name="own")


def test_the_same_content_is_kept_once() -> None:
    made = Dataset.from_torch(Listed(COLOUR), name="own")
    (file,) = cache_folder().glob("*.safetensors")
    written = file.stat().st_mtime_ns
    again = Dataset.from_torch(Listed(COLOUR), name="own")
    assert again.fingerprint == made.fingerprint
    assert [one.stat().st_mtime_ns for one in cache_folder().glob("*.safetensors")] == [written]
    other = Dataset.from_torch(Listed(COLOUR, LABELS[::-1].copy()), name="own")
    assert other.fingerprint != made.fingerprint
    assert len(list(cache_folder().glob("*.safetensors"))) == 1
    assert torch.equal(made.train.images, again.train.images)  # though its file is gone


# ------------------------------------------------------------------ Hugging Face


class Names:
    """Stands in for `datasets.ClassLabel`."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class Table:
    """Stands in for `datasets.Dataset`: what is used of its interface."""

    def __init__(self, fingerprint: str | None = None, names: list[str] | None = None, **columns: Any) -> None:
        self.columns, self._fingerprint, self.asked = columns, fingerprint, 0
        self.features = {column: Names(names) if names and column == "label" else None for column in columns}

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.asked += 1
        return {column: values[number] for column, values in self.columns.items()}


def table(**more: Any) -> Table:
    return Table(**{"image": COLOURED["pictures"](), "label": LABELS.tolist(), **more})


def test_tables_and_their_splits() -> None:
    plain = Dataset.from_arrays((COLOUR, LABELS), (COLOUR, LABELS), name="own")
    for made in (
        Dataset.from_huggingface(table(), table(), name="own"),
        Dataset.from_huggingface({"train": table(), "test": table()}, name="own"),
        Dataset.from_huggingface({"train": table(), "validation": table()}, table(), name="own"),
        Dataset.from_huggingface(
            Table(img=COLOUR, fine=LABELS), Table(img=COLOUR, fine=LABELS), name="own", image="img", label="fine"
        ),
    ):
        assert made.fingerprint == plain.fingerprint
    held = Dataset.from_huggingface({"train": table()}, name="own")
    assert held.fingerprint == Dataset.from_arrays((COLOUR, LABELS), name="own").fingerprint
    named = Dataset.from_huggingface(table(names=["ant", "bee", "cat", "dog"]), name="own")
    assert named.class_names == ("ant", "bee", "cat", "dog")


def test_a_table_is_read_again_only_when_it_has_changed() -> None:
    first, second = table(fingerprint="a"), table(fingerprint="a")
    made = Dataset.from_huggingface(first, name="own")
    assert first.asked
    found = Dataset.from_huggingface(second, name="own")
    assert not second.asked
    assert found.fingerprint == made.fingerprint
    for changed, size in ((table(fingerprint="b"), None), (table(fingerprint="a"), 8)):
        Dataset.from_huggingface(changed, name="own", size=size)
        assert changed.asked


@pytest.mark.parametrize(
    ("data", "how", "said"),
    [
        (Table(image=[1]), {}, "unknown column of the training dataset 'label'"),
        (table(), {"label": "labels"}, "did you mean 'label'"),
        ({"validation": table()}, {}, "there is no split 'train' among validation"),
        (Listed(COLOUR), {}, "the training dataset is Listed, no datasets.Dataset"),
        (table(names=["ant", "bee", "cat"]), {}, "the label 3 of the training images has no name in class_names"),
        (table(image=[{"bytes": b""}] * COUNT), {}, "the training image 0 must be|image 0 cannot be used"),
    ],
)
def test_mistakes_with_tables(data: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(MdcgError, match=said) as told:
        Dataset.from_huggingface(data, name="own", **how)
    assert "\n" not in str(told.value)


def test_the_real_package() -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"image": list(COLOUR), "label": LABELS.tolist()}).with_format("numpy")
    assert Dataset.from_huggingface(made, name="own").classes == 4
