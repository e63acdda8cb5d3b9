"""Tiny-ImageNet: 200 classes of 500 training images, 64×64; the labelled val split is the test split."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdcg.data.cifar import CIFAR10_MEAN, CIFAR10_STD
from mdcg.data.content import Arrays, arrays
from mdcg.data.published import Published
from mdcg.data.record import Preprocessing, Protocol
from mdcg.data.source import content_of, found, stamp
from mdcg.errors import MdcgError
from mdcg.pixels.decode import UNREADABLE, BadImage, Encoded, ImageFormat
from mdcg.pixels.processes import decode_all

WNIDS, WORDS, VAL = "wnids.txt", "words.txt", "val/val_annotations.txt"
SIDE = 64
MOST, MEMBERS = 5 * 10**8, 2**17  # bytes and files that it may hold, those without labels among them


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Published):
    """The Tiny-ImageNet dataset: many small files, with one checksum for all of them."""

    digest: str  # of its images and labels, see `_digest`

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
        files = dict(found(path, _wanted, MOST, MEMBERS))
        for name in (WNIDS, WORDS, VAL):
            if name not in files:
                raise MdcgError(f"{path} lacks {name}; get {self.archive} again with 'mdcg data get'.")
        wnids, words, annotated = (_lines(files.pop(name)) for name in (WNIDS, WORDS, VAL))
        val = [tuple(line.split("\t")[:2]) for line in annotated]
        names = sorted(files)  # those of train first
        images = np.empty((len(names), SIDE, SIDE, 3), np.uint8)
        sha1s: dict[str, str] = {}
        bad: BadImage | None = None  # if the images are the published ones, there is none
        encoded = [Encoded(f"{path}/{name}", files[name]) for name in names]
        with decode_all(encoded, ImageFormat(SIDE), hashed=True) as decoded:
            for row, (name, one) in enumerate(zip(names, decoded, strict=True)):
                sha1s[name] = one.sha1
                if not isinstance(one.image, BadImage):
                    images[row] = one.image
                elif one.image.why == UNREADABLE:
                    raise one.image
                else:
                    bad = bad or one.image
        if _digest(sha1s, wnids, val) != self.digest:
            raise MdcgError(
                f"{path} is incomplete or altered ({len(files):,} images found; these, {WNIDS} and {VAL} are not "
                f"all those of {self.archive}); unpack it again, or remove it and run 'mdcg data get'."
            )
        if bad:
            raise bad
        label = {wnid: number for number, wnid in enumerate(wnids)}
        meant = dict(line.split("\t", 1) for line in words if "\t" in line)
        train = sum(name.startswith("train/") for name in names)
        return arrays(
            (images[:train], [label[name.split("/")[1]] for name in names[:train]]),
            (images[train:], [label[wnid] for _, wnid in sorted(val)]),
            [meant.get(wnid, wnid).split(",")[0].strip() for wnid in wnids],
        )


def _wanted(name: str) -> bool:
    images = name.startswith(("train/", "val/images/")) and name.endswith(".JPEG")
    return images or name in (WNIDS, WORDS, VAL)


def _lines(file: Path | bytes) -> list[str]:
    content = content_of(file)
    return [line for line in content.decode(errors="replace").splitlines() if line.strip()]


def _digest(sha1s: dict[str, str], wnids: list[str], val: list[tuple[str, ...]]) -> str:
    """The sha1 over the names and sha1s of all images, the order of the classes and the labels of the val images."""
    whole = hashlib.sha1()
    for name, sha1 in sorted(sha1s.items()):
        whole.update(name.encode() + bytes.fromhex(sha1))
    whole.update("\n".join([*wnids, *("\t".join(pair) for pair in sorted(val))]).encode())
    return whole.hexdigest()


TINYIMAGENET = TinyImageNet(
    name="tinyimagenet",
    short="tym",
    summary="Tiny-ImageNet: 110,000 images, 64×64, 200 classes (tiny-imagenet-200.zip)",
    tasks=(10, 20, 50),
    classes=200,
    images=100_000,
    shape=(3, 64, 64),
    preprocessing=Preprocessing(8, True, (0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816)),
    published=Preprocessing(0, True, CIFAR10_MEAN, CIFAR10_STD),
    protocol=Protocol("resnet18", epochs=30, batch_size=32),
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    largest=3 * 10**8,
    folder="tiny-imagenet-200",
    probe=WNIDS,
    digest="050686d31ac4c1841d3942d67495ddc9dc16a88b",
)
