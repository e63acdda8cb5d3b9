"""Records that were read take little memory, and nothing of them is lost."""

from __future__ import annotations

import copy
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdcg.runs.archive import read_archive, write_archive
from mdcg.runs.packed import Columns, Packed, shared
from mdcg.runs.record import Record, as_record
from tests import fake_runs

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.booleans()
values = st.recursive(
    numbers | st.text(max_size=3) | st.none(), lambda inner: st.lists(inner, max_size=4), max_leaves=20
)


def told(value: object) -> str:
    """As JSON, which tells 1 from 1.0 and from true, and 0.0 from -0.0."""
    return json.dumps(value)


@given(st.lists(values, max_size=6) | st.lists(st.floats(allow_nan=False)) | st.lists(st.integers(0, 2**53)))
def test_a_list_is_as_it_was(before: list[Any]) -> None:
    packed = Packed(before)
    assert told(list(packed)) == told(before)
    assert packed == before
    assert before == packed
    assert (len(packed), packed[:2], repr(packed)) == (len(before), before[:2], repr(before))
    assert [packed[place] for place in range(len(packed))] == before
    assert told(list(copy.deepcopy(packed))) == told(before)  # as Ray sends it


known = st.dictionaries(
    st.sampled_from(["task", "epoch", "loss", "accuracy"]), values.filter(lambda one: one is not None)
)


@given(st.lists(known.filter(bool), max_size=5))
def test_rows_are_as_they_were(before: list[dict[str, Any]]) -> None:
    columns = Columns.of(before)
    assert columns == before
    assert before == columns
    assert columns != [*before, {}]
    assert (len(columns), columns[1:]) == (len(before), before[1:])
    for row, own in zip(columns, before, strict=True):
        assert {key: told(value) for key, value in row.items()} == {key: told(value) for key, value in own.items()}
    assert copy.deepcopy(columns) == before


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        Columns({"a": [1], "b": [1, 2]})


def test_what_looks_alike_is_not_shared() -> None:
    first, second = {"x": 1}, {"x": 1}
    assert shared(first) is shared(second)
    for other in ({"x": 1.0}, {"x": True}, {"x": 0}, {"x": -0.0}, {"x": 0.0}):
        assert shared(other) is other


def record(epochs: int, seed: int) -> Record:
    rows = [
        {
            "task": 1,
            "epoch": epoch,
            "loss": seed + 0.1 / epoch,
            "train_accuracy": epoch / 7,
            "accuracy": [epoch / 9, 0.5],
        }
        for epoch in range(1, epochs + 1)
    ]
    memory = {place: [1000 + seed * epoch for epoch in range(epochs)] for place in range(10)}
    return fake_runs.finished(fake_runs.spec(seed=seed)).record.model_copy(update={"history": rows, "memory": memory})


def objects(of: object) -> int:
    """How many objects are held, but for classes and what no instance can have of its own."""
    seen, pending = set[int](), [of]
    while pending:
        one = pending.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            pending += gc.get_referents(one)
    return len(seen)


def test_numbers_are_no_objects(tmp_path: Path) -> None:
    """However many epochs a run has and images in its memory, and of what runs share there is one."""
    held = []
    for epochs in (10, 100):
        content = json.loads(json.dumps(record(epochs, 1).model_dump()))
        read = as_record(content, "here")
        assert read == Record.model_validate(content)
        assert read.model_dump() == content | {"memory": {int(place): own for place, own in content["memory"].items()}}
        history, kept = objects(read.history), objects(read.memory)
        held.append((history - len(read.history), kept))  # one for each list of accuracies
        write_archive(tmp_path / f"{epochs}.jsonl", [record(epochs, seed) for seed in range(30)])
    assert held[0] == held[1]
    runs = read_archive(tmp_path / "10.jsonl").records
    more = (objects(runs) - objects(runs[:1])) / (len(runs) - 1)
    assert more < 10 + 40  # a list of accuracies each epoch, and what is a run's own
    for name in ("order", "class_names", "total", "sizes"):
        assert len({id(getattr(run, name)) for run in runs}) == 1
    assert len({id(run.spec.hyperparameters) for run in runs}) == 1
