"""What of the benchmarks needs no GPU: the workloads, and the tables of what was measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mdcg import paper
from mdcg.data import registry
from mdcg.methods import METHODS
from mdcg.train.epoch import steps_per_epoch
from mdcg.train.precision import compute

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import start
from gpu import Kernel, Row, begin, by_name, kernel_table, launched, settings_of, write
from start import is_trial, part_of, seconds_by_part
from workload import BATCH, C10_5, TYM_10, Workload, workload_of


@pytest.mark.parametrize(("workload", "dataset"), [(C10_5, "cifar10"), (TYM_10, "tinyimagenet")])
def test_workloads_are_scenarios_of_the_paper(workload: Workload, dataset: str) -> None:
    record = registry.record_of(dataset)
    assert workload.title.lower() in record.scenarios
    assert record.shape == (3, workload.side, workload.side)
    protocol, pixels = record.protocol_for(record.shape), record.preprocessing_for(record.shape)
    assert (workload.backbone, workload.epochs, BATCH) == (protocol.backbone, protocol.epochs, protocol.batch_size)
    assert workload.padding == pixels.padding
    assert workload.lam == paper.chosen("md")["lam"][workload.title.lower()][workload.memory]


@pytest.mark.parametrize(("backbone", "images"), [("resnet20", (50_000, 10_000)), ("resnet18", (100_000, 10_000))])
def test_workloads_have_as_many_images_and_steps(backbone: str, images: tuple[int, int]) -> None:
    workload = replace(workload_of(backbone), side=2)  # pixels do not count here
    dataset = workload.dataset()
    assert (len(dataset.train), len(dataset.test)) == images
    group = workload.group(2, dataset)
    assert [steps_per_epoch(group, task).tolist() for task in (0, workload.tasks - 1)] == [[313, 313]] * 2
    assert workload.steps == 313


@pytest.mark.parametrize("name", [None, "der", "gem", "md-replay"])
def test_a_step_of_a_later_task(name: str | None) -> None:
    """Its batch has images from memory; for MD-CG and its kin there is a teacher."""
    workload = replace(TYM_10, side=8, backbone="smallconv", memory=40)
    method = METHODS[name]() if name else None
    group = workload.group(2, workload.dataset(per_class=4), method)
    trainer, state, draws = begin(group, compute("cpu", "fp32"), 1)
    assert (state.teacher is None) == (name in ("der", "gem"))
    assert (state.stored_logits is None) == (name != "der")
    assert trainer.batch(draws, 0).images.shape == (2, BATCH + (4 if name == "gem" else BATCH), 3, 8, 8)
    numbers, training = group.members[0].numbers, group.training
    own = (numbers.lr, numbers.weight_decay, training.schedule, training.augment)
    assert own == ((0.1, 5e-4, "cosine", ("randaugment",)) if name == "md-replay" else (0.01, 0, "constant", ()))
    assert (draws.labels[:, :, BATCH:] < 20).all()
    assert (draws.labels[:, :, :BATCH] >= 20).all()


def test_settings_of_a_recipe() -> None:
    """Of one cell, in the recipe's order, as their runs would train: what is left out is left out."""
    found = dict(settings_of("ablation-md-replay", 3, "C100-10, 2000"))
    assert list(found)[:3] == [
        f"C100-10, 2000, {name}" for name in ("md-replay", "without replay", "without the margin")
    ]
    assert len(found) == 14
    groups = {name.removeprefix("C100-10, 2000, "): group for name, group in found.items()}
    whole = groups["md-replay"]
    assert [member.seed for member in whole.members] == [0, 1, 2]
    assert {member.memory for member in whole.members} == {2000}
    assert (whole.training.batch_size, whole.training.tasks, len(whole.dataset.train)) == (16, 10, 50_000)
    assert whole.training.augment == ("randaugment",)
    assert groups["without RandAugment"].training.augment == ()
    assert groups["without a teacher"].method.needs_teacher() is False
    assert groups["without decay"].members[0].numbers.weight_decay == 0 < whole.members[0].numbers.weight_decay
    assert groups["lr 0.01, constant"].training.schedule == "constant"


def test_what_a_device_does_is_counted_by_name() -> None:
    matrix = torch.ones(50, 50)
    done = launched(lambda: matrix @ matrix + 1, 3, "CPU")
    assert [name for name, _ in done if name in ("aten::mm", "aten::add")] == ["aten::mm", "aten::add"] * 3
    assert all(microseconds >= 0 for _, microseconds in done)


def test_kernels_of_a_step() -> None:
    two_steps = [("convolution", 30.0), ("norm", 5.0), ("norm", 7.0), ("convolution", 50.0), ("norm", 8.0)]
    assert by_name(two_steps, 2) == [Kernel("convolution", 1, 40, 0.8), Kernel("norm", 1.5, 10, 0.2)]
    assert by_name([], 2) == []


def test_those_that_take_longest_are_shown_and_the_others_summed() -> None:
    kernels = by_name([(f"kernel {number}", float(number)) for number in range(1, 51)], 1)
    lines = [line.split(maxsplit=3) for line in kernel_table(kernels, 20, "bf16").splitlines()[2:]]
    assert [line[3] for line in lines] == [*(f"kernel {number}" for number in range(50, 10, -1)), "10 others", "all"]
    assert lines[-2][:3] == ["10.0", "55.0", "4.3%"]
    assert lines[-1][:3] == ["50.0", "1275.0", "100.0%"]


def test_files_tell_the_backbone_and_the_kernels(tmp_path: Path) -> None:
    row = Row(20, "bf16", 1.0, 2.0, 0.1, 30.0, dict.fromkeys(("data", "forward", "backward", "update"), 0.25), 2, 16, 8)
    row = replace(row, shares=row.shares | dict.fromkeys(("evaluation", "capture", "checkpoint"), 0.0))
    about = {"gpu": "NVIDIA H200", "date": "2026-11-18", "backbone": "resnet18"}
    kernels = {"bf16": by_name([("convolution", 30.0)], 1)}
    write(tmp_path, about, [row], kernels, 20)
    name = "gpu-resnet18-nvidia-h200-2026-11-18"
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.json", f"{name}.txt"}
    assert kernel_table(kernels["bf16"], 20, "bf16") in (tmp_path / f"{name}.txt").read_text()
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert (found["rows"][0]["step"], found["kernels"]["bf16"][0]["name"]) == (2.0, "convolution")


def test_parts_of_a_start() -> None:
    package = "/home/someone/mdcg/src/mdcg/"
    call = [(f"{package}cli/__init__.py", "main"), ("/home/someone/mdcg/benchmarks/start.py", "<module>")]
    library = ("/home/someone/mdcg/.venv/lib/numpy/load.py", "load")
    reading = [library, (f"{package}data/cifar.py", "read"), (f"{package}execute/sweep.py", "_read")]
    importing = [("<frozen importlib._bootstrap>", "_load"), *call]
    assert part_of(call[1:], package) == "python"
    assert part_of(importing, package) == "import others"
    assert part_of([("/lib/torch/__init__.py", "<module>"), *importing], package) == "import torch"
    assert part_of([*reading, *call], package) == "_read: data/cifar.py:read"
    assert part_of(call, package) == "cli/__init__.py:main"
    step = [(f"{package}train/loop.py", "train_step"), (f"{package}train/loop.py", "train")]
    waiting = [(f"{package}models/kernels/launch.py", "launch"), *step, *call]
    assert part_of(waiting, package) == "train_step: models/kernels/launch.py:launch"
    assert not is_trial([*step, *call])
    assert is_trial([*step, (f"{package}train/rehearsal.py", "rehearse"), *call])


@pytest.mark.slow
def test_the_start_of_a_command(tmp_path: Path) -> None:
    """The whole of it, on a CPU."""
    words = ["run", "--scenario", "digits-5", "--method", "naive", "--epochs", "1"]
    told = subprocess.run([sys.executable, start.__file__, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert re.match(r"first step done at \d+\.\d\d s\n +0\.\d\d +\d+\.\d\d  ", told.stdout)
    assert "import torch" in told.stdout
    assert not list(tmp_path.iterdir())


def test_seconds_of_the_parts_of_a_start() -> None:
    looks = [(0.5, "python"), (1.0, "import torch"), (1.5, "import others"), (3.0, "import torch")]
    assert seconds_by_part(looks) == {"python": (0.0, 0.5), "import torch": (0.5, 2.0), "import others": (1.0, 0.5)}
