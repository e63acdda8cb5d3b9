"""Images as they are in the world: every kind of file, every shape, and all that is no image."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, features

from mdcg.data import ImageFormat, ImageReader, cache, images, load
from mdcg.errors import MachineError, MdcgError
from mdcg.files import shown
from mdcg.pixels import decode as decoding
from mdcg.pixels import effort
from mdcg.pixels.decode import BadImage, ImageArray, Resize, ahead, decode
from mdcg.testing.abuse import costly
from mdcg.testing.abuse.images import with_size
from tests.conftest import Cli

WAYS: list[Resize] = ["squash", "crop", "fit"]
Pixels = npt.NDArray[np.int64]


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> ImageArray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def encoded(image: ImageArray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    made = (
        image if isinstance(image, Image.Image) else Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    )
    made.save(file, kind, **options)
    return file.getvalue()


def decoded(
    content: bytes, size: int, resize: Resize = "squash", background: tuple[int, int, int] = (255,) * 3
) -> Pixels:
    return decode(io.BytesIO(content), "x", ImageFormat(size, resize, background)).astype(np.int64)


def told(content: bytes) -> BadImage:
    with pytest.raises(BadImage) as error:
        decoded(content, 8)
    assert "\n" not in str(error.value)
    assert "image ();" not in str(error.value)
    return error.value


def harmless(content: bytes) -> None:
    """Makes an image or a sentence, nothing else."""
    try:
        assert decoded(content, 8).shape == (8, 8, 3)
    except BadImage:
        told(content)


# ------------------------------------------------------------------ PNG files made without Pillow


def png(samples: npt.ArrayLike, depth: int, colours: int, *chunks: tuple[bytes, bytes], **header: int) -> bytes:
    """A PNG file from its specification: samples (height, width, channels) of `depth` bits, of a colour type."""
    rows = np.asarray(samples, np.uint16)
    height, width, channels = rows.shape

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    bits = ((rows[..., None] >> np.arange(depth - 1, -1, -1)) & 1).astype(np.uint8)
    packed = np.packbits(bits.reshape(height, width * channels * depth), axis=1)
    lines = b"".join(b"\0" + row.tobytes() for row in packed)
    size = header.get("width", width), header.get("height", height)
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colours, 0, 0, 0))
    inner = b"".join(chunk(*one) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + start + inner + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def over(colour: Pixels, alpha: Pixels, background: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    """What is seen: the formula of compositing, colour (h, w, 3) and alpha (h, w, 1) from 0 to 255."""
    seen: npt.NDArray[np.float64] = (colour * alpha + np.array(background) * (255 - alpha)) / 255
    return seen


BACKGROUNDS = [(255, 255, 255), (10, 200, 90)]


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize(("colours", "depth"), [(4, 8), (4, 16), (6, 8), (6, 16)])
def test_alpha_is_laid_on_the_background(colours: int, depth: int, background: tuple[int, int, int]) -> None:
    content = noise(8, 8, 2 if colours == 4 else 4).astype(np.int64)
    image = png(content * (257 if depth == 16 else 1), depth, colours)
    colour = np.broadcast_to(content[..., :-1], (8, 8, 3))
    assert abs(decoded(image, 8, background=background) - over(colour, content[..., -1:], background)).max() <= 1


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_transparent_grey_shows_the_background(depth: int, background: tuple[int, int, int]) -> None:
    top = 2**depth - 1
    content = np.random.default_rng(depth).integers(0, top + 1, (8, 8, 1))
    for key in {int(content[0, 0, 0]), int(content[3, 3, 0]), top}:
        seen = np.where(content == key, np.array(background), np.rint(content * 255 / top))
        image = decoded(png(content, depth, 0, (b"tRNS", struct.pack(">H", key))), 8, background=background)
        assert abs(image - seen).max() <= 1


@pytest.mark.parametrize("depth", [8, 16])
def test_a_transparent_colour_shows_the_background(depth: int) -> None:
    content = noise(8, 8).astype(np.int64) * (257 if depth == 16 else 1)
    content[2:5] = content[0, 0]
    key = struct.pack(">HHH", *content[0, 0])
    seen = np.where((content == content[0, 0]).all(-1, keepdims=True), 255, content >> (depth - 8))
    assert (decoded(png(content, depth, 2, (b"tRNS", key)), 8) == seen).all()


@pytest.mark.parametrize("alphas", [b"\x00", b"\xff\x00", b"\x00\x40\x80", b""])
@pytest.mark.parametrize("depth", [2, 4, 8])
def test_palettes_and_their_transparency(depth: int, alphas: bytes) -> None:
    palette, index = noise(1, 4).astype(np.int64)[0], np.random.default_rng(1).integers(0, 4, (8, 8, 1))
    alpha = np.array([*alphas, *[255] * (4 - len(alphas))])
    chunks = [(b"PLTE", palette.astype(np.uint8).tobytes()), *([(b"tRNS", alphas)] if alphas else [])]
    seen = over(palette[index[..., 0]], alpha[index], (9, 8, 7))
    assert abs(decoded(png(index, depth, 3, *chunks), 8, background=(9, 8, 7)) - seen).max() <= 1


@given(st.integers(0, 2**32 - 1), st.sampled_from(WAYS), st.integers(1, 40), st.integers(1, 40))
def test_images_that_look_alike_decode_alike(seed: int, way: Resize, height: int, width: int) -> None:
    """Colours that nobody sees do not matter, nor whether what is opaque says so."""
    one, other = noise(height, width, 4, seed), noise(height, width, 4, seed + 1)
    one[..., 3] = np.where(one[..., 3] < 128, 0, 255)
    hidden = one[..., 3:] == 0
    other = np.where(hidden, other, one)
    other[..., 3] = one[..., 3]
    flat = np.where(hidden, 255, one)[..., :3].astype(np.uint8)
    first = decoded(encoded(one), 16, way)
    assert (decoded(encoded(other), 16, way) == first).all()
    assert (decoded(encoded(flat), 16, way) == first).all()


@pytest.mark.parametrize("kind", ["TIFF", "WEBP", "GIF", *(["AVIF"] if features.check("avif") else [])])
def test_transparency_of_other_formats(kind: str) -> None:
    content = np.full((16, 16, 4), 255, np.uint8)
    content[:, :, :3] = (200, 40, 90)
    content[:8, :, 3] = 0
    image = decoded(
        encoded(content, kind, **({"lossless": True} if kind == "WEBP" else {})), 16, background=(0, 0, 255)
    )
    assert abs(image[:7] - [0, 0, 255]).max() <= 4
    assert abs(image[9:] - [200, 40, 90]).max() <= 4


# ------------------------------------------------------------------ kinds of pixels


def test_kinds_of_grey() -> None:
    grey = noise(8, 8, 1)
    seen = np.broadcast_to(grey.astype(np.int64), (8, 8, 3))
    deep = grey.astype(np.uint16) * 257
    big = b"P5 8 8 65535\n" + deep.astype(">u2").tobytes()
    assert (decoded(encoded(grey), 8) == seen).all()
    for content in (png(deep, 16, 0), encoded(Image.fromarray(deep[..., 0]), "TIFF"), big):
        assert (decoded(content, 8) == seen).all()
    assert (decoded(png(grey > 99, 1, 0), 8) == np.where(seen > 99, 255, 0)).all()
    assert (decoded(b"P4 8 1\n\xa5", 8)[0, :, 0] == [0, 255, 0, 255, 255, 0, 255, 0]).all()


def test_cmyk_is_not_a_negative() -> None:
    """Adobe's JPEG files hold the inverse of each ink, TIFF files hold the inks."""
    inks = Image.new("CMYK", (16, 16), (255, 0, 0, 0))  # cyan
    jpeg = encoded(inks, "JPEG", quality=95)
    assert b"Adobe" in jpeg
    for content in (jpeg, encoded(inks, "TIFF")):
        assert abs(decoded(content, 8) - [0, 255, 255]).max() <= 6


def test_pixels_without_a_white_are_refused() -> None:
    assert "floating-point" in str(told(encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF")))
    for value in (-1, 70_000):
        whole = encoded(Image.fromarray(np.full((4, 4), value, np.int32)), "TIFF")
        assert "32-bit numbers; convert it" in str(told(whole))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_many(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    content = encoded(
        frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {})
    )
    assert abs(decoded(content, 8) - [250, 0, 0]).max() <= 4


def turned(upright: ImageArray, orientation: int) -> ImageArray:
    """How a camera stores an image: row and column 0 lie on the sides that the EXIF standard lists for each number."""
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }
    return np.ascontiguousarray(stored[orientation])


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(orientation: int, kind: str) -> None:
    upright, exif = noise(8, 6), Image.Exif()
    exif[0x0112] = orientation
    content = encoded(turned(upright, orientation), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    assert (decoded(content, 8, "fit", (0, 0, 0))[:, 1:7] == upright).all()


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01" * 40]
)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_exif_does_no_harm(exif: bytes) -> None:
    assert abs(decoded(encoded(np.full((16, 16, 3), 80, np.uint8), "JPEG", exif=exif), 8) - 80).max() <= 2


def test_a_large_jpeg_is_read_at_a_fraction_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    ramp = np.broadcast_to(np.linspace(0, 255, 800)[:, None, None], (800, 600, 3)).astype(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 800 * 600 / 2)  # above twice as much Pillow itself refuses
        assert told(encoded(ramp)).why == "too large"
        image = decoded(encoded(ramp, "JPEG"), 16)
    assert abs(image - ramp.reshape(16, 50, 600, 3).mean((1, 2))[:, None]).max() <= 3


# ------------------------------------------------------------------ shapes


sides = st.integers(1, 90)


@given(sides, sides, st.integers(4, 40), st.sampled_from(WAYS))
@example(1, 5000, 32, "squash")
@example(5000, 1, 32, "crop")
@example(1, 5000, 32, "crop")
@example(5000, 1, 32, "fit")
@example(1, 200_000, 1024, "squash")
def test_one_colour_fills_what_it_should(height: int, width: int, size: int, way: Resize) -> None:
    """And with `fit` the rest is background, in equal parts on both sides."""
    image = decoded(encoded(Image.new("RGB", (width, height), (7, 77, 177))), size, way, (1, 2, 3))
    assert image.shape == (size, size, 3)
    filled = (image == [7, 77, 177]).all(-1)
    assert (filled | (image == [1, 2, 3]).all(-1)).all()
    high, wide = (size, size)
    if way == "fit":
        high, wide = (max(1, round(one * size / max(height, width))) for one in (height, width))
    assert (filled.any(1).sum(), filled.any(0).sum(), filled.sum()) == (high, wide, high * wide)
    for line, inside in ((filled.any(1), high), (filled.any(0), wide)):
        assert np.flatnonzero(line)[0] == (size - inside) // 2


@given(st.integers(4, 24), st.integers(0, 30), st.booleans(), st.integers(0, 99))
def test_without_a_change_of_scale_pixels_are_untouched(size: int, more: int, tall: bool, seed: int) -> None:
    half = slice(more // 2, more // 2 + size)
    long = noise(size + more, size, 3, seed) if tall else noise(size, size + more, 3, seed)
    assert (decoded(encoded(long), size, "crop") == (long[half] if tall else long[:, half])).all()
    less = min(more, size - 1)
    short = noise(size, size - less, 3, seed) if tall else noise(size - less, size, 3, seed)
    fitted = decoded(encoded(short), size, "fit", (5, 6, 7))
    inside = slice(less // 2, less // 2 + size - less)
    assert ((fitted[:, inside] if tall else fitted[inside]) == short).all()
    if more == 0:
        assert (decoded(encoded(long), size) == long).all()


@given(st.integers(4, 12), st.integers(1, 5), st.integers(1, 5))
def test_a_picture_keeps_its_place(size: int, high: int, wide: int) -> None:
    """Each corner of the middle square is where `crop` puts it; each corner of all is where `squash` and `fit` do."""
    height, width = 4 * size * high, 4 * size * wide
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    image = np.concatenate(np.broadcast_arrays(rows * 255 // height, columns * 255 // width, rows * 0), -1).astype(
        np.uint8
    )

    def mean(area: npt.NDArray[np.uint8], parts: tuple[int, int]) -> npt.NDArray[np.float64]:
        cells = area.reshape(parts[0], area.shape[0] // parts[0], parts[1], area.shape[1] // parts[1], 3)
        averaged: npt.NDArray[np.float64] = cells.mean((1, 3))
        return averaged

    # A bilinear filter of a ramp is a mean, but for the cells at its ends.
    inner = (slice(1, -1), slice(1, -1))
    assert abs(decoded(encoded(image), size)[inner] - mean(image, (size, size))[inner]).max() <= 2
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    middle = image[top : top + short, left : left + short]
    assert abs(decoded(encoded(image), size, "crop")[inner] - mean(middle, (size, size))[inner]).max() <= 2


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"size": 3}, "between 4 and 1024 pixels, not 3"),
        ({"size": 1025}, "between 4 and 1024"),
        ({"size": 32.0}, "between 4 and 1024"),
        ({"size": 8, "resize": "cropp"}, "did you mean 'crop'"),
        ({"size": 8, "background": (1, 2)}, "must be"),
        ({"size": 8, "background": (0, 0, 256)}, "must be"),
        ({"size": 8, "background": "white"}, "must be"),
        ({"size": 8, "background": None}, "must be"),
    ],
)
def test_formats_that_cannot_be(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(MdcgError, match=said):
        ImageFormat(**asked)


# ------------------------------------------------------------------ what is no image


@given(st.data(), st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"]))
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damage_is_told_or_does_no_harm(data: st.DataObject, kind: str) -> None:
    """Cut short anywhere, or with any byte changed."""
    content = bytearray(encoded(noise(20, 20), kind))
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    harmless(bytes(content))


@given(st.binary(max_size=60))
def test_any_bytes_are_told(content: bytes) -> None:
    harmless(content)


def test_no_program_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    eps = encoded(Image.new("RGB", (8, 8)), "EPS")
    assert eps.startswith(b"%!PS")
    assert "known format" in str(told(eps))


@pytest.mark.parametrize("side", [10_000, 30_000, 2**31 - 1])
def test_too_many_pixels(side: int) -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, append=True)
        error = told(png(noise(4, 4), 8, 2, width=side, height=side))
    assert "too many pixels" in str(error)
    assert not given
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # as some people have it
        assert told(png(noise(4, 4), 8, 2, width=side, height=side)).why == "too large"


def test_a_shortage_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    (tmp_path / "a.png").write_bytes(encoded(noise(8, 8)))
    reader = ImageReader(ImageFormat(8), on_error="skip")
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_resized", fail)
        with pytest.raises(MachineError, match=r"not enough memory to decode .*a\.png; "):
            reader.read([tmp_path / "a.png"])
    monkeypatch.setattr(np, "empty", fail)
    with pytest.raises(MachineError, match="not enough memory for 1 images of 8 × 8 pixels"):
        reader.read([tmp_path / "a.png"])


SHORTAGE = """
import resource, sys
from pathlib import Path
from PIL import Image
from mdcg.errors import MachineError
from mdcg.pixels.decode import Encoded, ImageFormat, attempt

attempt(Encoded("small", Path(sys.argv[1])), ImageFormat(8))  # what is taken for the first one only
have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for file in map(Path, sys.argv[2:]):
    for more in (24 * 2**20, 2**31):
        resource.setrlimit(resource.RLIMIT_AS, (have + more, -1))
        try:
            print(type(attempt(Encoded(file.name, file), ImageFormat(8)).image).__name__)
        except MachineError as error:
            print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_decoders_that_take_a_shortage_for_damage(tmp_path: Path) -> None:
    """WebP gets no memory to open a file, a JPEG of several passes none to keep them: both call it a bad file."""
    plain = Image.new("RGB", (4000, 4000))
    plain.save(tmp_path / "a.webp", quality=0, method=0)
    plain.save(tmp_path / "b.jpg", progressive=True)
    plain.resize((8, 8)).save(tmp_path / "small.webp")
    files = [tmp_path / name for name in ("small.webp", "a.webp", "b.jpg")]
    asked = [sys.executable, "-c", SHORTAGE, *map(str, files)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    told = [f"there is not enough memory to decode {file.name}; close other programs, or make" for file in files[1:]]
    assert [line.partition(" the image")[0] for line in done.stdout.splitlines()] == [
        line for sentence in told for line in (sentence, "ndarray")
    ]


COSTLY = {
    "90 passes over 24,000,000 pixels": costly.jpeg(6000, 4000, 80),
    "EXIF data without end": costly.pieces_of_exif(2000),
    "comments without end": costly.comments(2000),
    "parts that lie on each other": costly.strips(5000),
}


@pytest.mark.parametrize("said", COSTLY)
def test_work_that_pixels_do_not_account_for(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that would be decoded over and over is refused before that, whatever the machine."""
    opened = Image.open
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    monkeypatch.setattr(Image, "open", opened if said.startswith("parts") else None)
    found = told(COSTLY[said])
    assert f"x would take far more work than its pixels ({said}" in str(found)
    assert found.why == "too much work"


def test_what_programs_write_is_far_from_too_much_work() -> None:
    """They make 10 passes, of grey images 6 and of CMYK 18: a fortieth of what a photo of 5 megapixels may have."""
    plain = Image.fromarray(noise(40, 60))
    for mode, passes in (("RGB", 10), ("L", 6), ("CMYK", 18)):
        content = encoded(plain.convert(mode), "JPEG", progressive=True)
        assert len(costly.scans(content)) == passes
        assert effort.MOST_WORK // (passes * 5 * 10**6) >= 23
        assert decoded(content, 8).shape == (8, 8, 3)
    for again in (0, 100):  # of so small an image much may come
        assert decoded(costly.jpeg(60, 40, again), 8).shape == (8, 8, 3)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "PPM"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_counting_work_takes_any_bytes(kind: str, data: st.DataObject) -> None:
    """Damage is for the decoder to tell; and the file is left at its beginning."""
    whole = {"JPEG": costly.jpeg(60, 40, 3), "TIFF": costly.strips(3), "PPM": b"P3\n# x\n1 1\n255\n1 2 3"}[kind]
    place = data.draw(st.integers(0, len(whole)))
    file = io.BytesIO(whole[:place] + data.draw(st.binary(max_size=20)) + whole[place + 5 :])
    with contextlib.suppress(effort.TooMuchWork):  # damage may claim many more pixels
        effort.refuse_before_opening(file)
        assert file.tell() == 0


def test_webp_images_too_large_to_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would take memory for all of their pixels before it says how many there are."""
    files = [encoded(noise(40, 60), "WEBP"), encoded(noise(40, 60), "WEBP", lossless=True)]
    files.append(encoded(noise(40, 60, 4), "WEBP", exif=Image.Exif()))
    assert {content[12:16] for content in files} == {b"VP8 ", b"VP8L", b"VP8X"}
    for content in files:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 60)
        decoded(content, 8)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 60 - 1)
        with monkeypatch.context() as patch:
            patch.setattr(Image, "open", lambda *_, **__: pytest.fail("it was opened"))
            assert told(content).why == "too large"


@pytest.mark.parametrize("hashed", [False, True])
def test_trouble_of_the_machine_is_no_images_fault(
    hashed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "a.png")

    class Unlucky(io.BytesIO):
        trouble: Exception

        def read(self, *_: object) -> bytes:
            raise self.trouble

    for error, said in (
        (OSError(errno.EIO, "Input/output error"), "check the disk"),
        (MemoryError(), "enough memory to decode"),
    ):
        Unlucky.trouble = error
        monkeypatch.setattr(Path, "open", lambda *_: Unlucky())
        with pytest.raises(MachineError, match=said):
            decoding.attempt(decoding.Encoded("a", file), ImageFormat(8), hashed)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(MachineError, match="allow more open files"):
        reader_of("skip").read([file])


def test_files_too_large_for_an_image(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(2**41)
    assert f"has {2**41:,} bytes, more than an image can have" in sentence(reader_of("stop").read, [file.name])
    reader = reader_of("skip")
    reader.read([file.name])
    assert reader.summary() == "used 0, skipped 1: 1 too large (large.png)"


def test_what_libtiff_says_of_damage_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    packed = encoded(Image.new("I;16", (8, 8)), "TIFF", compression="tiff_lzw")
    assert "not a readable image" in str(told(with_size(packed, "TIFF", 900, 900)))
    assert capfd.readouterr().err == ""


def test_what_pillow_says_of_harmless_damage_is_not_printed(
    tmp_path: Path, cli: Cli, recwarn: pytest.WarningsRecorder
) -> None:
    damaged = encoded(noise(8, 8), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x09\0\x01")
    for name in "aabb":
        save(tmp_path / name / f"{len(list(tmp_path.rglob('*.jpg')))}.jpg").write_bytes(damaged)
    assert cli("data", "verify", f"folder:{tmp_path}", "--image-size", 8).code == 0
    assert not recwarn.list
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):  # as Python does it
        decoded(damaged, 8)


# ------------------------------------------------------------------ threads


def test_work_is_done_ahead_but_not_far() -> None:
    begun = []

    def items() -> Iterator[int]:
        for item in range(1000):
            begun.append(item)
            yield item

    results = ahead(lambda item: 2 * item, items())
    for number in range(200):
        assert next(results) == 2 * number
        assert len(begun) <= number + 1 + decoding.AHEAD
    results.close()
    assert len(begun) < 300
    assert list(ahead(str, [])) == []


def test_an_error_ends_the_work() -> None:
    results = ahead(lambda item: 1 // (3 - item), range(1000))
    assert [next(results), next(results), next(results)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_of_large_images_one_is_decoded_at_a_time(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those JPEG files that become small as they are decoded: in several passes, each takes memory for all."""
    busy, together = 0, []
    lock, upright = threading.Lock(), decoding._upright

    def watched(image: Any) -> Image.Image:
        nonlocal busy
        with lock:
            busy += 1
            together.append(busy)
        made = upright(image)
        threading.Event().wait(0.002)
        with lock:
            busy -= 1
        return made

    monkeypatch.setattr(decoding, "_upright", watched)
    monkeypatch.setattr(decoding, "THREADS", 4)
    monkeypatch.setattr(decoding, "LARGE", 300)
    (tmp_path / "a.png").write_bytes(encoded(noise(128, 128), kind))
    ImageReader(ImageFormat(8)).read([tmp_path / "a.png"] * 30)
    assert set(together) == {1}


# ------------------------------------------------------------------ many files


def save(path: Path, shade: int = 9, size: tuple[int, int] = (12, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade)).save(path)
    return path


def reader_of(on_error: images.OnError = "skip") -> ImageReader:
    return ImageReader(ImageFormat(8), on_error)


def sentence(call: Any, *given: Any) -> str:
    with pytest.raises(MdcgError) as error:
        call(*given)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700
    str(error.value).encode()  # can be printed
    return str(error.value)


def test_the_line_that_is_told(tmp_path: Path) -> None:
    for number in range(240):
        save(tmp_path / f"{number:03}.png")
    (tmp_path / "IMG_2.jpg").write_bytes(b"\xff\xd8\xff nothing")
    for name in ("a.heic", "b.HEIC", ".DS_Store", "._0.png", "Thumbs.db", "notes.txt", "labels.json", "desktop.ini"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    reader = reader_of()
    found, kept = reader.read(reader.find(tmp_path))
    assert reader.summary() == "used 240, skipped 3: 2 .heic, 1 damaged (IMG_2.jpg)"
    assert found.shape == (240, 8, 8, 3)
    assert kept.tolist() == list(range(240))
    strict = reader_of("stop")
    assert "IMG_2.jpg is not a" in sentence(strict.read, strict.find(tmp_path))
    (tmp_path / "IMG_2.jpg").unlink()
    strict = reader_of("stop")
    strict.read(strict.find(tmp_path))
    assert strict.summary() == "used 240, skipped 2: 2 .heic"
    assert reader_of().summary() == "used 0"


def test_a_summary_stays_short(tmp_path: Path) -> None:
    reader = reader_of()
    for number in range(2000):
        reader.skipped.append((tmp_path / f"a\n{number}" / f"x\n{number}.png", "damaged"))
        reader.skipped.append((tmp_path / "y", f".{number}" + "long" * 60))
    line = reader.summary()
    assert line.startswith("used 0, skipped 4,000: 2,000 damaged (x 0.png, x 1.png, x 2.png, …), 1 .0longlong")
    assert line.endswith("and 1,995 more kinds")
    assert "\n" not in line
    assert len(line) < 400


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 12))
@settings(deadline=None, max_examples=30)
def test_a_stream_gives_the_same_as_reading_at_once(usable: list[bool], batch: int) -> None:
    folder = cache.cache_folder() / "streamed"
    folder.mkdir(parents=True, exist_ok=True)
    bad = folder / "bad.png"
    bad.write_bytes(b"no")
    files = [save(folder / f"{n}.png", 8 * n) if use else bad for n, use in enumerate(usable)]
    whole, parts = reader_of(), reader_of()
    at_once, kept = whole.read(files)
    assert kept.tolist() == [place for place, use in enumerate(usable) if use]
    assert (at_once[:, 0, 0, 0] == 8 * kept).all()
    batches = list(parts.stream(files, batch))
    assert [len(paths) for paths, _ in batches[:-1]] == [batch] * len(batches[:-1])
    assert [path for paths, _ in batches for path in paths] == [files[place] for place in kept]
    assert all(len(paths) == len(images) for paths, images in batches)
    if batches:
        assert (np.concatenate([images for _, images in batches]) == at_once).all()
    assert parts.summary() == whole.summary()


def test_a_stream_reads_only_a_little_ahead(tmp_path: Path) -> None:
    one, asked = save(tmp_path / "a.png"), 0

    def endless() -> Iterator[Path]:
        nonlocal asked
        while True:
            asked += 1
            yield one

    stream = reader_of().stream(endless(), batch=10)
    for number in range(1, 6):
        paths, found = next(stream)
        assert (len(paths), found.shape) == (10, (10, 8, 8, 3))
        assert asked <= 10 * number + decoding.AHEAD
    assert "cannot hold 0 images" in sentence(next, reader_of().stream([one], batch=0))


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    good = save(tmp_path / "good.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "terminal.png").symlink_to("/dev/tty")
    (tmp_path / "gone.png").symlink_to("/no/such/file")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    with socket.socket(socket.AF_UNIX) as listening, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # the names of sockets must be short
        listening.bind("socket.png")
        reader = reader_of()
        files = reader.find(tmp_path)
        assert len(files) == 7
        _, kept = reader.read(files)
        assert [files[place] for place in kept] == [good]
        words = dict(reader.skipped)
        for name in ("pipe", "zero", "socket"):
            assert words[tmp_path / f"{name}.png"] == "not a file"
            assert f"{name}.png is a folder, pipe or device" in sentence(
                reader_of("stop").read, [tmp_path / f"{name}.png"]
            )
        assert words[tmp_path / "gone.png"] == words[tmp_path / "loop.png"] == "unreadable"
        assert "gone.png: No such file" in sentence(reader_of("stop").read, [tmp_path / "gone.png"])


def test_what_a_person_may_name(tmp_path: Path) -> None:
    loose, inner = save(tmp_path / "b.png"), save(tmp_path / "birds/robin/a.JPG")
    wren = save(tmp_path / "birds/wren/a.png")
    hidden = save(tmp_path / "birds/wren/.trash/a.png")
    deeper = save(tmp_path / "birds/wren/old/a.png")
    save(tmp_path / "birds/__MACOSX/a.png")
    upload = save(tmp_path / "b.png").rename(tmp_path / "upload")
    save(tmp_path / "b.png")
    reader = reader_of()
    assert reader.find(str(loose)) == [loose]
    assert reader.find([loose, str(tmp_path / "birds"), loose, hidden]) == [loose, inner, wren, loose, hidden]
    assert reader.summary() == "used 0, skipped 1: 1 too deep (old)"
    assert reader.find(deeper.parent) == [deeper]
    _, kept = reader.read([upload, str(wren)])  # what is named is read, whatever its name
    assert kept.tolist() == [0, 1]
    heic = tmp_path / "photo.heic"
    heic.write_bytes(b"\0\0\0\x18ftypheic")
    reader = reader_of()
    reader.read([heic, tmp_path / "missing.png"])
    assert reader.summary() == "used 0, skipped 2: 1 .heic, 1 unreadable (missing.png)"
    assert "photo.heic is not an image of a known format" in sentence(reader_of("stop").read, [heic])
    empty = tmp_path / "empty"
    (empty / "inner").mkdir(parents=True)
    assert "empty holds no image; name" in sentence(reader_of().find, empty)
    (empty / "inner" / "a.heic").touch()
    assert "empty holds no image that can be read (but 1 .heic); name" in sentence(reader_of().find, [loose, empty])


STRANGE = ["a\nb\nc", "x" * 10_000, "x/" * 5_000, "\0", "\udce9\udcff", "\ud800", "\x1b[31m", "", "-"]


@pytest.mark.parametrize("name", STRANGE)
def test_strange_names_make_plain_sentences(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x" / name
    for call in (
        reader_of("stop").read,
        reader_of("stop").read_classes,
        lambda given: list(reader_of("stop").stream(given)),
    ):
        given: Any = {"a": [path]} if call.__name__ == "read_classes" else [path]
        assert "cannot read" in sentence(call, given)
    assert reader_of().find(path) == [path]
    sentence(reader_of().find_classes, path)
    reader = reader_of()
    reader.read([path])
    assert reader.summary().startswith("used 0, skipped 1: 1 unreadable (")
    assert "\n" not in reader.summary()


def test_what_names_no_file() -> None:
    numbers: Any = [3]
    for call in (reader_of().find, reader_of().read, reader_of().find_classes):
        assert "is named by its path" in sentence(call, numbers if call.__name__ != "find_classes" else 3)
    asked: Any = "skp"
    with pytest.raises(MdcgError, match="did you mean 'skip'"):
        ImageReader(ImageFormat(8), asked)


@given(st.text(max_size=600), st.integers(3, 300))
def test_shown_names_are_one_short_line(name: str, length: int) -> None:
    text = shown(name, length)
    assert len(text) <= length
    assert len(f"{text}.".splitlines()) == 1
    text.encode()
    if name.isprintable() and len(name) <= length and not any(map(str.isspace, name)):
        assert text == name


# ------------------------------------------------------------------ classes


def test_classes_are_folders(tmp_path: Path) -> None:
    for name in ("wren", "crow", "a b", "no.1.txt"):
        save(tmp_path / name / "b.png")
        save(tmp_path / name / "a.png")
        save(tmp_path / name / "._a.png")
    save(tmp_path / ".cache/a.png")
    save(tmp_path / "loose.png")
    (tmp_path / "crow/c.heic").touch()
    (tmp_path / "readme.md").touch()
    reader = reader_of()
    classes = reader.find_classes(tmp_path)
    assert list(classes) == ["a b", "crow", "no.1.txt", "wren"]
    assert classes["crow"] == [tmp_path / "crow/a.png", tmp_path / "crow/b.png"]
    found, labels = reader.read_classes(classes)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(found) == 8
    assert reader.summary() == "used 8, skipped 2: 1 outside the class folders (loose.png), 1 .heic"


def test_a_class_with_nothing_left(tmp_path: Path) -> None:
    for name in ("crow", "wr en"):
        save(tmp_path / name / "a.png")
    (tmp_path / "wr en/a.png").write_bytes(b"no image")
    reader = reader_of()
    assert "no image of class 'wr en' can be read (used 1, skipped 1: 1 damaged (a.png))" in sentence(
        reader.read_classes, reader.find_classes(tmp_path)
    )
    (tmp_path / "wr en/a.png").rename(tmp_path / "wr en/a.heic")
    assert "wr en holds no image that can be read (but 1 .heic); add some" in sentence(
        reader_of().find_classes, tmp_path
    )
    (tmp_path / "wr en/a.heic").rename(tmp_path / "wr en/.a.png")
    assert "wr en holds no image; add some" in sentence(reader_of().find_classes, tmp_path)
    assert "holds no class folder" in sentence(reader_of().find_classes, tmp_path / "crow")
    assert "a.png is not a folder; check the path." in sentence(reader_of().find_classes, tmp_path / "crow/a.png")


def test_classes_whose_names_cannot_be_told_apart(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"caf\xe8"):
        save(tmp_path / os.fsdecode(name) / "a.png")
    assert "both read 'caf\ufffd'; rename one" in sentence(reader_of().find_classes, tmp_path)
    save(tmp_path / os.fsdecode(b"caf\xe8") / "a.png").unlink()
    (tmp_path / os.fsdecode(b"caf\xe8")).rmdir()
    assert list(reader_of().find_classes(tmp_path)) == ["caf\ufffd"]


# ------------------------------------------------------------------ folders as datasets


def test_datasets_of_folders_read_the_same_images(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("crow", "wren"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            (folder / "a.png").write_bytes(encoded(noise(8, 8, 4)))
            (folder / "._a.png").write_bytes(b"\0\5\x16\7")
            (folder / "b.heic").touch()
    dataset = load(f"folder:{tmp_path}", size=8)
    assert dataset.counts().tolist() == [1, 1]
    content = noise(8, 8, 4).astype(np.int64)
    assert abs(dataset.train.images[0].numpy() - over(content[..., :3], content[..., 3:], (255, 255, 255))).max() <= 1
    os.mkfifo(tmp_path / "train/crow/pipe.png")
    assert "pipe.png is a folder, pipe or device" in sentence(load, f"folder:{tmp_path}", None, 8)


def test_what_was_cached_before_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("crow", "wren"):
        for number in range(2):
            save(tmp_path / name / f"{number}.png")
    load(f"folder:{tmp_path}", size=8)
    before = list(cache.cache_folder().glob("*.safetensors"))
    load(f"folder:{tmp_path}", size=8)
    assert list(cache.cache_folder().glob("*.safetensors")) == before
    monkeypatch.setattr("mdcg.data.folder.VERSION", decoding.VERSION + 1)
    load(f"folder:{tmp_path}", size=8)
    (after,) = cache.cache_folder().glob("*.safetensors")
    assert [after] != before


def test_what_is_left_is_not_waited_for() -> None:
    """A generator that nobody wants is closed whenever Python tidies up, be it while a thread begins."""
    begun, release, done = threading.Event(), threading.Event(), threading.Event()

    def work(number: int) -> int:
        if number:
            begun.set()
            release.wait(5)
            done.set()
        return number

    results = ahead(work, range(3), threads=1)
    assert next(results) == 0
    assert begun.wait(5)
    results.close()
    assert not done.is_set()
    release.set()
    assert done.wait(5)  # what was begun comes to its end
