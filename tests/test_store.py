"""The store: results of older and newer versions, what they say of their origin, and folders full of other things."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg.errors import MdcgError
from mdcg.experiments import Store
from mdcg.experiments.environment import Environment, environment, revision_of, source
from mdcg.experiments.record import FORMAT, UPGRADES, NewerFormat
from mdcg.experiments.store import read_record
from mdcg.train.loop import Trainer
from mdcg.train.precision import compute
from tests.conftest import Cli

FORMAT_1 = Path(__file__).parent / "format-1" / "digits-2_md-cg_m20_s3_aa2c7fded1"  # written when that was the newest
ASKED_THEN = ["run", "--scenario", "digits-2", "--method", "md-cg", "--memory", 20, "--epochs", 2]
ASKED_THEN += ["--evaluate-every", 1, "--seeds", 3, "--precision", "auto"]
QUICK = ["run", "--scenario", "digits-2", "--epochs", 1, "--method", "naive"]


def altered(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(content | changes))


def test_a_result_of_format_1() -> None:
    """Nothing is lost of what it says; what it did not know is None."""
    old = json.loads((FORMAT_1 / "result.json").read_text())
    assert old["format"] == 1
    record = read_record(FORMAT_1)
    assert record.format == FORMAT
    for name in ("sizes", "order", "class_names", "correct", "total", "history", "seconds", "members"):
        assert getattr(record, name) == old[name], name
    assert {str(key): value for key, value in record.memory.items()} == old["memory"]
    assert record.spec.model_dump() == old["spec"]
    assert record.as_json()["R"] == old["R"]
    said, was = record.environment, old["environment"]
    assert said.versions.model_dump() == {name: was[name] for name in ("mdcg", "torch", "numpy", "python")}
    assert (said.platform, said.precision, said.finished) == (was["platform"], was["precision"], was["finished"])
    assert (was["device"], said.device) == ("cpu (1 threads)", "cpu (1 thread)")
    assert (said.source, said.peak_memory, said.hardware.ram) == (None, None, None)


def test_a_gpu_of_format_1() -> None:
    content = {"format": 1, "environment": {"device": "NVIDIA H200", "torch": "2.6.0"}}
    said = Environment.model_validate(UPGRADES[1](content)["environment"])
    assert (said.device, said.hardware.gpu, said.versions.torch) == ("NVIDIA H200", "NVIDIA H200", "2.6.0")


def test_a_run_of_format_1_counts_as_finished(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FORMAT_1, runs / FORMAT_1.name)
    monkeypatch.setattr(Trainer, "train", lambda *told: pytest.fail("trained again"))
    answer = cli(*ASKED_THEN, "--out", runs)
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
    assert source() is source()
