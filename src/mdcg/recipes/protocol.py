"""The paper's training protocol for each dataset (Section 4.1), and ours where it has none."""

from __future__ import annotations

from dataclasses import dataclass

from mdcg.data import Dataset
from mdcg.scenario import parse


@dataclass(frozen=True)
class Protocol:
    backbone: str
    epochs: int
    batch_size: int
    rate: float = 0.01
    momentum: float = 0.8


PAPER = {
    "cifar10": Protocol("resnet20", epochs=20, batch_size=32),
    "cifar100": Protocol("resnet20", epochs=20, batch_size=16),
    "tinyimagenet": Protocol("resnet18", epochs=30, batch_size=32),
}
DIGITS = Protocol("smallconv", epochs=10, batch_size=32, rate=0.05)


def protocol(scenario: str, dataset: Dataset) -> Protocol:
    name, _ = parse(scenario)
    if name == "digits":
        return DIGITS
    side = dataset.shape[1]
    of_folder = Protocol("resnet18" if side > 48 else "resnet20", epochs=20, batch_size=32)
    return PAPER.get(name, of_folder)
