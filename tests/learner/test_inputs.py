"""What a `Learner` makes of what it is given: kinds of images, classes known and new, what it holds out and keeps."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mdcg
from mdcg import MdcgError
from mdcg.learner import task as learner_task
from mdcg.learner.accuracy import Evaluation, lost
from mdcg.learner.tables import evaluation_table
from mdcg.memory import Exemplars
from mdcg.saved import Kept, SavedModel
from mdcg.tensors import pack, unpack
from mdcg.testing import toy_dataset
from mdcg.train.loop import Batch, Trainer
from tests.learner.streams import COUNTS, NAME, assert_same, write_images

GREY, COLOUR = toy_dataset(COUNTS), toy_dataset(COUNTS, channels=3)
Part = tuple[Tensor, npt.NDArray[np.int64]]


def learner(method: str = "replay", **changed: Any) -> mdcg.Learner:
    quick = {"memory": 20, "backbone": "smallconv", "epochs": 1, "lr": 0.05, "hold_out": 0.0, "quiet": True}
    return mdcg.Learner(method, **{**quick, **changed})


def part(*labels: int, start: int = 0, stop: int = 99) -> Part:
    """Images of some classes, those with these numbers of each."""
    own = [np.flatnonzero(GREY.train.labels == label)[start:stop] for label in labels]
    chosen = np.concatenate(own)
    return GREY.train.images[torch.from_numpy(chosen)], GREY.train.labels[chosen]


def joined(*parts: Part) -> Part:
    return torch.cat([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def keys(images: Tensor, positions: Any) -> Counter[tuple[bytes, int]]:
    """Images with their classes, to be compared whatever their order."""
    return Counter((image.numpy().tobytes(), int(c)) for image, c in zip(images, positions, strict=True))


def held(exemplars: Exemplars | None) -> Counter[tuple[bytes, int]]:
    assert exemplars is not None
    return keys(exemplars.images, exemplars.positions)


def kept(one: mdcg.Learner) -> Kept:
    assert one.saved_.kept is not None
    return one.saved_.kept


@dataclass
class Trained:
    """All images that were trained on, with their classes: as current ones, and from memory."""

    current: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    memory: Counter[tuple[bytes, int]] = field(default_factory=Counter)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    seen, batch = Trained(), Trainer.batch

    def noting(self: Trainer, *args: Any) -> Batch:
        found = batch(self, *args)
        images, n = self.group.dataset.train.images[found.index[0]], found.current
        seen.current += keys(images[:n], found.labels[0, :n])
        seen.memory += keys(images[n:], found.labels[0, n:])
        return found

    monkeypatch.setattr(Trainer, "batch", noting)
    return seen


# ------------------------------------------------------------------ kinds of images


def test_every_kind_of_images_is_the_same(tmp_path: Path) -> None:
    """A folder, files, arrays, tensors and a list of arrays, in colour."""
    folder = write_images(tmp_path, COLOUR, [0, 1])
    files = sorted(folder.glob("*/*.png"))
    names = [file.parent.name for file in files]
    own = COLOUR.train.labels < 2
    images = COLOUR.train.images[torch.from_numpy(own)]
    given: list[tuple[Any, Any]] = [
        (folder, None),
        (str(folder), None),
        (files, names),
        (tuple(map(str, files)), np.array(names)),
        (np.array(list(map(str, files))), names),
        (images.numpy(), names),
        (images, names),
        (list(images.numpy()), names),
        (np.asfortranarray(images.numpy()), np.array(names, object)),
    ]
    made = [learner(image_size=8).learn(*one).saved_ for one in given]
    assert made[0].classes == ("class 0", "class 1")
    for other in made[1:]:
        assert_same(made[0], other)
    asked: list[Any] = [files, list(map(str, files)), images, images.numpy(), list(images.numpy())]
    answers = [learner_of(made[0]).predict_proba(one) for one in asked]
    assert all(np.array_equal(answers[0], other) for other in answers[1:])
    assert learner_of(made[0]).evaluate(folder).accuracy == learner_of(made[0]).evaluate(images, names).accuracy


def learner_of(saved: SavedModel) -> mdcg.Learner:
    one = learner(image_size=8)
    one.saved_ = saved
    return one


def test_grey_images_with_and_without_their_axis() -> None:
    images, labels = part(0, 1)
    made = [learner().learn(given, labels) for given in (images, images[..., 0], images.numpy()[..., 0])]
    for other in made[1:]:
        assert_same(made[0].saved_, other.saved_)
    flat, deep = made[0].predict_proba(images[..., 0]), made[0].predict_proba(images)
    assert np.array_equal(flat, deep)


def test_files_for_a_model_of_grey_images(tmp_path: Path) -> None:
    """Learned from arrays, it then takes files: a grey image has the same value in all its channels."""
    files = sorted(write_images(tmp_path, GREY, [0, 1]).glob("*/*.png"))
    one = learner().learn(*part(0, 1))
    assert np.array_equal(one.predict_proba(files), one.predict_proba(part(0, 1)[0]))


@pytest.mark.parametrize(("shape", "said"), [((8, 8, 4), "of 4 channels"), ((8, 12, 3), "of 8 × 12 pixels")])
def test_a_model_that_takes_no_files(shape: tuple[int, ...], said: str, tmp_path: Path) -> None:
    folder = write_images(tmp_path, COLOUR, [0, 1])
    one = learner().learn(np.zeros((8, *shape), np.uint8), ["a", "b"] * 4)
    before = one.saved_.content()
    for ask in (
        lambda: one.learn(folder),
        lambda: one.predict(sorted(folder.glob("*/*"))),
        lambda: one.evaluate(folder),
    ):
        with pytest.raises(MdcgError, match=f"this model takes images {said}; give arrays"):
            ask()
    assert one.saved_.content() == before


def test_what_is_given_is_not_kept_hold_of() -> None:
    """Arrays that change later change nothing that was learned."""
    images, labels = part(0, 1)
    mine = images.clone()
    one = learner("cumulative").learn(mine, labels)
    before = one.saved_.content()
    mine.zero_()
    assert one.saved_.content() == before


# ------------------------------------------------------------------ classes


def test_an_order_numbers_the_classes() -> None:
    images, labels = part(0, 1, 2)
    for order in ([2, 0, 1], np.array([2, 0, 1]), (2.0, 0.0, 1.0)):
        one = learner().learn(images, labels, order=order)  # type: ignore[arg-type]
        assert one.saved_.classes == (2, 0, 1)
        assert {type(label) for label in one.saved_.classes} == {int}
        one.saved_.content()  # which is JSON in part
    assert learner().learn(images, labels).saved_.classes == (0, 1, 2)
    more = one.learn(*part(5, 3), order=[5, 3])
    assert more.saved_.classes == (2, 0, 1, 5, 3)
    assert more.classes_.tolist() == [2, 0, 1, 5, 3]


WRONG_ORDERS = [[0], [0, 0], [0, 1, 1], [0, 1, 2], ["0", "1"], [0, None], [[0], [1]], "01", 3, [0, "1"]]


@pytest.mark.parametrize("order", WRONG_ORDERS, ids=str)
def test_an_order_that_is_none(order: Any) -> None:
    with pytest.raises(MdcgError, match="order"):
        learner().learn(*part(0, 1), order=order)


def test_how_few_classes_may_come() -> None:
    with pytest.raises(ValueError, match=r"only one class, 0; begin with at least two"):
        learner().learn(*part(0))
    one = learner().learn(*part(0, 1)).learn(*part(2))  # later one is enough
    assert one.saved_.sizes == [2, 1]
    before = one.saved_.content()
    for images, labels in (part(0, 1), part(2), (part(0)[0][:0], part(0)[1][:0])):
        with pytest.raises(ValueError, match="none of these classes is new"):
            one.learn(images, labels)
    assert one.saved_.content() == before


def test_names_and_numbers_do_not_mix() -> None:
    images, labels = part(2, 3)
    with pytest.raises(ValueError, match="some classes have names and some have numbers"):
        learner().learn(*part(0, 1)).learn(images, labels.astype(str))


def test_partial_fit_and_fit() -> None:
    one = learner().partial_fit(*part(0, 1), classes=range(4)).partial_fit(*part(2))
    assert one.classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="label 5 is not among the classes that were said to come"):
        one.partial_fit(*part(5), classes=[0, 1, 2, 3])
    assert one.fit(*part(3, 4)).classes_.tolist() == [3, 4]


@pytest.mark.parametrize("wrong", ["one class", "interrupted"])
def test_a_fit_that_fails_loses_nothing(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It forgets what was learned only once there is something in its place."""
    one = learner().learn(*part(0, 1, 2))
    saved = one.saved_
    if wrong == "one class":
        with pytest.raises(MdcgError, match="begin with at least two classes"):
            one.fit(*part(4))
    else:

        def interrupted(self: Trainer, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Trainer, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.fit(*part(3, 4))
    assert one.saved_ is saved
    assert one.classes_.tolist() == [0, 1, 2]
    assert one.predict(part(0)[0]).shape == part(0)[1].shape


def test_a_first_fit_that_fails_leaves_nothing() -> None:
    one = learner()
    with pytest.raises(MdcgError, match="begin with at least two classes"):
        one.fit(*part(4))
    assert not hasattr(one, "saved_")


# ------------------------------------------------------------------ known classes that come again


def test_known_classes_again_with_room_for_all(trained: Trained) -> None:
    """The memory takes them in before the task, and replays them; current images are those of the new class."""
    early, late, new = part(0, 1, stop=8), part(0, start=8), part(2)
    one = learner(memory=200, epochs=8).learn(*early)
    trained.current.clear()
    one.learn(*joined(late, new))
    assert set(trained.current) == set(keys(*new))
    assert set(trained.memory) == set(keys(*joined(early, late)))
    assert held(kept(one).memory) == keys(*joined(early, late, new))
    assert one.saved_.versions[-1].images == [len(late[1]), 0, len(new[1])]


def test_known_classes_again_in_a_small_memory(trained: Trained) -> None:
    """It stays as large as it was and balanced; what comes replaces some of what there was."""
    early, late, new = part(0, 1, stop=8), part(0, 1, start=8), part(2)
    one = learner(memory=12, epochs=8).learn(*early)
    assert Counter(kept(one).memory.positions.tolist()) == {0: 6, 1: 6}
    one.learn(*joined(late, new))
    replayed = Counter(c for _, c in set(trained.memory))
    assert replayed == {0: 6, 1: 6}
    assert set(trained.memory) & set(keys(*late))
    assert set(trained.memory) <= set(keys(*joined(early, late)))
    assert Counter(kept(one).memory.positions.tolist()) == {0: 4, 1: 4, 2: 4}
    assert set(held(kept(one).memory)) <= set(keys(*joined(early, late, new)))


def test_known_classes_again_without_a_memory(trained: Trained) -> None:
    early, late, new = part(0, 1, stop=8), part(0, start=8), part(2)
    one = learner("naive").learn(*early)
    trained.current.clear()
    one.learn(*joined(late, new))
    assert set(trained.current) == set(keys(*joined(late, new)))
    assert not trained.memory
    assert len(kept(one).memory.positions) == 0


def test_cumulative_keeps_and_trains_on_all(trained: Trained) -> None:
    early, late, new = part(0, 1, stop=8), part(0, start=8), part(2)
    one = learner("cumulative").learn(*early)
    trained.current.clear()
    one.learn(*joined(late, new))
    assert set(trained.current) == set(keys(*joined(early, late, new)))
    assert held(kept(one).seen) == keys(*joined(early, late, new))


def test_known_classes_again_in_shares_for_good() -> None:
    """GEM's tasks keep their shares: a class holds as many images as before, though others of them."""
    early, late = part(0, 1, stop=8), part(0, start=8)
    one = learner("gem", memory=18, tasks=3).learn(*early)
    assert Counter(kept(one).memory.positions.tolist()) == {0: 3, 1: 3}
    before = set(held(kept(one).memory))
    one.learn(*joined(late, part(2, 3)))
    assert Counter(kept(one).memory.positions.tolist()) == {0: 3, 1: 3, 2: 3, 3: 3}
    now = set(held(kept(one).memory))
    assert now != before
    assert {key for key in now if key[1] < 2} <= set(keys(*joined(early, late)))


# ------------------------------------------------------------------ images held out


def test_held_out_images_are_never_trained_on(trained: Trained) -> None:
    """Three calls of unequal classes: what is held out is a part of each, and is not in training nor in memory."""
    one = learner(memory=200, hold_out=0.25, held_out_images=1000)
    for number in range(3):
        one.learn(*part(2 * number, 2 * number + 1))
    out = held(one.saved_.held_out)
    assert Counter(c for _, c in out) == {c: round(0.25 * count) for c, count in enumerate(COUNTS)}
    assert set(out) <= set(keys(*part(*range(6))))
    assert not set(out) & (set(trained.current) | set(trained.memory))
    assert held(kept(one).memory) + out == keys(*part(*range(6)))
    assert one.saved_.versions[-1].held_out == [round(0.25 * count) for count in COUNTS]
    assert one.saved_.versions[-1].images == [0, 0, 0, 0, *COUNTS[4:]]


def test_held_out_images_are_few_and_balanced(trained: Trained) -> None:
    one, before = learner(memory=200, hold_out=0.25, held_out_images=10), set[tuple[bytes, int]]()
    for number in range(3):
        trained.current.clear()
        one.learn(*part(2 * number, 2 * number + 1))
        out = set(held(one.saved_.held_out))
        counts = Counter(c for _, c in out)
        limits = {c: round(0.25 * COUNTS[c]) for c in range(2 * number + 2)}
        assert sum(counts.values()) == min(10, sum(limits.values()))
        assert all(counts[c] == limits[c] or counts[c] >= max(counts.values()) - 1 for c in limits)
        assert {key for key in out if key[1] < 2 * number} <= before  # of old ones some go, none comes
        assert set(trained.current) == set(keys(*part(2 * number, 2 * number + 1))) - out  # the rest is not wasted
        assert not out & set(trained.memory)
        before = out


def test_nothing_is_held_out_where_nothing_may_be_kept() -> None:
    one = learner("cumulative", hold_out=0.5, held_out_images=0).learn(*part(0, 1))
    assert held(kept(one).seen) == keys(*part(0, 1))
    assert one.saved_.versions[0].after == [None, None]


def test_one_image_of_a_class_is_left_to_train_on() -> None:
    images, labels = part(0, 1, stop=3)
    one = learner("cumulative", hold_out=0.99).learn(images, labels)
    assert Counter(c for _, c in held(kept(one).seen)) == {0: 1, 1: 1}


def test_accuracies_of_a_version_are_those_of_its_held_out_images() -> None:
    one = learner(hold_out=0.3, epochs=6).learn(*part(0, 1, 2))
    older = replace(one.saved_)
    one.learn(*part(3, 4))
    out, version = one.saved_.held_out, one.saved_.versions[-1]
    assert out is not None
    for saved, told in ((older, version.before), (one.saved_, version.after)):
        answers = saved.probabilities(out.images).argmax(1)
        for c in range(len(saved.classes)):
            own = (out.positions == c).numpy()
            assert told[c] == pytest.approx(100 * (answers[own] == c).mean(), abs=0.01)
    assert len(version.before) == 3
    assert len(version.after) == 5


def test_the_split_does_not_depend_on_when_it_is_made() -> None:
    made = [learner(hold_out=0.25).learn(*part(0, 1)).learn(*part(2, 3)).saved_ for _ in range(2)]
    assert held(made[0].held_out) == held(made[1].held_out)
    other = learner(hold_out=0.25, seed=1).learn(*part(0, 1)).learn(*part(2, 3)).saved_
    assert held(other.held_out) != held(made[0].held_out)


# ------------------------------------------------------------------ how long, and what is said


@pytest.mark.parametrize("count", [2, 20, 80])
def test_few_images_are_trained_on_for_longer(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FEWEST_EPOCHS", 2), ("MOST_EPOCHS", 9), ("ENOUGH_STEPS", 12)):
        monkeypatch.setattr(learner_task, name, value)
    images = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)
    one = learner("naive", epochs=None, batch_size=8).learn(images, [0, 1] * (count // 2))
    steps = math.ceil(count / 8)
    wanted = next((epochs for epochs in range(2, 9) if epochs * steps >= 12), 9)
    assert (one.saved_.versions[0].epochs, one.saved_.versions[0].steps) == (wanted, wanted * steps)
    assert one.set_params(epochs=1).learn(images[:2], [2, 2]).saved_.versions[1].epochs == 1


def test_a_class_that_is_forgotten_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A method without memory forgets; each class that lost more than `warn_drop` points is named, and no other."""
    warned: dict[float, list[str]] = {}
    for points in (10.0, 100.0):
        one = learner("naive", epochs=10, hold_out=0.3, warn_drop=points, quiet=False)
        one.learn(*part(0, 1)).learn(*part(2, 3))
        warned[points] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        caplog.clear()
    version = one.saved_.versions[-1]
    fell = [(c, was, now) for c, (was, now) in enumerate(zip(version.before, version.after, strict=False))]
    expected = [
        f"'{c}' fell from {was:.1f} to {now:.1f}% on the images held out."
        for c, was, now in fell
        if was is not None and now is not None and was - now > 10
    ]
    assert expected  # it does forget
    assert warned == {10.0: expected, 100.0: []}
    assert lost(version, 10) == {c: (was, now) for c, was, now in fell if was is not None and was - now > 10}  # type: ignore[operator]


def test_which_classes_have_lost() -> None:
    """More than so many points: not as many, not those that rose, nor those of which one of the two is not known."""
    version = learner(hold_out=0.3).learn(*part(0, 1)).saved_.versions[0]
    told = replace(version, before=[90.0, 80.0, 60.0, None, 50.0], after=[79.0, 70.0, 95.0, 3.0, None, 0.0])
    assert lost(told, 10) == {0: (90.0, 79.0)}
    assert lost(told, 9.5) == {0: (90.0, 79.0), 1: (80.0, 70.0)}


def test_what_fell_is_told_below_an_evaluation() -> None:
    """By the last call of `learn`, where the model before is not at hand: classes that lost, and no others."""
    one = learner(hold_out=0.3).learn(*part(0, 1, 2)).learn(*part(3))
    now = Evaluation.of(one.saved_.classes, part(0)[1], one.predict_proba(part(0)[0]))
    first, last = one.saved_.versions
    told = replace(last, before=[90.0, 80.0, None], after=[70.0, 80.0, 10.0, 100.0])
    table = evaluation_table(now, None, replace(one.saved_, versions=(first, told)))
    assert table.caption == "on the images held out by 'learn', since the version before: 0 90.0 → 70.0"
    same = replace(told, after=[90.0, 81.0, 10.0, 100.0])
    assert evaluation_table(now, None, replace(one.saved_, versions=(told, same))).caption is None
    assert evaluation_table(now, now, replace(one.saved_, versions=(first, told))).caption is None


def test_evaluation_by_hand() -> None:
    one = learner(epochs=4).learn(*part(0, 1, 2))
    images, labels = part(2, 0)  # none of class 1
    found = one.evaluate(images, labels)
    predicted = one.predict(images)
    confusion = [[int(((labels == a) & (predicted == b)).sum()) for b in range(3)] for a in range(3)]
    assert found.confusion.tolist() == confusion
    assert found.images == [COUNTS[0], 0, COUNTS[2]]
    assert found.class_accuracy[1] is None
    assert found.accuracy == pytest.approx(100 * (predicted == labels).mean(), abs=0.01)
    assert one.score(images, labels) == pytest.approx((predicted == labels).mean())
    weights = np.arange(len(labels)) % 3
    hits = sum(int(w) for p, y, w in zip(predicted, labels, weights, strict=True) if p == y)
    assert one.score(images, labels, sample_weight=weights) == pytest.approx(hits / weights.sum())
    with pytest.raises(ValueError, match="the model does not know 3, 4; it knows 0, 1, 2"):
        one.evaluate(*part(0, 3, 4))
    assert one.evaluate(*part(0, 3, 4), known_only=True).images == [COUNTS[0], 0, 0]


def test_most_taken_for() -> None:
    confusion = np.array([[5, 2, 3], [0, 4, 0], [1, 1, 0]])
    found = Evaluation(("a", "b", "c"), confusion)
    assert [found.most_taken_for(c) for c in range(3)] == [("c", 3), None, ("a", 1)]
    assert found.class_accuracy == [50.0, 100.0, 0.0]
    assert found.accuracy == 56.25


# ------------------------------------------------------------------ what there is no room for


def refused(one: mdcg.Learner, said: str, *labels: int) -> None:
    before = one.saved_.content()
    with pytest.raises(MdcgError, match=said):
        one.learn(*part(*labels))
    assert one.saved_.content() == before


def test_more_classes_than_a_head_has() -> None:
    one = learner("der", most_classes=4).learn(*part(0, 1)).learn(*part(2, 3))
    refused(one, "made for at most 4 classes, and there would be 5; begin anew with most_classes=5", 4)
    refused(one.set_params(most_classes=9), "most_classes was settled by the first task", 4)
    learner(most_classes=2).learn(*part(0, 1)).learn(*part(2, 3))  # other heads grow


def test_more_tasks_than_a_memory_is_divided_among() -> None:
    one = learner("gem", tasks=2).learn(*part(0, 1)).learn(*part(2, 3))
    refused(one, "among 2 tasks for good, and this would be one more; begin anew with tasks=3", 4)
    refused(one.set_params(tasks=9), "tasks was settled by the first task", 4)
    assert len(learner(tasks=1).learn(*part(0, 1)).learn(*part(2, 3)).saved_.sizes) == 2  # others do not divide it


def test_a_memory_that_is_too_small() -> None:
    with pytest.raises(MdcgError, match="a memory of 1 cannot hold one image of each of 2 classes; give memory=2"):
        learner(memory=1).learn(*part(0, 1))
    one = learner(memory=3).learn(*part(0, 1))
    refused(one, "a memory of 3 cannot hold one image of each of 4 classes; give memory=4", 2, 3)
    one.set_params(memory=4).learn(*part(2, 3))
    assert Counter(kept(one).memory.positions.tolist()) == {0: 1, 1: 1, 2: 1, 3: 1}
    learner("naive", memory=1).learn(*part(0, 1))  # has none


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"method": "md-cg"}, "what has begun with method 'replay' cannot go on with 'md-cg'"),
        ({"head": "simplex"}, "what has begun with head 'incremental' cannot go on with 'simplex'"),
        ({"backbone": "resnet20"}, "what has begun with backbone 'smallconv' cannot go on with 'resnet20'"),
        ({"seed": 1}, "what has begun with seed '0' cannot go on with '1'"),
    ],
)
def test_what_is_fixed_once_something_is_learned(changed: dict[str, Any], said: str) -> None:
    refused(learner().learn(*part(0, 1)).set_params(**changed), said, 2, 3)


def test_settings_of_the_head_are_fixed_and_those_of_the_method_are_not() -> None:
    one = learner("md-cg", set={"lam": 0.5, "gamma": 2}).learn(*part(0, 1))
    refused(one.set_params(set={"gamma": 3}), "what has begun with gamma 2 cannot go on with 3", 2, 3)
    one.set_params(set={"lam": 0.25}).learn(*part(2, 3))
    assert one.saved_.setup.hyperparameters["lam"] == 0.25
    assert one.saved_.setup.head_settings["gamma"] == 2


def test_a_second_memory_is_there_from_the_start_or_never() -> None:
    refused(
        learner("ld").learn(*part(0, 1)).set_params(set={"second_memory": 10}), "begun without a second memory", 2, 3
    )


# ------------------------------------------------------------------ what a method keeps


def raw_logits(saved: SavedModel, images: Tensor) -> Tensor:
    """The outputs of a network for images as they are, in plain words."""
    mean, std = (torch.tensor(values)[None, :, None, None] for values in (saved.setup.mean, saved.setup.std))
    with torch.no_grad():
        found: Tensor = saved.model.eval()((images.permute(0, 3, 1, 2).float() / 255 - mean)[None] / std)[0]
    return found


def test_stored_logits_are_those_of_when_an_image_came(tmp_path: Path) -> None:
    """DER: of the model just before the task after an image came; of images that came again, before that task."""
    file, one = tmp_path / "model.safetensors", learner("der", memory=200, most_classes=6, epochs=2)
    parts = [part(0, 1, stop=8), joined(part(2, 3), part(0, start=8)), part(4, 5)]
    before: list[SavedModel] = []
    for images, labels in parts:
        one.learn(images, labels).save(file)
        one = mdcg.Learner.load(file).set_params(quiet=True)
        before.append(one.saved_)
    memory, logits, known = kept(one).memory, kept(one).logits, kept(one).has_logits
    assert logits is not None
    assert known is not None
    assert known.tolist() == (memory.positions < 4).tolist()
    first = memory.positions < 2
    torch.testing.assert_close(logits[first], raw_logits(before[0], memory.images[first]), atol=1e-5, rtol=1e-5)
    later = known & ~first
    torch.testing.assert_close(logits[later], raw_logits(before[1], memory.images[later]), atol=1e-5, rtol=1e-5)
    assert first.sum() == COUNTS[0] + 8


def test_a_second_memory_is_kept(trained: Trained, tmp_path: Path) -> None:
    """LD of the published code: another 10 images, balanced, refreshed, saved, and the ones that are replayed."""
    file = tmp_path / "model.safetensors"
    one = learner("ld", memory=16, set={"second_memory": 10}, epochs=6).learn(*part(0, 1, stop=8))
    one.save(file)
    one = mdcg.Learner.load(file).set_params(quiet=True)
    second = kept(one).second
    assert second is not None
    assert Counter(second.positions.tolist()) == {0: 5, 1: 5}
    one.learn(*joined(part(2, 3), part(0, start=8)))
    second = kept(one).second
    assert second is not None
    assert sorted(Counter(second.positions.tolist()).values()) == [2, 2, 3, 3]
    assert set(held(second)) <= set(keys(*part(*range(4))))
    assert len(set(trained.memory)) <= 26


# ------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a run on the toys, of three tasks."""
    result = mdcg.run(
        scenario=f"{NAME}-3", method="md-cg", memory=20, epochs=1, out=tmp_path_factory.mktemp("runs"), quiet=True
    )
    return result.setting.runs[0].folder / "model.safetensors"


def test_a_run_learns_on(run: Path) -> None:
    one = mdcg.Learner.load(run).set_params(quiet=True, epochs=1)
    assert one.method == "md-cg"
    assert one.saved_.sizes == [2, 2, 2]
    known = one.classes_.tolist()
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    one.learn(images, ["new", "newer"] * 10)
    assert one.classes_.tolist() == [*known, "new", "newer"]
    assert one.saved_.versions[-1].before == [None] * 6  # a run holds nothing out for it
    assert len(one.saved_.versions) == 1


def test_a_run_of_cumulative_learns_no_more(tmp_path: Path) -> None:
    result = mdcg.run(scenario=f"{NAME}-2", method="cumulative", epochs=1, out=tmp_path, quiet=True)
    one = mdcg.Learner.load(result.setting.runs[0].folder / "model.safetensors")
    assert len(one.predict(GREY.test.images)) == len(GREY.test)
    with pytest.raises(MdcgError, match="cumulative needs all earlier images, which a run does not keep"):
        one.learn(*part(0, 1))


def test_saved_without_pixels(tmp_path: Path) -> None:
    """No image is in the file; it answers as before, and says why it learns no more."""
    file, one = tmp_path / "model.safetensors", learner(hold_out=0.2).learn(*part(0, 1))
    one.save(file, pixels=False)
    content = file.read_bytes()
    assert not any(image.numpy().tobytes() in content for image in part(0, 1)[0])
    again = mdcg.Learner.load(file)
    assert np.array_equal(again.predict_proba(GREY.test.images), one.predict_proba(GREY.test.images))
    with pytest.raises(MdcgError, match="it was saved without the images of its memory; save it with them"):
        again.learn(*part(2, 3))
    one.learn(*part(2, 3))  # what was saved is the same as before


def test_a_file_of_format_1() -> None:
    """It was written when that was the newest, by a run of MD on digits-2: it still knows its digits."""
    file = Path(__file__).parent / "format-1.safetensors"
    _, header = unpack(file.read_bytes())
    assert header["version"] == 1
    one = mdcg.Learner.load(file)
    assert one.classes_.tolist() == [str(label) for label in header["order"]]
    digits = mdcg.data.load("digits")
    assert one.score(digits.test.images, digits.test.labels.astype(str)) > 0.5
    with pytest.raises(MdcgError, match="was saved by an older version of mdcg, without its memory; repeat the run"):
        one.learn(*part(0, 1))


def test_weights_are_needed_once(tmp_path: Path) -> None:
    """The file of initial weights may go once there is a network; a method that begins anew asks for it."""
    source = learner().learn(*part(0, 1)).saved_.model.backbone.state_dict()
    file = tmp_path / "weights.safetensors"
    for method in ("replay", "gdumb"):
        save_file({name: value[0].contiguous() for name, value in source.items()}, file)
        one = learner(method, weights=file).learn(*part(0, 1))
        file.unlink()
        if method == "replay":
            one.learn(*part(2, 3))
        else:
            refused(one, "cannot read the weights", 2, 3)


@pytest.mark.parametrize("method", ["gdumb", "der", "md-cg"])
def test_another_precision_later(method: str) -> None:
    for first, then in (("fp64", "fp32"), ("fp32", "fp64")):
        one = learner(method, precision=first).learn(*part(0, 1)).set_params(precision=then).learn(*part(2, 3))
        weight = one.saved_.model.state_dict()["head.classifier.weight"]
        assert weight.dtype == {"fp32": torch.float32, "fp64": torch.float64}[then]


@pytest.mark.parametrize("rate", [1e20, 1e30])
@pytest.mark.parametrize("epochs", [1, 3])
def test_what_diverges_changes_nothing(rate: float, epochs: int, tmp_path: Path) -> None:
    """Whether the loss says it or, in the last step, the weights alone: nothing is learned, nor left behind."""
    one = learner().learn(*part(0, 1))
    before = one.saved_.content()
    with pytest.raises(MdcgError, match="nothing was learned"):
        one.set_params(lr=rate, epochs=epochs, batch_size=64).learn(*part(2, 3), save_to=tmp_path / "model.safetensors")
    assert one.saved_.content() == before
    assert not list(tmp_path.iterdir())
    one.set_params(lr=0.05).learn(*part(2, 3), save_to=tmp_path / "model.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_file_is_the_same_bytes_again(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for method in ("replay", "der", "ld", "cumulative", "naive"):
        one = learner(method, hold_out=0.2).learn(*part(0, 1)).learn(*part(2, 3))
        one.save(file)
        assert SavedModel.load(file).content() == file.read_bytes() == one.saved_.content()
        tensors, header = unpack(file.read_bytes())
        assert pack(tensors, header) == file.read_bytes()


def noise(count: int, seed: int, shape: tuple[int, ...] = (8, 8, 1)) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


QUIET: dict[str, Any] = {"backbone": "smallconv", "epochs": 1, "quiet": True}


@pytest.mark.parametrize("method", ["replay", "cumulative"])
def test_a_folder_that_only_grows(method: str) -> None:
    """What was held out, or is held already, comes again and is neither trained on nor held twice."""
    first, second = noise(40, 0), noise(20, 1)
    learner = mdcg.Learner(method, memory=20, hold_out=0.2, **QUIET).learn(first, ["a", "b"] * 20)
    held_out = {image.numpy().tobytes() for image in learner.saved_.held_out.images}  # type: ignore[union-attr]
    assert held_out
    learner.learn(np.concatenate([first, second]), ["a", "b"] * 20 + ["c"] * 20)
    kept = learner.saved_.kept
    assert kept is not None
    for part in (kept.memory, kept.seen):
        pixels = [image.numpy().tobytes() for image in part.images] if part else []
        assert len(set(pixels)) == len(pixels)
        assert not held_out & set(pixels)


def test_gem_with_less_memory_for_a_task_than_it_has_classes() -> None:
    learner = mdcg.Learner("gem", memory=20, tasks=10, **QUIET).learn(noise(30, 0), ["a", "b", "c"] * 10)
    assert learner.learn(noise(10, 1), ["d"] * 10).classes_.tolist() == ["a", "b", "c", "d"]


def test_arrays_that_are_not_square_can_be_evaluated() -> None:
    images, labels = noise(20, 0, (6, 9, 1)), ["a", "b"] * 10
    learner = mdcg.Learner("naive", **QUIET).learn(images, labels)
    assert learner.evaluate(images, labels).accuracy == pytest.approx(100 * learner.score(images, labels), abs=0.01)


@pytest.mark.parametrize("changed", [{"normalise": "imagenet"}, {"most_classes": 7}, {"tasks": 3}, {"image_size": 32}])
def test_what_the_first_task_has_settled(changed: dict[str, Any]) -> None:
    learner = mdcg.Learner("naive", **QUIET).learn(noise(20, 0), ["a", "b"] * 10)
    with pytest.raises(mdcg.MdcgError, match=f"{next(iter(changed))} was settled by the first task"):
        learner.set_params(**changed).learn(noise(5, 1), ["c"] * 5)


def test_rpc_has_room_for_as_many_classes_as_its_simplex() -> None:
    learner = mdcg.Learner("rpc", memory=9, most_classes=2, **QUIET).learn(noise(20, 0), ["a", "b"] * 10)
    assert len(learner.learn(noise(5, 1), ["c"] * 5).classes_) == 3


def test_labels_that_were_corrected_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """What is known stays as it was learned; whoever gives it with another label hears so."""
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    clf = mdcg.Learner("replay", memory=20, backbone="smallconv", epochs=1, hold_out=0)
    clf.learn(images[:20], ["cup", "fork"] * 10)
    labels = ["cup", "fork"] * 10 + ["mug"] * 10
    labels[0] = labels[2] = labels[4] = "fork"  # were cups
    labels[1] = "cup"  # was a fork
    labels[6] = "mug"
    before = clf.predict(images)
    caplog.clear()
    with pytest.raises(MdcgError, match="none of these classes is new"):
        clf.learn(images[:6], labels[:6])
    corrected = (
        "4 images have another label than they were learned with: 3 of 'cup' come as 'fork', 1 of 'fork' comes as "
        "'cup'; they are left out, and what was learned stays. To correct labels, begin anew with all images."
    )
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [corrected]
    assert (clf.predict(images) == before).all()
    caplog.clear()
    clf.partial_fit(images[:6], labels[:6])  # all of it is known, and no mistake
    assert corrected in caplog.text
    caplog.clear()
    caplog.set_level("INFO")
    clf.learn(images, labels)
    assert corrected in caplog.text
    assert (
        "1 image has another label than it was learned with: 1 of 'cup' comes as 'mug'; it is learned with both."
        in (caplog.text)
    )
    assert "19 images are known already and left out." in caplog.text
    caplog.clear()
    clf.learn(np.concatenate([images, images + 1]), [*labels, *["pan"] * 30])
    assert "another label" in caplog.text  # the three and the one, of which nothing was forgotten
    caplog.clear()
    clf.learn(images + 2, ["jar"] * 30)
    assert "another label" not in caplog.text
