"""Accuracy of a `Learner` that learns classes as they arrive, by one method or another.

python benchmarks/learner_methods.py SOURCE [METHOD …] [--data PATH] [--seeds 0 1 2] [--each N] [--processes 1]
                                     [--lr RATE] [--hold-out 0.1] [--no-flip] [--precision auto]

SOURCE is one of

digits    two digits a call, memory 100, the small network
cifar10   two classes a call, in the order of `mdcg run --scenario c10-5`, memory 500; PATH has cifar-10-batches-bin
folders   of the folders in PATH 20, drawn by the seed, four a call, memory 500: files of images, a folder for a class.
          A fifth of each, drawn by the seed too, is not learned but tested on.

With --each, no more than N images of a class are learned; --lr is a learning rate in place of the default. The learner
is saved and loaded between calls. Prints for each method the accuracy on the test images of all classes at the end,
mean and sample standard deviation over seeds, then those of the seeds, and the seconds that all calls took.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mdcg
from mdcg.data import load
from mdcg.scenario import Scenario

METHODS = ("md-replay", "er-ace", "replay", "md-cg")
CALLS = 5
CLASSES = 20  # of many folders
SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class Arriving:
    """What is learned, call by call, what is tested on in the end, and how the learner is made."""

    calls: list[tuple[Any, Any]]  # images or their files, and labels
    test: tuple[Any, Any]
    made: dict[str, Any]


def arriving(source: str, data: Path | None, seed: int, each: int | None = None) -> Arriving:
    """The classes of a source in the order that belongs to a seed, so many images of each."""
    if source == "folders":
        if data is None:
            raise SystemExit("give the folder of folders with --data.")
        return _folders(data, seed, each)
    if source == "digits":
        order = np.random.default_rng(seed).permutation(10)
    else:
        order = np.array(Scenario.build(10, CALLS, seed).order)
    dataset = load(source, data)
    names = np.array(dataset.class_names)

    rng = np.random.default_rng(seed)

    def of(split: Any, classes: Any, most: int | None = None) -> tuple[Any, Any]:
        own = np.concatenate([rng.permutation(np.flatnonzero(split.labels == label))[:most] for label in classes])
        own.sort()
        return split.images[torch.from_numpy(own)].numpy(), names[split.labels[own]]

    calls = [of(dataset.train, pair, each) for pair in order.reshape(CALLS, -1)]
    made = {"memory": 100, "backbone": "smallconv"} if source == "digits" else {"memory": 500}
    return Arriving(calls, of(dataset.test, order), made)


def _folders(root: Path, seed: int, most: int | None) -> Arriving:
    rng = np.random.default_rng(seed)
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir())
    if len(folders) < CLASSES:
        raise SystemExit(f"{root} has {len(folders)} folders; {CLASSES} classes are needed.")
    chosen = [folders[place] for place in rng.permutation(len(folders))[:CLASSES]]
    learned, tested = list[list[Path]](), list[list[Path]]()
    for folder in chosen:
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
        if len(files) < 5:
            raise SystemExit(f"{folder} has {len(files)} images; five are needed, to test on one.")
        shuffled = [files[place] for place in rng.permutation(len(files))]
        tested.append(shuffled[: len(files) // 5])
        learned.append(shuffled[len(files) // 5 :][:most])

    def of(classes: range, files: list[list[Path]]) -> tuple[list[str], list[str]]:
        pairs = [(str(file), chosen[number].name) for number in classes for file in files[number]]
        return [file for file, _ in pairs], [label for _, label in pairs]

    of_call = CLASSES // CALLS
    calls = [of(range(call * of_call, (call + 1) * of_call), learned) for call in range(CALLS)]
    return Arriving(calls, of(range(CLASSES), tested), {"memory": 500})


def accuracy(
    job: tuple[str, int], *, source: str, data: Path | None, each: int | None, how: dict[str, Any]
) -> tuple[float, float]:
    """The accuracy of a method and seed in the end, in percent, and the seconds that the calls took."""
    method, seed = job
    torch.set_num_threads(1)
    stream = arriving(source, data, seed, each)
    learner = mdcg.Learner(method, seed=seed, quiet=True, **stream.made, **how)
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        for images, labels in stream.calls:
            started = time.perf_counter()
            learner.learn(images, labels)
            seconds += time.perf_counter() - started
            learner.save(file)
            learner = mdcg.Learner.load(file).set_params(quiet=True, precision=how["precision"])
    images, labels = stream.test
    return 100 * float(learner.score(images, labels)), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=["digits", "cifar10", "folders"])
    parser.add_argument("methods", nargs="*", default=METHODS, metavar="METHOD")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--each", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--hold-out", type=float, default=0.1)
    parser.add_argument("--no-flip", action="store_true")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    how = {
        "lr": asked.lr,
        "hold_out": asked.hold_out,
        "flip": not asked.no_flip,
        "precision": asked.precision,
    }
    one = partial(accuracy, source=asked.source, data=asked.data, each=asked.each, how=how)
    jobs = [(method, seed) for method in asked.methods for seed in asked.seeds]
    with multiprocessing.get_context("spawn").Pool(asked.processes) as processes:
        found = dict(zip(jobs, processes.map(one, jobs, chunksize=1), strict=True))
    for method in asked.methods:
        own = [found[method, seed][0] for seed in asked.seeds]
        seconds = sum(found[method, seed][1] for seed in asked.seeds)
        spread = f" ± {statistics.stdev(own):.1f}" if len(own) > 1 else ""
        by_seed = ", ".join(f"{value:.1f}" for value in own)
        print(f"{method:10} {statistics.mean(own):.1f}{spread}   ({by_seed}; {seconds:.0f} s)")


if __name__ == "__main__":
    main()
