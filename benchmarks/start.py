"""Seconds from a command to the end of its first training step, and where its main thread was meanwhile.

    python benchmarks/start.py [--caches kept|none] [--disk warm|cold] COMMAND …

COMMAND is what stands behind `mdcg`, one that trains: run --scenario c10-5 --method md-cg --memory 500. Its runs go
into a temporary folder, and it is ended after its first step, when the device has done it. A thread of its process
looks 50 times a second where the main thread is.

--caches none   without compiled kernels and without images in the cache, as on a new machine
--disk cold     after the system was told to forget what it has read of the disk (Linux, as root)
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

EVERY = 0.02  # seconds between two looks
LEAST = 0.15  # seconds of a part that is told
BEGAN = "MDCG_BENCHMARK_BEGAN"  # when the command was given, by the clock of the system
STEP = "train_step"  # of the trainer that trains: others only try, within one of the parts
PARTS = ("_read", "make_plan", "rehearse", "members_that_fit", "fresh", STEP)  # whose time is told by what they call
TRAIN = ("run", "compare", "sweep")  # commands that train


def main() -> None:
    """Give the command, and print what its process said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caches", choices=("kept", "none"), default="kept")
    parser.add_argument("--disk", choices=("warm", "cold"), default="warm")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.command[:1] not in ([word] for word in TRAIN):
        parser.error("say a command that trains, for instance: run --scenario digits-5 --method md-cg --memory 100.")
    # Kernels that nobody waits for any more may still be written there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        variables = dict(os.environ)
        if asked.caches == "none":
            variables |= {"TRITON_CACHE_DIR": f"{scratch}/triton", "MDCG_CACHE": f"{scratch}/images"}
        if asked.disk == "cold":
            try:
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
            except OSError:
                parser.error("what was read of the disk can be forgotten on Linux only, by root; leave --disk out.")
        command = [sys.executable, __file__, "--watched", *asked.command, "--out", f"{scratch}/runs"]
        raise SystemExit(subprocess.run(command, env=variables | {BEGAN: repr(time.time())}).returncode)


def watched(command: Sequence[str]) -> None:
    """Run the command in this process until its first step is done."""
    threading.Thread(target=_look, args=(threading.get_ident(),), daemon=True).start()
    sys.argv = ["mdcg", *command]
    from mdcg.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    raise SystemExit("no step was made: leave out what only plans or explains.")


def _look(thread: int) -> None:
    """Note where a thread is, until it has made a step; then print this and end the process."""
    began, package = float(os.environ[BEGAN]), _package()
    looks: list[tuple[float, str]] = []
    done = threading.Event()
    watching = False
    while not done.is_set():
        if not watching and (loop := sys.modules.get("mdcg.train.loop")) is not None and hasattr(loop, "total_steps"):
            watching = True  # that function comes after the class, which is whole then
            _tell(loop.Trainer, done)
        frame = sys._current_frames().get(thread)
        looks.append((time.time() - began, part_of(list(_calls(frame)), package)))
        done.wait(EVERY)
    print(f"first step done at {time.time() - began:.2f} s")
    for part, (start, seconds) in seconds_by_part(looks).items():
        if seconds >= LEAST:
            print(f"  {start:7.2f} {seconds:6.2f}  {part}")
    sys.stdout.flush()
    os._exit(0)


def _tell(trainer: Any, done: threading.Event) -> None:
    """Have it told when a step is done that is no trial."""
    step = getattr(trainer, STEP)

    def told(self: Any, *args: Any, **options: Any) -> None:
        step(self, *args, **options)
        if not is_trial(list(_calls(sys._getframe(1)))):
            self.compute.wait()
            done.set()

    setattr(trainer, STEP, told)


def _package() -> str:
    """The folder of the package."""
    found = importlib.util.find_spec("mdcg")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent) + os.sep


def _calls(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """The file and the function of each call, the innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back


def part_of(stack: Sequence[tuple[str, str]], package: str) -> str:
    """The part of the start to which a moment belongs, by its calls, the innermost first."""
    if any("importlib._bootstrap" in file for file, _ in stack):
        return f"import {'torch' if any('/torch/' in file for file, _ in stack) else 'others'}"
    own = [(file.removeprefix(package), name) for file, name in stack if file.startswith(package)]
    if not own:
        return "python"
    within = [name for _, name in reversed(own) if name in PARTS][:1]
    return "".join([*(f"{name}: " for name in within), ":".join(own[0])])


def is_trial(stack: Sequence[tuple[str, str]]) -> bool:
    """Whether a step with such calls is only tried, or rehearsed."""
    return bool({name for _, name in stack} & (set(PARTS) - {STEP}))


def seconds_by_part(looks: Sequence[tuple[float, str]]) -> Mapping[str, tuple[float, float]]:
    """When each part began, and the seconds that it took, in the order of their beginnings."""
    parts: dict[str, tuple[float, float]] = {}
    before = 0.0
    for moment, part in looks:
        start, seconds = parts.get(part, (before, 0.0))
        parts[part] = start, seconds + moment - before
        before = moment
    return parts


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watched"]:
        watched(sys.argv[2:])
    else:
        main()
