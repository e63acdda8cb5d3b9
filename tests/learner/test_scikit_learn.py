"""A `Learner` is an estimator: scikit-learn's own checks, pipelines, cross-validation and cloning.

The checks give rows of numbers, which are no images. `Rows` makes images of them, a row of pixels each, and is a
`Learner` in all else.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import Tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import mdcg
from mdcg.learner.estimator import NotLearnedYet
from tests.learner.streams import toys


class Rows(mdcg.Learner):
    """A Learner of rows of numbers: each becomes an image of one line, its pixels the row's numbers."""

    def learn(self, images: Any, labels: Any = None, **more: Any) -> Self:
        rows, named = validate_data(self, images, labels, reset=not hasattr(self, "saved_"))
        return super().learn(pixels_of(rows), named, **more)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self)
        return super().predict_proba(pixels_of(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


def pixels_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = np.clip(128 + 32 * rows, 0, 255).astype(np.uint8)
    return pixels[:, None, :, None]


QUICK: dict[str, Any] = {"backbone": "smallconv", "lr": 0.05, "flip": False, "quiet": True}


def left_out(estimator: Any) -> dict[str, str]:
    return {"check_fit_score_takes_y": "it calls partial_fit once more with no class that is new, which is refused"}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [Rows("replay", memory=30, epochs=15, padding=0, hold_out=0.0, **QUICK)], expected_failed_checks=left_out
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_without_rows_there_is_nothing_to_check() -> None:
    """Images have more axes than scikit-learn's checks have, and it is told so."""
    tags = mdcg.Learner().__sklearn_tags__()
    assert (tags.input_tags.two_d_array, tags.input_tags.three_d_array) == (False, True)
    assert tags.estimator_type == "classifier"


def halves(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Every image at half its size."""
    return images[:, ::2, ::2]


def test_pipeline_and_cross_validation() -> None:
    dataset = toys()
    images, names = dataset.train.images.numpy(), np.array(dataset.class_names)[dataset.train.labels]
    model = make_pipeline(FunctionTransformer(halves), mdcg.Learner("replay", memory=60, epochs=20, **QUICK))
    scores = cross_val_score(model, images, names, cv=StratifiedKFold(2, shuffle=True, random_state=0))
    assert scores.min() > 0.5  # of six classes
    assert len(model.fit(images, names).predict(images[:3])) == 3


def test_a_clone_has_the_parameters_and_nothing_learned() -> None:
    dataset = toys()
    learner = mdcg.Learner("naive", epochs=1, **QUICK).learn(dataset.train.images, dataset.train.labels)
    again = clone(learner)
    assert again.get_params() == learner.get_params()
    with pytest.raises(NotLearnedYet, match="has learned nothing yet"):
        again.predict(dataset.test.images)


def test_classes_keep_their_kind() -> None:
    """What `learn` was given is what `predict` returns, and the columns of `predict_proba` are `classes_`."""
    dataset = toys()
    numbers = 10 * dataset.train.labels + 7
    for labels in (numbers, numbers.astype(str), numbers.astype(float), list(map(str, numbers))):
        learner = mdcg.Learner("naive", epochs=1, **QUICK).learn(dataset.train.images, labels)
        known = np.asarray(labels)
        assert learner.classes_.tolist() == sorted(set(known.tolist()))
        predicted = learner.predict(dataset.test.images)
        assert type(predicted.tolist()[0]) is type(known.tolist()[0])
        best = learner.predict_proba(dataset.test.images).argmax(1)
        assert (learner.classes_[best] == predicted).all()
