"""Calls of the public Python API with what nobody meant to be given, all in one process.

A call works, or it raises an `MdcgError` that is a sentence, and then the classifier that was there is as it was. Most
stop right before they would train.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

import mdcg
from mdcg.api import RunOptions
from mdcg.data.own import Prepared
from mdcg.errors import LONGEST, MdcgError
from mdcg.execute.sweep import Sweep
from mdcg.learner import Learner, estimator
from mdcg.models.backbones import BACKBONES
from mdcg.recipes.document import written
from mdcg.testing.abuse.campaign import CannotTry, Failure, Part
from mdcg.testing.abuse.values import ANYTHING, Makers, forms

SECONDS = 20  # after which a call counts as one that does not end
MEMORY = 2**32  # bytes of addresses that a call may take more
TRAINS = 0.03  # share of the calls that may train
Given = dict[str, Any]


class Enough(BaseException):
    """The end of a call that would now train."""


class Endless(BaseException):
    """The end of a call that takes too long."""


@dataclass(frozen=True)
class Call:
    """One call: what it does with its arguments, those that fit, and what else each may be."""

    name: str
    do: Callable[[Given], object]
    fitting: Given
    others: Mapping[str, Makers]  # of those that are not drawn from `ANYTHING` alone


class Pairs:
    """A dataset as torch has them, of images and labels that need not be such."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        return self.images[place], self.labels[place]


class Arguments(Part):
    """Calls of the Python API with values of every kind: an answer or a sentence, and no harm to a classifier."""

    name, usual = "arguments", 3000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if not hasattr(signal, "setitimer") or not Path("/proc/self/statm").exists():
            raise CannotTry("time and memory are limited as Linux does it")
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (6, 4, 4, 1), np.uint8)
        self.labels = np.arange(6) % 2
        self.fresh = Learner("replay", memory=4, backbone="smallconv", epochs=1, hold_out=0.2, quiet=True)
        self.known = copy.deepcopy(self.fresh).learn(self.images, self.labels)
        self.params = self.known.get_params()
        self.rows = rng.normal(size=(6, 3))
        self.featured = Learner("replay", memory=4, epochs=1, quiet=True).learn(self.rows, self.labels)
        self.before = [(one, one.get_params(), one.saved_, one.saved_.content()) for one in (self.known, self.featured)]
        self.here = folder / "here"
        self._tidy()
        self.calls = self._calls()

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        if number % 500 == 0:
            self._tidy()
        call = rng.choice(self.calls)
        count = min(rng.choice((1, 1, 1, 2)), len(call.fitting))
        odd = {name: self._drawn(call, name, rng) for name in rng.sample(list(call.fitting), count)}
        trains = rng.random() < TRAINS
        error = self._wrong(call, odd, trains)
        if error is None:
            return None
        for name in odd if len(odd) > 1 else ():
            if alone := self._wrong(call, {name: odd[name]}, trains):
                odd, error = {name: odd[name]}, alone
                break
        return Failure(f"{call.name} with {', '.join(f'{name}={told}' for name, (told, _) in odd.items())}", error)

    def _drawn(self, call: Call, name: str, rng: random.Random) -> tuple[str, Callable[[], Any]]:
        own = call.others.get(name)
        makers = own if own is not None and rng.random() < 0.75 else ANYTHING
        told = rng.choice(list(makers))
        return told, makers[told]

    def _wrong(self, call: Call, odd: Mapping[str, tuple[str, Callable[[], Any]]], trains: bool) -> str | None:
        """What is wrong with the end of a call, if anything is."""
        try:
            with warnings.catch_warnings(action="ignore"):
                made = {name: make() for name, (_, make) in odd.items()}
        except Exception:  # some forms are none of some numbers
            return None
        trouble, failed = None, True
        try:
            with self._limited(trains), contextlib.chdir(self.here):
                call.do({**call.fitting, **made})
            failed = False
        except Enough:
            pass
        except Endless:
            trouble = f"it does not end within {SECONDS} s"
        except MdcgError as error:
            trouble = _no_sentence(str(error))
        except BaseException as error:
            trouble = f"{type(error).__name__}: {_first_line(error)}"
        changed = False
        for learner, params, saved, content in self.before:
            replaced = failed and learner.__dict__.get("saved_") is not saved
            changed |= replaced or saved.content() != content
            learner.__dict__ |= {**params, "saved_": saved}
        return trouble or ("the classifier has changed" if changed else None)

    @contextlib.contextmanager
    def _limited(self, trains: bool) -> Iterator[None]:
        """Limits of time and memory; nothing that is registered stays, and most trainings end before they begin."""
        import resource

        def stop(*_: object) -> None:
            raise Endless

        def enough(*_: Any, **__: Any) -> Any:
            raise Enough

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            stack.enter_context(patch.dict(BACKBONES._known))
            stack.enter_context(patch.object(Sweep, "run", enough))
            stack.enter_context(patch("mdcg.export.export_onnx", enough))
            stack.enter_context(patch("mdcg.export.export_torch", enough))
            if not trains:
                stack.enter_context(patch.object(estimator, "train", enough))
            handler = signal.signal(signal.SIGALRM, stop)
            try:
                resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
                resource.setrlimit(resource.RLIMIT_AS, (before, hard))

    def _tidy(self) -> None:
        shutil.rmtree(self.here, ignore_errors=True)
        for name in ("cat", "dog"):
            (self.here / "photos" / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (5, 5), (90 * number, 20, 0)).save(self.here / "photos" / name / f"{number}.png")
        self.known.save(self.here / "model.safetensors")

    def _calls(self) -> list[Call]:
        images, labels, names = forms(self.images), forms(self.labels), forms(np.arange(2))
        more = forms(self.labels + 1)
        weights, numbers = forms(np.linspace(0, 1, 6)), forms(np.array([0.5]))
        pair, rows = {"images": images, "labels": labels}, forms(self.rows)
        featured: Given = {"images": self.rows, "labels": self.labels}
        given: Given = {"images": self.images, "labels": self.labels}

        def learner(words: Given) -> Learner:
            return Learner(**{**self.fresh.get_params(), **words})

        def prepared(own: Given) -> Given:
            return {name: value for name, value in own.items() if name in Prepared.__annotations__}

        def dataset(own: Given) -> mdcg.Dataset:
            train, test = ((own[f"{part}images"], own[f"{part}labels"]) for part in ("", "test_"))
            rest = {name: own[name] for name in ("name", "class_names", "channels")}
            return mdcg.Dataset.from_arrays(train, test, **rest, **prepared(own))

        def listed(own: Given) -> mdcg.Dataset:
            rest = {name: own[name] for name in ("name", "class_names", "channels", "size")}
            train = Pairs(own["images"], own["labels"]) if own["data"] is None else own["data"]
            return mdcg.Dataset.from_torch(train, own["test"], **rest, **prepared(own))

        ready: Given = {"padding": 1, "flip": True, "mean": [0.5], "std": [0.5]}
        own_data: Given = {**given, "test_images": self.images, "test_labels": self.labels, "name": "own", **ready}
        own_data |= {"class_names": ["a", "b"], "channels": "last"}
        of_data: Mapping[str, Makers] = {
            **pair, "test_images": images, "test_labels": labels, "class_names": names, "mean": numbers, "std": numbers,
        }  # fmt: skip
        data = mdcg.Dataset.from_arrays((self.images, self.labels), name="noise")
        runs: Given = dict.fromkeys(RunOptions.__annotations__) | {"data": data, "out": "runs", "epochs": 1}
        runs |= {"scenario": "noise-2", "memory": 4, "seeds": [0, 1], "set": {}, "members": None, "fresh": False,
                 "pixels": True, "quiet": True, "log": ()}  # fmt: skip
        runs |= {"backbone": "smallconv", "device": "cpu"}
        of_runs: Mapping[str, Makers] = {
            "seeds": forms(np.arange(2)), "memory": forms(np.array([4, 5])), "sizes": forms(np.array([1, 1])),
        }  # fmt: skip
        looks: Given = {"probes": (), "check_probes": False}
        known = self.known
        return [
            Call("Learner(…).learn", lambda own: learner(own).learn(self.images, self.labels), self.params, {}),
            Call("Learner(…).predict", lambda own: known.set_params(**own).predict(self.images), self.params, {}),
            Call("learn", lambda own: known.learn(own.pop("images"), own.pop("labels"), **own),
                 {**given, "labels": self.labels + 1, "order": None, "save_to": None}, {**pair, "labels": more}),
            Call("first learn", lambda own: learner({}).learn(own.pop("images"), own.pop("labels"), **own),
                 {**given, "order": None, "save_to": None}, {**pair, "order": names}),
            Call("first learn of features", lambda own: learner({"backbone": None}).learn(own["images"], own["labels"]),
                 featured, {"images": rows, "labels": labels}),
            Call("learn more features", lambda own: self.featured.learn(own["images"], own["labels"]),
                 {**featured, "labels": self.labels + 1}, {"images": rows, "labels": more}),
            Call("predict of features", lambda own: self.featured.predict(**own), {"X": self.rows}, {"X": rows}),
            Call("learn a folder", lambda own: learner({}).learn(**own), {"images": "photos", "labels": None}, {}),
            Call("fit", lambda own: known.fit(own["images"], own["labels"]), given, pair),
            Call("partial_fit", lambda own: known.partial_fit(own["images"], own["labels"], own["classes"]),
                 {**given, "labels": self.labels + 1, "classes": [0, 1, 2]},
                 {**pair, "labels": more, "classes": forms(np.arange(3))}),
            Call("predict", lambda own: known.predict(**own), {"X": self.images}, {"X": images}),
            Call("predict_proba", lambda own: known.predict_proba(**own), {"X": self.images}, {"X": images}),
            Call("score", lambda own: known.score(**own), {"X": self.images, "y": self.labels, "sample_weight": None},
                 {"X": images, "y": labels, "sample_weight": weights}),
            Call("evaluate", lambda own: known.evaluate(own.pop("images"), own.pop("labels"), **own),
                 {**given, "known_only": False}, pair),
            Call("stream", lambda own: list(islice(known.stream(**own), 3)), {"files": ["photos/cat/0.png"]}, {}),
            Call("reader", lambda own: known.reader(**own), {"on_error": "stop"}, {}),
            Call("save", lambda own: known.save(own["path"], pixels=own["pixels"]),
                 {"path": "saved.safetensors", "pixels": True}, {}),
            Call("load", lambda own: Learner.load(own["path"], backbone=own["backbone"]),
                 {"path": "model.safetensors", "backbone": None}, {}),
            Call("export", lambda own: known.export(**own), {"path": "made", "to": "onnx"}, {}),
            Call("Dataset.from_arrays", dataset, own_data, of_data),
            Call("Dataset.from_torch", listed, {**given, "data": None, "test": None, "name": "own", **ready,
                 "size": None, "class_names": None, "channels": None}, of_data),
            Call("Dataset.from_huggingface", lambda own: mdcg.Dataset.from_huggingface(own.pop("train"), **own),
                 {"train": {"train": [1]}, "test": None, "name": "own", "image": "image", "label": "label"}, {}),
            Call("Dataset.from_folder", lambda own: mdcg.Dataset.from_folder(own.pop("path"), **own),
                 {"path": "photos", "size": 8, "name": "own", "padding": 1, "flip": True}, {}),
            Call("mdcg.run", lambda own: mdcg.run(**own), {**runs, **looks, "method": "naive"}, of_runs),
            Call("mdcg.compare", lambda own: mdcg.compare(**own), {**runs, **looks, "methods": ["naive", "md"]},
                 of_runs),
            Call("mdcg.search", lambda own: mdcg.search(**own), {**runs, "method": "md", "set": {"lam": [1, 2]}},
                 of_runs),
            Call("Sweep.of", lambda own: Sweep.of(written({}), **own).plan(),
                 {**_without(runs, "quiet"), **looks, "method": ["naive", "md"], "only": {"method": ["md"]}}, of_runs),
            Call("Sweep.of(document)", lambda own: Sweep.of(**own), {"document": written({})}, {}),
            Call("Sweep.read", lambda own: Sweep.read(**own), {"recipe": "quick", "only": None}, {}),
            Call("load_runs", lambda own: mdcg.load_runs(**own), {"path": "runs", "part": "runs"}, {}),
            Call("Comparison", lambda own: mdcg.Comparison(own).frame(), {"a": 1}, {}),
        ]  # fmt: skip


def _without(words: Given, *names: str) -> Given:
    return {name: value for name, value in words.items() if name not in names}


def _no_sentence(text: str) -> str | None:
    """What keeps a text from being one sentence, or some, on a line."""
    if not text.isprintable():
        return f"it says what cannot be printed: {text[:200]!r}"
    if not text.endswith(".") or len(text) > LONGEST:
        return f"it says no sentence, but {text[:150]!r}…{text[-50:]!r}"
    return None


def _first_line(error: BaseException) -> str:
    try:
        text = (str(error).splitlines() or [""])[0][:200]
    except Exception:
        text = "…"
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    own: Sequence[inspect.FrameInfo] = [frame for frame in frames if f"{os.sep}mdcg{os.sep}" in frame.filename]
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in own[-3:]]
    return f"{text} ({' → '.join(places)})"
