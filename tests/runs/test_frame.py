"""Frames of runs: against the records, and against the CSV file of the same runs."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg.runs.archive import write_archive
from tests.conftest import Cli
from tests.fake_runs import made_run


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> mdcg.Comparison:
    out = tmp_path_factory.mktemp("runs")
    return mdcg.compare(
        scenario="digits-3",
        methods=["naive", "md-cg"],
        memory=30,
        seeds=range(2),
        epochs=2,
        evaluate_every=1,
        out=out,
        quiet=True,
    )


def test_the_columns_of_the_csv_file(compared: mdcg.Comparison, tmp_path: Path, cli: Cli) -> None:
    out, file = compared["naive"].out, tmp_path / "runs.csv"
    assert cli("runs", "--out", out, "--sort", "name", "--export", file).code == 0
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    frame = mdcg.load_runs(out).sort_values("name")
    assert [*frame.columns] == [name for name in rows[0] if name != "R"]
    for row, (_, found) in zip(rows, frame.iterrows(), strict=True):
        for name, value in found.items():
            assert _equal(value, row[str(name)]), name


def _equal(value: Any, text: str) -> bool:
    """Whether a cell of a frame and one of a CSV file say the same."""
    if text == "":
        return str(value) in ("None", "", "nan", "<NA>")
    if isinstance(value, str | bool):
        return str(value) == {"true": "True", "false": "False"}.get(text, text)
    return math.isclose(value, float(text))


def test_one_result(compared: mdcg.Comparison) -> None:
    result = compared["md-cg"]
    frame = result.frame()
    assert frame["seed"].tolist() == [0, 1]
    assert frame["ACC"].tolist() == pytest.approx(result.ACC.tolist())
    assert frame["set.beta"].tolist() == [10.0, 10.0]
    assert frame["epochs"].dtype == "int64"
    assert [(result.out / name / "result.json").is_file() for name in frame["name"]] == [True, True]


def test_every_accuracy_has_a_row(compared: mdcg.Comparison) -> None:
    frame = compared.frame("R")
    assert len(frame) == 4 * (1 + 2 + 3)
    for label, result in compared.items():
        for record in result.records:
            own = frame[(frame["setting"] == label) & (frame["seed"] == record.spec.seed)]
            ends = [sum(record.sizes[: task + 1]) for task in range(3)]
            for row in own.itertuples():
                classes = range(ends[row.task - 1] - record.sizes[row.task - 1], ends[row.task - 1])
                right = sum(record.correct[row.after - 1][position] for position in classes)
                assert row.accuracy == pytest.approx(100 * right / sum(record.total[position] for position in classes))
            assert own[own["after"] == 3]["accuracy"].mean() == pytest.approx(record.metrics["ACC"])


def test_every_epoch_has_a_row(compared: mdcg.Comparison) -> None:
    result = compared["md-cg"]
    frame = result.frame("history")
    assert len(frame) == 2 * 3 * 2
    for record in result.records:
        own = frame[frame["seed"] == record.spec.seed]
        for row, told in zip(own.itertuples(), record.history, strict=True):
            assert (row.task, row.epoch, row.loss) == (told["task"], told["epoch"], told["loss"])
            assert row.accuracy == pytest.approx(sum(told["accuracy"]) / len(told["accuracy"]))


def test_an_archive(tmp_path: Path) -> None:
    made = [made_run(acc=40 + seed, seed=seed, memory=500).record for seed in range(3)]
    made.append(made_run(acc=30, method="naive", memory=0, image_size=64).record)
    file = tmp_path / "older.jsonl"
    write_archive(file, made)
    for place in (file, tmp_path):
        frame = mdcg.load_runs(place).set_index("name")
        assert {name: frame.loc[name, "ACC"] for name in frame.index} == {
            record.spec.name: record.metrics["ACC"] for record in made
        }
        assert frame["set.lam"].isna().sum() == 1  # naive has none
        assert frame.loc[made[-1].spec.name, "image_size"] == 64
        assert str(frame["image_size"].dtype) == "Int64"  # whole numbers, some of them missing


def test_what_cannot_be_read_is_told(
    compared: mdcg.Comparison, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text("{")
    assert len(mdcg.load_runs(tmp_path)) == 0
    assert "result.json is damaged" in caplog.text
    assert [*mdcg.load_runs(tmp_path, "R").columns][-3:] == ["after", "task", "accuracy"]


def test_mistakes(compared: mdcg.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mdcg.MdcgError, match=r"there is no folder .*nowhere; give the folder of your runs"):
        mdcg.load_runs(tmp_path / "nowhere")
    with pytest.raises(mdcg.MdcgError, match=r"'histori'.*did you mean 'history'"):
        compared.frame("histori")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    made: list[Callable[[], object]] = [compared.frame, compared["naive"].frame, partial(mdcg.load_runs, tmp_path)]
    for frame in made:
        with pytest.raises(mdcg.MdcgError, match=r"needs pandas, .*pip install 'mdcg\[pandas\]'"):
            frame()
