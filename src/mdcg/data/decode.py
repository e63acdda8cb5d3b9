"""Image files of any kind to uint8 RGB arrays of one size."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from mdcg.errors import MdcgError

Pixels = npt.NDArray[np.uint8]


def decode(content: bytes, name: str, size: int | None = None) -> Pixels:
    """(height, width, 3) from an encoded image: grey, palette, CMYK, 16-bit and rotated ones included."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I;16"):  # PIL would clip 16-bit grey at 255 instead of scaling it
                image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
            image = image.convert("RGB")
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise MdcgError(f"{name} is not a readable image ({error}); repair or remove it.") from error
