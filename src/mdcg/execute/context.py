"""The context: what runs need while they train, as one object that any process can work from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mdcg.data import Dataset, DatasetRecord, load, record_of
from mdcg.data.load import must_read
from mdcg.execute.progress import SILENT, Display
from mdcg.models.weights import WeightsFile
from mdcg.recipes.recipe import Recipe
from mdcg.runs.spec import RunSpec
from mdcg.runs.store import Store
from mdcg.scenario import parse
from mdcg.trackers import TrackerSet
from mdcg.train.precision import Compute, compute

DatasetKey = tuple[str, Path | None, int | None]  # a dataset's name, where it is, and the size of its images


class DatasetCache:
    """Datasets that are loaded once, when first asked for; a copy in another process loads its own."""

    def __init__(self, loaded: Mapping[DatasetKey, Dataset] | None = None) -> None:
        self._loaded = dict(loaded or {})

    def must_read(self, *asked: *DatasetKey) -> bool:
        """Whether to load a dataset means to read its files."""
        return asked not in self._loaded and must_read(*asked)

    def load(self, *asked: *DatasetKey) -> Dataset:
        if asked not in self._loaded:
            self._loaded[asked] = load(*asked)
        return self._loaded[asked]

    def __reduce__(self) -> tuple[type[DatasetCache], tuple[()]]:
        return DatasetCache, ()


@dataclass(frozen=True)
class Context:
    """Where runs are stored, what they are computed from and on, and who is told of them.

    It holds names and paths, and opens what they stand for when asked: so it can be sent to another machine, unless a
    dataset was given.
    """

    out: Path
    data: Path | None = None
    device: str = "auto"
    members: int | None = None  # most runs that may train together
    probes: tuple[str, ...] = ()  # that look at the runs
    check_probes: bool = False  # that each look has changed nothing
    trackers: TrackerSet = field(default_factory=TrackerSet)  # that are told of them
    fresh: bool = False  # repeat what is finished
    pixels: bool = True  # of the memory's images go into the model's file, which can then learn more
    remote: bool = False  # the device is that of other machines
    slots: int = 1  # groups that train at the same time
    gpu_share: float = 1.0  # of a GPU's memory that a group may use
    display: Display = SILENT
    weights: Mapping[str, WeightsFile] = field(default_factory=dict)  # by digest
    datasets: DatasetCache = field(default_factory=DatasetCache, compare=False, repr=False)
    given: Dataset | None = field(default=None, compare=False, repr=False)  # in Python, in place of `data`

    @property
    def store(self) -> Store:
        return Store(self.out, self.probes)

    def dataset(self, asked: RunSpec | Recipe) -> Dataset:
        """The images that a run or a recipe is about."""
        name, given = self._named(asked)
        if given is None:
            return self.datasets.load(name, self.data, asked.image_size)
        given.record.refuse_size(asked.image_size)
        return given

    def record(self, asked: Recipe) -> DatasetRecord:
        """What is known of these images before they are read."""
        name, given = self._named(asked)
        return record_of(name) if given is None else given.record

    def must_read(self, asked: Recipe) -> bool:
        """Whether to have the images of a recipe means to read files."""
        name, given = self._named(asked)
        return given is None and self.datasets.must_read(name, self.data, asked.image_size)

    def _named(self, asked: RunSpec | Recipe) -> tuple[str, Dataset | None]:
        """The name of a dataset, and the one that was given by this name: it may be registered nowhere."""
        name, _ = parse(asked.scenario)
        return name, self.given if self.given is not None and name == self.given.name else None

    def compute(self, spec: RunSpec) -> Compute:
        """The device of this machine, with the run's precision."""
        return compute(self.device, spec.precision)

    def device_type(self, spec: RunSpec) -> str:
        """The type of the device where the run will train: cpu or cuda."""
        return self.device if self.remote else self.compute(spec).device.type
