"""docs/your-own-data.md: its examples run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "your-own-data.md"


def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, second = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.S)
    exec(first, names)
    assert float(capsys.readouterr().out) > 50  # what only forgets has 33
    whole = names["shapes"]
    exec(second, names)
    assert names["shapes"].fingerprint == whole.fingerprint
