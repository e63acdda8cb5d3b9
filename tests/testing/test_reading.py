"""Damaged files of every kind, a few of each: `python -m mdcg.testing.reading` tries many."""

from __future__ import annotations

import json
import random

import pytest

from mdcg.errors import MdcgError
from mdcg.testing import mutate, reading
from mdcg.testing.mutate import MISSING, ByteEdit, Edit, Edited, fuzz

FEW = {"result": 6, "archive": 4, "measured": 3, "group": 6, "failure": 4, "cache": 60, "checkpoint": 40, "model": 30}


@pytest.mark.parametrize("kind", reading.KINDS)
def test_damaged_files_cost_no_command(kind: str) -> None:
    assert [str(failure) for failure in reading.failures_of(kind, FEW[kind], seed=19)] == []


def test_the_same_seed_does_the_same_damage() -> None:
    file = Edited(b'{"a": [1, {"b": 2.5}], "c": "x"}', "json")
    drawn = [file.draw(random.Random(f"1 {trial}")) for trial in range(200)]
    assert drawn == [file.draw(random.Random(f"1 {trial}")) for trial in range(200)]
    assert len({file.damaged(edits) for edits in drawn}) > 100


def test_edits() -> None:
    file = Edited(b'{"a": [1, 2], "c": "x"}', "json")
    assert json.loads(file.damaged([Edit(("a", 1), 10**400), Edit(("c",), MISSING)])) == {"a": [1, 10**400]}
    assert file.damaged([ByteEdit(1, 3, b"")]) == b'{: [1, 2], "c": "x"}'
    assert str(Edit(("a", 1), 10**400)) == "a.1 = 10^400"
    lines = Edited(b'{"a": 1}\n{"a": 2}\n', "lines")
    assert lines.damaged([Edit((1, "a"), None)]) == b'{"a": 1}\n{"a": null}\n'


def test_the_fewest_edits_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = (Edit(("a",), 7), Edit(("b",), -1), ByteEdit(1, 0, b" "))
    monkeypatch.setattr(Edited, "draw", lambda *_: edits)

    def read(content: bytes) -> None:
        if json.loads(content)["b"] < 0:
            raise ZeroDivisionError("too little")

    (failure,) = fuzz(Edited(b'{"a": 1, "b": 1}', "json"), read, 1)
    assert str(failure) == "trial 0: b = -1: ZeroDivisionError: too little"


def test_a_sentence_is_an_answer_and_no_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(content: bytes) -> None:
        raise MdcgError("it is damaged; make it anew.")

    def wait(content: bytes) -> None:
        while True:
            pass

    file = Edited(b"[1]", "json")
    assert fuzz(file, refuse, 3) == []
    monkeypatch.setattr(mutate, "SECONDS", 0.05)
    assert "does not end" in fuzz(file, wait, 1)[0].error
