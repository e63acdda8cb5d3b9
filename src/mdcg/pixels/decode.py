"""Image files of any kind as uint8 RGB pixels of one size."""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import stat
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError, _imaging, features
from PIL.ImageFile import ImageFile

from mdcg.errors import MachineError, MdcgError, machine_trouble, said, unknown
from mdcg.files import shown
from mdcg.pixels.effort import TooMuchWork, refuse_before_loading, refuse_before_opening

ImageArray = npt.NDArray[np.uint8]
Resize = Literal["squash", "crop", "fit"]
Item = TypeVar("Item")
Result = TypeVar("Result")

VERSION = 2  # raised when the same file decodes to other pixels: what was cached is then made anew
# Those that Pillow decodes by itself: for some others, such as EPS, it starts a program.
FORMATS = ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"]
if "avif" in features.get_supported():
    FORMATS.append("AVIF")
THREADS = min(8, os.cpu_count() or 1)
AHEAD = 4 * THREADS  # images that may wait, decoded, for their turn
LARGE = 2**24  # pixels: an image above is decoded while no other such is
GAP = 2  # a JPEG is decoded at a fraction of its size, but at least so many times as large as is asked for
LARGEST = 2**30  # bytes of a file: an image of as many pixels as we decode has fewer
WHOLE = 4  # a JPEG that comes in several passes takes memory for all of its pixels, but so many times less of it
ROOM, BYTES = 2**24, 16  # bytes that it takes to decode an image: whatever its size, and for each pixel
UNKNOWN, DAMAGED, UNREADABLE, TOO_LARGE = "of no known format", "damaged", "unreadable", "too large"
TOO_MUCH = "too much work"
TURNS = {  # what undoes each EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_large = threading.Lock()
# Below we refuse such images ourselves. Last in the list: whoever asks for these warnings still gets them.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, append=True)
with suppress(AttributeError, OSError):  # where libtiff is no library of its own
    ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)  # it would print what is wrong, which we say ourselves


@dataclass(frozen=True)
class ImageFormat:
    """The form that every image is brought to: `size` × `size` pixels, red, green and blue.

    An image that is not square is stretched (`squash`), cut to its centre (`crop`) or surrounded by the background
    (`fit`). What is transparent shows the background too.
    """

    size: int
    resize: Resize = "squash"
    background: tuple[int, int, int] = (255, 255, 255)

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or not 4 <= self.size <= 1024:
            raise MdcgError(f"the image size must be between 4 and 1024 pixels, not {said(self.size)}.")
        if not isinstance(self.resize, str) or self.resize not in get_args(Resize):
            raise unknown("way to resize", self.resize, get_args(Resize))
        colour = self.background if isinstance(self.background, tuple) else ()
        if len(colour) != 3 or not all(isinstance(one, int) and 0 <= one <= 255 for one in colour):
            raise MdcgError(f"the background must be (red, green, blue) from 0 to 255, not {self.background}.")


class BadImage(MdcgError):
    """A file that cannot be used as an image; `why` says it in a word, for counting."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(text)
        self.why = why


@dataclass(frozen=True)
class Encoded:
    """An image that is to be decoded: its file, or what was in it."""

    name: str  # in sentences
    content: Path | bytes


@dataclass(frozen=True)
class Decoded:
    """What has become of an encoded image: its pixels, or why there are none."""

    image: ImageArray | BadImage
    sha1: str = ""  # of the file, where it was asked for

    @property
    def pixels(self) -> ImageArray:
        """The image; an error where there is none."""
        if isinstance(self.image, BadImage):
            raise self.image
        return self.image


def attempt(encoded: Encoded, format: ImageFormat, hashed: bool = False) -> Decoded:
    """Decode an image; what is wrong with it is returned, not raised."""
    sha1 = ""
    try:
        content = encoded.content
        file = io.BytesIO(content) if isinstance(content, bytes) else _opened(content, encoded.name)
        with file:
            if not hashed:
                return Decoded(decode(file, encoded.name, format))
            with _explained(encoded.name):
                content = file.read()
        sha1 = hashlib.sha1(content).hexdigest()
        return Decoded(decode(io.BytesIO(content), encoded.name, format), sha1)
    except BadImage as error:  # which itself would keep half an image in memory
        return Decoded(BadImage(str(error), error.why), sha1)


def _opened(path: Path, name: str) -> BinaryIO:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # to open a pipe would wait for its writer
            raise BadImage(f"{name} is a folder, pipe or device, not a file; remove it.", "not a file")
        if not about.st_size:  # so do those in /proc seem, which only pass for files
            raise BadImage(f"{name} is empty; repair or remove it.", UNKNOWN)
        if about.st_size > LARGEST:
            raise BadImage(f"{name} has {about.st_size:,} bytes, more than an image can have; remove it.", TOO_LARGE)
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise machine_trouble(error) or BadImage(
            f"cannot read {name}: {reason(error)}; check the path and its permissions.", UNREADABLE
        ) from error


def reason(error: OSError | ValueError) -> str:
    """Say in a few words why a file cannot be read."""
    return str(error.strerror) if isinstance(error, OSError) else "no file can have this name"


def decode(file: BinaryIO, name: str, format: ImageFormat) -> ImageArray:
    """Pixels (size, size, 3) of an encoded image, turned upright; of an animation, the first frame."""
    with _explained(name) as needed:
        needed.pixels = _webp_pixels(file)
        _refuse_too_many(needed.pixels)
        refuse_before_opening(file)
        with Image.open(file, formats=FORMATS) as image:
            needed.pixels = image.width * image.height
            refuse_before_loading(image)
            image.draft(None, (GAP * format.size, GAP * format.size))  # does nothing unless it is a JPEG
            pixels = max(image.width * image.height, needed.pixels // WHOLE)
            _refuse_too_many(pixels)
            with _large if pixels > LARGE else nullcontext():
                return np.asarray(_resized(_opaque(_upright(image), format.background), format))


def pixels_of(image: Image.Image, name: str, format: ImageFormat | None) -> ImageArray:
    """Pixels of an image that somebody has opened, turned upright.

    Without a format they are (height, width, channels), one channel if the image is grey and three if it is not.
    """
    with _explained(name, image.width * image.height):
        upright = _upright(image)
        if format:
            return np.asarray(_resized(_opaque(upright, format.background), format))
        opaque = _opaque(upright, (255, 255, 255))
        return np.asarray(opaque.convert("L"))[..., None] if upright.mode[0] in "1LI" else np.asarray(opaque)


def _refuse_too_many(pixels: int) -> None:
    if Image.MAX_IMAGE_PIXELS and pixels > Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError


def _webp_pixels(file: BinaryIO) -> int:
    """The number of pixels that a WebP image says it has, 0 of others: Pillow takes memory for them as it opens it."""
    head = file.read(30)
    file.seek(0)
    if head[:4] != b"RIFF" or head[8:15] != b"WEBPVP8" or len(head) < 30:
        return 0
    if head[15:16] == b"X":
        return (1 + int.from_bytes(head[24:27], "little")) * (1 + int.from_bytes(head[27:30], "little"))
    if head[15:16] == b"L":
        bits = int.from_bytes(head[21:25], "little")
        return (1 + bits % 2**14) * (1 + (bits >> 14) % 2**14)
    return (int.from_bytes(head[26:28], "little") % 2**14) * (int.from_bytes(head[28:30], "little") % 2**14)


@dataclass
class _Needed:
    """How large an image is, as far as it is known."""

    pixels: int = 0

    def has_room(self) -> bool:
        """Whether there is memory for it: a decoder that gets none may say that the image is damaged."""
        try:
            bytearray(ROOM + BYTES * self.pixels)
        except MemoryError:
            return False
        return True


@contextmanager
def _explained(name: str, pixels: int = 0) -> Iterator[_Needed]:
    """Say in a sentence why an image cannot be used."""
    needed = _Needed(pixels)
    try:
        yield needed
    except MdcgError:
        raise
    except UnidentifiedImageError as error:
        raise BadImage(f"{name} is not an image of a known format; repair or remove it.", UNKNOWN) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(f"{name} has too many pixels to be read safely; make it smaller.", TOO_LARGE) from error
    except TooMuchWork as error:
        raise BadImage(
            f"{name} would take far more work than its pixels ({error}); save it anew with another program.", TOO_MUCH
        ) from error
    except _TooDeep as error:
        raise BadImage(
            f"the pixels of {name} are {error}; convert it to 8 or 16 bits.", "not of 8 or 16 bits"
        ) from error
    except Exception as error:  # a decoder meets anything: besides its own errors also struct's, zlib's, …
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower() or not needed.has_room():
            raise MachineError(
                f"there is not enough memory to decode {name}; close other programs, or make the image smaller."
            ) from error
        if trouble := machine_trouble(error):
            raise trouble from error
        words = shown(str(error) or type(error).__name__, 150)
        raise BadImage(f"{name} is not a readable image ({words}); repair or remove it.", DAMAGED) from error


def ahead(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
) -> Generator[Result, None, None]:
    """The result of each item, in order, while threads work on the next ones, but on no more than `AHEAD`.

    Where the number of threads is given, it is on no more than twice as many.

    >>> list(ahead(abs, [-3, 1, -2]))
    [3, 1, 2]
    """
    waiting: deque[Future[Result]] = deque()
    most = AHEAD if threads is None else 2 * threads
    pool = ThreadPoolExecutor(threads or THREADS, thread_name_prefix="mdcg-ahead")
    wait = True
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except (KeyboardInterrupt, GeneratorExit):
        # Whoever stops a command does not wait for what is being done. Nor does a generator that was left: Python may
        # close it while a thread begins, where to wait for threads is for ever.
        wait = False
        raise
    finally:  # after an error, or where nobody wants the rest
        pool.shutdown(wait, cancel_futures=True)


class _TooDeep(Exception):
    """Pixels of a kind that does not say which number is white."""


def _upright(image: Image.Image) -> Image.Image:
    """The whole image, read and turned as its EXIF data ask for."""
    tile = image.tile if isinstance(image, ImageFile) else []
    stored = tile[0][3] if tile else None  # known only until the image is read
    image.load()
    key = image.info.get("transparency")  # a grey or a colour, in the numbers of the file; the pixels are scaled to 255
    if isinstance(key, int) and stored in ("1", "L;2", "L;4"):
        image.info["transparency"] = min(key * {"1": 255, "L;2": 85, "L;4": 17}[stored], 255)
    elif isinstance(key, tuple) and stored == "RGB;16B":
        image.info["transparency"] = tuple(one >> 8 for one in key)
    try:
        turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data are no reason to do without the image
        turn = None
    return image if turn is None else image.transpose(turn)


def _opaque(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Red, green and blue of any kind of image, laid on the background."""
    if image.mode == "F":
        raise _TooDeep("floating-point numbers")
    if image.mode.startswith("I"):  # which Pillow would clip at 255 instead of scaling
        deep = np.asarray(image)
        if deep.min() < 0 or deep.max() > 65535:
            raise _TooDeep("32-bit numbers")
        grey, key = Image.fromarray((deep >> 8).astype(np.uint8)), image.info.get("transparency")
        image = grey if key is None else Image.merge("LA", [grey, Image.fromarray(np.uint8(255) * (deep != key))])
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    seen = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(seen, mask=seen)
    return canvas


def _resized(image: Image.Image, format: ImageFormat) -> Image.Image:
    """The image in its square."""
    side, (width, height), how = format.size, image.size, Image.Resampling.BILINEAR
    if format.resize == "fit":
        longer = max(width, height)
        inner = max(1, round(width * side / longer)), max(1, round(height * side / longer))
        canvas = Image.new("RGB", (side, side), format.background)
        canvas.paste(image.resize(inner, how), ((side - inner[0]) // 2, (side - inner[1]) // 2))
        return canvas
    if format.resize == "crop":
        shorter = min(width, height)
        left, top = (width - shorter) // 2, (height - shorter) // 2
        return image.resize((side, side), how, box=(left, top, left + shorter, top + shorter))
    # Smaller first, then larger: a line of a million pixels would else become a million lines.
    for size in ((min(width, side), min(height, side)), (side, side)):
        if image.size != size:
            image = image.resize(size, how)
    return image
