"""EuroSAT: 27,000 satellite images of land in ten uses, 64×64, in red, green and blue.

It has no official test split: a fixed share of each class is held out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdcg.data.content import Arrays, arrays_without_test
from mdcg.data.published import Published
from mdcg.data.source import found
from mdcg.errors import MdcgError
from mdcg.pixels.decode import Encoded, ImageFormat
from mdcg.pixels.processes import decode_all

SIDE = 64
MOST, MEMBERS = 3 * 10**8, 2**15  # bytes and files that it may hold


@dataclass(frozen=True, kw_only=True)
class EuroSat(Published):
    """The EuroSAT dataset: a folder of JPEG files for each class."""

    counts: dict[str, int]  # images of each class: what is known of a folder, which has no md5

    def read(self, path: Path) -> Arrays:
        """Read all images, from the unpacked folder or the archive."""
        files = dict(found(path, self._wanted, MOST, MEMBERS))
        counted = Counter(name.split("/")[0] for name in files)
        for name, count in self.counts.items():
            if counted[name] != count:
                raise MdcgError(
                    f"{path} has {counted[name]:,} images of {name} in place of {count:,}; unpack {self.archive} "
                    "again, or remove it and run 'mdcg data get'."
                )
        names = sorted(files)
        images = np.empty((len(names), SIDE, SIDE, 3), np.uint8)
        encoded = [Encoded(f"{path}/{name}", files[name]) for name in names]
        with decode_all(encoded, ImageFormat(SIDE)) as decoded:
            for row, one in enumerate(decoded):
                images[row] = one.pixels
        classes = list(self.counts)
        labels = np.array([classes.index(name.split("/")[0]) for name in names], np.int64)
        return arrays_without_test(images, labels, classes)

    def _wanted(self, name: str) -> bool:
        return name.partition("/")[0] in self.counts and name.endswith(".jpg")


EUROSAT = EuroSat(
    name="eurosat",
    summary="EuroSAT: 27,000 satellite images, 64×64, 10 classes (EuroSAT.zip)",
    tasks=(5,),
    shape=(3, SIDE, SIDE),
    # The authors' archive, unchanged, kept with their consent: their own server has no valid certificate.
    url="https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip",
    md5="c8fa014336c82ac7804f0398fcb19387",
    largest=2 * 10**8,
    folder="2750",
    probe="AnnualCrop",
    counts={
        "AnnualCrop": 3000,
        "Forest": 3000,
        "HerbaceousVegetation": 3000,
        "Highway": 2500,
        "Industrial": 2500,
        "Pasture": 2000,
        "PermanentCrop": 2500,
        "Residential": 3000,
        "River": 2500,
        "SeaLake": 3000,
    },
)
