"""The campaign, a few trials of each part: `python -m mdcg.testing.abuse` has many."""

from __future__ import annotations

import json
import random

import pytest

from mdcg.errors import MdcgError
from mdcg.testing.abuse import damage
from mdcg.testing.abuse.__main__ import PARTS, main
from mdcg.testing.abuse.campaign import Failure, Part, attempt
from mdcg.testing.abuse.damage import MISSING, ByteEdit, Edit, Edited, read_damaged
from mdcg.testing.forked import Server

FEW = {
    "kill-at": 1,
    "mutate": 6,
    "models": 25,
    "commands": 6,
    "recipes": 8,
    "arguments": 150,
    "images": 2,
    "archives": 3,
    "trees": 3,
    "faults": 2,
}
SLOW = {"overwrite": 8, "kill": 4, "together": 2, "browser": 4, "ray": 1}  # even few
SEED = 19


@pytest.mark.parametrize("part", [*FEW, *(pytest.param(part, marks=pytest.mark.slow) for part in SLOW)])
def test_a_few_trials(
    part: str, server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if part == "ray":
        request.getfixturevalue("all_digits")  # as Ray's processes have them
    monkeypatch.setattr(Part, "server", lambda *_: server)  # which is there already
    count = (FEW | SLOW)[part]
    found = attempt(PARTS[part], range(count), SEED)
    assert [str(failure) for failure in found.failures] == []
    if found.not_tried:
        pytest.skip(found.not_tried)
    assert found.trials == count


def test_every_part_is_tried() -> None:
    assert (FEW | SLOW).keys() == PARTS.keys()


class Odd(Part):
    """Fails whenever a number drawn is odd."""

    name, usual = "odd", 20

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        drawn = rng.randrange(10**6)
        return Failure(f"drew {drawn}", "it is odd") if drawn % 2 else None


def test_a_trial_depends_on_seed_part_and_number_alone() -> None:
    found = attempt(Odd, range(20)).failures
    assert 0 < len(found) < 20
    assert attempt(Odd, [found[-1].trial]).failures == found[-1:]
    assert attempt(Odd, range(20), seed=1).failures != found


@pytest.mark.slow
def test_trials_are_shared_among_processes() -> None:
    assert attempt(Odd, range(20), jobs=2).failures == attempt(Odd, range(20)).failures


def test_what_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(PARTS, "odd", Odd)
    assert main(["odd=8", "--jobs", "1"]) == 1
    first, *told, last = capsys.readouterr().out.splitlines()
    failures = attempt(Odd, range(8)).failures
    assert first.split()[:5] == ["odd", "8", "trials", str(len(failures)), "failures"]
    assert told == [f"  {failure}" for failure in failures]
    assert last == f"8 trials, {len(failures)} failures, seed 0"
    even = next(number for number in range(8) if number not in {failure.trial for failure in failures})
    assert main(["odd", "--trial", str(even)]) == 0
    with pytest.raises(SystemExit) as leave:
        main(["od"])
    assert leave.value.code == 2


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

    found = read_damaged(Edited(b'{"a": 1, "b": 1}', "json"), read, random.Random())
    assert found == Failure("b = -1", "ZeroDivisionError: too little")


def test_a_sentence_is_an_answer_and_no_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(content: bytes) -> None:
        raise MdcgError("it is damaged; make it anew.")

    def wait(content: bytes) -> None:
        while True:
            pass

    file = Edited(b"[1]", "json")
    assert read_damaged(file, refuse, random.Random(0)) is None
    monkeypatch.setattr(damage, "SECONDS", 0.05)
    found = read_damaged(file, wait, random.Random(0))
    assert found is not None
    assert "does not end" in found.error
