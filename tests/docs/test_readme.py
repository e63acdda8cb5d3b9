"""The README's method works as printed, and what its commands install can be had anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mdcg
from mdcg.methods import METHODS

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.usefixtures("all_digits")
def test_the_method_in_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "@METHODS" in block]
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))
    module = tmp_path / "weighted.py"
    module.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("weighted")
    result = mdcg.run(
        scenario="digits-2", method="weighted-replay", memory=40, set={"weight": 2}, epochs=3, out=tmp_path / "runs"
    )
    assert result.records[0].spec.hyperparameters == {"weight": 2.0}
    assert result.R[0, 1].min() > 30  # both tasks are known at the end


def test_pins_are_of_public_versions() -> None:
    """A local version (1.0+cpu) is on no public index, where both commands would fail."""
    lines = (README.parent / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert any(pin.startswith("torch==") for pin in pins)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.!]*", pin) for pin in pins), pins
