"""docs/adding-a-method.md: its files in this process, and, slowly, all of it to the letter but for the epochs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from mdcg.methods import METHODS
from tests.conftest import Cli

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


def another_environment(folder: Path) -> dict[str, str]:
    """With all that is installed here, so that what is installed there stays there."""
    venv.create(folder)
    here = sysconfig.get_paths()
    there = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    Path(there["purelib"], "here.pth").write_text(f"import site; site.addsitedir({here['purelib']!r})\n")
    for name in ("mdcg", "pytest", "pip"):  # what the programs import comes from here, what they install goes there
        _, *program = Path(here["scripts"], name).read_text().splitlines(keepends=True)
        script = Path(there["scripts"], name)
        script.write_text(f"#!{there['scripts']}/python\n{''.join(program)}")
        script.chmod(0o755)
    return os.environ | {
        "PATH": f"{there['scripts']}{os.pathsep}{os.environ['PATH']}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "COLUMNS": "120",
    }


def write_package(folder: Path) -> str:
    """Write the files of the guide's package, and return its text."""
    text = GUIDE.read_text("utf-8")
    for name, content in re.findall(r"`([\w./-]+)`:\n\n```\w+\n(.*?)```", text, re.S):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, "utf-8")
    return text


@pytest.fixture
def its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The method's module and that of its tests."""
    write_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "distilled-replay")
    names = ("distilled_replay", "test_distilled_replay")
    yield import_module(names[0]), import_module(names[1])
    for name in names:
        del sys.modules[name]


def test_its_files(cli: Cli, runs: Path, its_modules: tuple[ModuleType, ModuleType]) -> None:
    module, tests = its_modules
    checks = [check for name, check in vars(tests).items() if name.startswith("test_")]
    assert len(checks) == 3
    for check in checks:
        check()
    with METHODS.temporary("distilled-replay", module.DistilledReplay):
        assert_listed(cli("list", "methods").out)
        words = ["--scenario", "digits-2", "--memory", 20, "--epochs", 1, "--seeds", "0-1", "--out", runs]
        said = cli("run", "--method", "distilled-replay", "--set", "alpha=0.1,1", *words)
        assert said.code == 0, said.err
        assert_one_row_for_each_alpha(said.out)


def assert_listed(listed: str) -> None:
    assert "Replay, and distillation on the memory images." in listed
    assert "--set alpha=0.5: weight of the divergence from the teacher (α)" in re.sub(r"\s+", " ", listed)


def assert_one_row_for_each_alpha(said: str) -> None:
    rows = [line.split()[:2] for line in said.splitlines() if line.startswith("  alpha")]
    assert rows == [["alpha", "0.1"], ["alpha", "1"]]


@pytest.mark.slow
def test_the_guide(tmp_path: Path) -> None:
    text = write_package(tmp_path)
    assert len(list(tmp_path.rglob("*.*"))) == 3
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.S)
    environment = another_environment(tmp_path / "venv")
    said = []
    for command in commands.splitlines():
        epochs = 3 if "compare" in command else 1  # only what is compared must have learned something
        shorter = command.replace("--scenario", f"--epochs {epochs} --scenario")
        done = subprocess.run(
            shorter, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        said.append(done.stdout)
    _, tested, listed, run, compared = said
    assert "3 passed" in tested
    assert_listed(listed)
    assert_one_row_for_each_alpha(run)
    accuracy = {line.split()[0]: float(line.split()[1]) for line in compared.splitlines() if "replay" in line}
    assert min(accuracy["replay"], accuracy["distilled-replay"]) > 60  # a method that only forgets has 20
    # Nothing was left behind here.
    assert subprocess.run([sys.executable, "-c", "import distilled_replay"], capture_output=True).returncode != 0
