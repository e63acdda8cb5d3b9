"""The command line: what it prints, and one sentence with exit code 2 for every mistake."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import yaml
from rich.console import Console

import mdcg.cli
from mdcg.data import load
from mdcg.methods import METHODS
from mdcg.recipes.recipe import make_recipe
from mdcg.report.terminal import coloured_matrix
from mdcg.testing.forked import Server, as_nobody
from tests.conftest import Answer, Cli
from tests.data.conftest import save_image

QUICK = ["--scenario", "digits-2", "--epochs", "1", "--batch-size", "64"]


def test_json_is_the_promised_object(cli: Cli, runs: Path) -> None:
    answer = cli("run", *QUICK, "--method", "md-cg", "--memory", 20, "--seeds", "0-2", "--out", runs, "--json")
    assert answer.code == 0
    content = json.loads(answer.out)
    assert set(content) == {"runs", "mean", "std"}
    assert [run["seed"] for run in content["runs"]] == [0, 1, 2]
    for run in content["runs"]:
        R = run["R"]
        assert R[0][1] is None
        assert run["ACC"] == pytest.approx((R[1][0] + R[1][1]) / 2, abs=1e-5)
        assert run["BWT"] == run["BWT_final"] == pytest.approx(R[1][0] - R[0][0], abs=1e-5)
        assert run["seconds"] > 0
    accs = [run["ACC"] for run in content["runs"]]
    mean = sum(accs) / 3
    assert content["mean"]["ACC"] == pytest.approx(mean, abs=1e-5)
    assert content["std"]["ACC"] == pytest.approx((sum((a - mean) ** 2 for a in accs) / 2) ** 0.5, abs=1e-5)
    single = json.loads(cli("run", *QUICK, "--method", "naive", "--out", runs, "--json").out)
    assert single["std"]["ACC"] is None


def test_json_alone_on_standard_output(runs: Path) -> None:
    """As a real process: progress, warnings and messages may only go to standard error."""
    words = ["run", *QUICK, "--method", "naive", "--out", str(runs), "--json"]
    done = subprocess.run([sys.executable, "-m", "mdcg", *words], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    json.loads(done.stdout)
    assert "\x1b" not in done.stdout + done.stderr  # no progress bar, not a terminal


def test_run_prints_matrix_and_folder(cli: Cli, runs: Path) -> None:
    answer = cli("run", *QUICK, "--method", "replay", "--memory", 20, "--out", runs)
    assert answer.code == 0
    assert "after task" in answer.out
    folder = answer.out.strip().splitlines()[-1]
    shown = cli("show", folder)
    assert shown.code == 0
    for text in ("after task", "ACC", "BWT-final", "batch_size", "replay", "digits-2", "torch"):
        assert text in shown.out
    assert cli("show", Path(folder).name, "--out", runs).out.splitlines()[1:] == shown.out.splitlines()[1:]


def test_compare_is_best_first(cli: Cli, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["compare", "--scenario", "digits-2", "--epochs", "2", "--memory", 60, "--seeds", "0-1", "--out", runs]
    answer = cli(*words, "--methods", "naive,cumulative,replay", "--report", page)
    assert answer.code == 0
    places = {name: answer.out.index(f"{name} ") for name in ("cumulative", "replay", "naive")}
    assert places["cumulative"] < places["replay"] < places["naive"]
    assert " ± " in answer.out
    shown = page.read_text()
    assert "6 runs of 3 settings in 1 scenario" in shown
    assert "<h1>digits-2, memory 60</h1>" in shown
    rows = [shown.index(f"details of {label}") for label in ("cumulative", "replay, memory 60", "naive")]
    assert rows == sorted(rows)
    content = json.loads(cli(*words, "--methods", "naive,replay", "--json").out)
    assert set(content["methods"]) == {"naive", "replay"}
    assert content["methods"]["naive"]["mean"]["ACC"] < content["methods"]["replay"]["mean"]["ACC"]


def test_recipe_file_and_saved_recipe(cli: Cli, runs: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "scenario: digits-2\nmethod: md-cg\nmemory: 30\nseeds: 0-1\nepochs: 1\nset: {lam: 0.3, beta: 5}\n"
        f"batch-size: 32\nout: {runs}\n"
    )
    assert cli("run", "--recipe", recipe).code == 0
    saved = sorted(runs.glob("*/recipe.yaml"))
    assert len(saved) == 2
    content = yaml.safe_load(saved[0].read_text())
    assert {key: content["set"][key] for key in ("lam", "beta", "gamma")} == {"lam": 0.3, "beta": 5.0, "gamma": 1.0}
    assert content["backbone"] == "smallconv"
    first = json.loads(cli("run", "--recipe", recipe, "--json").out)["runs"][0]
    # The saved recipe means the same run: it is found finished, in the same folder.
    again = json.loads(cli("run", "--recipe", saved[0], "--out", runs, "--json").out)["runs"]
    assert again == [first]
    assert len(list(runs.glob("*/result.json"))) == 2
    # The command line overrides the file.
    other = json.loads(cli("run", "--recipe", recipe, "--method", "naive", "--set", "lam=1", "--json").out or "{}")
    assert other == {}
    recipe.write_text(recipe.read_text().replace("set: {lam: 0.3, beta: 5}\n", ""))
    assert len(json.loads(cli("run", "--recipe", recipe, "--method", "naive", "--json").out)["runs"]) == 2


def test_a_folder_of_images(cli: Cli, runs: Path, tmp_path: Path) -> None:
    for c, name in enumerate(["ant", "bee", "cow", "dog", "eel"]):
        for i in range(6 + c):
            save_image(tmp_path / "pets-v2" / name / f"{i}.png", shade=20 + 50 * c + i)
    words = ["--method", "md-cg", "--memory", 10, "--epochs", 1, "--batch-size", 4, "--image-size", 8]
    answer = cli(
        "run", "--scenario", f"folder:{tmp_path / 'pets-v2'}-2", *words, "--backbone", "smallconv", "--out", runs
    )
    assert answer.code == 0, answer.err
    (result,) = runs.glob("*/result.json")
    content = json.loads(result.read_text())
    assert content["sizes"] == [3, 2]
    assert sorted(content["class_names"]) == ["ant", "bee", "cow", "dog", "eel"]
    assert sum(len(kept) for kept in content["memory"].values()) == 10


@pytest.mark.parametrize("what", ["methods", "scenarios", "datasets", "backbones", "heads"])
def test_lists(cli: Cli, what: str) -> None:
    expected = {
        "methods": ["md-cg", "--set lam=0.25", "lower bound"],
        "scenarios": ["c10-5", "tym-50", "DATASET-T"],
        "datasets": ["digits", "tinyimagenet", "folder:PATH"],
        "backbones": ["resnet20", "resnet18", "smallconv"],
        "heads": ["cascaded-gates", "incremental", "--set beta=10"],
    }
    answer = cli("list", what)
    assert answer.code == 0
    assert all(text in answer.out for text in expected[what])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["run"],
        ["compare"],
        ["sweep"],
        ["search"],
        ["show"],
        ["runs"],
        ["report"],
        ["list"],
        ["data"],
        ["data", "get"],
        ["data", "verify"],
    ],
)
def test_help_reads_well(cli: Cli, words: list[str]) -> None:
    answer = cli(*words, "--help")
    assert answer.code == 0
    assert "Usage: mdcg" in answer.out
    assert "Traceback" not in answer.out
    assert "..." not in re.sub(r"(ARGS|[A-Z]\]?)\.\.\.", "", answer.out)  # no sentence is cut
    assert not re.search(r"<(int|float|str|path|list)|\[str\]", answer.out)  # nor a type of Python's there


def test_help_does_not_wait_for_torch() -> None:
    check = "import sys; from mdcg import cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.usefixtures("all_digits")
def test_data_commands(cli: Cli) -> None:
    assert "1,797 images" in cli("data", "verify", "digits").out
    assert "1,438 training and 359 test images of 10 classes, ready" in cli("data", "get", "digits").out


BAD = [
    ("run --method naive", "no scenario was named"),
    ("run --scenario digits-5", "no method was named"),
    ("run --scenario digits-5 --method md-gc", "did you mean 'md-cg'"),
    ("run --scenario digits --method naive", "write DATASET-TASKS"),
    ("run --scenario digts-5 --method naive", "did you mean 'digits'"),
    ("run --scenario digits-11 --method naive", "10 classes cannot make 11 tasks; ask for at most 10"),
    ("run --scenario digits-3 --sizes 5,5 --method naive", "sizes 5, 5 do not split 10 classes into 3 tasks"),
    ("run --scenario digits-3 --first 9 --method naive", "after a first task of 9 classes, 1 are left for 2"),
    ("run --scenario digits-2 --order 1,2,cat --method naive", "unknown class 'cat'"),
    ("run --scenario digits-2 --order 1,2,1 --method naive", "class '1' is twice in 'order'"),
    ("run --scenario digits-2 --blurry 1.5 --method naive", "'blurry' is wrong"),
    ("run --scenario digits-2 --blurry 0.1 --method gem --memory 20", "gem cannot learn a stream in which past"),
    ("run --scenario digits-2 --online --method gdumb --memory 20", "these can: der, er-ace, er-lode"),
    ("run --scenario digits-2 --online --epochs 2 --method naive", "each image comes once; leave --epochs out"),
    ("run --scenario digits-2 --online --batch-size 5000 --method naive", "too few for a batch of 5000"),
    ("run --scenario digits-2 --online --method ld --memory 20 --set second_memory=10", "once with these settings"),
    ("run --scenario digits-2 --method md --memory 20 --set look_ahead=3", "in online streams alone"),
    (
        "run --scenario digits-2 --online --method md --memory 20 --set look_ahead=3 --probe drift",
        "leave --probe out for streams in which",
    ),
    ("run --scenario digits-0 --method naive", "at least one task"),
    ("run --scenario digits-² --method naive", "write DATASET-TASKS"),
    ("run --scenario digits-99999999999 --method naive", "write DATASET-TASKS"),
    ("run --scenario folder:~nobody-here/x-2 --method naive", "is not a usable path"),
    (f"run --scenario folder:{'x' * 300}-2 --method naive", "File name too long"),
    (f"run --scenario c10-5 --method naive --data {'x' * 300}", "is too long to be a path; check it"),
    (f"show {'x' * 300}", "File name too long"),
    ("run --scenario digits-5 --method naive --seeds 99999999999999999999999", "not a list of seeds"),
    ("run --scenario digits-5 --method naive --seeds 9999999999", "seeds go from 0 to"),
    ("run --scenario c10-5 --method replya", "did you mean 'replay'"),
    ("run --scenario digits-5 --method md --memory 50 --set lam=2024-13-01", "'lam' is wrong"),
    ("run --scenario digits-5 --method md --memory 50 --set lam=[[[[", "'lam' is wrong"),
    ("run --scenario digits-5 --method md --memory 50 --set lam=true", "'lam' is wrong"),
    ("run --scenario digits-5 --method md --memory 50 --set lam=1:30", "'lam' is wrong"),
    (f"run --scenario digits-5 --method md-cg --memory 50 --set beta={'9' * 400}", "'beta' must be a number"),
    ("run --scenario folder:/no/such/place-2 --method naive", "there is no folder /no/such/place"),
    ("run --scenario c10-5 --method naive --data /no/such/place", "there is no file or folder /no/such/place"),
    ("run --scenario digits-5 --method md-cg", "needs a memory"),
    ("run --scenario digits-5 --method replay --memory 50 --set lam=1", "There is none."),
    ("run --scenario digits-5 --method md-cg --memory 5", "cannot hold one image of each of the 10 classes"),
    ("run --scenario digits-5 --method md-cg --memory 0", "'memory' is wrong"),
    ("run --scenario digits-5 --method md-cg --memory 100 --head simplex", "needs a head that grows with the classes"),
    ("run --scenario digits-5 --method der --memory 100 --head incremental", "has all classes from the start"),
    ("run --scenario digits-5 --method der --memory 100 --set alpha=-1", "greater than or equal to 0, not -1"),
    ("run --scenario digits-5 --method der --memory 9", "cannot hold one image of each of the 10 classes"),
    ("run --scenario digits-5 --method gem --memory 100 --set strength=-0.1", "'strength' is wrong"),
    ("run --scenario digits-5 --method gem --memory 4", "cannot hold one image of each of the 10 classes"),
    ("run --scenario digits-5 --method gdumb", "gdumb needs a memory"),
    ("run --scenario digits-5 --method er-ace --memory 100 --set memory_batch=-1", "'memory_batch' is wrong"),
    ("run --scenario digits-5 --method er-ace --memory 100 --set memory_batch=99999999999999999", "too large a number"),
    ("run --scenario digits-5 --method er-ace --memory 100 --set memory_batch=1.5", "'memory_batch' is wrong"),
    ("run --scenario digits-5 --method er-ace --memory 100 --set current_in_memory=maybe", "should be a valid boolean"),
    ("run --scenario digits-5 --method ld --memory 100 --set second_memory=-5", "'second_memory' is wrong"),
    ("run --scenario digits-5 --method ss-il --memory 100 --set weight=-1", "'weight' is wrong"),
    ("run --scenario digits-5 --method ss-il --memory 100 --set temperature=0", "should be greater than 0"),
    ("run --scenario digits-5 --method replay --memory 100 --passes twice", "should be 'joint' or 'separate'"),
    ("run --scenario digits-5 --method ss-il --memory 100 --set current_in_memory=true", "give memory_among=all"),
    ("run --scenario digits-5 --method md --memory 100 --set divergence=sideways", "or 'student-teacher'"),
    ("run --scenario digits-5 --method gem --memory 100 --set lam=1", "unknown setting of gem 'lam'"),
    ("run --scenario digits-5 --method md --memory 100 --preset newest", "'paper' or 'published'"),
    ("run --scenario digits-5 --method md --memory 100 --augmentation none", "'paper' or 'published'"),
    ("run --scenario digits-5 --method md --memory 100 --augmentation published", "leave --augmentation out"),
    ("run --scenario digits-5 --method md-cg --memory many", "'memory' is wrong"),
    ("run --scenario digits-5 --method md-cg --memory 100,", "'memory' is wrong"),
    ("run --scenario digits-5 --method md-cg --memory 100,5", "a memory of 5 cannot hold one image of each"),
    ("run --scenario digits-5 --method md-cg --memory 100 --set lam=1,,2", "is not of the form key=value"),
    ("run --scenario digits-5 --method md-cg --memory 100 --set lam=1,-2", "'lam' is wrong"),
    ("run --scenario digits-5 --method naive --seeds 4-0", "not a usable range of at most 10,000 seeds"),
    ("run --scenario digits-5 --method naive --seeds one", "not a list of seeds"),
    ("run --scenario digits-5 --method naive --seeds -1", "not a list of seeds"),
    ("run --scenario digits-5 --method naive --epochs 0", "'epochs' is wrong"),
    ("run --scenario digits-5 --method naive --batch-size 1", "'batch_size' is wrong"),
    ("run --scenario digits-5 --method naive --lr 0", "'lr' is wrong"),
    ("run --scenario digits-5 --method naive --lr nan", "'lr' is wrong"),
    ("run --scenario digits-5 --method naive --lr inf", "'lr' is wrong"),
    ("run --scenario digits-5 --method naive --momentum 1", "'momentum' is wrong"),
    ("run --scenario digits-5 --method naive --hold-out 1", "'hold_out' is wrong"),
    ("run --scenario digits-5 --method naive --image-size 9", "image size of digits is fixed"),
    ("run --scenario digits-5 --method naive --backbone resnet19", "unknown backbone"),
    ("run --scenario digits-5 --method naive --head cascaded-gate", "did you mean 'cascaded-gates'"),
    ("run --scenario digits-5 --method naive --device tpu", "'device' is wrong"),
    ("run --scenario digits-5 --method naive --precision fp8", "unknown precision 'fp8'"),
    ("run --scenario digits-5 --method md --memory 50 --set lamb=1", "did you mean 'lam'"),
    ("run --scenario digits-5 --method md --memory 50 --set lam=-1", "'lam' is wrong"),
    ("run --scenario digits-5 --method md --memory 50 --set lam=nan", "'lam' is wrong"),
    ("run --scenario digits-5 --method md --memory 50 --set lam=high", "'lam' is wrong"),
    ("run --scenario digits-5 --method md --memory 50 --set lam", "not of the form key=value"),
    ("run --scenario digits-5 --method md-cg --memory 50 --set beta=big", "'beta' must be a number"),
    ("run --scenario digits-5 --method md --memory 50 --set beta=1", "unknown setting"),
    ("run --recipe /no/such/file.yaml", "cannot read recipe"),
    ("compare --scenario digits-5", "no method was named"),
    ("compare --scenario digits-5 --methods naive,replya", "did you mean 'replay'"),
    ("compare --scenario digits-5 --methods ,", "no method was named"),
    ("run --scenario digits-5 --method naive --log tensorbord", "did you mean 'tensorboard'"),
    ("show nothing", "there is no run 'nothing'"),
    ("runs", "there is no folder runs"),
    ("list methds", "did you mean 'methods'"),
    ("run --methd md", "no such option: --methd; did you mean --augment, --method or --set?"),
    ("export m --to onnyx --out m.onnx", "'--to': 'onnyx' is not one of 'onnx', 'torch'; 'mdcg export --help'"),
    ("run --memory", "option '--memory' requires an argument; 'mdcg run --help' says what it takes."),
    ("data get --data", "'mdcg data get --help' says what it takes."),
    ("--nonsense", "no such option: --nonsense; 'mdcg --help' says what it takes."),
    ("run --epochs zwei", "invalid value for '--epochs': "),
    ("sweep", "missing argument 'RECIPE'; 'mdcg sweep --help' says what it takes."),
    ("data gt", "no such command 'gt'; did you mean 'get'?"),
    ("run --scenario digits-5 --method md --set lam=1 --set lam=2", "'lam' is set twice"),
    ("data get omniglot", "unknown dataset 'omniglot'"),
    ("data verify cifar10", "run 'mdcg data get cifar10' first"),
    ("data verify cifar10 --data /no/such/place", "there is no file or folder"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "told"), BAD, ids=[words for words, _ in BAD])
def test_mistakes_get_one_sentence(
    cli: Cli, words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in cli(*words.split()).sentence()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # and nothing is left behind


@pytest.mark.parametrize("words", [["fly"], ["list"], ["run", "--members", "0"]])
def test_mistakes_in_options(cli: Cli, words: list[str]) -> None:
    assert "--help' says what it takes." in cli(*words).sentence()


@pytest.mark.parametrize("words", [[], ["data"]])
def test_nothing_asked_is_answered_by_the_help(cli: Cli, words: list[str]) -> None:
    answer = cli(*words)
    assert answer.code == 2
    assert (answer.out + answer.err).splitlines() == cli(*words, "--help").out.splitlines()


ODD = "o\x1b[31md\n\u202e\udcff"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--recipe", f"{ODD}.yaml"], r"cannot read recipe o\x1b[31md\n\u202e\udcff.yaml"),
        (["run", "--recipe", 5000 * "x"], "is too long to be a path; check it"),
        (["show", ODD, "--out", ODD], r"there is no run 'o\x1b[31md\n"),
        (["run", "--scenario", f"folder:{ODD}-2", "--method", "naive"], "is no text, and a result must hold it"),
        (
            ["run", "--scenario", "digits-2", "--method", "naive", "--precision", ODD],
            r"unknown precision 'o\x1b[31md\n",
        ),
    ],
)
def test_odd_names_in_a_sentence(
    cli: Cli, words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = cli(*words).sentence()
    assert told in sentence
    assert sentence.isprintable()
    assert len(sentence) < 2100


@pytest.mark.parametrize("words", [["run", ODD], [ODD], ["data", ODD], ["run", f"--{ODD}"], ["list", "x", ODD]])
def test_odd_names_in_mistakes_of_options(cli: Cli, words: list[str]) -> None:
    assert cli(*words).sentence().isprintable()


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "pipe"],
        ["run", "--recipe", "pipe"],
        ["run", *QUICK, "--method", "naive", "--weights", "pipe"],
        ["search", *QUICK, "--method", "md", "--memory", "20", "--write", "pipe"],
        ["info", "pipe"],
        ["learn", "images", "--out", "pipe"],
        ["runs", "--export", "pipe.csv"],
        ["report", "--reproduction", "pipe"],
    ],
)
def test_a_pipe_in_place_of_a_file(server: Server, words: list[str], tmp_path: Path) -> None:
    """Nobody writes to it, so that to read it would never end; nor is it replaced."""
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(next(Path("results").glob("*.jsonl")), runs)
    pipes = [tmp_path / "pipe", tmp_path / "pipe.csv"]
    for pipe in pipes:
        os.mkfifo(pipe)
    answer = server.run(*words, cwd=str(tmp_path))
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.startswith("mdcg: ")
    assert all(pipe.is_fifo() for pipe in pipes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scenaro: digits-5\n", "unknown setting 'scenaro'; did you mean 'scenario'"),
        ("scenario: digits-5\nmemory: lots\nmethod: md\n", "'memory' is wrong"),
        ("- a\n- b\n", "must be a list of 'key: value' lines"),
        ("scenario: [digits-5\n", "is not valid YAML"),
        ("scenario: 5\nmethod: naive\n", "'scenario' is wrong"),
        ("scenario: digits-5\nmethod: naive\nseeds: []\n", "'seeds' is wrong: give at least one seed"),
        ("scenario: digits-5\nmemory: 20\nmethods: [naive, replay]\n", "names several methods"),
        ("scenario: digits-5\nmethod: naive\nset: 3\n", "line 3: 'set' must be"),
        ("", "must be a list of"),
        ("5: 3\n", "must be a list of"),
        ("scenario: digits-5\nlearning_rate: 0.1\n", "the learning rate is called 'lr'"),
        ("scenario: digits-5\nlam: 0.1\n", "put it under set"),
        ("scenario: digits-5\nmethod: md\nmemory: yes\n", "'memory' is wrong"),
        ("scenario: digits-5\nset: {lam: 2024-13-01}\n", "is not valid YAML"),
        (
            "scenario: digits-5\nmethod: md\nset: {lam: [[1]]}\n",
            "line 3: a value of 'set.lam' must be a number or a word",
        ),
        ("scenario: digits-5\nmethod: md\nset: {lam: []}\n", "line 3: 'set.lam' is empty"),
        ("scenario: digits-5\nmethod: md\nmemory: []\n", "line 3: 'memory' is empty"),
    ],
)
def test_bad_recipes(cli: Cli, tmp_path: Path, text: str, told: str) -> None:
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(text)
    assert told in cli("run", "--recipe", recipe).sentence()
    recipe.write_text("scenario: digits-5\nmethod: md\nmemory: 5\nset:\n  lam: -1\n")
    assert f"{recipe}, line 3: a memory of 5 cannot hold" in cli("run", "--recipe", recipe).sentence()
    assert f"{recipe}, line 5: method md: 'lam'" in cli("run", "--recipe", recipe, "--memory", 50).sentence()
    assert "mdcg: unknown method 'mdd'" in cli("run", "--recipe", recipe, "--method", "mdd").sentence()
    assert "mdcg: a memory of 6 cannot hold" in cli("run", "--recipe", recipe, "--memory", 6).sentence()
    recipe.write_bytes(b"\xff\xfe\x00binary")
    assert "is not a text file" in cli("run", "--recipe", recipe).sentence()


def test_numbers_as_people_write_them(cli: Cli, runs: Path) -> None:
    words = ["run", *QUICK, "--method", "md-cg", "--memory", 20, "--out", runs]
    assert cli(*words, "--set", "beta=1e1", "--set", "lam=1").code == 0
    (recipe,) = runs.glob("*/recipe.yaml")
    written = yaml.safe_load(recipe.read_text())["set"]
    assert {key: written[key] for key in ("lam", "beta", "gamma")} == {"lam": 1.0, "beta": 10.0, "gamma": 1.0}


@pytest.mark.parametrize("method", METHODS.names())
def test_a_saved_recipe_repeats_its_run(cli: Cli, runs: Path, method: str) -> None:
    assert cli("run", *QUICK, "--method", method, "--memory", 30, "--out", runs).code == 0
    (recipe,) = runs.glob("*/recipe.yaml")
    assert cli("run", "--recipe", recipe, "--out", runs).code == 0
    assert len(list(runs.glob("*/recipe.yaml"))) == 1


def test_scenarios_have_one_spelling() -> None:
    digits = load("digits")
    specs = [make_recipe(scenario=name, method="md", memory=2000).resolve(digits) for name in ("c10-5", "cifar10-05")]
    assert specs[0] == specs[1]
    assert specs[0][0].hyperparameters["lam"] == 0.5


def test_wide_matrices_are_not_cut(cli: Cli, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    R = np.tril(np.arange(1.0, 626).reshape(25, 25) / 10)
    R[np.triu_indices(25, 1)] = np.nan
    with capsys.disabled():
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(coloured_matrix(R, 80))
    text = console.export_text()
    assert all(f"{value:.1f}" in text for value in R[-1])
    assert max(len(line) for line in text.splitlines()) <= 80


def test_titles_are_not_markup(cli: Cli, tmp_path: Path, runs: Path) -> None:
    for c in range(4):
        for i in range(4):
            save_image(tmp_path / "pets[new][/x]" / str(c) / f"{i}.png", shade=20 + 50 * c)
    words = ["--methods", "naive", "--epochs", 1, "--batch-size", 4, "--image-size", 8, "--backbone", "smallconv"]
    answer = cli("compare", "--scenario", f"folder:{tmp_path / 'pets[new][/x]'}-2", *words, "--out", runs)
    assert answer.code == 0, answer.err
    assert "pets[new][/x]-2" in answer.out.replace("\n", "")


def test_a_terminal_without_these_letters(runs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mdcg", "list", "backbones"],
        capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert b"resnet20" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--scenario", "folder:/PRIVATE/x-2", "--method", "naive"],
        ["run", "--scenario", "folder:/PRIVATE-2", "--method", "naive"],
        ["run", "--scenario", "c10-5", "--method", "naive", "--data", "/PRIVATE/x"],
        ["run", "--scenario", "digits-5", "--method", "naive", "--out", "/PRIVATE/x"],
        ["show", "/PRIVATE/x"],
        ["report", "/PRIVATE/x"],
        ["data", "get", "cifar10", "--data", "/PRIVATE/x"],
    ],
)
def test_no_permission(server: Server, words: list[str], tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    asked = [word.replace("/PRIVATE", str(private)) for word in words]
    done = server.run(*asked, before=as_nobody, cwd="/", MDCG_CACHE="/nonexistent")
    assert Answer(done.returncode, done.stdout, done.stderr).sentence()
    assert "Permission denied" in done.stderr


def test_out_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = cli("run", *QUICK, "--method", "naive", "--out", tmp_path / "file" / "runs")
    assert "choose another folder for it" in answer.sentence()
    answer = cli(
        "compare", *QUICK, "--methods", "naive", "--out", tmp_path / "r", "--report", tmp_path / "file" / "x.html"
    )
    assert "cannot write" in answer.sentence()
    assert not (tmp_path / "r").exists()  # it is told before anything is trained


def test_a_run_that_diverges(cli: Cli, runs: Path) -> None:
    answer = cli("run", *QUICK, "--method", "naive", "--lr", "1e30", "--out", runs)
    assert "the loss of seed 0 is not finite" in answer.sentence()
    assert not list((runs / ".groups").iterdir())


@pytest.mark.parametrize(("backbone", "told"), [("json:loads", "the JSON object"), ("sys:exit", "it called")])
def test_a_backbone_that_cannot_be_built(cli: Cli, runs: Path, backbone: str, told: str) -> None:
    sentence = cli("run", *QUICK, "--method", "naive", "--out", runs, "--backbone", backbone).sentence()
    assert f"the backbone's factory failed when called with the number of channels, 1: {told}" in sentence
    assert sentence.endswith("; correct it.")


@pytest.mark.parametrize("option", ["--lr", "--backbone-lr", "--head-lr", "--weight-decay", "--clip"])
def test_numbers_beyond_those_of_float32(cli: Cli, runs: Path, option: str) -> None:
    answer = cli("run", *QUICK, "--method", "naive", option, "3.5e38", "--out", runs)
    assert "3.5e+38" in answer.sentence()
    assert not runs.exists()


def test_full_disk_while_training(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third file cannot be written: one sentence, and the same command goes on once there is room."""
    import errno

    written = []

    def write(file: BinaryIO, content: bytes) -> None:
        written.append(file.name)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(content)

    words = ["run", "--scenario", "digits-2", "--epochs", 2, "--method", "naive", "--out", runs, "--json"]
    with monkeypatch.context() as patch:
        patch.setattr("mdcg.files._write", write)
        assert "No space left on device; make room" in cli(*words).sentence()
    assert len(list(runs.glob(".groups/*/*.safetensors"))) == 1
    assert json.loads(cli(*words).out)["runs"]


def test_a_setting_given_twice_is_one(cli: Cli, runs: Path) -> None:
    words = ["run", *QUICK, "--method", "md", "--memory", "20", "--set", "lam=1,1.0", "--json", "--out", runs]
    assert len(json.loads(cli(*words).out)["runs"]) == 1


def test_tables_fit_and_say_what_they_show(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["compare", *QUICK, "--methods", "md-cg", "--memory", "20,30", "--seeds", "0-1", "--out", runs]
    table = cli(*words).out
    assert "md-cg" in table
    assert "forgetting" in table
    assert max(map(len, table.splitlines())) <= 80
    table = cli(*words, "--set", "lam=0.123456,0.25").out
    assert "memory 20, lam 0.123456" in table
    assert "forgetting" not in table
    assert "…" not in table


def test_memories_and_settings_as_lists(cli: Cli, runs: Path) -> None:
    """Every combination is a run; those of one seed share their first task; each is what it is alone."""
    words = ["run", *QUICK, "--method", "md", "--seeds", "0-1", "--out", runs]
    several = cli(*words, "--memory", "20,40", "--set", "lam=0.5,1", "--json")
    found = json.loads(several.out)["methods"]
    assert list(found) == [f"memory {m}, lam {lam}" for m in (20, 40) for lam in (0.5, 1)]
    alone = json.loads(cli(*words[:-1], runs / "alone", "--memory", "40", "--set", "lam=0.5", "--json").out)
    for ours, theirs in zip(found["memory 40, lam 0.5"]["runs"], alone["runs"], strict=True):
        assert ours["R"] == theirs["R"]
    table = cli(*words, "--memory", "20,40", "--set", "lam=0.5,1").out
    rows = [line.split("   ")[0].strip() for line in table.splitlines() if "lam" in line]
    assert rows == list(found)  # as asked for
    assert "…" not in table  # and nothing cut off


def test_stopped_before_a_command_begins(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while Typer still makes the commands of their functions."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mdcg.cli, "app", interrupted)
    answer = cli("runs")
    assert (answer.code, answer.out, answer.err) == (130, "", "mdcg: stopped.\n")


def test_a_table_tells_of_methods_that_train_otherwise(cli: Cli, tmp_path: Path) -> None:
    words = ["compare", "--scenario", "digits-2", "--methods", "md,md-replay", "--memory", 100, "--epochs", 1]
    told = " ".join(cli(*words, "--out", tmp_path).out.split())
    assert "md-replay: lr 0.1, schedule cosine, weight_decay 0.0005, augment crop+randaugment" in told
    assert "md: " not in told
    recipe = tmp_path / "two.yaml"
    recipe.write_text("scenario: digits-2\nmemory: 100\nepochs: 1\naxes:\n  method: [md, md-replay]\n")
    swept = cli("sweep", recipe, "--out", tmp_path)
    assert "\nmd-replay: lr 0.1, schedule cosine, weight_decay 0.0005, augment crop+randaugment\n" in swept.out
    recipe.write_text(recipe.read_text() + "  augment: [crop, crop+randaugment]\n")
    swept = cli("sweep", recipe, "--out", tmp_path)
    assert "\nmd-replay: lr 0.1, schedule cosine, weight_decay 0.0005\n" in swept.out  # the axis tells the rest
    alike = cli(
        *words, "--out", tmp_path, "--lr", 0.1, "--schedule", "cosine", "--weight-decay", 0, "--augment", "crop"
    )
    assert "md-replay: " not in alike.out


def test_the_list_tells_how_methods_train(cli: Cli) -> None:
    told = " ".join(cli("list", "methods").out.split())
    assert (
        "trains, unless asked otherwise, with lr 0.1, schedule cosine, weight_decay 0.0005, augment randaugment; "
        "weight_decay 0 where the memory has fewer than 10 images of a class" in told
    )


def test_run_of_several_methods(cli: Cli) -> None:
    """They were given as options: there is no recipe to speak of."""
    said = cli("run", "--scenario", "digits-2", "--method", "replay,naive", "--memory", 20).sentence()
    assert said == "mdcg: 'mdcg run' trains one method; 'mdcg compare --methods replay,naive' compares several."
