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


def test_no_home(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, as in containers, has no folder for the cache."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "MDCG_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    said = "mdcg: this user has no home folder for the cache; name a folder with $MDCG_CACHE."
    assert cli("cache").sentence() == said
    assert cli("run", "--scenario", "c10-5", "--method", "naive").sentence() == said


def test_half_written_files_are_swept(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_CACHE", str(tmp_path))
    (tmp_path / ".digits-0.safetensors.0123456789ab.partial").touch()
    assert cli("cache").code == 0
    assert not list(tmp_path.iterdir())
