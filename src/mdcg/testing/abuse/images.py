"""Images that are damaged, lie about themselves, would take very long, or are none: what commands make of them."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import socket
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mdcg.pixels.decode import FORMATS
from mdcg.testing.abuse import costly
from mdcg.testing.abuse.campaign import Failure
from mdcg.testing.abuse.damage import Edited
from mdcg.testing.abuse.hostile import NAMES, Harm, Hostile, fewest


class Images(Hostile):
    """Damaged, huge and false images, pipes, devices and links among good images: a sentence, or they are skipped."""

    name, usual, memory = "images", 150, 4 * 2**30

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.model = folder / "model.safetensors"
        self._good(folder / "good")
        learned = self.wrong("learn", folder / "good", "--out", self.model, *SMALLEST)
        assert self.model.exists(), learned

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        command = ("run", "learn", "predict", "evaluate")[number % 4]
        skip = rng.random() < 0.6
        harms = [_image_harm(rng, place) for place in range(rng.choice((1, 1, 1, 2, 4)))]
        found = fewest(harms, lambda chosen: self._tried(command, skip, chosen))
        asked = f"{command}{' --on-error skip' if skip and command != 'run' else ''}"
        return found and replace(found, how=f"{asked} of good images and {found.how}")

    def _tried(self, command: str, skip: bool, harms: Sequence[Harm[Path]]) -> str | None:
        place = self.folder / "photos"
        good = self._good(place)
        for one in harms:
            one.do(place)
        on_error = ["--on-error", "skip" if skip else "stop"]
        words: list[object] = {
            "run": ["run", "--scenario", f"folder:{place}-2", "--method", "naive", "--out", self.folder / "runs"],
            "learn": ["learn", place, "--out", self.folder / "new.safetensors", *on_error],
            "predict": ["predict", self.model, place, *on_error],
            "evaluate": ["evaluate", self.model, place, *on_error],
        }[command]
        if command in ("run", "learn"):
            words += SMALLEST
        error, code, out, said = self.wrong(*words)
        shutil.rmtree(place)
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        (self.folder / "new.safetensors").unlink(missing_ok=True)
        if error is None and skip and command != "run":
            if code != 0:
                return f"what could be skipped was not: {said.strip()}"
            if command == "predict" and sum("good" in line for line in out.splitlines()) < good:
                return "good images were left out"
        return error

    def _good(self, place: Path) -> int:
        for number, name in enumerate(("a", "b")):
            (place / name).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (9 + i, 8), (90 * number, 60 * i, 90)).save(place / name / f"good{i}.png")
        return 8


SMALLEST = ("--epochs", 1, "--image-size", 8, "--backbone", "smallconv", "--batch-size", 4)
MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "GIF": ("1", "L", "P", "RGB", "RGBA"),
    "WEBP": ("RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "I;16", "I", "F"),
    "PPM": ("1", "L", "RGB", "I"),
    "AVIF": ("RGB", "RGBA"),
}
SUFFIXES = ("png", "jpg", "JPEG", "gif", "webp", "tif", "bmp", "ppm", "avif", "jfif")
SIZES = ((0, 0), (1, 65_535), (9_000, 9_000), (13_000, 13_000), (65_535, 65_535), (2**31 - 1, 2**31 - 1), (7, 5))
LOOP = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n{} loop\n"
FALSE = {
    "PostScript that never ends": LOOP,
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "MVG": b"push graphic-context\nimage over 0,0 0,0 'ephemeral:/etc/passwd'\npop graphic-context\n",
    "a script": b"#!/bin/sh\ntouch x\n",
    "HTML": b"<html><img src=x></html>",
    "AppleDouble": b"\0\5\x16\7\0\2\0\0" + bytes(82),
    "HEIC": b"\0\0\0\x18ftypheic" + bytes(64),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "nothing": b"",
    "zeros": bytes(100_000),
    "a long comment": b"P6\n#" + b"x" * 10**6 + b"\n1 1\n255\nabc",
    "a long number": b"P3\n1 1\n255\n" + b"9" * 10**6,
    "a long line": b"P1\n2 2\n" + b" " * 10**6 + b"1 0 1 0",
}


def _image_harm(rng: random.Random, place: int) -> Harm[Path]:
    """Something to put among the images of a class."""
    name = os.fsdecode(rng.choice(NAMES)) if rng.random() < 0.1 else f"x{place}"
    hidden = "._" if rng.random() < 0.05 else ""
    into, file = rng.choice("ab"), f"{hidden}{name}.{rng.choice(SUFFIXES)}"
    kind = rng.random()
    if kind < 0.2:
        words, put = _no_file(rng)
        return Harm(f"{words} {file!r}", lambda folder: put(folder / into / file))
    if kind < 0.3:
        words = rng.choice(list(costly.IMAGES))
        return Harm(f"{file!r}, {words}", lambda folder: (folder / into / file).write_bytes(costly.IMAGES[words]()))
    words, content = _false(rng) if kind < 0.45 else _damaged(rng)
    return Harm(f"{file!r}, {words}", lambda folder: (folder / into / file).write_bytes(content))


def _no_file(rng: random.Random) -> tuple[str, Callable[[Path], object]]:
    """Something in a folder that is not a file, or a file without end."""
    target = rng.choice(("/dev/zero", "/dev/random", "/dev/tty", "/dev/full", "/dev/stdin", "/proc/self/mem", "/", "."))
    linked = rng.choice((target, "../b", "no such file", "good0.png", "../../outside/kept.png"))
    kinds: dict[str, Callable[[Path], object]] = {
        "a pipe": os.mkfifo,
        "a socket": _listen,
        "a folder": Path.mkdir,
        f"a link to {linked}": lambda path: path.symlink_to(linked),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a file of 4 TB": _enlarge,
        "deep folders": lambda path: path.joinpath(*200 * "x").mkdir(parents=True),
    }
    words = rng.choice(list(kinds))
    return words, kinds[words]


def _listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(os.fsencode(path))
        except OSError:  # a name too long for a socket
            path.touch()


def _enlarge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**42)


def _false(rng: random.Random) -> tuple[str, bytes]:
    """What only its name makes an image."""
    kind = rng.choice((*FALSE, "EPS", "PDF", "ICO", "ICNS", "TGA", "PCX", "SGI", "JPEG2000", "DDS", "IM", "QOI", "MPO"))
    if kind in FALSE:
        return kind, FALSE[kind]
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (9, 9, 9)).save(file, kind)
    return kind, file.getvalue()


def _damaged(rng: random.Random) -> tuple[str, bytes]:
    """An image of any format, whole or damaged."""
    kind = rng.choice(FORMATS)
    words, content = _encoded(kind, rng)
    way = rng.random()
    if way < 0.15:
        return words, content
    if way < 0.4:
        width, height = rng.choice(SIZES)
        return f"{words} that says it has {width} × {height}", with_size(content, kind, width, height)
    if way < 0.5 and kind == "PNG":
        bomb = rng.choice((b"zTXtx\0\0", b"iCCPx\0\0", b"iTXtx\0\1\0\0\0", b"eXIf", b"acTL", b"tRNS", b"PLTE"))
        data = bomb[4:] + zlib.compress(bytes(5 * 10**7))
        return f"{words} with a bomb in {bomb[:4].decode()}", content[:33] + _chunk(bomb[:4], data) + content[33:]
    edits = Edited(content).draw(rng)
    return f"{words}, {'; '.join(map(str, edits))}", Edited(content).damaged(edits)


def _encoded(kind: str, rng: random.Random) -> tuple[str, bytes]:
    """A small image: its mode and size, and what else is unusual about it."""
    mode, size = rng.choice(MODES[kind]), rng.choice(((8, 8), (1, 1), (31, 7), (64, 48), (1, 3000), (3000, 1)))
    image = _picture(mode, size, rng)
    unusual: dict[str, Any] = {}
    if rng.random() < 0.3:
        unusual["exif"] = b"Exif\0\0" + rng.choice((b"MM\0*\0\0\0\x08", b"II*\0\x08\0\0\0", b"")) + rng.randbytes(40)
    if rng.random() < 0.1:
        unusual["icc_profile"] = rng.randbytes(200)
    if rng.random() < 0.3 and kind in ("GIF", "PNG", "WEBP", "TIFF", "AVIF"):
        unusual |= {"save_all": True, "append_images": [_picture(mode, size, rng) for _ in range(rng.choice((1, 40)))]}
    if kind == "JPEG":
        unusual |= {"progressive": rng.random() < 0.5, "quality": rng.choice((1, 75, 100))}
    elif kind == "TIFF":
        unusual["compression"] = rng.choice((None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4"))
    elif kind in ("PNG", "GIF") and mode == "P":
        unusual["transparency"] = rng.choice((0, 255)) if kind == "GIF" else rng.randbytes(rng.choice((1, 256)))
    elif kind == "AVIF":
        unusual["speed"] = 10
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image.save(file, kind, **unusual)
        except Exception:  # which Pillow cannot write
            unusual, file = {}, io.BytesIO()
            image.save(file, kind)
    shown = {name: "…" if isinstance(value, bytes | list) else value for name, value in unusual.items()}
    return f"{kind} of {mode} {size} {shown or ''}".rstrip(), file.getvalue()


def _picture(mode: str, size: tuple[int, int], rng: random.Random) -> Image.Image:
    noise = np.random.default_rng(rng.randrange(2**31)).integers(0, 256, (size[1], size[0]), np.uint8)
    if mode in ("I;16", "I", "F"):
        return Image.fromarray(noise.astype({"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]) * 200)
    grey = Image.fromarray(noise)
    return Image.merge("LAB", [grey] * 3) if mode == "LAB" else grey.convert("RGB").convert(mode)


def with_size(content: bytes, kind: str, width: int, height: int) -> bytes:
    """An image file that says it has another size; unchanged where it has no room for it."""

    def put(place: int, form: str, *numbers: int) -> bytes:
        bits = 8 * struct.calcsize(form[0] + form[1])
        new = struct.pack(form, *(number % 2**bits for number in numbers))
        return content[:place] + new + content[place + len(new) :]

    if kind == "PNG":
        made = put(16, ">II", width, height)
        return made[:29] + struct.pack(">I", zlib.crc32(made[12:29])) + made[33:]
    if kind == "BMP":
        return put(18, "<II", width, height)
    if kind == "GIF":
        return put(6, "<HH", width, height)
    if kind == "WEBP" and content[12:16] == b"VP8X":
        return put(24, "<BHBH", width % 256, (width >> 8) % 2**16, height % 256, (height >> 8) % 2**16)
    if kind == "WEBP" and content[12:16] == b"VP8 ":
        return put(26, "<HH", width, height)
    if kind == "JPEG" and (found := re.search(rb"\xff[\xc0-\xc2]\0.\x08", content, re.DOTALL)):
        return put(found.start() + 5, ">HH", height, width)
    if kind == "AVIF" and b"ispe" in content:
        return put(content.index(b"ispe") + 8, ">II", width, height)
    if kind == "TIFF":
        for tag, number in ((256, width), (257, height)):
            for form in ("<HHI", ">HHI"):
                for type_ in (3, 4):
                    entry = struct.pack(form, tag, type_, 1)
                    wider = struct.pack(form, tag, 4, 1) + struct.pack(f"{form[0]}I", number % 2**32)
                    place = content.find(entry)
                    content = content if place < 0 else content[:place] + wider + content[place + 12 :]
        return content
    if kind == "PPM":
        return re.sub(rb"^(P\d\s)\d+ \d+", rb"\g<1>%d %d" % (width, height), content)
    return content


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
