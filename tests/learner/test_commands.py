"""`mdcg learn`, `predict`, `evaluate`, `export` and `info`, from folders of images to what they print."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import mdcg
from mdcg.testing import toy_dataset
from tests.conftest import Cli
from tests.learner.streams import COUNTS, write_images

QUICK = ["--image-size", 8, "--backbone", "smallconv", "--epochs", 2, "--lr", 0.05, "--memory", 20]
TOYS = toy_dataset(COUNTS, channels=3)
KINDS = {"png": "RGB", "jpg": "L", "bmp": "RGB", "gif": "P", "webp": "RGBA", "tif": "CMYK"}


def write_mixed(folder: Path, names: list[str], count: int = 8, seed: int = 0) -> Path:
    """Images of all kinds, sizes and colours, one folder per class, with what else lies in such folders."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(names):
        own = folder / name
        own.mkdir(parents=True)
        (own / "notes.txt").write_text("not an image")
        (own / ".DS_Store").write_bytes(b"\0")
        for i in range(count):
            suffix = list(KINDS)[i % len(KINDS)]
            noise = rng.integers(0, 60, (10 + i, 14 + number, 3), dtype=np.uint8) + np.uint8(9 * number)
            Image.fromarray(noise).convert(KINDS[suffix]).save(own / f"{i}.{suffix}")
    return folder


def images_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*/*") if file.suffix.removeprefix(".") in KINDS)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write_mixed(tmp_path / "pets", ["ant", "bee", "cow [b]"])


@pytest.fixture
def more(tmp_path: Path) -> Path:
    return write_mixed(tmp_path / "more", ["[red]dog", ":cat: ünï"], seed=1)


@pytest.fixture
def model(cli: Cli, pets: Path, tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    assert cli("learn", pets, "--out", file, *QUICK).code == 0
    return file


def test_learn_prints_what_was_learned(cli: Cli, pets: Path, more: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    answer = cli("learn", pets, "--out", first, *QUICK)
    assert answer.code == 0, answer.err
    assert "mdcg: used 24." in answer.err
    assert "learning ant, bee, cow [b] from 24 images: 2 epochs of 1 step." in answer.err
    assert f"{first}: 3 classes in 1 task, memory of 20 of 20 images" in answer.out
    answer = cli("learn", more, "--from", first, "--out", second)  # all else is as it was
    assert answer.code == 0, answer.err
    assert f"{second}: 5 classes in 2 tasks, memory of 20 of 20 images" in answer.out
    assert "known classes " in answer.out
    rows = {line.split("  ")[1].strip(): line.split() for line in answer.out.splitlines() if line.startswith("  ")}
    for name in ("ant", "bee", "cow [b]", "[red]dog", ":cat: ünï"):  # nothing in a name is markup
        assert name in rows, answer.out
    assert rows["ant"][-4:-2] == ["0", "1"]
    assert rows["[red]dog"][-4:-1] == ["8", "1", "–"]


def test_learn_as_json(cli: Cli, pets: Path, more: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    cli("learn", pets, "--out", file, *QUICK)
    answer = cli("learn", more, "--from", file, "--out", file, "--json", "--set", "lam=0.5")
    content = json.loads(answer.out)
    assert content["classes"] == ["ant", "bee", "cow [b]", ":cat: ünï", "[red]dog"]
    assert content["tasks"] == [3, 2]
    assert content["can_learn"] is True
    assert content["memory"] == {"images": 20, "size": 20}
    assert content["bytes"] == file.stat().st_size
    assert content["setup"]["method"] == "md-replay"
    assert content["setup"]["hyperparameters"]["lam"] == 0.5
    assert [version["images"] for version in content["versions"]] == [[8, 8, 8], [0, 0, 0, 8, 8]]
    assert json.loads(cli("info", file, "--json").out) == content


def test_every_option_reaches_the_learner(cli: Cli, pets: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    given: dict[str, Any] = {
        "method": "replay", "memory": 9, "image_size": 12, "resize": "fit", "backbone": "smallconv",
        "augment": "jitter", "backbone_lr": 0.01, "normalise": "imagenet", "head": "simplex", "epochs": 1,
        "batch_size": 5, "lr": 0.02, "momentum": 0.7, "passes": "separate", "precision": "fp64", "seed": 3,
        "hold_out": 0.25, "held_out_images": 5, "most_classes": 7, "tasks": 4, "warn_drop": 20.0, "on_error": "skip",
    }  # fmt: skip
    words = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", value)]
    assert cli("learn", pets, "--out", file, *words, "--no-flip", "--device", "cpu").code == 0
    loaded = mdcg.Learner.load(file).get_params()
    left = {"set": None, "weights": None, "padding": None, "flip": False, "device": "auto", "quiet": False}
    assert loaded == {**given, **left}


def answers(cli: Cli, *words: object) -> list[dict[str, Any]]:
    answer = cli("predict", *words, "--json")
    assert answer.code == 0, answer.err
    found: list[dict[str, Any]] = json.loads(answer.out)
    return found


def test_predict_is_what_the_learner_says(cli: Cli, model: Path, pets: Path, tmp_path: Path) -> None:
    """As lines, as CSV and as JSON, of files and folders, and of a folder of folders."""
    files = images_in(pets)
    learner = mdcg.Learner.load(model)
    probabilities, names = learner.predict_proba(files), learner.classes_.tolist()
    best = probabilities.argmax(1)
    for given in (files, [pets], sorted(pets.iterdir()), [files[0].parent, *files[8:16], pets / "cow [b]"]):
        found = answers(cli, model, *given)
        assert [Path(one["path"]) for one in found] == files
        assert [one["classes"][0]["class"] for one in found] == [names[place] for place in best]
        told = [one["classes"][0]["probability"] for one in found]
        np.testing.assert_allclose(told, probabilities.max(1), atol=1e-6)
        assert all(len(one["classes"]) == 1 for one in found)
    rows = list(csv.reader(io.StringIO(cli("predict", model, pets, "--csv", "--top", 2).out)))
    assert rows[0] == ["path", "class 1", "probability 1", "class 2", "probability 2"]
    for row, file, answer in zip(rows[1:], files, probabilities, strict=True):
        first, second = np.argsort(-answer)[:2]
        assert [row[0], row[1], row[3]] == [str(file), names[first], names[second]]
        assert float(row[4]) == pytest.approx(answer[second], abs=1e-6)
    lines = cli("predict", model, files[0]).out.splitlines()
    assert lines == [f"{files[0]}  {names[best[0]]} {100 * probabilities[0].max():.1f}%"]
    everything = answers(cli, model, files[0], "--top", 99)[0]["classes"]
    assert sorted(one["class"] for one in everything) == sorted(names)
    assert sum(one["probability"] for one in everything) == pytest.approx(1, abs=1e-5)
    odd = tmp_path / "\x1b[31m=.png"
    odd.write_bytes(files[0].read_bytes())
    header, line = cli("predict", model, odd, "--csv").out.splitlines()
    assert header == "path,class,probability"
    assert line.startswith(f"{tmp_path}/�[31m=.png,")


def test_predict_skips_what_cannot_be_read(cli: Cli, model: Path, pets: Path) -> None:
    (pets / "ant" / "0.png").write_bytes(b"no image")
    (pets / "ant" / "x.heic").write_bytes(b"no image")
    assert "0.png" in cli("predict", model, pets / "ant").sentence()
    answer = cli("predict", model, pets / "ant", "--on-error", "skip", "--json")
    assert answer.code == 0
    assert len(json.loads(answer.out)) == 7
    assert answer.err == "mdcg: used 7, skipped 2: 1 .heic, 1 damaged (0.png).\n"
    only = cli("predict", model, pets / "ant" / "0.png", "--on-error", "skip", "--json")
    assert (only.code, json.loads(only.out)) == (0, [])


def test_evaluate(cli: Cli, model: Path, pets: Path, more: Path, tmp_path: Path) -> None:
    """Accuracies are counted by hand, before and after; the table has the same as the JSON."""
    newer, test = tmp_path / "newer.safetensors", write_mixed(tmp_path / "test", ["ant", "cow [b]"], 5, seed=2)
    assert cli("learn", more, "--from", model, "--out", newer).code == 0
    found = json.loads(cli("evaluate", newer, test, "--before", model, "--json").out)
    assert [one["class"] for one in found["classes"]] == ["ant", "bee", "cow [b]", ":cat: ünï", "[red]dog"]
    for when, file in (("accuracy", newer), ("before", model)):
        learner, hits = mdcg.Learner.load(file), []
        for one in found["classes"]:
            files = [file for file in images_in(test) if file.parent.name == one["class"]]
            own = [name == one["class"] for name in learner.predict(files)] if files else []
            assert one["images"] == len(own)
            assert one[when] == (pytest.approx(100 * sum(own) / len(own), abs=0.01) if own else None)
            hits += own
        if when == "accuracy":
            assert found[when] == pytest.approx(100 * sum(hits) / 10, abs=0.01)
    assert "before" not in found  # the older version does not know all of these classes
    assert np.sum(found["confusion"]) == 10
    assert np.array(found["confusion"]).sum(1).tolist() == [5, 0, 5, 0, 0]
    text = cli("evaluate", newer, test, "--before", model)
    assert text.code == 0, text.err
    assert "most often taken for" in text.out
    assert "[red]dog" in text.out
    assert text.out.splitlines()[-1] == "used 10."
    assert "before" not in json.loads(cli("evaluate", newer, test, "--json").out)
    assert "the model does not know ':cat: ünï', '[red]dog'; it knows ant" in cli("evaluate", model, more).sentence()
    (test / "ant" / "0.png").write_bytes(b"no image")
    assert "0.png" in cli("evaluate", newer, test).sentence()
    skipped = cli("evaluate", newer, test, "--before", model, "--on-error", "skip")
    assert skipped.code == 0, skipped.err
    assert skipped.out.splitlines()[-1] == "used 9, skipped 1: 1 damaged (0.png)."


def test_export(cli: Cli, model: Path, pets: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    answer = cli("export", model, "--out", out)
    assert answer.code == 0, answer.err
    assert f"{out}: uint8 images (n, 8, 8, 3) in, probabilities (n, 3) out" in answer.out
    learner, images = mdcg.Learner.load(model), np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    (found,) = onnxruntime.InferenceSession(out).run(None, {"images": images})
    np.testing.assert_allclose(found, learner.predict_proba(images), atol=1e-5)


def test_info(cli: Cli, model: Path, more: Path) -> None:
    assert cli("learn", more, "--from", model, "--out", model).code == 0
    answer = cli("info", model)
    assert answer.code == 0, answer.err
    for text in (
        "5 classes in 2 tasks, memory of 20 of 20 images",
        "images of 8 × 8 pixels, 3 channels",
        "network: smallconv with the head incremental, seed 0",
        "method: md-replay (lam 1, ",
        "schedule cosine, crop by 1 pixel, flip, randaugment",
        ", 2 epochs, 2 steps, ",
        ": ant, bee, cow [b]",
        ": :cat: ünï, [red]dog",
        "after 2",
        "mean",
    ):
        assert text in " ".join(answer.out.split()), answer.out  # whatever lines it is broken into


def test_names_with_brackets_of_their_own(cli: Cli, tmp_path: Path) -> None:
    """Labels of arrays may be what no folder can be called: a closing tag that nothing opened."""
    file = tmp_path / "model.safetensors"
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    learner = mdcg.Learner("naive", backbone="smallconv", epochs=1, hold_out=0.5, quiet=True)
    learner.learn(images, ["[/b]", "[link=x]y"] * 10).save(file)
    answer = cli("info", file)
    assert answer.code == 0, answer.err
    assert "  [/b]  " in answer.out
    assert "  [link=x]y  " in answer.out


def test_a_run_learns_on(cli: Cli, more: Path, tmp_path: Path) -> None:
    """`mdcg run --out`, then `mdcg learn --from` its model, which `info` knows before and after."""
    images = write_images(tmp_path / "all", TOYS, range(4))
    words = ["--method", "replay", "--memory", 20, "--epochs", 1, "--image-size", 8, "--backbone", "smallconv"]
    ran = cli("run", "--scenario", f"folder:{images}-2", *words, "--out", tmp_path / "runs")
    assert ran.code == 0, ran.err
    (file,) = (tmp_path / "runs").glob("*/model.safetensors")
    before, info = file.read_bytes(), json.loads(cli("info", file, "--json").out)
    assert info["tasks"] == [2, 2]
    assert info["versions"] == []
    assert info["can_learn"] is True
    assert "4 classes in 2 tasks" in " ".join(cli("info", file).out.split())
    out = tmp_path / "more.safetensors"
    learned = cli("learn", more, "--from", file, "--out", out, "--epochs", 1, "--json")
    assert learned.code == 0, learned.err
    content = json.loads(learned.out)
    assert content["classes"] == [*info["classes"], ":cat: ünï", "[red]dog"]
    assert content["setup"]["method"] == "replay"
    assert len(content["versions"]) == 1
    text = " ".join(cli("info", out).out.split())
    assert "6 classes in 3 tasks" in text
    assert "task 3: :cat: ünï, [red]dog" in text
    assert file.read_bytes() == before
    assert len(answers(cli, out, images)) == sum(COUNTS[:4])


def test_json_alone_on_standard_output(cli: Cli, pets: Path, tmp_path: Path) -> None:
    answer = cli("learn", pets, "--out", tmp_path / "model.safetensors", *QUICK, "--json")
    assert answer.out.count("\n") == 1
    assert answer.err.startswith("mdcg: used 24.\n")


def test_many_classes_have_no_matrix_in_a_terminal(cli: Cli, tmp_path: Path) -> None:
    folder = write_mixed(tmp_path / "many", [f"class {number:02}" for number in range(20)], 2)
    file = tmp_path / "model.safetensors"
    assert cli("learn", folder, "--out", file, *QUICK).code == 0
    assert "the confusion matrix of 20 classes is too wide to print; --json has it" in cli("evaluate", file, folder).out
    assert len(json.loads(cli("evaluate", file, folder, "--json").out)["confusion"]) == 20
