"""Seconds of the first load of a dataset, by part, and of the next one, which finds the cache.

    python benchmarks/load.py FOLDER [--dataset tinyimagenet] [--size 64]

FOLDER is where the dataset lies, as for `--data`. With --dataset folder it is itself one, a folder of images, which are
resized to --size. The cache is made in a temporary folder ($TMPDIR) and removed. The first time the files come from the
disk, later from memory where they fit into it: run it twice.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mdcg.data import content, load, prepare

SPENT: dict[str, float] = defaultdict(float)  # seconds


def timed(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose time is added to that of a part."""

    def wrapped(*given: Any) -> Any:
        start = time.perf_counter()
        try:
            return work(*given)
        finally:
            SPENT[part] += time.perf_counter() - start

    return wrapped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", default="tinyimagenet")
    parser.add_argument("--size", type=int)
    asked = parser.parse_args()
    own = asked.dataset == "folder"
    name = f"folder:{asked.folder}" if own else asked.dataset
    given = (None if own else asked.folder, asked.size)
    for module, function, part in (
        (prepare, "read_anew", "read"),
        (content, "statistics", "statistics"),
        (prepare, "write_cache", "write"),
    ):
        setattr(module, function, timed(part, getattr(module, function)))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MDCG_CACHE"] = cache
        dataset = timed("first", load)(name, *given)
        timed("next", load)(name, *given)
        images = len(dataset.train) + len(dataset.test)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    spent, memory = sum(one.ru_utime + one.ru_stime for one in used), used[0].ru_maxrss / 2**20
    print(f"{images:,} images, {os.cpu_count()} cores, {spent:.1f} s of all together, {memory:.1f} GiB")
    for text, seconds in (
        ("files read, checked and decoded", SPENT["read"] - SPENT["statistics"]),
        ("channel statistics", SPENT["statistics"]),
        ("cache written, with its digest", SPENT["write"]),
        ("first load", SPENT["first"]),
        ("next load", SPENT["next"]),
    ):
        print(f"{text:34}{seconds:8.2f} s")


if __name__ == "__main__":
    main()
