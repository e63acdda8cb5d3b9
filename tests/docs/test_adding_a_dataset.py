"""docs/adding-a-dataset.md, followed to the letter, but for the number of epochs."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg.data import DATASETS, Published, load, verify
from mdcg.errors import MdcgError
from mdcg.testing import check_dataset
from tests.docs.test_adding_a_method import another_environment

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-dataset.md"


@pytest.mark.slow  # it installs a package, as the guide to methods does
def test_the_guide(tmp_path: Path) -> None:
    text = GUIDE.read_text("utf-8")
    for name, content in re.findall(r"`([\w./-]+)`:\n\n```\w+\n(.*?)```", text, re.S):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")
    assert len(list(tmp_path.rglob("*.*"))) == 3
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.S)
    environment = another_environment(tmp_path / "venv")
    said = []
    for command in commands.splitlines():
        shorter = command.replace("--scenario", "--epochs 6 --scenario")
        done = subprocess.run(
            shorter, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        said.append(done.stdout)
    _, tested, datasets, scenarios, verified, run = said
    assert "1 passed" in tested
    assert "Stripes in six directions: 480 images, 12×12 grey, 6 classes" in datasets
    assert "stripes in 3 tasks" in scenarios
    assert verified.strip() == "stripes: 480 images."
    (accuracy,) = [float(line.split()[1]) for line in run.splitlines() if line.startswith("  md-cg")]
    assert accuracy > 50  # what only forgets has 33
    (script,) = re.findall(r"```python\n(import mdcg\n.*?)```", text, re.S)
    alone = subprocess.run([sys.executable, "-c", script], cwd=tmp_path / "stripes", capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    assert 0 <= float(alone.stdout.split()[-1]) <= 100


def test_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file that somebody put there; that it can be downloaded is tested with CIFAR."""
    (code,) = re.findall(r"```python\n(from pathlib .*?)```", GUIDE.read_text("utf-8"), re.S)
    made: dict[str, Any] = {"__name__": "stamps"}
    exec(code, made)
    rng, labels = np.random.default_rng(0), np.arange(24) % 4
    images = rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "stamps.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    stamps: Published = made["STAMPS"]
    monkeypatch.setattr(DATASETS, "_known", DATASETS._known | {"stamps": stamps})
    with pytest.raises(MdcgError, match=r"stamps.npz is altered or cut short \(its md5 is not 0123"):
        load("stamps", tmp_path)
    md5 = hashlib.md5((tmp_path / "stamps.npz").read_bytes()).hexdigest()
    stamps = dataclasses.replace(stamps, md5=md5)
    monkeypatch.setitem(DATASETS._known, "stamps", stamps)
    check_dataset(stamps, data=tmp_path)
    assert verify("stamps", tmp_path).endswith("is whole, 32 images, and so is its cache.")
    (tmp_path / "stamps.npz").rename(tmp_path / "other.npz")
    with pytest.raises(MdcgError, match=r"stamps.npz is not in .*; run 'mdcg data get stamps --data .*' first"):
        load("stamps", tmp_path)
