"""What people give in Python: plain values come out, or one sentence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import mdcg
from mdcg.arguments import MOST, flag, plain, refuse_larger_than_memory, texts
from mdcg.data.given import as_array
from mdcg.errors import LONGEST, InputError, MdcgError, said, unknown
from mdcg.execute.sweep import Sweep
from mdcg.files import path_of
from mdcg.recipes.document import written
from mdcg.testing.abuse.values import Colour, Number, Raising, Text, Word

IMAGES, LABELS = np.zeros((8, 4, 4, 1), np.uint8), np.arange(8) % 2


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.25), 0.25),
        (np.str_("a"), "a"),
        (Number.TWO, 2),
        (Word.CAT, "cat"),
        (Text("x"), "x"),
        (range(3), [0, 1, 2]),
        ((1, (2, 3)), [1, [2, 3]]),
        ((seed for seed in range(2)), [0, 1]),
        (np.arange(2, dtype=">i8"), [0, 1]),
        (torch.arange(2), [0, 1]),
        (pandas.Series(["a", "b"]), ["a", "b"]),
        ({"lam": np.array([0.5, 1])}, {"lam": [0.5, 1.0]}),
        (Path("a"), Path("a")),
    ],
)
def test_plain(given: Any, found: Any) -> None:
    value = plain(given, "it")
    assert value == found
    assert [type(one) for one in _flat(value)] == [type(one) for one in _flat(found)]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [part for one in value for part in _flat(one)] if isinstance(value, list) else [value]


ODD = [b"a", Colour.RED, 1j, object(), Raising(), [Raising()], itertools.count(), [[[[[[1]]]]]], {(1,): 2},
       range(10**12), torch.ones(2, device="meta"), np.zeros(MOST + 1), np.array("2020", "M8[s]"),
       {"a": b"b"}]  # fmt: skip


@pytest.mark.parametrize("given", ODD, ids=range(len(ODD)))
def test_what_is_not_plain(given: Any) -> None:
    with pytest.raises(InputError) as told:
        plain(given, "it")
    assert str(told.value).endswith(".")
    assert str(told.value).isprintable()


def test_texts_and_flags() -> None:
    assert texts("a", "it") == ["a"]
    assert texts(("a", "b"), "it") == ["a", "b"]
    assert flag(np.True_, "it") is True
    for wrong in ((1, 2), 5, None):
        with pytest.raises(InputError, match="must be a list of texts"):
            texts(wrong, "it")
    for odd in (1, "yes", None, np.ones(2)):
        with pytest.raises(InputError, match="must be True or False"):
            flag(odd, "it")


def test_paths() -> None:
    assert path_of("a/b") == Path("a/b")
    for wrong in (5, None, b"a", "a\0b", "\ud800", "x" * 300, "a/" * 3000):
        with pytest.raises(InputError) as told:
            path_of(wrong)
        assert str(told.value).endswith(".")
    assert path_of("~", home=True) == Path.home()


def test_what_is_more_than_memory_can_hold() -> None:
    refuse_larger_than_memory(10**6, "they")
    with pytest.raises(InputError, match="they take 1,048,576 GiB, and this machine has"):
        refuse_larger_than_memory(2**50, "they")


def test_sentences_are_on_one_line_and_end() -> None:
    assert str(MdcgError("no file a\nb\x1b[31m\ud800.")) == "no file a\\nb\\x1b[31m\\ud800."
    assert len(str(MdcgError(f"no file {'x' * 10**6}."))) == LONGEST
    assert str(MdcgError("Größe … ‘ü’.")) == "Größe … ‘ü’."
    assert said(Raising()) == "Raising"
    assert said([Raising()]) == "list"
    assert said("x" * 10**6, 9) == "'xxx…xxx'"
    assert str(unknown("method", [1], ["naive"])) == "unknown method '[1]'. Known: naive."


def test_tensors_without_numbers_and_arrays_of_other_machines() -> None:
    for wrong, why in (
        (torch.ones(2).to_sparse(), "sparse or nested"),
        (torch.nested.nested_tensor([torch.ones(2)]), "sparse or nested"),
        (torch.ones(2, device="meta"), "device meta"),
        (np.ma.masked_equal([1, 2], 2), "masked"),
        ((one for one in "ab"), "one by one"),
        (Raising(), "no toarray"),
    ):
        with pytest.raises(InputError, match=why):
            as_array(wrong)
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert as_array(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1, 1]
    assert as_array(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]


RUN: dict[str, Any] = {"scenario": "noise-2", "method": "naive"}


def noise() -> mdcg.Dataset:
    return mdcg.Dataset.from_arrays((IMAGES, LABELS), name="noise")


def test_seeds_of_numpy(tmp_path: Path) -> None:
    def seeds(given: Any) -> list[int]:
        return [spec.seed for spec in Sweep.of(written({}), **RUN, data=noise(), out=tmp_path, seeds=given).specs]

    assert seeds(np.int64(3)) == [3]
    assert seeds(np.arange(2)) == [0, 1]
    assert seeds(seed for seed in (4, 2)) == [4, 2]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"seeds": None}, "seeds is None; give a number"),
        ({"probes": (1, 2)}, "probes must be a list of texts"),
        ({"log": 5}, "log must be a list of trackers"),
        ({"log": [5]}, "log must be a list of trackers"),
        ({"members": 0}, "members must be a number of runs"),
        ({"fresh": "yes"}, "fresh must be True or False"),
        ({"quiet": np.ones(2)}, "quiet must be True or False"),
        ({"data": 5}, "data is int; give a path"),
        ({"out": "x" * 300}, "'out' is wrong: .* is too long"),
        ({"out": "\ud800"}, "'out' is wrong: .* cannot be a path"),
        ({"set": {"lam": b"1"}}, "lam of 'set' is b'1'"),
    ],
)
def test_options_of_runs(words: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(MdcgError, match=why):
        mdcg.run(**{**RUN, "data": noise(), "out": tmp_path, **words})


def test_names_of_classes() -> None:
    def names(given: Any) -> tuple[str, ...]:
        return mdcg.Dataset.from_arrays((IMAGES, LABELS), name="noise", class_names=given).class_names

    assert names(pandas.Series(["a", "b"])) == names(one for one in "ab") == names(np.array(["a", "b"])) == ("a", "b")
    for wrong in (pandas.DataFrame({"a": ["x", "y"]}), 5, {"a", "b"}, {"a": 1, "b": 2}, [1, 2], "ab", Raising()):
        with pytest.raises(InputError, match="class_names must be a list of texts"):
            names(wrong)


def test_images_that_say_more_than_they_hold() -> None:
    """A view of one number may have the shape of terabytes: nobody compares, or copies, what no memory could hold."""
    wide = np.broadcast_to(np.uint8(0), (10**6, 10**6, 1))
    with pytest.raises(InputError, match=r"image 0.* 931 GiB, and this machine has"):
        mdcg.Dataset.from_torch([(wide, 0), (wide, 1)], name="noise")


def test_numbers_that_came_as_objects_weigh_too() -> None:
    learner = mdcg.Learner("naive", backbone="smallconv", epochs=1, hold_out=0, quiet=True).learn(IMAGES, LABELS)
    weights = list(range(1, 9))
    assert learner.score(IMAGES, LABELS, pandas.Series(weights, dtype=object)) == learner.score(IMAGES, LABELS, weights)
    for wrong in (["a"] * 8, [None] * 8):
        odd: Any = wrong
        with pytest.raises(InputError, match="sample_weight must be"):
            learner.score(IMAGES, LABELS, odd)


def test_labels_as_numpy_torch_and_pandas_have_them() -> None:
    def classes(labels: Any) -> list[Any]:
        learner = mdcg.Learner("naive", backbone="smallconv", epochs=1, hold_out=0, quiet=True)
        found: list[Any] = learner.learn(IMAGES, labels).classes_.tolist()
        return found

    for labels in (LABELS.astype(">i8"), torch.tensor(LABELS * 1.0, requires_grad=True), LABELS.astype(np.longdouble)):
        assert classes(labels) == [0, 1]
    assert classes(pandas.Series(LABELS, index=range(8, 16)).astype("category")) == [0, 1]
    assert [type(one) for one in classes([Word.CAT, "dog"] * 4)] == [str, str]
    assert classes([Number.TWO, 3] * 4) == [2, 3]
    for wrong in (torch.tensor(LABELS, device="meta"), torch.tensor(LABELS).to_sparse(), (one for one in LABELS),
                  {"a": 1}, np.zeros(8, "M8[s]"), np.broadcast_to(0, 10**12), [None] * 8):  # fmt: skip
        with pytest.raises(InputError, match="label"):
            classes(wrong)


def test_what_pytorch_cannot_do_is_no_gpu_that_stopped() -> None:
    """An operation that a kind of tensor does not have names all backends, CUDA among them."""
    from mdcg.train.device_errors import device_errors_explained, is_device_error

    with pytest.raises(NotImplementedError, match="CUDA") as told, device_errors_explained():
        torch.ones(2).to_sparse().as_strided((1,), (1,))
    assert not is_device_error(told.value)
    assert is_device_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
