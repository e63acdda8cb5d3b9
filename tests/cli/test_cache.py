"""`mdcg cache`: what lies in the cache folder is shown and removed, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Cli


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        place = tmp_path / "photos" / name
        place.mkdir(parents=True)
        for number in range(5):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(place / f"{number}.png")
    return tmp_path / "photos"


def test_shown_and_cleared(cli: Cli, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("MDCG_CACHE", str(folder))
    assert cli("cache").out == f"0 files, 0.0 MB, in {folder}\n"
    verify = ("data", "get", f"folder:{photos}")
    assert cli(*verify).code == 0
    foreign = [folder / "letter.txt", folder / "weights.safetensors"]
    for file in foreign:
        file.write_bytes(b"mine")
    (folder / "cifar-10-binary.tar.gz").write_bytes(bytes(1_500_000))
    shown = cli("cache").out.splitlines()
    archive, images = sorted(shown[:-1])
    assert archive == "cifar-10-binary.tar.gz  1.5 MB  the archive of cifar10"
    assert images.endswith("10 images of 2 classes: ant, bee")
    assert shown[-1].startswith("2 files, 1.5 MB, in ")
    assert "unknown file in the cache 'letter.txt'" in cli("cache", "letter.txt", "--clear").sentence()
    assert cli("cache", "cifar-10-binary.tar.gz", "--clear").out.splitlines()[-1].startswith("1 file, 1.5 MB, removed")
    assert cli("cache", "--clear").code == 0
    assert sorted(folder.iterdir()) == sorted(foreign)
    assert cli(*verify).code == 0  # made again
    damaged = next(folder.glob("folder*"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    assert "images, no longer readable" in cli("cache").out
