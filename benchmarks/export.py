"""Size and latency of exported classifiers beside PyTorch's own, on the CPU.

    python benchmarks/export.py [--backbones smallconv resnet20 resnet18] [--threads 2 1] [--repeats 15] [--note TEXT]

Classifiers with cascaded gates, ten classes learned two at a time, random weights and random images: neither matters
for the time. Measured is the wall time from uint8 pixels to probabilities, of one image and of 256, median of --repeats
after two of warming up: by PyTorch's module (`mdcg.export.Classifier`), by the same program read back from its .pt2
file, and by onnxruntime from its .onnx file. The three are timed in turn, so that whatever else the machine does falls
on all of them alike. The size is the file's; PyTorch's is that of the parameters and buffers. Prints a Markdown table
and writes it, with the hardware, the versions and --note, to the folder --out.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime
import torch
from step import processor
from torch import Tensor

from mdcg.export import Classifier, export_onnx, export_torch
from mdcg.models import build_model

SIDES = {"smallconv": 8, "resnet20": 32, "resnet18": 64}  # pixels that each is meant for
BATCHES = (1, 256)
Form = Callable[[Tensor], object]
HEADER = "| backbone | images | threads | form | MB | ms, one image | ms, 256 images |\n|---|---|---|---|---|---|---|"


def classifier_of(backbone: str) -> Classifier:
    side = SIDES[backbone]
    model = build_model(backbone, "cascaded-gates", (3, side, side), [0])
    for _ in range(5):
        model.grow(2)
    return Classifier(model, (0.49, 0.48, 0.45), (0.2, 0.2, 0.2), 10)


def session_of(path: Path, threads: int) -> Form:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.numpy()})


def medians(forms: dict[str, Form], images: Tensor, repeats: int) -> dict[str, float]:
    """Milliseconds of each form, timed in turn."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(repeats + 2):
        for name, form in forms.items():
            start = time.perf_counter()
            form(images)
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def rows(backbone: str, threads: list[int], repeats: int, folder: Path) -> list[str]:
    classifier, side = classifier_of(backbone), SIDES[backbone]
    onnx, pt2 = folder / f"{backbone}.onnx", folder / f"{backbone}.pt2"
    names = [str(number) for number in range(10)]
    export_onnx(classifier, onnx, (3, side, side), names)
    export_torch(classifier, pt2, (3, side, side), names)
    sizes = {
        "PyTorch": sum(value.nbytes for value in (*classifier.parameters(), *classifier.buffers())),
        ".pt2": pt2.stat().st_size,
        ".onnx, onnxruntime": onnx.stat().st_size,
    }
    program: Form = torch.export.load(pt2).module()
    lines = []
    for count in threads:
        torch.set_num_threads(count)
        forms: dict[str, Form] = dict(zip(sizes, (classifier, program, session_of(onnx, count)), strict=True))
        pictures = [torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8) for batch in BATCHES]
        with torch.no_grad():
            one, many = (medians(forms, images, repeats) for images in pictures)
        lines += [
            f"| {backbone} | {side}×{side} | {count} | {name} | {size / 1e6:.2f} | {one[name]:.2f} | {many[name]:.1f} |"
            for name, size in sizes.items()
        ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--note", default="", help="what a reader should know of this measurement")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    date, host = datetime.now(UTC).date().isoformat(), processor()
    head = (
        f"date {date}, host {host}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"onnxruntime {onnxruntime.__version__}, python {platform.python_version()}; median of {asked.repeats}"
    )
    head = "\n".join(filter(None, (head, asked.note)))
    print(f"{head}\n\n{HEADER}")
    table = [HEADER]
    with tempfile.TemporaryDirectory() as folder:
        for backbone in asked.backbones:
            table += rows(backbone, asked.threads, asked.repeats, Path(folder))
            print("\n".join(table[-3 * len(asked.threads) :]), flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / f"export-cpu-{date}.md").write_text(f"{head}\n\n" + "\n".join(table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
