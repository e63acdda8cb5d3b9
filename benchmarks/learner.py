"""Time and peak memory of `mdcg learn` and `mdcg predict` on photographs of 224 pixels, each as a process of its own.

python benchmarks/learner.py [--images 2000] [--size 224]

Makes JPEG files of 320×240 pixels in ten classes, learns the first eight (MD-CG, ResNet-18, batches of 32) and then two
more with a memory of 500, one epoch each, and classifies a quarter of the files, then all of them: memory must not grow
with their number. Peak memory is that of the process (ru_maxrss), with Python and PyTorch in it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

CLASSES, LATER = 10, 2


def make_photos(folder: Path, images: int) -> None:
    """Smooth random images, as JPEG files: as large as photographs of that many pixels are."""
    rng = np.random.default_rng(0)
    for number in range(images):
        label = number % CLASSES
        place = folder / ("july" if label >= CLASSES - LATER else "june") / f"class {label}"
        place.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (12, 16, 3), np.uint8)
        coarse[..., label % 3] //= 2
        Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(place / f"{number}.jpg", quality=90)


def measured(*words: object) -> tuple[float, float]:
    """Seconds and peak memory in MiB of a command."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "mdcg", *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the command failed: mdcg {' '.join(map(str, words))}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=224)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        make_photos(root, asked.images)
        files = sorted(root.glob("*/*/*.jpg"))
        first, second = root / "first.safetensors", root / "second.safetensors"
        rows = {
            f"learn {CLASSES - LATER} classes, one epoch": measured(
                "learn", root / "june", "--out", first, "--image-size", asked.size, "--epochs", 1, "--method", "md-cg"
            ),
            f"learn {LATER} more, one epoch": measured(
                "learn", root / "july", "--from", first, "--out", second, "--epochs", 1
            ),
            f"predict {len(files) // 4:,} files": measured("predict", second, *files[::4]),
            f"predict {len(files):,} files": measured("predict", second, root / "june", root / "july"),
        }
        print(
            f"{asked.images:,} photos, {asked.size} pixels, {platform.processor() or platform.machine()}, "
            f"{os.cpu_count()} cores, torch {torch.__version__}\n"
        )
        print("| command | seconds | peak memory, MiB |\n|---|---|---|")
        for name, (seconds, memory) in rows.items():
            print(f"| {name} | {seconds:.1f} | {memory:,.0f} |")
        print(f"\nfile: {second.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
