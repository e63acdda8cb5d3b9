"""Finished runs that nobody trained, in files as the store writes them: to try what looks at very many."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from mdcg.data import Dataset
from mdcg.execute.cost import group_of
from mdcg.execute.sweep import Sweep
from mdcg.runs.environment import environment
from mdcg.runs.record import Record
from mdcg.runs.spec import RunSpec
from mdcg.saved import SavedModel
from mdcg.scenario import Scenario, parse
from mdcg.testing.groups import CPU
from mdcg.train import state as states

IMAGES = 100  # evaluated, of each class


def write_made(sweep: Sweep) -> None:
    """Write every run of a sweep as if it were finished."""
    for spec in sweep.specs:
        dataset = sweep.context.dataset(spec)
        sweep.context.store.write(made_record(spec, dataset.class_names), made_model(spec, dataset), {})


def made_record(spec: RunSpec, class_names: Sequence[str]) -> Record:
    """The record of a run, with accuracies, times and a history that are drawn from its settings."""
    scenario = Scenario.of(spec.stream, parse(spec.scenario)[1], class_names, spec.seed)
    rng = np.random.default_rng(int(spec.digest(), 16))
    classes, tasks = len(scenario.order), len(scenario.sizes)
    seen = np.arange(classes) < np.array(scenario.ends)[:, None]
    finished = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=int(rng.integers(10**7)))
    return Record(
        spec=spec,
        sizes=list(scenario.sizes),
        tasks=None if scenario.tasks is None else [list(own) for own in scenario.tasks],
        order=list(scenario.order),
        class_names=[class_names[label] for label in scenario.order],
        correct=(rng.integers(0, IMAGES + 1, (tasks, classes)) * seen).tolist(),
        total=[IMAGES] * classes,
        memory={c: rng.integers(0, 1000, spec.memory // classes).tolist() for c in range(classes)},
        history=[
            {"task": task + 1, "epoch": epoch + 1, "loss": float(rng.random()), "train_accuracy": 100 * rng.random()}
            for task in range(tasks)
            for epoch in range(spec.epochs)
        ],
        seconds=float(rng.random()),
        environment=environment(CPU).model_copy(update={"finished": finished.isoformat()}),
    )


def made_model(spec: RunSpec, dataset: Dataset) -> SavedModel:
    """The model of a run as it was before its first step, with outputs for all classes."""
    group = group_of([spec], dataset)
    state = states.fresh(group, CPU)
    for size in group.sizes:
        state.model.grow(size)
    return SavedModel.of(group, state, 0, pixels=False)
