"""Images of few bytes that would take a decoder very long."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from functools import cache

from PIL import Image

from mdcg.pixels.effort import END, MARKER, SCAN


def scans(content: bytes) -> list[int]:
    """Where each pass of a JPEG begins."""
    found, place = list[int](), 2
    while marker := MARKER.search(content, place):
        kind, place = content[marker.start() + 1], marker.end()
        if kind == END:
            break
        if kind == SCAN:
            found.append(marker.start())
        place += int.from_bytes(content[place : place + 2], "big")
    return found


def jpeg(width: int, height: int, again: int) -> bytes:
    """A progressive JPEG whose last pass comes so many times more."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (90, 100, 110)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last, end = scans(content)[-1], content.rindex(bytes([0xFF, END]))
    return content[:end] + again * content[last:end] + content[end:]


def pieces_of_exif(count: int) -> bytes:
    """A JPEG with EXIF data in so many pieces, each of which Pillow appends to all before."""
    whole = jpeg(8, 8, 0)
    return whole[:2] + count * b"\xff\xe1\0\x09Exif\0\0x" + whole[2:]


def strips(count: int, width: int = 1024, height: int = 1024) -> bytes:
    """A TIFF with so many strips, all the same bytes, that turn by turn are the upper and the lower half."""
    long, short = 4, 3
    size, begin = width * height // 2, 8 + 2 + 9 * 12 + 4
    after = begin + size
    entries = (
        (256, long, 1, width), (257, long, 1, height), (258, short, 1, 8), (259, short, 1, 1), (262, short, 1, 1),
        (273, long, count, after), (277, short, 1, 1), (278, long, 1, height // 2),
        (279, long, count, after + 4 * count),
    )  # fmt: skip
    tags = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    numbers = count * struct.pack("<I", begin) + count * struct.pack("<I", size)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + tags + bytes(4) + bytes(size) + numbers


def comments(count: int) -> bytes:
    """A PPM with so many comments among its numbers, each of which Pillow cuts out of all that follows."""
    return b"P3\n8 8\n255\n" + count * b"#\n" + 192 * b"1 "


#: Images that took minutes, or would have. Their work was not bounded; that of what is decoded is.
IMAGES: Mapping[str, Callable[[], bytes]] = {
    "a JPEG of 4,010 passes over 80 million pixels": cache(lambda: jpeg(10_000, 8000, 4000)),
    "a JPEG of 310 passes over 24 million pixels": cache(lambda: jpeg(6000, 4000, 300)),
    "a JPEG with EXIF data in 3 million pieces": cache(lambda: pieces_of_exif(3_000_000)),
    "a TIFF with a million strips that lie on each other": cache(lambda: strips(1_000_000)),
    "a PPM with 12 million comments": cache(lambda: comments(12_000_000)),
}
