"""The tracker for MLflow: one run there for each one here, found again when it goes on."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from typing import Any

from mdcg.errors import MdcgError
from mdcg.extras import extra
from mdcg.trackers.base import TRACKERS, Epoch, Outcome, TrackedRun, Tracker

EXPERIMENT = "mdcg"  # unless MLFLOW_EXPERIMENT_NAME says otherwise
NAME, FOLDER = "mdcg.run", "mdcg.folder"  # tags
# A server that is away would hold training up for minutes; who wants to wait says so in the same variables.
TIMEOUTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


@TRACKERS.register("mlflow")
class MLflow(Tracker):
    """Logs settings as parameters, epochs as steps of metrics, R as R.json; where MLFLOW_TRACKING_URI says."""

    def __init__(self) -> None:
        for name, value in TIMEOUTS.items():
            os.environ.setdefault(name, value)
        mlflow = extra("mlflow", "mlflow", "the tracker mlflow")
        self._entities = extra("mlflow.entities", "mlflow", "the tracker mlflow")
        where = mlflow.get_tracking_uri()
        if where.startswith("sqlite:") and importlib.util.find_spec("sqlalchemy") is None:
            raise MdcgError(
                "the small MLflow has no database of its own; set MLFLOW_TRACKING_URI to a server's address, or "
                "pip install mlflow."
            )
        self._mlflow = mlflow
        self._client: Any = None
        self._ids: dict[str, str] = {}  # of runs that go on
        self._last: dict[str, int] = {}  # the last epoch that MLflow has

    def has(self, run: TrackedRun) -> bool:
        return any(old.info.status == "FINISHED" for old in self._known(run)[1])

    def begin(self, run: TrackedRun) -> None:
        experiment, own = self._known(run)
        begun = [old for old in own if run.done or old.info.status != "FINISHED"]  # a finished one is repeated anew
        if begun:
            key = begun[0].info.run_id
            self._client.update_run(key, status="RUNNING")
            told = [metric.step for metric in self._client.get_metric_history(key, "loss")]
            self._last[run.name] = max(told, default=0)
        else:
            key = self._client.create_run(
                experiment, tags={NAME: run.name, FOLDER: _folder(run)}, run_name=run.name
            ).info.run_id
            self._last[run.name] = 0
            settings = [self._entities.Param(name, str(value)) for name, value in run.settings.items()]
            self._client.log_batch(key, params=settings)
        self._ids[run.name] = key

    def epoch(self, run: TrackedRun, epoch: Epoch) -> None:
        if epoch.number <= self._last[run.name]:
            return  # the run went on from before it, and comes to the same again
        values = {"loss": epoch.loss, "accuracy/train": epoch.train_accuracy}
        values |= {f"accuracy/task_{task}": value for task, value in enumerate(epoch.accuracy, 1)}
        self._log(run, values, epoch.number)

    def end(self, run: TrackedRun, outcome: Outcome) -> None:
        key = self._ids[run.name]
        self._log(run, {name: value for name, value in outcome.metrics.items() if value is not None}, run.epochs)
        self._client.set_terminated(key)
        del self._ids[run.name]
        self._client.log_dict(
            key, {"R": [list(row) for row in outcome.R]}, "R.json"
        )  # last: some servers take no files

    def leave(self, run: TrackedRun) -> None:
        if run.name in self._ids:
            self._client.set_terminated(self._ids.pop(run.name), "KILLED")

    def _known(self, run: TrackedRun) -> tuple[str, list[Any]]:
        """The experiment, and what MLflow has of this run, the newest first."""
        if self._client is None:
            self._client = self._mlflow.MlflowClient()
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        found = self._client.search_runs([experiment], f"tags.`{NAME}` = '{run.name}'", order_by=["start_time DESC"])
        return experiment, [old for old in found if old.data.tags.get(FOLDER) == _folder(run)]

    def _log(self, run: TrackedRun, values: Mapping[str, float], step: int) -> None:
        now = time.time_ns() // 10**6
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._ids[run.name], metrics=metrics)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))


def _folder(run: TrackedRun) -> str:
    return str(run.folder.resolve())
