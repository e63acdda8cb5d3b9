"""Time and peak memory of the commands that look at all runs of a folder, each as a process of its own.

    python benchmarks/many_runs.py [--runs 200,2000,10000] [--settings 1000,4000,16000] [--keep FOLDER]

Makes folders of finished runs, which nobody trained, and of one archive each with the same runs: two scenarios of the
digits, four methods, five seeds, 20 epochs for each task, and as many memory sizes and learning rates as it takes.
Every command is given once for each, `sweep --plan` with a recipe of all these runs. `report` is also given for
archives in which every run is a setting of its own, with a learning rate that no other has: its work must not grow with
the square of their number. `list methods` is what any command takes. With --keep the folders stay, and with them all
that the commands wrote, to compare two versions: a folder that is there is not made again. Peak memory is that of the
process (ru_maxrss), with Python and PyTorch in it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

SCENARIOS, METHODS, SEEDS = ["digits-2", "digits-5"], ["replay", "er-ace", "md", "md-cg"], 5
RATES = 5  # learning rates, of 2,000 runs and more


def recipe(runs: int) -> dict[str, object]:
    """A recipe of so many runs."""
    rates = [round(0.01 * (1 + rate / 10), 4) for rate in range(RATES if runs >= 2000 else 1)]
    sizes, rest = divmod(runs, len(SCENARIOS) * len(METHODS) * SEEDS * len(rates))
    if rest or not sizes:
        raise SystemExit(f"{runs} runs cannot be made; give a multiple of 200.")
    memories = [20 + 10 * size for size in range(sizes)]
    axes = {"scenario": SCENARIOS, "method": METHODS, "memory": memories, "lr": rates}
    return {"epochs": 20, "seeds": f"0-{SEEDS - 1}", "axes": axes}


def make(folder: Path, runs: int) -> None:
    """Make a recipe, its runs as folders, and the same runs as one archive."""
    # Imported only in the process that makes them, see `apart`.
    from mdcg.execute.sweep import Sweep
    from mdcg.runs.archive import write_archive
    from mdcg.runs.store import Store
    from mdcg.testing.made import write_made

    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(json.dumps(recipe(runs)))
    write_made(Sweep.read(folder / "recipe.yaml", out=folder / "folders"))
    write_archive(folder / "archive" / "all.jsonl", [record for _, record in Store(folder / "folders").records()])


def make_settings(folder: Path, count: int) -> None:
    """Make an archive of so many runs, each of a setting of its own."""
    from mdcg.execute.sweep import Sweep
    from mdcg.recipes.document import Document
    from mdcg.runs.archive import write_archive
    from mdcg.testing.made import made_record

    base = {"scenario": "digits-5", "methods": ["replay", "md"], "memory": 100, "epochs": 2, "seeds": "0"}
    sweep = Sweep.of(Document(base), out=folder)
    names = sweep.context.dataset(sweep.specs[0]).class_names
    rates = (round(0.001 * (1 + place / 1000), 7) for place in range(count))
    specs = (sweep.specs[place % 2].model_copy(update={"lr": rate}) for place, rate in enumerate(rates))
    write_archive(folder / "all.jsonl", [made_record(spec, names) for spec in specs])


def apart(make: Callable[..., None], *asked: object) -> None:
    """Make something in a process of its own: one that is started begins with the peak of the one that starts it."""
    making = multiprocessing.get_context("spawn").Process(target=make, args=asked)
    making.start()
    making.join()


def measured(output: Path, *words: object) -> str:
    """Time and peak memory of a command, whose output goes to a file."""
    started = time.perf_counter()
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "mdcg", *map(str, words)], stdout=file)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the command failed: mdcg {' '.join(map(str, words))}")
    seconds, computing = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    return f"{seconds:.1f} s ({computing:.1f}), {usage.ru_maxrss / 1024:,.0f} MiB"


def commands(runs: Path, out: Path) -> dict[str, tuple[object, ...]]:
    """The commands about a folder of runs; what they write goes to `out`."""
    recipe = runs.parent / "recipe.yaml"
    name = min(path.name for path in (runs.parent / "folders").iterdir())
    return {
        "runs": ("runs", "--out", runs),
        "runs --json": ("runs", "--out", runs, "--json"),
        "runs --export FILE.csv": ("runs", "--out", runs, "--export", out / "all.csv"),
        "report": ("report", runs, "--out", out / "report"),
        "sweep RECIPE --plan": ("sweep", recipe, "--out", runs, "--plan"),
        "show RUN": ("show", name, "--out", runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="200,2000,10000")
    parser.add_argument("--settings", default="1000,4000,16000")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    counts = [int(text) for text in asked.runs.split(",")]
    rows: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for count in counts:
            folder = (asked.keep or Path(scratch)) / str(count)
            if not folder.exists():
                apart(make, folder, count)
            for kind in ("folders", "archive"):
                out = folder / f"out-{kind}"
                out.mkdir(exist_ok=True)
                for place, (name, words) in enumerate(commands(folder / kind, out).items()):
                    found = measured(out / f"{place}.txt", *words)
                    rows.setdefault(f"{name} | {kind}", []).append(found)
                    print(f"{count:,} runs, {kind}, {name}: {found}", file=sys.stderr)
        print(f"\nany command: {measured(Path(scratch) / 'any.txt', 'list', 'methods')}", file=sys.stderr)
        of_settings = {}
        for count in [int(text) for text in asked.settings.split(",")]:
            folder = (asked.keep or Path(scratch)) / f"settings-{count}"
            if not folder.exists():
                folder.mkdir(parents=True)
                apart(make_settings, folder, count)
            words = ("report", folder, "--out", folder / "report")
            of_settings[count] = measured(folder / "report.txt", *words)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {version('torch')}"
    print(f"{machine}; in brackets the seconds of a core\n")
    print(f"| command | runs as | {' | '.join(f'{count:,} runs' for count in counts)} |")
    print("|---|---|" + "---|" * len(counts))
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\n| settings | {' | '.join(f'{count:,}' for count in of_settings)} |")
    print("|---|" + "---|" * len(of_settings))
    print(f"| report | {' | '.join(of_settings.values())} |")


if __name__ == "__main__":
    main()
