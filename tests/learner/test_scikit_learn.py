"""A `Learner` is an estimator: scikit-learn's own checks, pipelines, cross-validation and cloning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import mdcg
from mdcg.learner.estimator import NotLearnedYet
from tests.learner.streams import toys

QUICK: dict[str, Any] = {"backbone": "smallconv", "lr": 0.05, "flip": False, "quiet": True}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [mdcg.Learner("replay", memory=60, epochs=10, lr=0.5, hold_out=0.0, quiet=True)]
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    """The checks give rows of numbers: features."""
    check(estimator)


def test_tags() -> None:
    """Rows of features, and images, which have more axes."""
    tags = mdcg.Learner().__sklearn_tags__()
    assert (tags.input_tags.two_d_array, tags.input_tags.three_d_array) == (True, True)
    assert tags.estimator_type == "classifier"
    assert not tags.input_tags.allow_nan


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
