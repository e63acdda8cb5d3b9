"""Decoding: image files of any kind to uint8 RGB arrays of one size."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from mdcg.errors import MdcgError

ImageArray = npt.NDArray[np.uint8]


def decode(content: bytes, name: str, size: int | None = None) -> ImageArray:
    """Decode an image to (height, width, 3): grey, palette, CMYK, 16-bit and rotated ones included."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode == "F":
                raise ValueError("its pixels are floating-point numbers, convert it to 8 or 16 bits")
            if image.mode.startswith("I"):  # 16 bits, which PIL would clip at 255 instead of scaling
                grey = np.asarray(image).astype(np.int64).clip(0, 65535) >> 8
                image = Image.fromarray(grey.astype(np.uint8))
            image = image.convert("RGB")
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except UnidentifiedImageError as error:
        raise MdcgError(f"{name} is not an image of a known format; repair or remove it.") from error
    except Exception as error:  # a decoder meets anything: besides its own errors also struct's, zlib's, …
        raise MdcgError(f"{name} is not a readable image ({error}); repair or remove it.") from error


def decode_all(count: int, read: Callable[[int], tuple[bytes, str]], size: int) -> ImageArray:
    """Decode many images to one size; `read` gives the content and name of each, by number."""
    images = np.empty((count, size, size, 3), np.uint8)
    with ThreadPoolExecutor() as pool:
        for row, image in enumerate(pool.map(lambda row: decode(*read(row), size), range(count))):
            images[row] = image
    return images
