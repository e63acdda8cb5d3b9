"""Mistakes with a `Learner` and its commands: one sentence each, exit code 2, and nothing lost."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from torch import Tensor

import mdcg
from mdcg import MdcgError, saved
from mdcg.files import NO_FILE, locked
from mdcg.header import VERSION
from mdcg.saved import SavedModel
from mdcg.tensors import pack, unpack
from mdcg.testing import toy_dataset
from mdcg.testing.forked import Server, as_nobody
from tests.conftest import Cli
from tests.learner.streams import COUNTS, timeless, write_images

TOYS = toy_dataset(COUNTS, channels=3)
QUICK = ["--image-size", 8, "--backbone", "smallconv", "--epochs", 1, "--lr", 0.05, "--memory", 20]
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of two classes each: `first` and `second`."""
    path = tmp_path_factory.mktemp("images")
    write_images(path / "first", TOYS, [0, 1])
    write_images(path / "second", TOYS, [2, 3])
    return path


@pytest.fixture(scope="module")
def content(root: Path) -> bytes:
    """The bytes of a model of DER, which has all that a file can have, but for a second memory."""
    learner = mdcg.Learner(
        "der", memory=20, backbone="smallconv", image_size=8, epochs=1, most_classes=6, hold_out=0.2, quiet=True
    )
    return learner.learn(root / "first").learn(root / "second").saved_.content()


@pytest.fixture
def model(content: bytes, tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    return file


def everywhere(cli: Cli, file: Path, root: Path, tmp_path: Path) -> set[str]:
    """What all commands say that are given this file as a model."""
    out = tmp_path / "out"
    image = next(root.glob("first/*/*.png"))
    said = {
        cli("info", file).sentence(),
        cli("predict", file, image).sentence(),
        cli("evaluate", file, root / "first").sentence(),
        cli("export", file, "--out", out).sentence(),
        cli("learn", root / "second", "--from", file, "--out", out).sentence(),
    }
    assert not out.exists()
    return said


# ------------------------------------------------------------------ files that are no models


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"", "is not a model saved by mdcg, or is damaged"),
        (b"hello, this is a text\n", "is not a model saved by mdcg, or is damaged"),
        (bytes(range(256)) * 100, "is not a model saved by mdcg, or is damaged"),
        (b"\x02\0\0\0\0\0\0\0{}", "is not a model saved by mdcg, or is damaged (it was not written by mdcg)"),
        (b"\xff" * 64, "is not a model saved by mdcg, or is damaged"),
    ],
    ids=["empty", "text", "binary", "foreign", "header"],
)
def test_a_file_that_is_no_model(wrong: bytes, said: str, cli: Cli, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(wrong)
    (found,) = everywhere(cli, file, root, tmp_path)
    assert found.startswith(f"mdcg: {file} {said}")


def test_no_file_at_all(cli: Cli, root: Path, tmp_path: Path) -> None:
    (found,) = everywhere(cli, tmp_path / "nothing", root, tmp_path)
    assert found == f"mdcg: cannot read {tmp_path / 'nothing'}: No such file or directory; check the path."
    (tmp_path / "folder").mkdir()
    (found,) = everywhere(cli, tmp_path / "folder", root, tmp_path)
    assert found == f"mdcg: cannot read {tmp_path / 'folder'}: Is a directory; check the path."
    (found,) = everywhere(cli, tmp_path / "two\nlines", root, tmp_path)
    assert "two lines" in found


def test_pipes_devices_and_files_without_end(cli: Cli, root: Path, model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        said = f"{tmp_path / name}: it is {NO_FILE}; "
        (found,) = everywhere(cli, tmp_path / name, root, tmp_path)
        assert found == f"mdcg: cannot read {said}check the path."
        assert "not a file" in cli("predict", model, tmp_path / name).sentence()
        assert said in cli("evaluate", model, root / "first", "--before", tmp_path / name).sentence()
        assert str(tmp_path / name) in cli("sweep", tmp_path / name, "--plan").sentence()
        new = ["learn", root / "first", "--out", tmp_path / "new.safetensors"]
        assert said in cli(*new, "--weights", tmp_path / name).err
        assert "is not a folder" in cli("learn", tmp_path / name, *new[2:]).sentence()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**42)
    (found,) = everywhere(cli, tmp_path / "sparse", root, tmp_path)
    assert "is not a model saved by mdcg" in found  # and nothing of it is in memory
    assert "is no file of weights" in cli(*new, "--weights", tmp_path / "sparse").err
    assert "4,398,046,511,104 bytes, more than an image can have" in cli("predict", model, file.name).sentence()


def test_no_thread_can_be_started(cli: Cli, root: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert "no thread can be started; close other programs" in cli("predict", model, root / "first").sentence()


def test_a_model_that_does_not_fit_into_memory(
    cli: Cli, root: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(saved, "unpack", fail)
    (found,) = everywhere(cli, model, root, tmp_path)
    assert found == f"mdcg: there is not enough memory to read {model}; close other programs."


def test_a_newer_format(cli: Cli, content: bytes, root: Path, tmp_path: Path) -> None:
    tensors, header = unpack(content)
    file = tmp_path / "file"
    file.write_bytes(pack(tensors, {**header, "version": VERSION + 1, "unheard": "of"}))
    (found,) = everywhere(cli, file, root, tmp_path)
    told = (
        f"was written by a newer version of mdcg (format {VERSION + 1}; this one reads up to {VERSION}); update mdcg."
    )
    assert found == f"mdcg: {file} {told}"


@pytest.mark.parametrize("version", [2, 3])
def test_formats_that_were_written(version: int, content: bytes, tmp_path: Path) -> None:
    """Files of these numbers exist, and what the second lacks has a default: they are read, whatever comes later."""
    tensors, header = unpack(content)
    assert header["version"] == VERSION >= 3
    file = tmp_path / "file"
    file.write_bytes(pack(tensors, {**header, "version": version}))
    assert SavedModel.load(file).content() == content


def test_cut_short_anywhere(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for length in {*range(0, len(content), 9973), 7, 8, 9, len(content) - 1}:
        file.write_bytes(content[:length])
        with pytest.raises(MdcgError, match="is not a model saved by mdcg, or is damaged") as told:
            mdcg.Learner.load(file)
        assert "\n" not in str(told.value)


WRONG: dict[str, list[Any]] = {
    "version": [0, -1, None, "2", 1.5, [], {}],
    "classes": [None, 3, "abcd", ["a"], ["a", "b", "c", None], [["a"], "b", "c", "d"], {}],
    "sizes": [None, [], [5], [2, 2, 1], [2, -2], ["a", 2], [0, 4], [5, -1], 4, [1.5, 2.5]],
    "shape": [None, [3, 8], [1, 8, 8], ["a", 8, 8], 3, [0, 0, 0], [3, -8, -8]],
    "mean": [None, ["a"], 3, "abc", {}],
    "versions": [None, 3, [3], [{}], [{"classes": 3}]],
    "params": [None, 3, [3], "a"],
    "learns": [None, [], "perhaps"],
    "outputs": [None, "a", -1, []],
    "seed": [None, "a", []],
    "lr": [None, "a", []],
    "memory": ["a", [], {}],
    "head_settings": [None, 3, {"gamma": 1}, {"a": "b"}],
    "hyperparameters": [None, 3, []],
    "backbone": [3, None],
    "head": [3],
    "passes": ["both"],
    "unheard": ["of"],
}
HEADERS = [{key: value} for key, values in WRONG.items() for value in values]


@pytest.mark.parametrize("wrong", HEADERS, ids=str)
def test_a_header_with_anything_in_it(wrong: dict[str, Any], content: bytes, cli: Cli, tmp_path: Path) -> None:
    tensors, header = unpack(content)
    file = tmp_path / "file"
    file.write_bytes(pack(tensors, {**header, **wrong}))
    assert cli("info", file).sentence().startswith(f"mdcg: {file} is not a model saved by mdcg, or is damaged (")


@pytest.mark.parametrize(
    "missing", ["version", "classes", "sizes", "versions", "params", "learns", "backbone", "shape"]
)
def test_a_header_without_something(missing: str, content: bytes, tmp_path: Path) -> None:
    tensors, header = unpack(content)
    del header[missing]
    (tmp_path / "file").write_bytes(pack(tensors, header))
    with pytest.raises(MdcgError, match="is not a model saved by mdcg, or is damaged"):
        SavedModel.load(tmp_path / "file")


@pytest.mark.parametrize(("key", "said"), [("backbone", "unknown backbone 'nope'"), ("head", "unknown head 'nope'")])
def test_parts_that_are_not_known_here(key: str, said: str, content: bytes, cli: Cli, tmp_path: Path) -> None:
    tensors, header = unpack(content)
    (tmp_path / "file").write_bytes(pack(tensors, {**header, key: "nope"}))
    assert said in cli("info", tmp_path / "file").sentence()


def test_parameters_of_another_version(content: bytes, cli: Cli, tmp_path: Path) -> None:
    tensors, header = unpack(content)
    header["params"]["unheard"] = 1
    (tmp_path / "file").write_bytes(pack(tensors, header))
    assert "has parameters unknown here: unheard; update mdcg." in cli("info", tmp_path / "file").sentence()


@pytest.mark.parametrize(("key", "value"), [("epochs", "many"), ("lr", float("nan")), ("memory", None), ("resize", 3)])
def test_parameters_that_are_damaged(
    key: str, value: Any, content: bytes, cli: Cli, root: Path, tmp_path: Path
) -> None:
    """They are refused when they are needed."""
    tensors, header = unpack(content)
    header["params"][key] = value
    (tmp_path / "file").write_bytes(pack(tensors, header))
    words = ["learn", write_images(tmp_path / "new", TOYS, [4]), "--from", tmp_path / "file", "--out", tmp_path / "out"]
    assert f"'{key}' is wrong" in cli(*words).sentence()


def test_a_method_that_is_not_installed(content: bytes, cli: Cli, root: Path, tmp_path: Path) -> None:
    """Such a model classifies, and does not learn."""
    tensors, header = unpack(content)
    (tmp_path / "file").write_bytes(pack(tensors, {**header, "method": "mine"}))
    assert cli("predict", tmp_path / "file", root / "first").code == 0
    words = ["learn", root / "second", "--from", tmp_path / "file", "--out", tmp_path / "out"]
    assert "its method 'mine' is not installed here; install it" in cli(*words).sentence()


CHANGES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda value: None,
    "half": lambda value: value[: len(value) // 2],
    "deep": lambda value: value[None],
    "flat": lambda value: value.flatten(),
    "complex": lambda value: value.to(torch.complex64),
}
TENSORS = [
    "model.head.classifier.weight",
    "model.backbone.convs.0.weight",
    "velocity.head.classifier.weight",
    "memory.images",
    "memory.positions",
    "held_out.images",
    "held_out.positions",
    "logits",
    "has_logits",
]
FINE = {  # a velocity that is missing starts at zero, what is complex is cast, and what is flat is as before
    ("velocity.head.classifier.weight", "missing"),
    ("velocity.head.classifier.weight", "complex"),
    ("model.backbone.convs.0.weight", "complex"),
    ("held_out.images", "missing"),
    ("memory.positions", "flat"),
    ("held_out.positions", "flat"),
    ("has_logits", "flat"),
    ("logits", "complex"),
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name in TENSORS for change in CHANGES if (name, change) not in FINE]
)
def test_tensors_that_do_not_fit(name: str, change: str, content: bytes, tmp_path: Path) -> None:
    tensors, header = unpack(content)
    changed = CHANGES[change](tensors.pop(name))
    (tmp_path / "file").write_bytes(pack(tensors if changed is None else {**tensors, name: changed}, header))
    with pytest.raises(MdcgError, match="is not a model saved by mdcg, or is damaged") as told:
        SavedModel.load(tmp_path / "file")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("position", [-1, 4, 2**40])
def test_images_of_no_class(position: int, content: bytes, tmp_path: Path) -> None:
    for name in ("memory", "held_out"):
        tensors, header = unpack(content)
        tensors[f"{name}.positions"][0] = position
        (tmp_path / "file").write_bytes(pack(tensors, header))
        with pytest.raises(MdcgError, match="its images do not fit its classes"):
            SavedModel.load(tmp_path / "file")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.head.classifier.weight", "model.backbone.convs.1.weight"])
def test_weights_that_are_no_numbers(
    value: float, name: str, content: bytes, cli: Cli, root: Path, tmp_path: Path
) -> None:
    """Nothing is told that they would say, and nothing is learned with them."""
    tensors, header = unpack(content)
    tensors[name].fill_(value)
    file, out = tmp_path / "file", tmp_path / "out"
    file.write_bytes(pack(tensors, header))
    for how in ([], ["--json"], ["--csv"]):
        assert f"the answers of {file} are no numbers" in cli("predict", file, root / "first", *how).sentence()
    assert f"the answers of {file} are no numbers" in cli("evaluate", file, root / "first").sentence()
    new = write_images(tmp_path / "new", TOYS, [4])
    answer = cli("learn", new, "--from", file, "--out", out)
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("mdcg: nothing was learned")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


# ------------------------------------------------------------------ folders of images


def test_folders_that_are_none(cli: Cli, root: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "bare").mkdir()
    write_images(tmp_path / "hollow", TOYS, [0])
    (tmp_path / "hollow" / "nothing").mkdir()
    damaged = write_images(tmp_path / "damaged", TOYS, [0, 1], most=2)
    for file in damaged.glob("class 1/*"):
        file.write_bytes(b"no image")
    for folder, said in (
        (tmp_path / "nowhere", f"there is no folder {tmp_path / 'nowhere'}; check the path."),
        (next(root.glob("first/*/*")), "is not a folder; check the path."),
        (tmp_path / "bare", "holds no class folder; put the images of each class in one, as PATH/CLASS/*."),
        (root / "first" / "class 0", "holds no class folder"),
        (tmp_path / "hollow", "hollow/nothing holds no image; add some or remove the folder."),
        (damaged, "is not an image of a known format; repair or remove it."),
    ):
        assert said in cli("learn", folder, "--out", out, *QUICK).sentence()
        assert said in cli("evaluate", model, folder).sentence()
    said = cli("learn", damaged, "--out", out, *QUICK, "--on-error", "skip").sentence()
    assert "no image of class 'class 1' can be read" in said
    assert "cannot read" in cli("predict", model, tmp_path / "nowhere").sentence()
    assert "holds no image" in cli("predict", model, tmp_path / "bare").sentence()
    assert not out.exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["two\nlines", "tab\there", "x" * 201, " "])
def test_folders_whose_names_are_no_names(name: str, cli: Cli, root: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "images", TOYS, [0, 1])
    (tmp_path / "images" / "class 0").rename(tmp_path / "images" / name)
    said = cli("learn", tmp_path / "images", "--out", tmp_path / "out", *QUICK).sentence()
    assert "cannot name a class; use a line of 1 to 200 printable characters." in said
    assert len(said) < 200


def test_nothing_new_and_too_few(cli: Cli, root: Path, model: Path, content: bytes, tmp_path: Path) -> None:
    again = cli("learn", root / "first", "--from", model, "--out", model)
    assert again.code == 2
    assert again.err.splitlines()[-1] == (
        "mdcg: none of these classes is new; learn takes at least one that is not known yet."
    )
    alone = write_images(tmp_path / "alone", TOYS, [0])
    answer = cli("learn", alone, "--out", tmp_path / "out", *QUICK)
    assert answer.code == 2
    assert "there is only one class, 'class 0'; begin with at least two classes." in answer.err
    assert model.read_bytes() == content


# ------------------------------------------------------------------ labels and images in memory

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS: dict[str, Any] = {
    "none": None,
    "too few": ["a", "b"],
    "too many": ["a", "b"] * 4,
    "a text": "abcdef",
    "a number": 3,
    "a set": {"a", "b"},
    "a dict": {"a": "b"},
    "fractions": [0.5, 1.5] * 3,
    "nan": [float("nan"), 1.0] * 3,
    "infinite": [float("inf"), 1.0] * 3,
    "nones": [None] * 6,
    "some none": ["a", None] * 3,
    "numbers and none": [1, None] * 3,
    "names and numbers": ["a", 1] * 3,
    "names and truth": ["a", True] * 3,
    "objects": [object()] * 6,
    "lists": [["a"], ["b", "c"]] * 3,
    "two columns": np.zeros((6, 2), np.int64),
    "bytes": [b"a", b"b"] * 3,
    "complex": [1j, 2j] * 3,
    "dates": np.array(["2020-01-01", "2021-01-01"] * 3, "datetime64[D]"),
    "two lines": ["a\nb", "c"] * 3,
    "endless": ["a" * 10_000, "c"] * 3,
    "empty": ["", "c"] * 3,
    "blank": ["  ", "c"] * 3,
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_that_are_none(labels: Any) -> None:
    learner = mdcg.Learner("naive", backbone="smallconv", epochs=1, quiet=True)
    known = mdcg.Learner("naive", backbone="smallconv", epochs=1, quiet=True).learn(IMAGES, ["a", "b"] * 3)
    before = known.saved_.content()
    asked: list[Callable[[], object]] = [
        lambda: learner.learn(IMAGES, labels),
        lambda: known.learn(IMAGES, labels),
        lambda: known.score(IMAGES, labels),
        lambda: known.evaluate(IMAGES, labels),
    ]
    for ask in asked:
        with pytest.raises(ValueError, match=r"label|cannot name a class") as told:
            ask()
        assert isinstance(told.value, MdcgError)
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 400
    assert not hasattr(learner, "saved_")
    assert known.saved_.content() == before


GIVEN: dict[str, tuple[Any, str]] = {
    "fractions": (IMAGES / 255, r"images must be uint8 from 0 to 255, of shape \(n, 8, 8, 3\), not float64 of shape"),
    "nan": (np.full(IMAGES.shape, np.nan), "images must be uint8"),
    "floats": (torch.from_numpy(IMAGES).float(), "not float32 of shape"),
    "integers": (IMAGES.astype(np.int64), "not int64 of shape"),
    "signed": (IMAGES.astype(np.int8), "not int8 of shape"),
    "true": (IMAGES > 3, "not bool of shape"),
    "complex": (IMAGES.astype(complex), "not complex128 of shape"),
    "larger": (np.zeros((6, 9, 8, 3), np.uint8), r"as those that were learned, not uint8 of shape \(6, 9, 8, 3\)"),
    "grey": (IMAGES[..., :1], r"as those that were learned, not uint8 of shape \(6, 8, 8, 1\)"),
    "one image": (IMAGES[0], r"not uint8 of shape \(8, 8, 3\)"),
    "channels first": (IMAGES.transpose(0, 3, 1, 2), r"not uint8 of shape \(6, 3, 8, 8\)"),
    "rows": (IMAGES.reshape(6, -1), r"not uint8 of shape \(6, 192\)"),
    "films": (IMAGES[None], r"not uint8 of shape \(1, 6, 8, 8, 3\)"),
    "a path": ("image.png", r"'image.png' is one path; give a list of paths, for instance \['image.png'\]"),
    "another path": (Path("image.png"), "'image.png' is one path"),
    "no file": (["nowhere.png"] * 6, "cannot read nowhere.png: No such file or directory"),
    "files and numbers": (["nowhere.png", 3, 4, 5, 6, 7], "a file is named by its path, not by 3"),
    "nothing": ([], "images must be uint8"),
    "none": (None, "images must be an array of uint8"),
    "ragged": ([[1, 2], [3]], "images must be an array of uint8"),
    "objects": ([object()], "images must be an array of uint8"),
    "a generator": ((image for image in IMAGES), "images come one by one from a generator"),
}


@pytest.mark.parametrize(("images", "said"), GIVEN.values(), ids=GIVEN)
def test_images_that_are_none(images: Any, said: str) -> None:
    known = mdcg.Learner("naive", backbone="smallconv", epochs=1, quiet=True).learn(IMAGES, ["a", "b"] * 3)
    before = known.saved_.content()
    asked: list[Callable[[], object]] = [
        lambda: known.predict(images),
        lambda: known.predict_proba(images),
        lambda: known.score(images, ["a"] * 6),
    ]
    if not isinstance(images, str | Path):  # which `learn` takes for a folder
        asked.append(lambda: known.learn(images, ["c"] * 6))
    for ask in asked:
        with pytest.raises(MdcgError, match=said) as told:
            ask()
        assert "\n" not in str(told.value)
    assert known.saved_.content() == before


@pytest.mark.parametrize(
    "weights",
    [
        [1, 2],
        "abc",
        [[1] * 6],
        [0] * 6,
        [-1, 1, 1, 1, 1, 1],
        [float("nan")] * 6,
        [None] * 6,
        [float("inf"), 1, 1, 1, 1, 1],
    ],
)
def test_weights_of_samples_that_are_none(weights: Any) -> None:
    known = mdcg.Learner("naive", backbone="smallconv", epochs=1, quiet=True).learn(IMAGES, ["a", "b"] * 3)
    with pytest.raises(ValueError, match="sample_weight must be"):
        known.score(IMAGES, ["a", "b"] * 3, sample_weight=weights)
    with pytest.raises(ValueError, match="there is no image to score"):
        known.score(IMAGES[:0], [])


def test_labels_with_a_folder(root: Path) -> None:
    learner = mdcg.Learner("naive", backbone="smallconv", image_size=8, epochs=1, quiet=True)
    with pytest.raises(ValueError, match="labels are given with a folder"):
        learner.learn(root / "first", ["a"])
    learner.learn(root / "first")
    with pytest.raises(ValueError, match="labels are given with a folder"):
        learner.evaluate(root / "first", ["a"])


# ------------------------------------------------------------------ where to write


def test_a_folder_is_no_file_to_write(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is refused before anything is learned."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "folder", "folder/", ".", "/", ""):
        assert "is a folder; name a file to write." in cli("learn", root / "first", "--out", out, *QUICK).sentence()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_a_folder_that_does_not_exist_is_made(cli: Cli, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "model.safetensors"
    assert cli("learn", root / "first", "--out", out, *QUICK).code == 0
    assert [path.name for path in out.parent.iterdir()] == ["model.safetensors"]


def last_line(answer: Any) -> str:
    """The sentence of a mistake that shows only once something was begun; what was said before it is no mistake."""
    assert answer.code == 2
    assert "Traceback" not in answer.err
    lines: list[str] = answer.err.splitlines()
    assert all(line.startswith("mdcg: ") for line in lines)
    return lines[-1]


def test_a_file_where_a_folder_should_be(cli: Cli, root: Path, model: Path) -> None:
    said = last_line(cli("learn", root / "first", "--out", model / "out", *QUICK))
    assert "out: Not a directory; make room or choose a writable folder" in said


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become nobody")
def test_a_folder_that_may_not_be_written(server: Server, root: Path, content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    (folder / "model.safetensors").write_bytes(content)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/tmp") and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o755)
    images = write_images(tmp_path / "images", TOYS, [4, 5])
    words = ["learn", images, "--from", folder / "model.safetensors", "--out"]
    done = server.run(*words, folder / "out", before=as_nobody)
    assert done.returncode == 2, done.stderr
    assert "Permission denied" in done.stderr.splitlines()[-1]
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == content


@pytest.mark.parametrize("number", [1, 2])
def test_full_disk(
    number: int, cli: Cli, root: Path, model: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The checkpoint or the file itself cannot be written: one sentence, and the same command goes on later."""
    written = []

    def write(file: BinaryIO, data: bytes) -> None:
        written.append(file.name)
        if len(written) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(data)

    images = write_images(tmp_path / "images", TOYS, [4, 5])
    words = ["learn", images, "--from", model, "--out"]
    assert cli(*words, tmp_path / "expected").code == 0
    monkeypatch.setattr("mdcg.files._write", write)
    said = last_line(cli(*words, model))
    assert "No space left on device; make room or choose a writable folder, then give the same command again." in said
    assert model.read_bytes() == content
    again = cli(*words, model)
    assert again.code == 0
    assert ("going on after" in again.err) == (number == 2)
    monkeypatch.undo()
    assert timeless(model) == timeless(tmp_path / "expected")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "images", "model.safetensors"]


def test_two_at_once(cli: Cli, root: Path, tmp_path: Path) -> None:
    with locked(tmp_path / ".out.learning"):
        said = last_line(cli("learn", root / "first", "--out", tmp_path / "out", *QUICK))
    assert f"is in use by process {os.getpid()}; wait for it to end" in said
    assert cli("learn", root / "first", "--out", tmp_path / "out", *QUICK).code == 0


# ------------------------------------------------------------------ parameters

PARAMETERS = [
    (["--method", "replya"], "unknown method 'replya'; did you mean 'replay'?"),
    (["--backbone", "resnet19"], "unknown backbone 'resnet19'; did you mean 'resnet18'?"),
    (["--backbone", "nowhere:nothing"], "the backbone 'nowhere:nothing' cannot be imported"),
    (["--head", "simple"], "unknown head 'simple'; did you mean 'simplex'?"),
    (["--method", "der", "--head", "incremental"], "der needs a head that has all classes from the start"),
    (["--augment", "mixup"], "augment takes jitter, randaugment or jitter+randaugment, or usual for neither"),
    (["--augment", "crop"], "crop and flip are set by padding and flip."),
    (["--augment", "rotate"], "unknown augmentation 'rotate'"),
    (["--set", "lamda=1"], "unknown setting of md-replay 'lamda'; did you mean 'lam'?"),
    (["--set", "lam"], "'--set lam' is not of the form key=value"),
    (["--set", "lam=much"], "'lam' is wrong"),
    (["--set", "lam=nan"], "'lam' is wrong"),
    (["--set", "lam=1,2"], "'lam' is wrong"),
    (["--method", "md-cg", "--set", "gamma=nan"], "'gamma' must be a number, not nan."),
    (["--hold-out", "1"], "'hold_out' is wrong"),
    (["--hold-out", "-0.1"], "'hold_out' is wrong"),
    (["--hold-out", "nan"], "'hold_out' is wrong"),
    (["--held-out-images", "-1"], "'held_out_images' is wrong"),
    (["--epochs", "0"], "'epochs' is wrong"),
    (["--epochs", "100001"], "'epochs' is wrong"),
    (["--memory", "0"], "'memory' is wrong"),
    (["--memory", "1"], "a memory of 1 cannot hold one image of each of 2 classes; give memory=2 or more."),
    (["--batch-size", "1"], "'batch_size' is wrong"),
    (["--lr", "0"], "'lr' is wrong"),
    (["--lr", "nan"], "'lr' is wrong"),
    (["--lr", "inf"], "'lr' is wrong"),
    (["--lr", "1e308"], "'lr' is wrong"),
    (["--backbone-lr", "1e308"], "'backbone_lr' is wrong"),
    (["--momentum", "1"], "'momentum' is wrong"),
    (["--backbone-lr", "nan"], "'backbone_lr' is wrong"),
    (["--image-size", "3"], "'image_size' is wrong"),
    (["--resize", "stretch"], "'resize' is wrong"),
    (["--normalise", "mean"], "'normalise' is wrong"),
    (["--passes", "both"], "'passes' is wrong"),
    (["--precision", "fp8"], "'precision' is wrong"),
    (["--device", "tpu"], "'device' is wrong"),
    (["--seed", "-1"], "'seed' is wrong"),
    (["--seed", str(2**31)], "'seed' is wrong"),
    (["--most-classes", "1"], "'most_classes' is wrong"),
    (["--method", "der", "--most-classes", "2", "--memory", "9"], None),
    (["--tasks", "0"], "'tasks' is wrong"),
    (["--warn-drop", "nan"], "'warn_drop' is wrong"),
    (["--on-error", "ignore"], "'on_error' is wrong"),
    (["--weights", "nowhere.safetensors"], "cannot read the weights"),
]


@pytest.mark.parametrize(("words", "said"), PARAMETERS, ids=[" ".join(words) for words, _ in PARAMETERS])
def test_parameters_that_are_impossible(
    words: list[str], said: str | None, cli: Cli, root: Path, tmp_path: Path
) -> None:
    answer = cli("learn", root / "first", "--out", tmp_path / "out", *QUICK, *words)
    if said is None:  # just possible
        assert answer.code == 0
        return
    assert said in last_line(answer)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "md-gc"], "did you mean 'md-cg'"),
        (["--head", "gates"], "unknown head 'gates'"),
        (["--set", "lam=-1"], "'lam'"),
        (["--set", "lamb=1"], "did you mean 'lam'"),
        (["--augment", "mixup"], "augment takes jitter"),
        (["--weights", "nowhere.safetensors"], "cannot read the weights"),
        pytest.param(["--device", "cuda"], "no CUDA GPU can be used here", marks=WITHOUT_GPU),
        (["--from", "model", "--method", "replay", "--head", "fixed"], "what has begun with method 'der' cannot go on"),
        (["--from", "model", "--head", "simplex"], "what has begun with head 'fixed' cannot go on with 'simplex'"),
        (["--from", "model", "--seed", "5"], "what has begun with seed '0' cannot go on with '5'"),
        (["--from", "model", "--image-size", "32"], "image_size was settled by the first task"),
        (["--from", "model", "--most-classes", "9"], "most_classes was settled by the first task"),
    ],
)
def test_what_no_image_makes_right_is_refused_before_any_is_read(
    words: list[str], said: str, cli: Cli, root: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("images are read")

    monkeypatch.setattr("mdcg.learner.estimator.read_files", read)
    given = [str(model) if word == "model" else word for word in words]
    usual = [] if "--from" in words else QUICK
    assert said in cli("learn", root / "first", "--out", tmp_path / "m", *usual, *given).sentence()
    assert not (tmp_path / "m").exists()


def test_values_that_are_no_numbers_are_refused_by_the_command_line(cli: Cli, root: Path, tmp_path: Path) -> None:
    for words in (["--epochs", "many"], ["--memory", "1.5"], ["--lr", "fast"]):
        answer = cli("learn", root / "first", "--out", tmp_path / "out", *words)
        assert answer.code == 2
        assert "Traceback" not in answer.err
    assert not list(tmp_path.iterdir())


def test_options_that_are_fixed(cli: Cli, root: Path, model: Path, content: bytes, tmp_path: Path) -> None:
    new = write_images(tmp_path / "new", TOYS, [4])
    for words, said in (
        (["--method", "replay", "--head", "fixed"], "what has begun with method 'der' cannot go on with 'replay'"),
        (["--seed", "5"], "what has begun with seed '0' cannot go on with '5'"),
        (["--backbone", "resnet20"], "cannot be read with the backbone 'resnet20'"),
        (["--memory", "3"], "a memory of 3 cannot hold one image of each of 5 classes"),
    ):
        assert said in last_line(cli("learn", new, "--from", model, "--out", model, *words))
    assert model.read_bytes() == content
    more = tmp_path / "more"
    write_images(more, TOYS, [4, 5])
    (more / "class 4").rename(more / "one")
    (more / "class 5").rename(more / "two")
    assert cli("learn", new, "--from", model, "--out", model).code == 0
    said = last_line(cli("learn", more, "--from", model, "--out", model))
    assert "the head was made for at most 6 classes, and there would be 7; begin anew with most_classes=7" in said
    assert json.loads(cli("info", model, "--json").out)["tasks"] == [2, 2, 1]


def test_predict_in_two_forms_at_once(cli: Cli, root: Path, model: Path) -> None:
    assert cli("predict", model, root / "first", "--csv", "--json").sentence() == (
        "mdcg: give --json or --csv, not both."
    )
    assert "'device' is wrong" in cli("predict", model, root / "first", "--device", "tpu").sentence()
    assert cli("predict", model, root / "first", "--top", 0).code == 2


def test_a_model_is_not_lost_to_one_that_knows_less(cli: Cli, root: Path, tmp_path: Path) -> None:
    """Its memory may be all that is left of its images; to learn the same classes again, or more, loses nothing."""
    out = tmp_path / "m.safetensors"
    assert cli("learn", root / "first", "--out", out, *QUICK).code == 0
    before = out.read_bytes()
    refused = cli("learn", root / "second", "--out", out, *QUICK)
    assert refused.code == 2
    assert "m.safetensors is a model of 2 classes, and the new one would not know 'class 0'; let that" in refused.err
    assert out.read_bytes() == before
    assert cli("learn", root / "first", "--out", out, *QUICK).code == 0
    assert cli("learn", root / "second", "--from", out, "--out", out, "--epochs", 1).code == 0
    assert len(mdcg.Learner.load(out).classes_) == 4
    out.write_bytes(b"something else")
    refused = cli("learn", root / "first", "--out", out, *QUICK)
    assert refused.code == 2
    assert "is there already, and is not a model saved by mdcg" in refused.err
    assert out.read_bytes() == b"something else"
