"""How much work it is to decode an image: of most it is given by their bytes and pixels, of a few by much more.

A JPEG may come in any number of passes over all of its pixels, a TIFF in parts that lie on each other, and what is said
beside the pixels may take Pillow longer the more of it there is. All of it is counted before it is done: so an image is
refused for what it is, and never for how fast the machine is.
"""

from __future__ import annotations

import re
from typing import BinaryIO

from PIL.ImageFile import ImageFile

#: Pixels times passes. Programs make 10 passes, of CMYK 18: of the largest image that we decode that is 1.6 × 10⁹.
MOST_WORK = 2**31
MOST_NOTES = 1000  # pieces of EXIF data, and comments among the numbers of a PPM: each is copied with all before it
MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # of a JPEG, but for those that have a place between its pixels
EXIF, SCAN, END = 0xE1, 0xDA, 0xD9
PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
FRAMES = {0xC0, 0xC1, 0xC3, 0xC5, 0xC7, 0xC9, 0xCB, 0xCD, 0xCF} | PROGRESSIVE


class TooMuchWork(Exception):
    """An image is more work than its pixels are, for the reason that is given."""


def refuse_before_opening(file: BinaryIO) -> None:
    """Refuse a file that would be much work, by its bytes."""
    head = file.read(3)
    file.seek(0)
    if head == b"\xff\xd8\xff":
        _refuse_jpeg(file.read())
    elif re.match(rb"P[123]\s", head) and file.read().count(b"#") > MOST_NOTES:
        raise TooMuchWork("comments without end")
    file.seek(0)


def refuse_before_loading(image: ImageFile) -> None:
    """Refuse an image whose parts would be decoded over and over, for they lie on each other."""
    parts = 0
    for part in image.tile:
        left, upper, right, lower = part[1] or (0, 0, *image.size)
        parts += (right - left) * (lower - upper)
    if parts > max(MOST_WORK, image.width * image.height):
        raise TooMuchWork("parts that lie on each other")


def _refuse_jpeg(content: bytes) -> None:
    place, pixels, channels, notes, passes, progressive = 2, 0, 0, 0, 0, False
    while found := MARKER.search(content, place):
        marker, place = content[found.start() + 1], found.end()
        if marker == END:
            return
        segment = content[place : place + int.from_bytes(content[place : place + 2], "big")]
        place += len(segment)
        if marker in FRAMES and len(segment) > 7 and not passes:
            pixels = int.from_bytes(segment[3:5], "big") * int.from_bytes(segment[5:7], "big")
            channels, progressive = segment[7], marker in PROGRESSIVE
        elif marker == EXIF:
            notes += 1
            if notes > MOST_NOTES:
                raise TooMuchWork("EXIF data without end")
        elif marker == SCAN:
            passes += 1
            if not progressive and segment[2:3] == bytes([channels]):  # all channels at once: there is no other
                return
            if passes * pixels > MOST_WORK:
                raise TooMuchWork(f"{passes:,} passes over {pixels:,} pixels and more")
