"""Names of classes: what no class may be called, and two that may be one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdcg import Dataset, Learner, errors
from mdcg.data import load
from mdcg.data.class_names import look_alikes, warn_of_look_alikes
from mdcg.errors import MdcgError
from tests.data.conftest import save_image

TWO_FORMS = "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_told", set())


@pytest.mark.parametrize("odd", [" ", "a\x1b[2Jb", "a\nb", "x" * 201])
def test_runs_and_learners_refuse_the_same_folders(odd: str, tmp_path: Path) -> None:
    for name in (odd, "fine"):
        for number in range(4):
            save_image(tmp_path / name / f"{number}.png", shade=9 * number)
    learner = Learner(quiet=True)
    for ask in (lambda: load(f"folder:{tmp_path}"), lambda: learner.learn(tmp_path)):
        with pytest.raises(
            MdcgError, match=r"^'.+' cannot name a class; use a line of 1 to 200 printable characters\.$"
        ):
            ask()


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Lamp", "lamp", True),
        (*TWO_FORMS, True),
        (TWO_FORMS[0].upper(), TWO_FORMS[1], True),
        ("STRASSE", "straße", True),
        ("\N{FULLWIDTH LATIN SMALL LETTER A}", "A", True),
        ("lamp", "lamps", False),
        ("resume", "résumé", False),
    ],
)
def test_look_alikes(one: str, other: str, alike: bool) -> None:
    assert look_alikes([one, other]) == ([(one, other)] if alike else [])
    assert look_alikes([other], known=[one]) == ([(one, other)] if alike else [])
    assert look_alikes(["cup"], known=[one, other]) == []  # that was said when they were new
    assert look_alikes([one], known=[one]) == []


def test_whoever_brings_them_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("lamp", "Lamp", *TWO_FORMS):
        for number in range(3):
            save_image(tmp_path / name / f"{number}.png", shade=9 * number)
    for _ in range(2):
        load(f"folder:{tmp_path}")
    (record,) = caplog.records
    assert "(the Unicode form of their letters), 'Lamp' and 'lamp' (case); if they are one, give" in record.message
    caplog.clear()
    images = np.zeros((8, 8, 8, 3), np.uint8)
    Dataset.from_arrays((images, ["cup", "Cup"] * 4), name="cups")
    assert "'Cup' and 'cup' (case)" in caplog.text
    caplog.clear()
    learner = Learner("naive", backbone="smallconv", epochs=1)
    learner.learn(images, ["fork", "dish"] * 4)
    assert "hardly differ" not in caplog.text
    learner.learn(images + 1, ["Fork", "pan"] * 4)
    assert "'fork' and 'Fork' (case)" in caplog.text


def test_only_so_many_are_named(caplog: pytest.LogCaptureFixture) -> None:
    letters = "abcdefgh"
    warn_of_look_alikes([*letters, *letters.upper()])
    assert "'c' and 'C' (case) and 5 more pairs; if" in caplog.text
