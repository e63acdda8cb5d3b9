"""Runs in MLflow, kept in a folder: what a server would hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg.runs.store import read_record
from mdcg.train.loop import Trainer
from mdcg.train.signals import Stopped
from tests.trackers.test_trackers import ASKED, EPOCHS, TASKS, stop_after

try:
    import mlflow
except Exception as error:
    pytest.skip(f"MLflow cannot be used here: {error}", allow_module_level=True)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return mlflow.MlflowClient()


def kept(client: Any, experiment: str = "mdcg") -> list[Any]:
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def check(client: Any, run: Any, folder: Path) -> None:
    record = read_record(folder)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == folder.name
    assert run.data.params["set.lam"] == str(record.spec.hyperparameters["lam"])
    assert run.data.params["memory"] == "20"
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in losses] == list(range(1, EPOCHS * TASKS + 1))
    assert [metric.value for metric in losses] == [row["loss"] for row in record.history]
    evaluated = [row["accuracy"][0] for row in record.history if "accuracy" in row]
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "accuracy/task_1")] == evaluated
    assert run.data.metrics["ACC"] == record.as_json()["ACC"]
    file = client.download_artifacts(run.info.run_id, "R.json")
    assert json.loads(Path(file).read_text())["R"] == record.as_json()["R"]


def test_a_run_for_each_run(client: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    mdcg.run(**ASKED, memory=20, seeds=range(2), out=runs, log=["mlflow"])
    found = kept(client, "mine")
    assert len(found) == 2
    for run in found:
        check(client, run, runs / run.info.run_name)


def test_a_run_that_was_stopped_is_found_again(client: Any, runs: Path) -> None:
    asked = {**ASKED, "memory": 20, "out": runs, "log": ["mlflow"]}
    for more, saved in ((2, True), (3, False)):
        with pytest.MonkeyPatch.context() as patch:
            stop_after(more, patch)
            if not saved:
                patch.setattr(Trainer, "_save", lambda self, state: None)
            with pytest.raises(Stopped):
                mdcg.run(**asked)
        (run,) = kept(client)
        assert run.info.status == "KILLED"
    mdcg.run(**asked)
    (run,) = kept(client)
    check(client, run, runs / run.info.run_name)
    mdcg.run(**asked, fresh=True)  # repeated: a run of its own
    assert len(kept(client)) == 2


def test_a_server_that_is_away(
    client: Any, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    result = mdcg.run(**ASKED, memory=20, out=runs, log=["mlflow"])
    assert result.ACC[0] > 0
    assert capsys.readouterr().err.count("the tracker MLflow failed") == 1


def test_runs_that_were_finished(client: Any, runs: Path) -> None:
    mdcg.run(**ASKED, memory=20, out=runs)
    for _ in range(2):
        mdcg.run(**ASKED, memory=20, out=runs, log=["mlflow"])
        (run,) = kept(client)
        check(client, run, runs / run.info.run_name)
