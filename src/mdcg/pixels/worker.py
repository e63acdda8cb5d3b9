"""A process that decodes images: it is asked on its input and answers on its output.

It is started by `processes`, and imports little: not torch, and nothing of a person's own program. A question is a
line of JSON, a list with the path of each file, or its size where its content follows the line. The answer is a line
of JSON too, a list with the sha1 of each file, or null if it cannot be decoded; then the pixels of all follow, one
after the other, zeros in place of those that there are not.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from mdcg.errors import MdcgError
from mdcg.pixels.decode import BadImage, Decoded, Encoded, ImageFormat, attempt
from mdcg.programs import answering

READY = b"ready\n"  # what it says first


def main(settings: dict[str, Any]) -> None:
    """Answer until there are no more questions, or nobody is left who asked."""
    answers = answering()
    Image.MAX_IMAGE_PIXELS = settings["pixels"]
    format = ImageFormat(settings["size"], settings["resize"], tuple(settings["background"]))
    try:
        _serve(sys.stdin.buffer, answers, format, settings["hashed"])
    except BrokenPipeError:
        os._exit(1)


def _serve(questions: BinaryIO, answers: BinaryIO, format: ImageFormat, hashed: bool) -> None:
    _write(answers, READY)
    while line := questions.readline():
        files = json.loads(line)
        images = np.zeros((len(files), format.size, format.size, 3), np.uint8)
        done: list[str | None] = []
        for row, file in enumerate(files):
            content = questions.read(file) if isinstance(file, int) else Path(file)
            made = _attempt(Encoded("", content), format, hashed)
            if made is None or isinstance(made.image, BadImage):
                done.append(None)
            else:
                images[row] = made.image
                done.append(made.sha1)
        _write(answers, json.dumps(done).encode() + b"\n")
        _write(answers, images.data)


def _attempt(encoded: Encoded, format: ImageFormat, hashed: bool) -> Decoded | None:
    try:
        return attempt(encoded, format, hashed)
    except (MdcgError, MemoryError):  # who asked tries again, and says what is wrong
        return None


def _write(answers: BinaryIO, content: bytes | memoryview) -> None:
    answers.write(content)
    answers.flush()
