"""What a file could not give back is refused before it is trained; all else comes back as it was."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

import mdcg
from mdcg import MdcgError, files, header
from mdcg.learner import estimator
from mdcg.models import HEADS, Head, model
from mdcg.saved import SavedModel
from mdcg.tensors import pack, unpack
from mdcg.testing import toy_dataset
from tests.conftest import Cli
from tests.learner.streams import COUNTS, NAME, write_images

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (16, 8, 8, 1), dtype=np.uint8)
QUICK = ["--image-size", 8, "--backbone", "smallconv", "--epochs", 1, "--memory", 20]
TOYS = toy_dataset(COUNTS, channels=3)
ESCAPES = "\x1b]0;x\x07\x1b[31m\nmdcg: all is well.\t\x9b\u202e"


def learner(method: str = "replay", **given: Any) -> mdcg.Learner:
    usual = {"memory": 6, "backbone": "smallconv", "epochs": 1, "batch_size": 4, "quiet": True, "device": "cpu"}
    return mdcg.Learner(method, **{**usual, **given})


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object) -> NoReturn:
        raise AssertionError("it is trained")

    monkeypatch.setattr(estimator, "train", train)


def changed(file: Path, **values: Any) -> Path:
    """The same file with other values in its header."""
    tensors, told = unpack(file.read_bytes())
    file.write_bytes(pack(tensors, {**told, **values}))
    return file


# ------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([2**62, 2**62 + 1], [2**62 + 2, 2**53 + 1]),
        ([-(2**63), 2**63 - 1], [0, 1]),
        (np.array([2**64 - 1, 2**63], np.uint64), np.array([1, 2], np.uint64)),
        ([-1, 5], [2**63, 2**63 + 1]),  # which no array of numbers holds together
        ([1e16, 3.0], [2.0, 4.0]),
        ([True, False], [2, 3]),
    ],
    ids=str,
)
def test_labels_come_back_exactly(first: Any, second: Any, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    wanted = sorted(np.asarray(first).tolist()) + sorted(np.asarray(second).tolist())
    made = learner().learn(IMAGES[:8], np.repeat(first, 4), save_to=file)
    made = mdcg.Learner.load(file).set_params(quiet=True, device="cpu")
    made.learn(IMAGES[8:], np.repeat(second, 4), save_to=file)
    loaded = mdcg.Learner.load(file)
    for one in (made, loaded):
        assert [(type(label), label) for label in one.saved_.classes] == [(type(label), label) for label in wanted]
        assert one.classes_.tolist() == wanted
        assert set(one.predict(IMAGES).tolist()) <= set(wanted)
        assert one.saved_.content() == file.read_bytes()
    assert json.loads(cli("info", file, "--json").out)["classes"] == wanted


def test_whole_numbers_too_far_apart_for_one_array_are_refused(never: None) -> None:
    with pytest.raises(MdcgError, match="the labels cannot be used"):
        learner().learn(IMAGES[:4], [-1, 2**63 + 1, -1, 2**63 + 1])


@pytest.mark.parametrize("wrong", [2**64, -(2**63) - 1, float("inf"), float("nan"), 10**400])
def test_labels_that_no_array_can_hold_are_damage(wrong: Any, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    with pytest.raises(MdcgError, match="is damaged \\('classes' cannot be as it says\\)"):
        mdcg.Learner.load(changed(file, classes=[1, wrong]))


# ------------------------------------------------------------------ numbers

TOO_LARGE: list[tuple[str, dict[str, Any], str]] = [
    ("replay", {"held_out_images": 10**16}, "'held_out_images' is wrong"),
    ("replay", {"held_out_images": 2**53 + 1}, "'held_out_images' is wrong"),
    ("md-replay", {"set": {"lam": 2**60}}, "'lam' is too large a number; give one up to 9,007,199,254,740,992."),
    ("md-replay", {"set": {"lam": 1e150}}, "'lam' is too large a number; give one up to 1e+100."),
    ("md-cg", {"set": {"gamma": -1e150}}, "'gamma' is too large a number"),
    ("md-cg", {"set": {"gamma": 10**400}}, "'gamma' is too large a number"),
    ("replay", {"normalise": ([0.5], [1e150])}, "cannot normalise pixels; give finite ones up to 1e+100"),
    ("replay", {"normalise": ([-1e150], [1.0])}, "cannot normalise pixels"),
    ("replay", {"tasks": 1_000_000, "memory": 1000, "most_classes": 2}, ""),
]


@pytest.mark.parametrize(("method", "given", "said"), [one for one in TOO_LARGE if one[2]], ids=str)
def test_numbers_that_no_file_gives_back_are_refused_before_training(
    method: str, given: dict[str, Any], said: str, never: None, tmp_path: Path
) -> None:
    with pytest.raises(MdcgError, match=re.escape(said)):
        learner(method, **given).learn(IMAGES[:8], [1, 2] * 4, save_to=tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--held-out-images", 10**16], ["--set", "lam=1e150"]], ids=str)
def test_the_same_on_the_command_line(words: list[Any], never: None, cli: Cli, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", TOYS, [0, 1])
    assert "give one up to" in (said := cli("learn", images, "--out", tmp_path / "m", *QUICK, *words).err) or (
        "'held_out_images' is wrong" in said
    )
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


@pytest.mark.parametrize("most", [64_001, 1_000_000])
def test_a_head_whose_outputs_are_no_weights(most: int, tmp_path: Path) -> None:
    """rpc's simplex has a thousand columns, whatever is asked for."""
    made = learner("rpc", most_classes=most).learn(IMAGES[:8], [1, 2] * 4, save_to=tmp_path / "m")
    assert np.array_equal(mdcg.Learner.load(tmp_path / "m").predict_proba(IMAGES), made.predict_proba(IMAGES))


def test_the_readers_rule_is_asked_before_training(
    never: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever it refuses, for a learner and for a run: here images of more than 60 pixels."""
    monkeypatch.setattr(header, "MOST_PIXELS", 60)
    with pytest.raises(
        MdcgError, match="no file could keep this classifier: its images have 8 × 8 pixels in 1 channels"
    ):
        learner().learn(IMAGES[:8], [1, 2] * 4, save_to=tmp_path / "m")
    with pytest.raises(MdcgError, match="no file could keep this classifier: its images have 8 × 8 pixels"):
        mdcg.run(scenario=f"{NAME}-3", method="replay", memory=20, out=tmp_path / "runs", quiet=True)
    assert not list(tmp_path.glob("**/*.safetensors"))


# ------------------------------------------------------------------ what was written is read back


def test_what_the_disk_gives_back_otherwise_replaces_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    made = learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    before, write = file.read_bytes(), files._write
    wrongs: list[Callable[[bytes], bytes]] = [
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: b"",
    ]
    for wrong in wrongs:
        monkeypatch.setattr(files, "_write", lambda opened, content, wrong=wrong: write(opened, wrong(content)))
        with pytest.raises(MdcgError, match=r"the disk gives back something else.*nothing was written there"):
            made.save(file)
        assert file.read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_could_not_be_read_again_replaces_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    made = learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    before, content = file.read_bytes(), SavedModel.content

    def odd(self: SavedModel) -> bytes:
        tensors, told = unpack(content(self))
        return pack(tensors, {**told, "lr": "fast"})

    monkeypatch.setattr(SavedModel, "content", odd)
    with pytest.raises(MdcgError, match=r"could not be read again .*\('lr' cannot be as it says\)"):
        made.save(file)
    assert file.read_bytes() == before


# ------------------------------------------------------------------ what a header claims


@pytest.mark.parametrize("head", ["incremental", "cascaded-gates", "scalar-gates", "single-gate", "fixed", "simplex"])
def test_claims_are_compared_with_the_weights_before_anything_is_made(
    head: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "m.safetensors"
    learner(head=head).learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    many = {"sizes": [1] * 100_000, "classes": list(range(100_000)), "versions": []}

    def make(*_: object) -> NoReturn:
        raise AssertionError("a network is made")

    monkeypatch.setattr(model, "blank_backbone", make)
    with pytest.raises(MdcgError, match=r"its weights do not fit its classes|has no room for its classes"):
        mdcg.Learner.load(changed(file, **many, outputs=10**9))


def test_many_tasks_whose_weights_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are made at once, not one after the other."""
    file = tmp_path / "m.safetensors"
    learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    tensors, told = unpack(file.read_bytes())
    tensors |= {
        "model.head.classifier.weight": torch.zeros(1, 64, 5000),
        "model.head.classifier.bias": torch.zeros(1, 5000),
    }
    told |= {"sizes": [1] * 5000, "classes": list(range(5000)), "versions": [], "learns": False}
    file.write_bytes(pack(tensors, told))
    monkeypatch.delattr(Head, "grow")
    monkeypatch.setattr(Head, "grows_as_ours", lambda: True)
    assert mdcg.Learner.load(file).predict_proba(IMAGES).shape == (16, 5000)


class Shifted(Head):
    """A head of a user's own, which grows in a way of its own."""

    def __init__(self, members: int, features: int, **settings: Any) -> None:
        super().__init__(members, features, **settings)
        self.shift = torch.nn.Parameter(torch.zeros(members, 1, 0))

    def grow(self, classes: int, head_rngs: Any, gate_rngs: Any) -> None:
        super().grow(classes, head_rngs, gate_rngs)
        self.shift = torch.nn.Parameter(torch.cat([self.shift.detach(), torch.ones(len(self.shift), 1, classes)], 2))

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) + self.shift


def test_a_head_of_ones_own(tmp_path: Path) -> None:
    with HEADS.temporary("shifted", Shifted):
        made = learner(head="shifted").learn(IMAGES[:8], [1, 2] * 4).learn(IMAGES[8:], [3, 4] * 4)
        made.save(tmp_path / "m")
        assert np.array_equal(mdcg.Learner.load(tmp_path / "m").predict_proba(IMAGES), made.predict_proba(IMAGES))


# ------------------------------------------------------------------ paths


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "weights.safetensors"
    learner("naive").learn(IMAGES[:8], [1, 2] * 4).save(file)
    return file


@pytest.fixture(scope="module")
def opened() -> list[str]:
    """The names of all files that are opened."""
    found: list[str] = []
    sys.addaudithook(lambda event, given: found.append(os.fsdecode(given[0])) if _is_path(event, given) else None)
    return found


def _is_path(event: str, given: tuple[Any, ...]) -> bool:
    return event == "open" and isinstance(given[0], str | bytes | os.PathLike)


@pytest.mark.parametrize("method", ["replay", "gdumb"])
def test_a_file_names_no_weights(method: str, weights: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    learner(method, weights=weights).learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    assert str(tmp_path).encode() not in file.read_bytes()
    assert mdcg.Learner.load(file).weights is None


@pytest.mark.parametrize("trap", ["weights.safetensors", "nowhere", "//host/share/x", "~nobody/x"])
def test_weights_that_an_older_file_names_are_not_opened(
    trap: str, weights: Path, opened: list[str], tmp_path: Path
) -> None:
    """It is usable as it is: its network has these weights since its first task."""
    file = tmp_path / "m.safetensors"
    learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    params = unpack(file.read_bytes())[1]["params"]
    named = str(weights) if trap == weights.name else trap
    changed(file, params={**params, "weights": named, "device": "cuda", "quiet": False})
    opened.clear()
    made = mdcg.Learner.load(file)
    assert (made.weights, made.device) == (None, "auto")
    made.set_params(quiet=True, device="cpu").learn(IMAGES[8:], [3, 4] * 4, save_to=file)
    assert [name for name in opened if name.endswith(("weights.safetensors", "nowhere", "/x"))] == []
    assert "weights" not in unpack(file.read_bytes())[1]["params"]


@pytest.mark.parametrize("old", [False, True])
def test_gdumb_asks_for_the_weights_that_it_began_with(
    old: bool, weights: Path, opened: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "m.safetensors"
    learner("gdumb", weights=weights).learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    if old:
        changed(file, params={**unpack(file.read_bytes())[1]["params"], "weights": str(weights)})
    before = file.read_bytes()
    made = mdcg.Learner.load(file).set_params(quiet=True, device="cpu")
    opened.clear()
    with pytest.raises(MdcgError, match=r"gdumb makes its network anew .* give that file again with --weights"):
        made.learn(IMAGES[8:], [3, 4] * 4, save_to=file)
    assert file.read_bytes() == before
    assert [name for name in opened if name.endswith("weights.safetensors")] == []
    made.set_params(weights=weights).learn(IMAGES[8:], [3, 4] * 4, save_to=file)
    assert len(mdcg.Learner.load(file).classes_) == 4


def test_weights_for_a_network_that_has_some_are_said_not_to_be_read(cli: Cli, weights: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    images, more = write_images(tmp_path / "one", TOYS, [0, 1]), write_images(tmp_path / "two", TOYS, [2, 3])
    assert cli("learn", images, "--out", file, *QUICK).code == 0
    answer = cli("learn", more, "--from", file, "--out", file, "--weights", weights)
    assert answer.code == 0, answer.err
    assert f"the network of {file} has weights already: {weights} is not read." in answer.err


# ------------------------------------------------------------------ sentences


@pytest.fixture
def odd_model(tmp_path: Path) -> Path:
    """A model whose header is full of commands to a terminal, wherever it may have any."""
    file = tmp_path / "m.safetensors"
    images = np.repeat(IMAGES, 3, -1)
    learner(hold_out=0.3).learn(images[:8], ["a", "b"] * 4).learn(images[8:], ["c", "d"] * 4).save(file)
    names = [f"{number}{ESCAPES}" for number in range(4)]
    told = unpack(file.read_bytes())[1]
    versions = [{**one, "mdcg": ESCAPES, "finished": ESCAPES} for one in told["versions"]]
    return changed(file, classes=names, versions=versions, method=ESCAPES, hyperparameters={ESCAPES: ESCAPES})


def test_nothing_in_a_model_commands_the_terminal(odd_model: Path, cli: Cli, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", TOYS, [0, 1])
    picture = next(images.glob("*/*.png"))
    for words in (
        ["info", odd_model],
        ["info", odd_model, "--json"],
        ["predict", odd_model, picture, "--top", 4],
        ["predict", odd_model, picture, "--csv"],
        ["predict", odd_model, picture, "--json"],
        ["evaluate", odd_model, images],
        ["learn", images, "--from", odd_model, "--out", tmp_path / "n", "--epochs", 1],
        ["learn", images, "--out", odd_model, *QUICK],
    ):
        answer = cli(*words)
        said = answer.out + answer.err
        assert [letter for letter in said if not letter.isprintable() and letter != "\n"] == [], words
        assert "\nmdcg: all is well" not in said, words
        assert "Traceback" not in said
    assert repr(mdcg.Learner.load(odd_model)).isprintable()


HOSTILE: list[tuple[str, Any, str]] = [
    ("head", ESCAPES, "unknown head"),
    ("backbone", ESCAPES, "the backbone '"),
    ("backbone", "os:system", "nothing is imported because a file names it"),
    ("lr", "fast", "'lr' cannot be as it says"),
    ("params", {ESCAPES: 1}, "has parameters unknown here"),
    (ESCAPES, 1, "which no model has"),
]


@pytest.mark.parametrize(("key", "value", "said"), HOSTILE, ids=lambda value: ascii(value)[:20])
def test_messages_about_a_model_name_it_and_say_what_to_do(key: str, value: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    with pytest.raises(MdcgError) as told:
        mdcg.Learner.load(changed(file, **{key: value}))
    assert str(file) in str(told.value)
    assert said in str(told.value)
    assert str(told.value).isprintable()
    assert not any(word in str(told.value) for word in ("validation", "argument", "Error"))


def test_a_header_without_something_says_so(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    tensors, told = unpack(file.read_bytes())
    del told["head"]
    file.write_bytes(pack(tensors, told))
    with pytest.raises(MdcgError) as error:
        mdcg.Learner.load(file)
    assert str(error.value) == (
        f"{file} is not a model saved by mdcg, or is damaged (it lacks 'head'); restore it from a copy, or learn it "
        "anew with 'mdcg learn'."
    )


@pytest.mark.parametrize(
    ("key", "value"), [("epochs", "many"), ("set", {ESCAPES: 1}), ("augment", ESCAPES), ("resize", "stretch")]
)
def test_parameters_of_a_file_that_cannot_be_name_it(key: str, value: Any, tmp_path: Path) -> None:
    """Unless they were given by hand."""
    file = tmp_path / "m.safetensors"
    learner().learn(IMAGES[:8], [1, 2] * 4, save_to=file)
    changed(file, params={**unpack(file.read_bytes())[1]["params"], key: value})
    made = mdcg.Learner.load(file).set_params(quiet=True, device="cpu")
    assert made.predict(IMAGES).shape == (16,)
    with pytest.raises(MdcgError) as told:
        made.learn(IMAGES[8:], [3, 4] * 4)
    assert str(told.value).startswith(f"{file} cannot go on as it says: ")
    assert str(told.value).isprintable()
    with pytest.raises(MdcgError, match=r"^'lr' is wrong"):
        mdcg.Learner.load(file).set_params(**{key: getattr(mdcg.Learner(), key)}, lr=-1.0).learn(IMAGES[8:], [3, 4] * 4)


def test_what_is_refused_before_its_first_step_leaves_nothing(weights: Path, tmp_path: Path) -> None:
    """Weights that do not fit are found out as the network is made, once the folder for checkpoints is there."""
    colours, out = np.repeat(IMAGES[:8], 3, -1), tmp_path / "out" / "m.safetensors"
    with pytest.raises(MdcgError, match="do not fit the backbone"):
        learner(weights=weights).learn(colours, [1, 2] * 4, save_to=out)
    assert not list(out.parent.iterdir())


def test_control_characters_in_an_unknown_name_are_not_shown() -> None:
    with pytest.raises(MdcgError) as told:
        learner("\x1b[31mreplay\ud800").learn(IMAGES[:8], [1, 2] * 4)
    assert str(told.value).startswith(r"unknown method '\x1b[31mreplay\ud800'")
