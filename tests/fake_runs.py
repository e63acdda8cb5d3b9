"""Finished runs that nobody trained, for what looks at settings and accuracies alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.runs.finished import FinishedRun
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import measured_file


def spec(method: str = "md-cg", memory: int = 500, seed: int = 0, head: str | None = None, **others: Any) -> RunSpec:
    """Of C10-5; `others` are settings of method or head, and anything else that a spec has."""
    kind, chosen = METHODS[method], head or METHODS[method].head
    about = {"scenario": "c10-5", "backbone": "resnet20", "image_size": None}
    about |= {key: others.pop(key) for key in list(others) if key in RunSpec.model_fields}
    of_head = {key: others.pop(key, default) for key, (default, _) in HEADS[chosen].settings.items()}
    hyper = kind(**{**kind.tuned(str(about["scenario"]), memory), **others}).model_dump()
    training = {"epochs": 20, "batch_size": 32, "lr": 0.01, "momentum": 0.8, "precision": "auto", "hold_out": 0.0}
    return RunSpec(
        fingerprint="none",
        method=method,
        hyperparameters=hyper,
        memory=memory,
        head=chosen,
        head_settings=of_head,
        evaluate_every=0,
        seed=seed,
        **{**training, **about},
    )


def finished(of: RunSpec, sizes: tuple[int, ...] = (2, 2, 2, 2, 2)) -> FinishedRun:
    """With accuracies drawn from its settings."""
    classes = sum(sizes)
    rng = np.random.default_rng(int(of.digest(), 16))
    record = Record(
        spec=of,
        sizes=list(sizes),
        order=list(range(classes)),
        class_names=[str(position) for position in range(classes)],
        correct=rng.integers(0, 101, (len(sizes), classes)).tolist(),
        total=[100] * classes,
        memory={},
        history=[],
        seconds=1.0,
    )
    return FinishedRun(Path("nowhere"), record)


def with_rows(run: FinishedRun, probe: str, rows: Sequence[dict[str, Any]], under: Path) -> FinishedRun:
    """The run as if a probe had measured this, in a folder of its own."""
    file = measured_file(under / run.spec.name, probe)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"rows": rows, "seconds": 0.0}))
    return FinishedRun(under / run.spec.name, run.record)


def made_run(
    acc: float = 50, tasks: int = 2, names: str = "class", folder: str = "runs/x", **asked: Any
) -> FinishedRun:
    """A run that nobody trained: `acc` percent of every task at the end, 100 when each was learned."""
    method = asked.get("method", "md-cg")
    kind = METHODS[method] if method in METHODS.names() else METHODS["naive"]
    usual: dict[str, Any] = {
        "scenario": "c10-5", "fingerprint": "f", "image_size": None, "method": method, "memory": 500, "head": kind.head,
        "backbone": "resnet20", "epochs": 20, "batch_size": 32, "lr": 0.01, "momentum": 0.8, "precision": "auto",
        "hold_out": 0.0, "evaluate_every": 0, "seed": 0,
    }  # fmt: skip
    usual |= asked
    chosen = {name: field.default for name, field in kind.model_fields.items()}
    chosen |= kind.tuned(usual["scenario"], usual["memory"]) | usual.pop("hyperparameters", {})
    settings = {name: default for name, (default, _) in HEADS[usual["head"]].settings.items()}
    spec = RunSpec(hyperparameters=chosen, head_settings=settings, **usual)
    correct = [[1000] * 2 * (i + 1) + [0] * 2 * (tasks - i - 1) for i in range(tasks - 1)]
    record = Record(
        spec=spec,
        sizes=[2] * tasks,
        order=list(range(2 * tasks)),
        class_names=[f"{names} {c}" for c in range(2 * tasks)],
        correct=[*correct, [round(10 * acc)] * 2 * tasks],
        total=[1000] * 2 * tasks,
        memory={0: [1, 2], 1: [3]},
        history=[
            {"task": task + 1, "epoch": 1, "loss": 0.5, "train_accuracy": 80.0, "accuracy": [90.0] * (task + 1)}
            for task in range(tasks)
        ],
        seconds=2.0,
        environment={"finished": f"2026-01-0{1 + usual['seed'] % 9}T00:00:00+00:00"},
    )
    return FinishedRun(Path(folder), record)
