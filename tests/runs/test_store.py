"""The store: results of older and newer versions, what they say of their origin, and folders full of other things."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mdcg.data import load
from mdcg.errors import MdcgError
from mdcg.methods import METHODS
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.environment import Environment, GitRevision, environment, own_revision, revision_of
from mdcg.runs.record import FORMAT, UPGRADES, NewerFormat
from mdcg.runs.spec import ADDED, RunSpec
from mdcg.runs.store import Store, read_record
from mdcg.scenario import Stream
from mdcg.testing.made import made_model, made_record
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from tests.conftest import Cli, toy_dataset

FORMAT_1 = Path(__file__).parent / "format-1" / "digits-2_md-cg_m20_s3_aa2c7fded1"  # written when that was the newest
FORMAT_3 = Path(__file__).parent / "format-3" / "digits-2_md-cg_m20_s3_fc1ec47593"
FORMAT_4 = Path(__file__).parent / "format-4" / "digits-2_er-ace_m20_s3_4e39d2de44"
ASKED_THEN = ["run", "--scenario", "digits-2", "--method", "md-cg", "--memory", 20, "--epochs", 2]
ASKED_THEN += ["--evaluate-every", 1, "--seeds", 3, "--precision", "auto"]
FINGERPRINT = "aa0963583893cded59cde9a7f0d37f90"  # of CIFAR-10
#: Runs of an earlier version, as they are in results/: what asks for them now, and their names.
OLDER: list[tuple[str, dict[str, Any], str]] = [
    ("naive", {}, "c10-5_naive_m0_s0_31ad31fb59"),
    ("cumulative", {}, "c10-5_cumulative_m0_s0_0b6511600e"),
    ("replay", {}, "c10-5_replay_m500_s0_da8039505a"),
    ("gem", {}, "c10-5_gem_m500_s0_0338a5affa"),
    ("der", {}, "c10-5_der_m500_s0_c907b4a2a4"),
    ("gdumb", {}, "c10-5_gdumb_m500_s0_1aa18945e4"),
    ("rpc", {}, "c10-5_rpc_m500_s0_a57897d414"),
    ("ss-il", {}, "c10-5_ss-il_m500_s0_e67b7a1c63"),
    ("er-lode", {}, "c10-5_er-lode_m500_s0_c935b30cef"),
    ("er-ace", {"set": {"current_in_memory": False}}, "c10-5_er-ace_m500_s0_dfaffa87e8"),
    ("ld", {"set": {"divergence": "student-teacher"}}, "c10-5_ld_m500_s0_fa41c63c29"),
    ("md", {"set": {"divergence": "student-teacher"}}, "c10-5_md_m500_s0_4000a6e0f5"),
    ("md-cg", {"set": {"divergence": "student-teacher"}}, "c10-5_md-cg_m500_s0_e4ca160665"),
]
QUICK = ["run", "--scenario", "digits-2", "--epochs", 1, "--method", "naive"]


def altered(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(content | changes))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_result_has_what_is_not_json(value: float, tmp_path: Path) -> None:
    """NaN and Infinity are no JSON, and other programs could not read the file: none is written."""
    store, dataset = Store(tmp_path), load("digits")
    (spec,) = make_recipe(scenario="digits-2", method="naive", seeds="0", backbone="smallconv").resolve(dataset)
    record, model = made_record(spec, dataset.class_names), made_model(spec, dataset)
    rows: list[Any] = [{**row, "loss": value} for row in record.history]
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write(record.model_copy(update={"history": rows}), model, {})
    assert store.finished(spec) is None
    assert not list(tmp_path.rglob("result.json"))
    store.write(record, model, {})
    assert store.finished(spec) == record
    told = json.loads((store.folder(spec) / "result.json").read_text())
    percent = [100 * hits / images for hits, images in zip(record.correct[-1], record.total, strict=True)]
    assert told["class_accuracy"] == pytest.approx(percent)  # in the end, for other programs


def test_a_result_of_format_1() -> None:
    """Nothing is lost of what it says; what it did not know is None."""
    old = json.loads((FORMAT_1 / "result.json").read_text())
    assert old["format"] == 1
    record = read_record(FORMAT_1)
    assert record.format == FORMAT
    for name in ("sizes", "order", "class_names", "correct", "total", "history", "seconds", "members"):
        assert getattr(record, name) == old[name], name
    assert {str(key): value for key, value in record.memory.items()} == old["memory"]
    spec = {"lr" if key == "rate" else key: value for key, value in old["spec"].items()}
    spec["hyperparameters"] = {**METHODS[record.spec.method].added, **spec["hyperparameters"]}
    assert record.spec.model_dump() == {**spec, **ADDED, "stream": Stream().model_dump()}
    assert record.spec.name == FORMAT_1.name  # a setting that is called otherwise now is part of it as before
    assert record.as_json()["R"] == old["R"]
    said, was = record.environment, old["environment"]
    assert said.versions.model_dump() == {name: was[name] for name in ("mdcg", "torch", "numpy", "python")}
    assert (said.platform, said.precision, said.finished) == (was["platform"], was["precision"], was["finished"])
    assert (was["device"], said.device) == ("cpu (1 threads)", "cpu (1 thread)")
    assert (said.source, said.peak_memory, said.hardware.ram) == (None, None, None)


def test_a_result_of_format_3() -> None:
    """From before there were streams."""
    old = json.loads((FORMAT_3 / "result.json").read_text())
    record = read_record(FORMAT_3)
    assert (old["format"], record.format) == (3, FORMAT)
    assert record.spec.name == FORMAT_3.name
    assert record.as_json()["R"] == old["R"]
    assert {name: record.computed()["metrics"][name] for name in old["metrics"]} == old["metrics"]
    assert record.metrics["anytime"] == pytest.approx((174 / 180 + 304 / 359) * 50)  # after each task, of all so far
    assert (record.tasks, record.spec.stream) == (None, Stream())


def test_a_result_of_format_4() -> None:
    """From when a teacher was there or not: it is the run that its recipe asks for now."""
    record = read_record(FORMAT_4)
    assert json.loads((FORMAT_4 / "result.json").read_text())["spec"]["hyperparameters"]["distils"] is False
    assert record.spec.hyperparameters["distils"] == "nothing"
    (asked,) = make_recipe(**yaml.safe_load((FORMAT_4 / "recipe.yaml").read_text())).resolve(load("digits"))
    assert asked.model_copy(update={"fingerprint": record.spec.fingerprint}) == record.spec
    assert record.spec.name == FORMAT_4.name
    assert METHODS["er-ace"](distils=True).needs_teacher()  # type: ignore[call-arg]


def named(method: str, **words: Any) -> str:
    """The name of a run on C10-5, memory 500, seed 0."""
    dataset = replace(toy_dataset([4] * 10, side=32, channels=3), name="cifar10", fingerprint=FINGERPRINT)
    recipe = make_recipe(scenario="c10-5", method=method, memory=500, precision="bf16", **words)
    return recipe.resolve(dataset)[0].name


@pytest.mark.parametrize(("method", "words", "name"), OLDER)
def test_older_results_count_where_nothing_has_changed(method: str, words: dict[str, Any], name: str) -> None:
    """Settings that came later do not change a name while they have the value that says what was done before."""
    assert named(method, **words) == name


@pytest.mark.parametrize("method", ["md", "md-cg", "er-ace", "ld"])
def test_older_results_do_not_pass_for_new_ones(method: str) -> None:
    """Defaults that changed: the divergence of MD, MD-CG and LD, and what is in ER-ACE's memory."""
    (before,) = (name for asked, _, name in OLDER if asked == method)
    assert named(method) != before


def test_a_dataset_whose_pixels_changed() -> None:
    """CIFAR-100 is normalised by its own statistics since format 2; other datasets' runs stay what they are."""
    cifar = replace(toy_dataset([4] * 20, side=32, channels=3), name="cifar100")
    words = {"method": "replay", "memory": 100}
    (new,) = make_recipe(scenario="c100-10", **words).resolve(cifar)
    assert new.format == 2
    assert new.model_copy(update={"format": 1}).name != new.name
    (other,) = make_recipe(scenario="c10-5", **words).resolve(replace(cifar, name="cifar10"))
    assert other.format == 1


def test_a_setting_that_came_later_is_read_into_older_results() -> None:
    """`result.json` of ER-LODE did not say whether its loss was halved: it was not."""
    dataset = replace(toy_dataset([4] * 10, side=32, channels=3), name="cifar10", fingerprint=FINGERPRINT)
    (spec,) = make_recipe(scenario="c10-5", method="er-lode", memory=500).resolve(dataset)
    content = spec.model_dump(exclude={"passes", "code"})
    del content["hyperparameters"]["halved"]
    assert RunSpec.model_validate(content) == spec
    (halved,) = make_recipe(scenario="c10-5", method="er-lode", memory=500, set={"halved": True}).resolve(dataset)
    assert halved.name != spec.name
    (apart,) = make_recipe(scenario="c10-5", method="er-lode", memory=500, passes="separate").resolve(dataset)
    assert len({spec.name, halved.name, apart.name}) == 3


def test_a_setting_that_is_gone_is_read_out_of_older_results() -> None:
    """LD could replay some of its memory: results that did not still count, those that did are another run's."""
    dataset = replace(toy_dataset([4] * 10, side=32, channels=3), name="cifar10", fingerprint=FINGERPRINT)
    asked = {"scenario": "c10-5", "method": "ld", "memory": 500}
    (spec,) = make_recipe(**asked, set={"divergence": "student-teacher"}).resolve(dataset)
    content = spec.model_dump(exclude={"passes", "code", "hyperparameters"})
    older = {"alpha": spec.hyperparameters["alpha"]}
    assert RunSpec.model_validate({**content, "hyperparameters": {**older, "replayed": 0}}) == spec
    assert RunSpec.model_validate({**content, "hyperparameters": {**older, "replayed": 200}}) != spec


def test_a_gpu_of_format_1() -> None:
    content = {"format": 1, "environment": {"device": "NVIDIA H200", "torch": "2.6.0"}}
    said = Environment.model_validate(UPGRADES[1](content)["environment"])
    assert (said.device, said.hardware.gpu, said.versions.torch) == ("NVIDIA H200", "NVIDIA H200", "2.6.0")


@pytest.mark.usefixtures("all_digits")
def test_a_run_of_format_1_counts_as_finished(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FORMAT_1, runs / FORMAT_1.name)
    monkeypatch.setattr(Trainer, "train", lambda *told: pytest.fail("trained again"))
    # MD's divergence was then the other one.
    answer = cli(*ASKED_THEN, "--set", "divergence=student-teacher", "--out", runs)
    assert answer.code == 0
    assert "already finished" in answer.err
    assert "cpu (1 thread)" in cli("show", FORMAT_1.name, "--out", runs).out


def test_a_newer_format_is_refused_and_kept(cli: Cli, runs: Path) -> None:
    assert cli(*QUICK, "--out", runs).code == 0
    (result,) = runs.glob("*/result.json")
    altered(result.parent, format=FORMAT + 1, spec={"unheard": "of"})
    before = result.read_bytes()
    told = f"written by a newer version of mdcg (format {FORMAT + 1}; this one reads up to {FORMAT}); update mdcg."
    assert told in cli("show", result.parent).sentence()
    assert told in cli(*QUICK, "--out", runs).sentence()  # and it is not trained over
    assert result.read_bytes() == before
    with pytest.raises(NewerFormat):
        read_record(result.parent)
    assert cli(*QUICK, "--out", runs, "--fresh").code == 0


NO_RESULTS = """{ | [] | 3 | null | "format" | {} | {"format": "1"} | {"format": 0} | {"format": null} | {"format": []}
{"format": 1} | {"format": 1, "environment": 3} | {"format": 1, "environment": {"device": 3}} | {"format": 1.5}
{"format": 2, "seconds": NaN} | {"format": true, "environment": {}} | {"format": 2} | \xff"""


@pytest.mark.parametrize("text", ["", "[" * 100_000, *re.split(r" \| |\n", NO_RESULTS)], ids=lambda text: text[:40])
def test_no_result_at_all(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(MdcgError, match="is damaged, or is no result of mdcg"):
        read_record(tmp_path)


def test_upgrades_lead_to_the_newest_format() -> None:
    assert sorted(UPGRADES) == list(range(1, FORMAT))


def test_records_of_a_folder_full_of_other_things(cli: Cli, runs: Path) -> None:
    assert cli(*QUICK, "--seeds", "0-1", "--out", runs).code == 0
    assert cli(*QUICK, "--seeds", "2", "--out", runs / "deeper").code == 0
    shutil.copytree(FORMAT_1, runs / "older")
    (runs / "notes.txt").write_text("mine")
    (runs / "empty").mkdir()
    (runs / ".hidden").mkdir()
    shutil.copytree(FORMAT_1, runs / ".hidden" / "copy")
    (runs / "pipe").mkdir()
    os.mkfifo(runs / "pipe" / "result.json")
    (runs / "dead").mkdir()
    (runs / "dead" / "result.json").symlink_to("nowhere")
    (runs / "folder" / "result.json").mkdir(parents=True)
    (runs / "damaged").mkdir()
    (runs / "damaged" / "result.json").write_text("{")
    shutil.copytree(FORMAT_1, runs / "newer")
    altered(runs / "newer", format=99)
    unreadable: list[tuple[Path, str]] = []
    found = list(Store(runs).records(unreadable))
    assert [record.spec.seed for _, record in found] == [2, 0, 1, 3]
    assert [folder for folder, _ in found] == sorted(folder for folder, _ in found)
    assert [path.parent.name for path, _ in unreadable] == ["damaged", "newer"]
    assert "damaged" in unreadable[0][1]
    assert "newer version" in unreadable[1][1]
    assert list(Store(runs / "not there").records(unreadable)) == []
    assert len(unreadable) == 2


def test_environment_says_where_it_was() -> None:
    said = environment(compute("cpu", "fp32"))
    assert said.versions.torch == torch.__version__
    assert said.hardware.threads == torch.get_num_threads()
    assert said.hardware.cpu
    assert said.hardware.gpu is None
    assert said.hardware.ram is not None
    assert said.peak_memory is not None
    assert 2**24 < said.peak_memory < said.hardware.ram
    assert said.finished is not None
    assert said.finished.endswith("+00:00")
    assert Environment.model_validate_json(said.model_dump_json()) == said
    lines = dict(said.items())
    assert {"mdcg", "torch", "platform", "device", "cpu", "precision", "peak memory", "finished"} <= set(lines)
    assert lines["peak memory"].endswith(" GiB")
    assert dict(Environment().items()) == {}


def test_environment_of_a_gpu() -> None:
    said = Environment.model_validate({"hardware": {"gpu": "NVIDIA H200", "gpu_memory": 150 * 2**30, "threads": 8}})
    assert dict(said.items())["device"] == "NVIDIA H200, 150.0 GiB"


def test_the_revision_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    package = tmp_path / "src" / "thing"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert revision_of(package) is None  # no repository
    git("init", "--quiet")
    assert revision_of(package) is None  # one that does not know it, as with a .venv inside a checkout
    git("add", ".")
    assert revision_of(package) is None  # nothing committed
    git("commit", "--quiet", "-m", "first")
    monkeypatch.setenv("GIT_DIR", "/no/such/place")  # as a hook would have it
    (tmp_path / "elsewhere.txt").write_text("not the package's")
    said = revision_of(package)
    monkeypatch.delenv("GIT_DIR")
    assert said is not None
    assert (said.revision, said.uncommitted) == (git("rev-parse", "HEAD"), False)
    (package / "new.py").write_text("")
    said = revision_of(package)
    assert said is not None
    assert said.uncommitted
    monkeypatch.setenv("PATH", "")
    assert revision_of(package) is None  # no git
    assert own_revision() is own_revision()


def test_the_revision_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were copied without their repository: whoever copied them says what they are."""
    asked = own_revision.__wrapped__
    for told, wanted in (("1d4e2e2", False), (f"{'ab' * 20}-dirty", True)):
        monkeypatch.setenv("MDCG_REVISION", told)
        assert asked() == GitRevision(revision=told.removesuffix("-dirty"), uncommitted=wanted)
    monkeypatch.setenv("MDCG_REVISION", "newest\x1b[2J")
    with pytest.raises(MdcgError, match=r"MDCG_REVISION is 'newest\ufffd\[2J', which is no git revision; give what"):
        asked()
