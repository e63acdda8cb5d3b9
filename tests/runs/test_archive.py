"""Archives: what is written is read back, whatever else is in the file; a store counts their runs as finished."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mdcg
from mdcg.errors import MdcgError
from mdcg.files import open_file
from mdcg.results.read import find_runs
from mdcg.results.settings import gather
from mdcg.runs.archive import read_archive, write_archive
from mdcg.runs.record import FORMAT, Record
from mdcg.runs.store import Store
from mdcg.train.loop import Trainer
from tests import fake_runs
from tests.conftest import Cli

SPECS = [fake_runs.spec(method) for method in ("md-cg", "replay", "naive")]
numbers = st.floats(0, 1e3)
texts = st.text('aé☃"\\\n', max_size=3)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """As training writes them: accuracies in some rows only."""
    return [
        {"task": 1 + place // 2, "epoch": 1 + place % 2, "loss": draw(numbers), "train_accuracy": draw(numbers)}
        | ({"accuracy": draw(st.lists(numbers, min_size=1, max_size=3))} if draw(st.booleans()) else {})
        for place in range(draw(st.integers(0, 5)))
    ]


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Of any scenario, counted by class or by task."""
    sizes = draw(st.lists(st.integers(2, 3), min_size=1, max_size=4))
    counted = draw(st.sampled_from([sum(sizes), len(sizes)]))
    total = draw(st.lists(st.integers(1, 10**6), min_size=counted, max_size=counted))
    return Record(
        spec=draw(st.sampled_from(SPECS)).model_copy(
            update={"lr": draw(st.floats(1e-9, 10)), "scenario": draw(st.sampled_from(["c10-5", "folder:/é-3"]))}
        ),
        sizes=sizes,
        order=draw(st.permutations(range(sum(sizes)))),
        class_names=draw(st.lists(texts, min_size=sum(sizes), max_size=sum(sizes))),
        correct=[[draw(st.integers(0, most)) for most in total] for _ in sizes],
        total=total,
        memory=draw(st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 99)), max_size=2)),
        history=draw(histories()),
        seconds=draw(numbers),
        members=draw(st.integers(1, 64)),
        environment={"hardware": {"gpu": draw(st.none() | texts)}, "finished": draw(st.none() | texts)},
    )


def shortened(row: dict[str, Any]) -> dict[str, Any]:
    short = {key: value if isinstance(value, list) else [value] for key, value in row.items()}
    return {key: [float(f"{value:.5e}") for value in values] for key, values in short.items()}


@given(st.lists(records(), max_size=4, unique_by=lambda record: record.spec.digest()))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, written: list[Record]) -> None:
    """All but the images in memory, and digits of the history after the sixth."""
    file = tmp_path_factory.mktemp("archive") / "x.jsonl"
    write_archive(file, written)
    archive = read_archive(file)
    assert archive.unreadable == ()
    assert list(archive.records) == sorted(archive.records, key=lambda record: record.spec.name)
    found = {record.spec.digest(): record for record in archive.records}
    assert len(found) == len(written)
    for record in written:
        read = found[record.spec.digest()]
        left_out = {"memory", "history"}
        assert read.model_dump(exclude=left_out) == record.model_dump(exclude=left_out)
        assert read.memory == {}
        assert list(map(shortened, read.history)) == list(map(shortened, record.history))
        assert [row.keys() for row in read.history] == [row.keys() for row in record.history]
        np.testing.assert_array_equal(read.R, record.R)
    write_archive(file, archive.records)
    assert read_archive(file) == archive


def test_lines_for_other_programs(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"task": 1, "epoch": 1, "loss": 1 / 3, "train_accuracy": 50.0}]
    rows.append({"task": 1, "epoch": 2, "loss": 2 / 3, "train_accuracy": 60.0, "accuracy": [100 / 3]})
    record = fake_runs.finished(fake_runs.spec()).record.model_copy(update={"history": rows})
    write_archive(tmp_path / "x.jsonl", [record])
    (line,) = (tmp_path / "x.jsonl").read_text().splitlines()
    content = json.loads(line)
    assert content["format"] == FORMAT
    assert content["R"] == record.as_json()["R"]
    assert content["metrics"]["ACC"] == pytest.approx(record.metrics["ACC"])
    assert content["history"]["loss"] == [0.333333, 0.666667]
    assert content["history"]["accuracy"] == [None, [33.3333]]
    assert "memory" not in content
    assert " " not in line.replace("class names", "")


def archived(folder: Path, *made: Record, name: str = "x.jsonl") -> Path:
    write_archive(folder / name, made)
    return folder / name


def made_record(seed: int = 0, finished: str | None = None, **about: Any) -> Record:
    record = fake_runs.finished(fake_runs.spec(seed=seed, **about)).record
    record.environment.finished = finished
    return record


def test_damage_costs_a_line(tmp_path: Path, cli: Cli) -> None:
    file = archived(tmp_path, *[made_record(seed) for seed in range(4)])
    good = file.read_bytes().splitlines()
    newer = good[2].replace(b'"format":5', b'"format":99', 1)
    lines = [
        b"<<<<<<< ours", good[0], b"", good[1][:-30], newer, b"\xff\xfe", b"[]", b'{"format": 2}', b"[" * 100_000,
        good[1].replace(b'"total":[100', b'"total":[' + b"9" * 400), good[3],
        good[1].replace(b'"history":{}', b'"history":{"task":[1],"epoch":[1,2]}'),
        good[1].replace(b'"history":{}', b'"history":[]'), good[1].replace(b'"seconds":1.0', b'"seconds":NaN'),
    ]  # fmt: skip
    file.write_bytes(b"\n".join(lines))
    archive = read_archive(file)
    assert [record.spec.seed for record in archive.records] == [0, 3]
    assert [int(reason.split()[1]) for reason in archive.unreadable] == [1, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14]
    for reason in archive.unreadable:
        assert str(file) in reason
        assert "\n" not in reason
    assert "newer version of mdcg (format 99" in archive.unreadable[2]
    assert archive.newer == archive.unreadable[2]
    file.write_bytes(b"\n".join([*lines, newer.replace(b'"format":99', b'"format":98', 1)]))
    assert read_archive(file).newer == archive.newer  # the first is told
    file.write_bytes(b"\n".join(lines))
    answer = cli("runs", "--out", tmp_path)
    assert answer.code == 0
    assert f"mdcg: 11 entries of {tmp_path} cannot be read, the first: line 1 of {file} is damaged" in answer.err
    assert cli("report", tmp_path, "--out", tmp_path / "out").err.startswith(
        "mdcg: left out results that are damaged or not ours: 11, the first: line 1 of"
    )
    assert find_runs(tmp_path).unreadable == 11


def test_files_of_other_programs_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"format": 3}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "dead.jsonl").symlink_to("nowhere")
    unreadable: list[tuple[Path, str]] = []
    assert list(Store(tmp_path).records(unreadable)) == []
    assert unreadable == []


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = archived(tmp_path, made_record())

    def closed(*told: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("mdcg.runs.archive.open_file", closed)
    assert read_archive(file).unreadable == (f"cannot read {file}: Permission denied; check the path.",)


def store(record: Record, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(record.model_dump()))


def test_a_folder_wins_over_a_line_and_a_newer_line_over_an_older(tmp_path: Path) -> None:
    def with_acc(record: Record, share: int) -> Record:
        return record.model_copy(update={"correct": [[share] * 10] * 5})

    old, new = made_record(0, "2026-01-01"), made_record(0, "2026-02-01")
    archived(tmp_path, with_acc(new, 2), with_acc(made_record(1, "2026-03-01"), 5), name="a.jsonl")
    archived(tmp_path / "deep", with_acc(old, 1), name="b.jsonl")
    spec, other = old.spec, made_record(1).spec
    found = list(Store(tmp_path).records())
    assert [(place, record.metrics["ACC"]) for place, record in found] == [
        (tmp_path / "a.jsonl" / spec.name, 2), (tmp_path / "a.jsonl" / other.name, 5)
    ]  # fmt: skip
    assert (one := Store(tmp_path).finished(spec)) is not None
    assert one.metrics["ACC"] == 2
    store(with_acc(old, 4), tmp_path / spec.name)
    assert [record.metrics["ACC"] for _, record in Store(tmp_path).records()] == [4, 5]
    assert (one := Store(tmp_path).result(spec)) is not None
    assert one.metrics["ACC"] == 4
    counted = find_runs(tmp_path)
    assert (len(counted.runs), counted.copies, counted.unreadable) == (2, 0, 0)
    (tmp_path / spec.name / "result.json").write_text("{")  # which counts as not there
    assert (one := Store(tmp_path).result(spec)) is not None
    assert one.metrics["ACC"] == 2
    assert find_runs(tmp_path).unreadable == 1


def test_where_archives_are_looked_for(tmp_path: Path) -> None:
    archived(tmp_path / "deep" / "er", made_record(0))
    archived(tmp_path / ".hidden", made_record(1))
    archived(tmp_path, made_record(2), name=".hidden.jsonl")
    store(made_record(3), tmp_path / "a run")
    archived(tmp_path / "a run", made_record(4))
    assert [record.spec.seed for _, record in Store(tmp_path).records()] == [3, 0]
    assert list(Store(tmp_path / "not there").records()) == []


def test_an_archive_is_read_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = archived(tmp_path, made_record(0))
    one, store = made_record(0).spec, Store(tmp_path)
    assert store.finished(one)
    opened: list[Path] = []

    def counted(path: Path) -> Any:
        opened.append(path)
        return open_file(path)

    monkeypatch.setattr("mdcg.runs.archive.open_file", counted)
    assert store.finished(one)
    assert Store(tmp_path).finished(one)
    assert opened == []
    archived(tmp_path, made_record(0), made_record(1))
    assert Store(tmp_path).finished(made_record(1).spec)
    assert opened == [file]


def test_runs_of_methods_that_are_gone(tmp_path: Path, cli: Cli) -> None:
    record = made_record()
    gone = record.model_copy(update={"spec": record.spec.model_copy(update={"method": "of-a-package"})})
    archived(tmp_path, gone, record)
    answer = cli("runs", "--out", tmp_path, "--export", tmp_path / "x.jsonl")
    assert answer.code == 0
    assert read_archive(tmp_path / "x.jsonl").records == (record, gone)
    assert "of-a-package" in cli("runs", "--out", tmp_path).out


QUICK: dict[str, Any] = {"scenario": "digits-2", "epochs": 1, "quiet": True}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs in folders."""
    out = tmp_path_factory.mktemp("trained")
    mdcg.compare(methods=["naive", "replay"], memory=20, seeds=range(2), out=out, **QUICK)
    return out


@pytest.fixture
def only_archived(trained: Path, tmp_path: Path, cli: Cli) -> Path:
    """The same runs in an archive of another folder."""
    file = tmp_path / "results" / "all.jsonl"
    answer = cli("runs", "--out", trained, "--export", file)
    assert answer.out == f"4 of 4 runs: {file}\n"
    return file.parent


def test_runs_and_show(trained: Path, only_archived: Path, cli: Cli) -> None:
    listed = json.loads(cli("runs", "--out", only_archived, "--json").out)["runs"]
    assert sorted(listed, key=lambda run: str(run["name"])) == sorted(
        json.loads(cli("runs", "--out", trained, "--json").out)["runs"], key=lambda run: str(run["name"])
    )
    assert len(json.loads(cli("runs", "method=naive", "--out", only_archived, "--json").out)["runs"]) == 2
    name = listed[0]["name"]
    file = only_archived / "all.jsonl"
    of_archive, of_folder = cli("show", name, "--out", only_archived).out, cli("show", name, "--out", trained).out
    assert of_archive.partition("accuracy in percent")[2] == of_folder.partition("accuracy in percent")[2]
    assert of_archive.replace("\n", "").startswith(str(file / name))
    assert cli("show", file / name).out == of_archive
    assert "did you mean" in cli("show", name[:-1], "--out", only_archived).sentence()
    assert "unknown run" in cli("show", file / "nothing").sentence()
    (only_archived / name).mkdir()  # where it might have been trained
    assert cli("show", name, "--out", only_archived).out == of_archive


def test_exports_of_some_runs(trained: Path, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "naive.jsonl"
    assert cli("runs", "method=naive", "--out", trained, "--export", file).code == 0
    assert [record.spec.method for record in read_archive(file).records] == ["naive", "naive"]
    assert cli("runs", "seed=9", "--out", trained, "--export", tmp_path / "none.jsonl").code == 0
    assert (tmp_path / "none.jsonl").read_text() == ""
    assert cli("runs", "--out", trained, "--export", file).code == 0  # more of them may be added
    assert len(read_archive(file).records) == 4


def test_an_export_loses_no_run(trained: Path, tmp_path: Path, cli: Cli) -> None:
    """An archive may be the only place where a run is, and hold lines that another version can read."""
    file = tmp_path / "all.jsonl"
    assert cli("runs", "--out", trained, "--export", file).code == 0
    before = file.read_bytes()
    told = cli("runs", "method=naive", "--out", tmp_path, "--export", file).sentence()
    assert told.removeprefix(f"mdcg: {file} holds 2 runs that would be lost; choose them too, ") == (
        "name another file, or replace it with --force (in Python force=True)."
    )
    assert file.read_bytes() == before
    newer = before.splitlines()[0].replace(b'"format":5', b'"format":99', 1)
    file.write_bytes(before + newer + b"\n")
    answer = cli("runs", "--out", tmp_path, "--export", file)
    assert (answer.code, "holds a run that would be lost; choose it too" in answer.err) == (2, True)
    assert file.read_bytes() == before + newer + b"\n"
    assert cli("runs", "method=naive", "--out", trained, "--export", file, "--force").code == 0
    assert len(read_archive(file).records) < len(before.splitlines())


def test_what_cannot_be_read_is_not_trained_again_in_silence(only_archived: Path, cli: Cli) -> None:
    words = [
        "run",
        "--scenario",
        "digits-2",
        "--method",
        "replay",
        "--memory",
        20,
        "--epochs",
        1,
        "--out",
        only_archived,
    ]
    file = only_archived / "all.jsonl"
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([*lines[:-1], lines[-1][:-40]]))  # of seed 1
    answer = cli(*words)
    assert answer.code == 0
    assert f"line {len(lines)} of {file} is damaged, or is no run of mdcg" in answer.err
    assert "already finished" in answer.err
    file.write_bytes(b"\n".join(lines).replace(b'{"format":5', b'{"format":99', 1))
    assert "was written by a newer version of mdcg (format 99" in cli(*words).sentence()
    assert not list(only_archived.glob("*/result.json"))


def test_capital_letters(trained: Path, tmp_path: Path, cli: Cli) -> None:
    assert cli("runs", "--out", trained, "--export", tmp_path / "all.JSONL").code == 0
    assert len(list(Store(tmp_path).records())) == 4


def test_a_report_of_archives_is_that_of_folders(trained: Path, only_archived: Path, tmp_path: Path, cli: Cli) -> None:
    for runs, name in ((trained, "folders"), (only_archived, "archives")):
        answer = cli("report", runs, "--out", tmp_path / name)
        assert (answer.code, answer.err) == (0, "")
    for file in ("table.md", "table.tex", "table.csv"):
        assert (tmp_path / "archives" / file).read_text() == (tmp_path / "folders" / file).read_text()
    of_folders, of_archives = (
        [run.record for section in gather(find_runs(runs).runs) for setting in section.settings for run in setting.runs]
        for runs in (trained, only_archived)
    )
    for one, other in zip(of_folders, of_archives, strict=True):
        assert one.class_accuracy is not None
        assert other.class_accuracy is not None
        np.testing.assert_array_equal(one.class_accuracy, other.class_accuracy)


def test_archived_runs_are_finished(only_archived: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", lambda *told: pytest.fail("trained again"))
        asked = {"method": "replay", "memory": 20, "out": only_archived, **QUICK}
        result = mdcg.run(**asked, seeds=range(2))
        assert result.R.shape == (2, 2, 2)
        assert result.as_json()["runs"][0]["folder"].startswith(str(only_archived / "all.jsonl"))
        with pytest.raises(MdcgError, match=r"is a run of the archive .*all\.jsonl, which has no model; repeat"):
            assert result.learner
        words = ["run", "--scenario", "digits-2", "--method", "replay", "--memory", 20, "--epochs", 1]
        assert f"{only_archived / 'all.jsonl'}/digits-2_replay" in cli(*words, "--out", only_archived).out
    assert [path.name for path in only_archived.iterdir()] == ["all.jsonl"]
    # What an archive cannot have is trained for, and the whole run stored.
    watched = mdcg.run(**asked, probes=["drift"])
    assert watched.measured("drift")
    assert len(watched.learner.classes_)
    again = mdcg.run(**asked, seeds=[1], fresh=True)
    assert len(again.learner.classes_)
    assert len(list(only_archived.glob("*/result.json"))) == 2


def test_a_sweep_counts_archived_runs(only_archived: Path, tmp_path: Path, cli: Cli) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("scenario: digits-2\nepochs: 1\nmemory: 20\nseeds: 0-2\naxes: {method: [naive, replay]}\n")
    answer = cli("sweep", recipe, "--out", only_archived, "--plan")
    assert "To train: 2 runs in 2 groups" in answer.out
    assert "Finished: 4." in answer.out
    assert "The time is from other machines" not in answer.out  # archived runs say how long such runs take
    planned = mdcg.Sweep.read(recipe, out=only_archived).plan()
    assert {spec.seed for spec in planned.finished} == {0, 1}
    assert [spec.seed for job in planned.jobs for spec in job.specs] == [2, 2]
    done = json.loads(cli("sweep", recipe, "--out", only_archived, "--seeds", "0-1", "--json").out)
    assert [len(setting["runs"]) for setting in done["settings"]] == [2, 2]
    # A run that is no longer understood says nothing of the time, and does no harm.
    (record, *_) = read_archive(only_archived / "all.jsonl").records
    odd = record.spec.model_copy(update={"hyperparameters": {"gone": 1.0}, "method": "replay"})
    archived(only_archived, record.model_copy(update={"spec": odd}), name="odd.jsonl")
    assert cli("sweep", recipe, "--out", only_archived, "--plan").out == answer.out


def test_a_search_repeats_archived_runs(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["search", "--scenario", "digits-2", "--method", "md", "--memory", 20, "--epochs", 1, "--set", "lam=0.1,1"]
    assert cli(*asked, "--out", "runs").code == 0
    assert cli("runs", "--out", "runs", "--export", "runs/all.jsonl").code == 0
    archive = Path("runs/all.jsonl").read_bytes()
    for folder in Path("runs").glob("*/"):
        shutil.rmtree(folder)
    assert cli(*asked, "--out", "runs").code == 0
    assert not list(Path("runs").glob("*/result.json"))
    assert cli(*asked, "--out", "runs", "--fresh").code == 0
    assert len(list(Path("runs").glob("*/result.json"))) == 2
    assert Path("runs/all.jsonl").read_bytes() == archive


def test_a_figure_of_archived_runs(tmp_path: Path, trained: Path, only_archived: Path, cli: Cli) -> None:
    asked = ["figure", "forgetting", "--scenario", "digits-2", "--methods", "naive,replay", "--memory", 20]
    asked += ["--seeds", "0-1", "--epochs", 1]
    for runs, name in ((only_archived, "archives"), (trained, "folders")):
        answer = cli(*asked, "--runs", runs, "--out", tmp_path / name)
        assert answer.code == 0, answer.err
    (one,), (other,) = ((tmp_path / name).glob("*.csv") for name in ("archives", "folders"))
    assert one.read_text() == other.read_text()
    assert [path.name for path in only_archived.iterdir()] == ["all.jsonl"]


def by_task(record: Record) -> Record:
    """The same with counts of tasks alone."""
    pairs = np.array(record.correct).reshape(5, 5, 2).sum(2)
    return record.model_copy(update={"correct": np.tril(pairs).tolist(), "total": [200] * 5})


def test_runs_of_which_only_r_is_known(tmp_path: Path, cli: Cli) -> None:
    whole = made_record()
    known = Record.model_validate(by_task(whole).model_dump())
    assert whole.by_class
    assert not known.by_class
    np.testing.assert_allclose(known.R, whole.R)
    assert known.metrics == pytest.approx(whole.metrics)
    assert known.class_accuracy is None
    archived(tmp_path, known)
    shown = cli("show", known.spec.name, "--out", tmp_path)
    assert shown.code == 0
    assert "ACC" in shown.out
    assert "each class" not in shown.out
    assert "task 1" not in shown.out
    assert cli("report", tmp_path, "--out", tmp_path / "report").code == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert '"classes":[]' in page
    assert "images in memory" not in page
    assert '"classes":[[[' in page_of(whole, tmp_path / "whole", cli)


def page_of(record: Record, folder: Path, cli: Cli) -> str:
    archived(folder, record)
    assert cli("report", folder, "--out", folder / "report").code == 0
    return (folder / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": [200] * 4}, {"total": [200] * 10}, {"total": [0] + [200] * 4}, {"total": [10**400] * 5},
        {"correct": [[1] * 5] * 4}, {"correct": [[1] * 10] * 5}, {"correct": [[201] * 5] * 5},
        {"correct": [[-1] * 5] * 5}, {"order": [0] * 5}, {"sizes": [10]},
    ],
    ids=str,
)  # fmt: skip
def test_counts_that_no_run_can_have(wrong: dict[str, Any]) -> None:
    content = by_task(made_record()).model_dump() | {"total": [200] * 5}
    Record.model_validate(content)
    with pytest.raises(ValueError, match=r"fit together|valid integer|exceed|than or equal to"):
        Record.model_validate(content | wrong)
