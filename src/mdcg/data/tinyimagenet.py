"""Tiny-ImageNet: 200 classes of 500 training images, 64×64; the labelled val split is the test split."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdcg.data.cifar import CIFAR10_MEAN, CIFAR10_STD
from mdcg.data.content import Arrays, arrays
from mdcg.data.decode import ImageArray, ImageFormat, ahead, decode
from mdcg.data.published import Published
from mdcg.data.record import Preprocessing, Protocol
from mdcg.data.source import read, stamp
from mdcg.errors import MdcgError

WNIDS, WORDS, VAL = "wnids.txt", "words.txt", "val/val_annotations.txt"
SIDE = 64


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Published):
    """The Tiny-ImageNet dataset: many small files, with one checksum for all of them."""

    digest: str  # of its images and labels, see `_digest`

    def check(self, path: Path) -> None:
        """Accept any file: all are checked when they are read, from an archive or not."""

    def stamp(self, path: Path) -> str:
        """A digest of the lists and the folders' times: 110,000 images are too many to look at on every start."""
        if path.is_file():
            return stamp([path])
        lists = [path / name for name in (WNIDS, WORDS, VAL)]
        for file in lists:
            if not file.is_file():
                raise MdcgError(
                    f"{path} lacks {file.relative_to(path)}; unpack {self.archive} again, or remove the folder "
                    "and run 'mdcg data get'."
                )
        return stamp([*lists, path / "val/images", *sorted((path / "train").glob("*/images"))])

    def read(self, path: Path) -> Arrays:
        """Read and verify all images and labels, from the unpacked folder or the archive."""
        files = dict(read(path, _wanted))
        for name in (WNIDS, WORDS, VAL):
            if name not in files:
                raise MdcgError(f"{path} lacks {name}; get {self.archive} again with 'mdcg data get'.")
        wnids = _lines(files[WNIDS])
        val = [tuple(line.split("\t")[:2]) for line in _lines(files[VAL])]
        if _digest(files, wnids, val) != self.digest:
            raise MdcgError(
                f"{path} is incomplete or altered ({len(files) - 3:,} images found; these, {WNIDS} and {VAL} are not "
                f"all those of {self.archive}); unpack it again, or remove it and run 'mdcg data get'."
            )
        label = {wnid: number for number, wnid in enumerate(wnids)}
        words = dict(line.split("\t", 1) for line in _lines(files[WORDS]) if "\t" in line)
        names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
        train = sorted(name for name in files if name.startswith("train/"))
        test = {f"val/images/{name}": label[wnid] for name, wnid in sorted(val)}

        def pixels(chosen: list[str]) -> ImageArray:
            images = np.empty((len(chosen), SIDE, SIDE, 3), np.uint8)
            format = ImageFormat(SIDE)
            for row, image in enumerate(
                ahead(lambda one: decode(io.BytesIO(files[one]), str(path / one), format), chosen)
            ):
                images[row] = image
            return images

        return arrays(
            (pixels(train), [label[name.split("/")[1]] for name in train]),
            (pixels(list(test)), list(test.values())),
            names,
        )


def _wanted(name: str) -> bool:
    images = name.startswith(("train/", "val/images/")) and name.endswith(".JPEG")
    return images or name in (WNIDS, WORDS, VAL)


def _lines(content: bytes) -> list[str]:
    return [line for line in content.decode(errors="replace").splitlines() if line.strip()]


def _digest(files: dict[str, bytes], wnids: list[str], val: list[tuple[str, ...]]) -> str:
    """The sha1 over the names and sha1s of all images, the order of the classes and the labels of the val images."""
    whole = hashlib.sha1()
    for name in sorted(name for name in files if name.endswith(".JPEG")):
        whole.update(name.encode() + hashlib.sha1(files[name]).digest())
    whole.update("\n".join([*wnids, *("\t".join(pair) for pair in sorted(val))]).encode())
    return whole.hexdigest()


TINYIMAGENET = TinyImageNet(
    name="tinyimagenet",
    short="tym",
    summary="Tiny-ImageNet: 110,000 images, 64×64, 200 classes (tiny-imagenet-200.zip)",
    tasks=(10, 20, 50),
    shape=(3, 64, 64),
    preprocessing=Preprocessing(8, True, (0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816)),
    published=Preprocessing(0, True, CIFAR10_MEAN, CIFAR10_STD),
    protocol=Protocol("resnet18", epochs=30, batch_size=32),
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
    probe=WNIDS,
    digest="050686d31ac4c1841d3942d67495ddc9dc16a88b",
)
