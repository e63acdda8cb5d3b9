"""`mdcg.Learner`: a classifier for those who know scikit-learn, which learns new classes as they arrive."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags

import mdcg
from mdcg.arguments import flag
from mdcg.data.class_names import warn_of_look_alikes
from mdcg.data.given import as_column
from mdcg.data.images import ImageReader, OnError
from mdcg.data.normalise import Normalise
from mdcg.draws import Ints
from mdcg.errors import InputError, MdcgError, unknown
from mdcg.execute.progress import messages
from mdcg.files import path_of, shown
from mdcg.header import Label, Version, refuse_unkeepable
from mdcg.learner.accuracy import Evaluation, lost
from mdcg.learner.inputs import (
    Given,
    as_file,
    as_images,
    as_labels,
    as_weights,
    is_files,
    labelled_files,
    listing,
    new_classes,
    number_of,
    positions_of,
    read_files,
    reader_of,
    with_channels,
)
from mdcg.learner.setup import Params, can_learn, check_choices, check_room, params_of, resolved
from mdcg.learner.tables import as_html, one_line, told_of_relabelled
from mdcg.learner.task import Arrived, NextTask, next_task, without_known_images
from mdcg.learner.training import checkpoint_folder, train
from mdcg.methods import METHODS
from mdcg.methods.base import Passes, Value
from mdcg.models.naming import Given as Backbone
from mdcg.models.naming import backbone_name
from mdcg.models.weights import WeightsFile
from mdcg.outputs import Output
from mdcg.saved import PIXELS_AT_ONCE, Probabilities, SavedModel, model_file
from mdcg.train.precision import Compute, compute

logger = logging.getLogger(__name__)
Stream = Iterator[tuple[list[Path], Probabilities]]


class NotLearnedYet(MdcgError, NotFittedError):  # type: ignore[misc]
    """A classifier was asked before it was taught."""


class Learner(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An image classifier that learns new classes task after task, with a bounded memory.

    Each call of `learn` is a task: images of classes it has not seen. What it needs of the past it keeps itself, in
    the file that `save` writes too. Parameters are those of `mdcg.run`, and these:

    `hold_out` is the fraction of a new class's images that is held out and never trained on, to tell how it fares: of
    all classes together at most `held_out_images`, kept beside the memory. `image_size` and `resize` (crop, fit or
    squash) are for image files; arrays come in the size that they have. `most_classes` is what a head can hold that has
    all of them from the start (`der`), `tasks` among how many `gem` divides its memory. Without `epochs` there are 20,
    or more where few images would give too few steps. `lr` and `augment` (jitter, randaugment, both with a + between,
    or usual: neither) are what the method brings unless they are given: for `md-replay` 0.1 and randaugment, for others
    0.01 and usual. A file that cannot be read ends `learn`, unless `on_error` is "skip". A class that loses more than
    `warn_drop` points of accuracy on its held-out images is named in a warning.

    >>> import mdcg, numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    >>> clf = mdcg.Learner("replay", memory=20, backbone="smallconv", epochs=1, quiet=True)
    >>> clf.learn(images[:20], ["cat", "dog"] * 10).learn(images[20:], ["emu"] * 20).classes_.tolist()
    ['cat', 'dog', 'emu']
    """

    saved_: SavedModel

    def __init__(
        self,
        method: str = "md-replay",
        *,
        memory: int = 500,
        set: Mapping[str, Value] | None = None,
        head: str | None = None,
        backbone: Backbone | None = None,
        weights: Path | str | None = None,
        backbone_lr: float | None = None,
        image_size: int | None = None,
        resize: str = "crop",
        flip: bool = True,
        augment: str | None = None,
        normalise: Normalise = "data",
        padding: int | None = None,
        epochs: int | None = None,
        batch_size: int = 32,
        lr: float | None = None,
        momentum: float = 0.8,
        passes: Passes = "joint",
        precision: str = "auto",
        seed: int = 0,
        device: str = "auto",
        hold_out: float = 0.1,
        held_out_images: int = 200,
        most_classes: int = 100,
        tasks: int = 10,
        on_error: str = "stop",
        warn_drop: float = 10.0,
        quiet: bool = False,
    ) -> None:
        self.method = method
        self.memory = memory
        self.set = set
        self.head = head
        self.backbone = backbone
        self.weights = weights
        self.backbone_lr = backbone_lr
        self.image_size = image_size
        self.resize = resize
        self.flip = flip
        self.augment = augment
        self.normalise = normalise
        self.padding = padding
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.momentum = momentum
        self.passes = passes
        self.precision = precision
        self.seed = seed
        self.device = device
        self.hold_out = hold_out
        self.held_out_images = held_out_images
        self.most_classes = most_classes
        self.tasks = tasks
        self.on_error = on_error
        self.warn_drop = warn_drop
        self.quiet = quiet

    def learn(
        self,
        images: Given,
        labels: npt.ArrayLike | None = None,
        *,
        order: Sequence[Label] | None = None,
        save_to: Path | str | None = None,
        force: bool = False,
    ) -> Self:
        """Learn the classes that are new among these images: the next task.

        `images` are a folder with one folder per class, or arrays or image files with `labels`. New classes get their
        outputs as they are sorted, or in an `order`. With `save_to` the classifier is saved there in the end, and a
        call that was killed goes on where it was when it is made again; until then nothing has changed. A model that
        is there gives way to one that knows all of its classes, any other file only with `force`.
        """
        params = self._checked_params()
        with messages(params.quiet):
            return self._learn(
                params, images, labels, order, None if save_to is None else as_file(save_to), flag(force, "force")
            )

    def fit(self, X: Given, y: npt.ArrayLike | None = None) -> Self:
        """Forget all that was learned, and learn these images as the first task."""
        before = self.__dict__.pop("saved_", None)
        try:
            return self.learn(X, y)
        except BaseException:
            if before is not None:
                self.saved_ = before  # a mistake costs nothing
            raise

    def partial_fit(self, X: Given, y: npt.ArrayLike | None = None, classes: npt.ArrayLike | None = None) -> Self:
        """Learn one more task, as `learn` does. If all `classes` that may ever come are told, a label must be one.

        Images that are known already, all of them, are no task and no mistake: nothing changes.
        """
        if classes is not None and y is not None:
            told = as_column(classes, "the classes")
            strange = set(as_labels(y, len(as_column(y, "the labels")))) - set(as_labels(told, len(told)))
            if strange:
                raise InputError(f"label {min(strange, key=str)!r} is not among the classes that were said to come.")
        params = self._checked_params()
        with messages(params.quiet):
            return self._learn(params, X, y, None, None, again=True)

    def _learn(
        self,
        params: Params,
        images: Given,
        labels: npt.ArrayLike | None,
        order: Sequence[Label] | None,
        save_to: Path | None,
        force: bool = False,
        again: bool = False,
    ) -> Self:
        """Learn the next task; what is known already, all of it, may be given `again`."""
        before: SavedModel | None = getattr(self, "saved_", None)
        known = before.classes if before else ()

        def check_place(labels: Iterable[Label] | None = None) -> None:
            if save_to is not None:
                Output(save_to, model_file(None if labels is None else {*known, *labels}), force).check()

        check_place()
        weights, machine = _weights(params, before), compute(params.device, params.precision)
        if isinstance(images, str | Path) or is_files(images):
            reader = self.reader(params.on_error)
            pixels, named = read_files(images, labels, reader, before.setup.shape if before else None, check_place)
            logger.info("%s.", reader.summary())
        else:
            pixels = as_images(images, before.setup if before else None)
            named = as_labels(labels, len(pixels))
        new = new_classes(named, known, order)
        place = {label: position for position, label in enumerate((*known, *new))}
        arrived = Arrived(pixels, np.array([place[label] for label in named], np.int64), new)
        if before is not None:
            arrived, relabelled = without_known_images(before, arrived)
            thing = "row" if before.setup.is_features else "image"
            for sentence in told_of_relabelled(relabelled, (*known, *new), len(known), thing):
                logger.warning("%s", sentence)
            if not new and again and not len(arrived.positions):
                logger.info("all of it is known already: nothing is learned.")
                return self
        if not new:
            raise InputError("none of these classes is new; learn takes at least one that is not known yet.")
        if before is None and len(new) < 2:
            raise InputError(f"there is only one class, {new[0]!r}; begin with at least two classes.")
        warn_of_look_alikes(map(str, new), map(str, known))
        check_place(new)
        setup = resolved(params, before, pixels, len(known) + len(new))
        check_room(setup, before, len(new))
        if left_out := len(pixels) - len(arrived.positions):
            logger.info(
                "%s known already and left out.", f"{number_of(left_out, thing)} {'is' if left_out == 1 else 'are'}"
            )
        told, sizes = params.as_json(weights), [*(before.sizes if before else ()), len(new)]
        refuse_unkeepable(setup, (*known, *new), sizes, told)
        task = next_task(
            before,
            setup,
            arrived,
            hold_out=params.hold_out,
            held_out_images=params.held_out_images,
            epochs=params.epochs,
            weights=weights,
        )
        self.saved_ = self._learned(task, arrived, params, told, machine, save_to, check_place)
        return self

    def _learned(
        self,
        task: NextTask,
        arrived: Arrived,
        params: Params,
        told: dict[str, Any],
        machine: Compute,
        save_to: Path | None,
        check_place: Callable[[Iterable[Label]], None],
    ) -> SavedModel:
        training, before, started = task.group.training, task.before, time.perf_counter()
        logger.info(
            "learning %s from %s images: %s of %s.",
            listing(arrived.new),
            len(arrived.positions),
            number_of(training.epochs, "epoch"),
            number_of(task.steps, "step"),
        )
        with checkpoint_folder(save_to) as folder:
            saved = train(task, machine, folder, params.quiet)
            version = Version(
                classes=list(arrived.new),
                images=_count(arrived.positions, task),
                held_out=_count(task.held_out.positions.numpy(), task),
                before=_class_accuracy(before, task) if before else [],
                after=_class_accuracy(saved, task),
                epochs=training.epochs,
                steps=training.epochs * task.steps,
                seconds=round(time.perf_counter() - started, 1),
                finished=datetime.now(UTC).isoformat(timespec="seconds"),
                mdcg=mdcg.__version__,
            )
            versions = (*(before.versions if before else ()), version)
            saved = replace(saved, versions=versions, params=told)
            if save_to is not None:
                check_place(arrived.new)  # again: training may have taken hours
                saved.save(save_to)
        for position, (was, now) in lost(version, params.warn_drop).items():
            name = shown(str(saved.classes[position]))
            logger.warning("'%s' fell from %.1f to %.1f%% on the images held out.", name, was, now)
        return saved

    def export(self, path: Path | str, to: Literal["onnx", "torch"] = "onnx", *, force: bool = False) -> None:
        """Write the classifier as a file that needs no mdcg: uint8 images of its size in, probabilities out.

        An export of the same kind that is there gives way to it, any other file only with `force`.
        """
        from mdcg.export import Classifier, export_onnx, export_torch  # needs packages that only some have

        if not isinstance(to, str) or to not in ("onnx", "torch"):
            raise unknown("format", to, ("onnx", "torch"))
        path, saved = as_file(path), self._known()
        setup, names = saved.setup, [str(name).encode("utf-8", "replace").decode() for name in saved.classes]
        if setup.is_features:
            raise InputError("an export is of images to probabilities, and this model takes features; use save.")
        classifier = Classifier(saved.model, setup.mean, setup.std, len(names))
        (export_onnx if to == "onnx" else export_torch)(classifier, path, setup.shape, names, flag(force, "force"))

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """All classes that it knows, in order of arrival: names or numbers, as they were given."""
        classes = list(self._known().classes)
        found = np.array(classes)
        return found if found.tolist() == classes else np.array(classes, object)  # ids on both sides of 2**63

    @property
    def n_features_in_(self) -> int:
        """The features of a row, as scikit-learn calls it; of a classifier of images there is no such number."""
        saved: SavedModel | None = getattr(self, "saved_", None)
        if saved is None or not saved.setup.is_features:
            raise AttributeError("n_features_in_ is known once features were learned.")
        return saved.setup.shape[0]

    def predict_proba(self, X: Given) -> Probabilities:
        """Probabilities (n, classes) of images, given as arrays or files; columns in the order of `classes_`."""
        saved = self._known()
        if not is_files(X):
            return saved.probabilities(as_images(X, saved.setup), self._device())
        return np.concatenate([found for _, found in self.stream(X)])

    def stream(self, files: Iterable[Path | str], reader: ImageReader | None = None) -> Stream:
        """Image files and their probabilities, some at a time: however many there are, few are in memory.

        A `reader`, as `self.reader` makes it, may skip files that cannot be read and counts them.
        """
        saved = self._known()
        device, (_, height, width) = self._device(), saved.setup.shape
        for paths, images in (reader or self.reader()).stream(files, max(1, PIXELS_AT_ONCE // (height * width))):
            yield paths, saved.probabilities(with_channels(images, saved.setup.shape), device)

    def reader(self, on_error: OnError = "stop") -> ImageReader:
        """What reads image files in the form that this classifier takes."""
        saved: SavedModel | None = getattr(self, "saved_", None)
        params = self._params()
        return reader_of(saved.setup if saved else None, params.image_size, params.resize, on_error)

    def predict(self, X: Given) -> npt.NDArray[Any]:
        """The class of each image, as its images were labelled."""
        classes: npt.NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return classes

    def score(self, X: Given, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Accuracy between 0 and 1, as in scikit-learn."""
        predicted = self.predict(X)
        wanted = as_labels(y, len(predicted))
        if not wanted:
            raise InputError("there is no image to score; give at least one.")
        hits = np.array([found == label for found, label in zip(predicted.tolist(), wanted, strict=True)])
        return float(np.average(hits, weights=None if sample_weight is None else as_weights(sample_weight, len(hits))))

    def evaluate(
        self,
        images: Given,
        labels: npt.ArrayLike | None = None,
        *,
        known_only: bool = False,
        reader: ImageReader | None = None,
    ) -> Evaluation:
        """How it fares on labelled images, class by class; given as to `learn`, with classes that it knows.

        With `known_only` images of other classes are left out. Of image files few at a time are in memory.
        """
        saved, known_only = self._known(), flag(known_only, "known_only")
        place = {label: position for position, label in enumerate(saved.classes)}
        total = Evaluation.of(saved.classes, np.empty(0, np.int64), np.empty((0, len(saved.classes))))
        if not (isinstance(images, str | Path) or is_files(images)):
            pixels = as_images(images, saved.setup)
            named = as_labels(labels, len(pixels))
            truth = positions_of(named, place, known_only)
            answers = saved.probabilities(pixels, self._device())
            return total + Evaluation.of(saved.classes, truth[truth >= 0], answers[truth >= 0])
        files = labelled_files(images, labels, reader or self.reader())
        for position, paths in zip(positions_of(list(files), place, known_only), files.values(), strict=True):
            for _, answers in self.stream(paths, reader) if position >= 0 else ():
                total += Evaluation.of(saved.classes, np.repeat(position, len(answers)), answers)
        return total

    def save(self, path: Path | str, *, pixels: bool = True, force: bool = False) -> None:
        """Write one safetensors file, with the memory's images: it needs no dataset any more.

        Without `pixels` it has no images at all, and what is loaded from it can classify but learn no more. A model
        that is there gives way to one that knows all of its classes, any other file only with `force`.
        """
        saved, file = self._known(), as_file(path)
        Output(file, model_file(saved.classes), flag(force, "force")).check()
        (saved if flag(pixels, "pixels") else replace(saved, kept=None, held_out=None)).save(file)

    @classmethod
    def load(cls, path: Path | str, *, backbone: Backbone | None = None) -> Self:
        """Read what `save` wrote; also a run's model.safetensors.

        A file brings no code with it: a `backbone` that is not mdcg's own, nor registered, must be given again.
        """
        name = None if backbone is None else backbone_name(backbone, may_import=True)
        saved = SavedModel.load(path_of(path), name)
        if strange := sorted(set(params_of(saved)) - set(cls._get_param_names())):
            raise MdcgError(f"{saved.file} has parameters unknown here: {listing(strange)}; update mdcg.")
        return cls._of(saved)

    @classmethod
    def _of(cls, saved: SavedModel) -> Self:
        """A classifier with the parameters that it was saved with."""
        backbone = None if saved.setup.is_features else saved.setup.backbone
        learner = cls(**{**params_of(saved), "backbone": backbone})
        learner.saved_ = saved
        return learner

    def _checked_params(self) -> Params:
        """The parameters, as far as they can be checked without images; a file that brought wrong ones is named."""
        before: SavedModel | None = getattr(self, "saved_", None)
        if before is not None:
            can_learn(before)
        try:
            params = self._params()
            check_choices(params, before)
            return params
        except MdcgError as error:
            if before is not None and before.file and str(error) == _wrong_in(before):
                raise MdcgError(f"{before.file} cannot go on as it says: {shown(str(error), 1000)}") from error
            raise

    def _params(self) -> Params:
        """The parameters, checked; what names code is imported only before something is learned: a file names none."""
        given = self.get_params(deep=False)
        if given["backbone"] is not None:
            given["backbone"] = backbone_name(given["backbone"], may_import=not hasattr(self, "saved_"))
        return Params.of(given)

    def _device(self) -> str:
        """Where to compute; what else may be wrong with the parameters concerns whoever learns more."""
        return Params.of({**Learner().get_params(deep=False), "device": self.device}).device

    def _known(self) -> SavedModel:
        saved: SavedModel | None = getattr(self, "saved_", None)
        if saved is None:
            raise NotLearnedYet("this Learner has learned nothing yet; call learn with images of two classes or more.")
        return saved

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Print its parameters, as scikit-learn does; once it has learned, what it knows."""
        saved: SavedModel | None = getattr(self, "saved_", None)
        return f"<Learner: {one_line(saved)}>" if saved else str(super().__repr__(N_CHAR_MAX))

    @property
    def _repr_html_(self) -> Callable[[], str]:
        """Show in a notebook what it knows; before, its parameters, as scikit-learn does."""
        saved: SavedModel | None = getattr(self, "saved_", None)
        if saved is None:
            parameters: Callable[[], str] = super()._repr_html_
            return parameters
        return partial(as_html, saved)

    def _repr_mimebundle_(self, **wanted: Any) -> dict[str, str]:
        """All ways to show it, which notebooks prefer to `_repr_html_` alone."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**wanted)
        return {**bundle, "text/html": self._repr_html_()} if hasattr(self, "saved_") else bundle

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True  # images, beside features
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "saved_")


def _wrong_in(saved: SavedModel) -> str:
    """What is wrong with the parameters that a classifier was saved with, if anything is."""
    as_saved = Learner._of(saved)
    try:
        check_choices(as_saved._params(), saved)
    except MdcgError as error:
        return str(error)
    return ""


def _weights(params: Params, before: SavedModel | None) -> WeightsFile | None:
    """The file of initial weights, where a network is made: later nobody needs to have it any more."""
    if before is None or METHODS[params.method].starts_anew:
        return WeightsFile.of(params.weights) if params.weights else None
    if params.weights and before.file:  # who goes on in the same process has given it for the first task
        logger.warning("the network of %s has weights already: %s is not read.", before.file, shown(params.weights))
    return None


def _class_accuracy(saved: SavedModel, task: NextTask) -> list[float | None]:
    """Percent of each class's held-out images that are classified right; None of a class without any."""
    positions = task.held_out.positions.numpy()
    own = positions < len(saved.classes)
    answers = saved.probabilities(task.held_out.images[torch.from_numpy(own)])
    return Evaluation.of(saved.classes, positions[own], answers).class_accuracy


def _count(positions: Ints, task: NextTask) -> list[int]:
    """Images of each class."""
    counts: list[int] = np.bincount(positions, minlength=len(task.classes)).tolist()
    return counts
