"""What share of small mistakes do the tests notice?

    python tools/mutate.py --mutants 100 --seed 1 --jobs 4

Draws mutants of the source at random (`mutants.py`), runs for each the tests that execute its lines, the quick ones
first and until one fails, and prints those that none notices. Works in copies of the tree. Which test executes what is
measured once (`observed.py`: all that `make test` runs, somewhat slower) and kept in `.mutation/` until a file changes.

Those that change nothing that a test could notice are listed in `equivalent.toml`, each with its reason. A mutant that
never ends is noticed: it has three times as long as its tests took, and a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mutants import Mutant, Place, places_in

ROOMS = ["methods", "train", "models", "learner", "runs", "execute", "recipes"]
WITHOUT = ["models/kernels"]  # whose programs are a GPU's: tests/train/test_gpu.py
LEFT_OUT = {"site", "dist", "runs", "demo-runs", "build"}  # of the tree, in its copies, and what is hidden
LEAST = 60  # seconds that every mutant has
PYTEST = [sys.executable, "-m", "pytest", "-p", "observed", "-p", "no:cacheprovider", "-m", "not slow"]
PYTEST += ["--hypothesis-seed=0"] if find_spec("hypothesis") else []


class Tree:
    """A copy of the source and its tests."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self._temporary = folder / "tmp"
        hidden = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(
            root,
            self.root,
            ignore=lambda place, names: hidden(place, names) | (LEFT_OUT if Path(place) == root else set()),
            symlinks=True,
        )
        self.package = package_in(self.root)
        self._times = count(2_000_000_000)  # of files: byte code is only made anew where they differ

    def write(self, path: str, text: str) -> None:
        file = self.package / path
        file.write_text(text)
        os.utime(file, (when := next(self._times), when))

    def pytest(self, words: list[str], variables: dict[str, str], seconds: float | None = None) -> int | None:
        """Its exit status; None if it took longer. Processes that it started end with it."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        given = [Path(one).absolute() for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        own = ("OBSERVED_INTO", "OBSERVED_BELOW", "CHOSEN_TESTS")  # of a run that this one is a test of
        environment = {name: value for name, value in os.environ.items() if name not in own} | {
            "PYTHONPATH": os.pathsep.join(map(str, (self.root / "src", Path(__file__).resolve().parent, *given))),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self._temporary),
        }
        with (self.root.parent / "output.txt").open("wb") as output:
            words = [*PYTEST, "--basetemp", str(self._temporary / "pytest"), *words]
            running = subprocess.Popen(
                words, cwd=self.root, env=environment | variables, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                return running.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.wait()

    def output(self) -> str:
        return (self.root.parent / "output.txt").read_text(errors="replace")


def package_in(root: Path) -> Path:
    return next((root / "src").glob("*/__init__.py")).parent


class Measured:
    """Which tests execute which lines."""

    def __init__(self, tests: dict[str, dict[str, Any]]) -> None:
        self.tests = tests

    @classmethod
    def of(cls, tree: Tree, jobs: int, kept: Path) -> Measured:
        """What the file `kept` says of tests holds while their file and all that tests share are as they were."""
        files = sorted(file for place in ("src", "tests") for file in (tree.root / place).rglob("*.py"))
        digests = {file.relative_to(tree.root).as_posix(): _digest(file.read_bytes()) for file in files}
        own = {name: digests.pop(name) for name in list(digests) if Path(name).name.startswith("test_")}
        shared = _digest(json.dumps(digests).encode())
        known = json.loads(kept.read_text()) if kept.exists() else {}
        if known.get("shared") != shared:
            known = {"files": {}, "tests": {}}
        changed = [name for name, digest in own.items() if known["files"].get(name) != digest]
        tests = {name: test for name, test in known["tests"].items() if file_of(name) in digests | own}
        tests = {name: test for name, test in tests.items() if file_of(name) not in changed}
        if changed:
            tests |= _observe(tree, jobs, changed if known["files"] else [])
            kept.parent.mkdir(exist_ok=True, parents=True)
            kept.write_text(json.dumps({"shared": shared, "files": own, "tests": tests}))
        return cls(tests)

    def of_mutant(self, mutant: Mutant) -> list[str]:
        """All that could notice it: files of its own room first, quick ones first, and so within a file.

        Last come those whose commands are processes of their own: what they execute is not seen here.
        """
        room = Path("tests", mutant.path).parent.as_posix() + "/"
        first, last = mutant.lines
        found = {
            name
            for name, test in self.tests.items()
            if (mutant.scope.runs_at_import and (mutant.path in test["lines"] or name.startswith(room)))
            or any(first <= line <= last for line in test["lines"].get(mutant.path, ()))
        }
        elsewhere = {name for name, test in self.tests.items() if "elsewhere" in test} - found
        seconds: Counter[str] = Counter()
        for name in found | elsewhere:
            seconds[file_of(name)] += self.tests[name]["seconds"]

        def place(name: str) -> tuple[object, ...]:
            file = file_of(name)
            return name in elsewhere, not name.startswith(room), seconds[file], file, self.tests[name]["seconds"], name

        return sorted(found | elsewhere, key=place)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _observe(tree: Tree, jobs: int, files: list[str]) -> dict[str, dict[str, Any]]:
    """Run these files of tests, or all."""
    begun = time.monotonic()
    print(f"running {len(files) or 'all'} files of tests, to see what they execute …", flush=True)
    (folder := tree.root.parent / "observed").mkdir()
    several = ["--numprocesses", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    tree.pytest(
        ["--continue-on-collection-errors", *several, *files],
        {"OBSERVED_INTO": str(folder), "OBSERVED_BELOW": str(tree.package)},
    )
    parts = [json.loads(file.read_text()) for file in folder.iterdir()]
    tests = {name: told for part in parts for name, told in part["tests"].items()}
    if not tests:
        raise SystemExit(f"no test passed:\n{tree.output()[-5000:]}")
    print(f"{len(tests)} tests in {time.monotonic() - begun:.0f} s", flush=True)
    for name in sorted({name for part in parts for name in part["failed"]}):
        print(f"  without a mutant, this one fails, and is not used: {name}")
    return tests


def file_of(test: str) -> str:
    return test.split("::")[0]


@dataclass
class Outcome:
    mutant: Mutant
    noticed: str | None  # by which test, or how else
    tests: int  # that were chosen


def try_out(mutant: Mutant, tree: Tree, measured: Measured, deadline: float) -> Outcome | None:
    """None if there was no time left."""
    tests = measured.of_mutant(mutant)
    if not tests:
        return Outcome(mutant, None, 0)
    limit = 3 * sum(measured.tests[name]["seconds"] for name in tests) + LEAST
    if (left := deadline - time.monotonic()) <= 0:
        return None
    chosen, failed = tree.root.parent / "chosen.txt", tree.root.parent / "chosen.failed"
    chosen.write_text("\n".join(tests))
    failed.unlink(missing_ok=True)
    before = (tree.package / mutant.path).read_text()
    tree.write(mutant.path, mutant.source)
    try:
        files = dict.fromkeys(map(file_of, tests))
        code = tree.pytest(["-x", *files], {"CHOSEN_TESTS": str(chosen)}, min(limit, left))
    finally:
        tree.write(mutant.path, before)
    match code:
        case 0:
            return Outcome(mutant, None, len(tests))
        case None:
            return Outcome(mutant, "it does not end", len(tests)) if limit < left else None
        case 5:
            raise SystemExit(f"no test was run:\n{tree.output()}")
    return Outcome(
        mutant, failed.read_text() if failed.exists() else "it cannot be imported, or ends the process", len(tests)
    )


def equivalent(file: Path) -> dict[str, str]:
    """The reasons, by the key of the mutant."""
    told = tomllib.loads(file.read_text()) if file.exists() else {}
    return {f"{one['where']}: {one['old']} → {one['new']}": one["reason"] for one in told.get("mutant", [])}


def drawn(places: list[Place], number: int, seed: int, package: Path) -> Iterator[Mutant]:
    """So many, all different."""
    seen: set[str] = set()
    for place in random.Random(seed).sample(places, len(places)):
        if len(seen) == number:
            return
        mutant = place.mutant((package / place.path).read_text())
        if mutant and mutant.source not in seen:
            seen.add(mutant.source)
            yield mutant


def asked(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders or modules of the package")
    parser.add_argument("--without", nargs="*", default=WITHOUT, help="of these, what to leave out")
    parser.add_argument("--mutants", type=int, default=100, help="how many to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="how many to try at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which what is known is printed")
    parser.add_argument("--only", default="", help="only mutants whose file, function or lines contain this")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="of the tree")
    parser.add_argument("--measured", type=Path, help="where to keep which test executes what")
    parser.add_argument("--equivalent", type=Path, default=Path(__file__).parent / "equivalent.toml")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    options = asked(words)
    deadline = time.monotonic() + 60 * options.minutes
    root = options.root.resolve()
    package = package_in(root)
    places = [
        place
        for place in places_in(package, options.rooms, options.without)
        if options.only in f"{place.path} {place.scope.name} {place.new}"
    ]
    known = equivalent(options.equivalent)
    mutants = list(drawn(places, options.mutants, options.seed, package))
    print(f"{len(mutants)} of some {len(places)} mutants, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree(root, Path(folder, str(number))))
        tree = trees.get()
        measured = Measured.of(tree, options.jobs, options.measured or root / ".mutation/measured.json")
        trees.put(tree)
        done = count(1)

        def one(mutant: Mutant) -> Outcome | None:
            tree = trees.get()
            try:
                outcome = try_out(mutant, tree, measured, deadline)
            finally:
                trees.put(tree)
            if outcome:
                said = f"noticed: {outcome.noticed}" if outcome.noticed else f"NOT NOTICED by {outcome.tests} tests"
                print(f"[{next(done)}] {mutant}\n    {said}", flush=True)
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(one, mutants))
    report([outcome for outcome in outcomes if outcome], len(mutants), known)


def report(outcomes: list[Outcome], of: int, known: dict[str, str]) -> None:
    survivors = [outcome for outcome in outcomes if not outcome.noticed]
    reasons = {outcome.mutant.key: known[outcome.mutant.key] for outcome in survivors if outcome.mutant.key in known}
    gaps = [outcome for outcome in survivors if outcome.mutant.key not in reasons]
    print(f"\n{len(gaps)} that no test notices:" if gaps else "\nTests notice all.")
    for outcome in gaps:
        print(f"{outcome.mutant}\n    {outcome.tests} tests were run")
    for key, reason in reasons.items():
        print(f"equivalent: {key}\n    {reason}")
    caught = len(outcomes) - len(survivors)
    print(f"\n{caught} of {len(outcomes)} noticed: {caught / max(len(outcomes), 1):.1%}")
    if reasons:
        able = len(outcomes) - len(reasons)
        print(f"without {len(reasons)} that are equivalent: {caught} of {able}: {caught / max(able, 1):.1%}")
    if len(outcomes) < of:
        print(f"{of - len(outcomes)} of those drawn were not finished in time")


if __name__ == "__main__":
    main()
