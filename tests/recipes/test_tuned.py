"""Settings of optimisation and augmentation, from what is asked for to names and groups."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import mdcg
from mdcg.data import Preprocessing, load
from mdcg.data.registry import record_of
from mdcg.data.stand_in import stand_in
from mdcg.errors import MdcgError
from mdcg.execute.cost import group_of
from mdcg.methods import METHODS
from mdcg.methods.replay import Replay
from mdcg.recipes.presets import own_training, preset_of
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.spec import TUNED, RunSpec
from mdcg.scenario import parse
from mdcg.train.augment import parse_augment
from tests.conftest import toy_dataset

C10: dict[str, Any] = {"scenario": "c10-5", "method": "replay", "memory": 500}
DIGITS: dict[str, Any] = {"scenario": "digits-2", "method": "replay", "memory": 20, "epochs": 1}
CHANGES: list[dict[str, Any]] = [
    {"optimizer": "adamw"}, {"weight_decay": 0.1}, {"schedule": "cosine"}, {"warmup": 0.1}, {"clip": 1.0},
    {"label_smoothing": 0.1}, {"head_lr": 0.2}, {"augment": "none"}, {"augment": "crop+flip+mixup", "mix_alpha": 0.3},
    {"augment": "crop+flip+randaugment", "randaugment_n": 1, "randaugment_m": 5}, {"augment": "flip+jitter"},
]  # fmt: skip


def spec(**keys: Any) -> RunSpec:
    dataset = toy_dataset([4] * 10, side=32, channels=3)
    return make_recipe(**C10, **keys).resolve(dataset)[0]


def test_older_runs_keep_their_names() -> None:
    """The digest of settings as they were, and as they are when all that came later is said with its default."""
    usual = spec()
    assert {name: getattr(usual, name) for name in TUNED} == TUNED
    older = {key: value for key, value in usual.model_dump().items() if key not in TUNED}
    assert RunSpec(**older).name == usual.name
    said = spec(
        optimizer="sgd", weight_decay=0, schedule="constant", warmup=0, clip=0, label_smoothing=0, head_lr=0.01,
        augment="flip+crop", mix_alpha=0.3, randaugment_m=1, randaugment_n=3, jitter_strength=0.1,
    )  # fmt: skip
    assert said.name == usual.name


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_other_runs_are_not_the_papers(change: dict[str, Any]) -> None:
    usual, other = spec(), spec(**change)
    assert usual.name != other.name
    assert (preset_of(usual), preset_of(other)) == ("paper", None)
    again = make_recipe(**{**other.as_recipe(), "out": "runs"})
    (repeated,) = again.resolve(toy_dataset([4] * 10, side=32, channels=3))
    assert repeated.model_copy(update={"fingerprint": other.fingerprint}).name == other.name


def test_words_part_groups_and_numbers_do_not() -> None:
    keys = {key: spec(**change).group_key() for key, change in enumerate(CHANGES)}
    usual = spec().group_key()
    words = [key for key, change in enumerate(CHANGES) if change.keys() & {"optimizer", "schedule", "augment"}]
    assert all((keys[key] != usual) == (key in words) for key in keys)
    assert spec(backbone_lr=0).group_key() != usual
    assert spec(backbone_lr=0.001).group_key() == spec(lr=0.3, momentum=0.1).group_key() == usual
    rand = [
        spec(augment="randaugment", randaugment_n=n, randaugment_m=m).group_key() for n, m in ((1, 4), (1, 9), (2, 9))
    ]
    assert rand[0] == rand[1] != rand[2]


def test_adamw_has_a_learning_rate_and_no_momentum_of_its_own() -> None:
    assert spec(optimizer="adamw").lr == 1e-3
    assert spec(optimizer="adamw", lr=0.01).lr == 0.01
    assert spec(optimizer="adamw", momentum=0.5).name == spec(optimizer="adamw").name


def test_crop_and_flip() -> None:
    """As the dataset's record says, unless something else is asked for; a crop where it has none is an eighth."""
    digits = load("digits")
    for augment, padding, flip in (
        (None, 1, False), ("none", 0, False), ("flip", 0, True), ("crop+flip+mixup", 1, True), ("mixup", 0, False),
    ):  # fmt: skip
        (one,) = make_recipe(**DIGITS, augment=augment).resolve(digits)
        group = group_of([one], digits)
        assert (group.dataset.padding, group.dataset.flip) == (padding, flip)
        assert group.training.augment == (("mixup",) if "mixup" in (augment or "") else ())
    (plain,) = make_recipe(**DIGITS, augment="crop").resolve(digits)
    assert plain.augment is None  # it is what the record says
    tiny = toy_dataset([4] * 20, side=64, channels=3)
    (published,) = make_recipe(
        scenario="tym-10", method="naive", augmentation="published", augment="crop+flip"
    ).resolve(tiny)
    assert published.augment == "crop+flip"
    own = {
        augmentation: make_recipe(scenario="tym-10", method="md-replay", memory=200, augmentation=augmentation)
        for augmentation in ("paper", "published")
    }
    (paper,), (published,) = (recipe.resolve(tiny) for recipe in own.values())
    # What the method adds comes beside what there is without it: by the published code images are not cropped.
    assert (paper.augment, published.augment) == ("crop+flip+randaugment", "flip+randaugment")
    assert [own_training(one, 20).get("augment") for one in (paper, published)] == [paper.augment, published.augment]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"augment": "crop+rotate"}, "unknown augmentation 'rotate'"),
        ({"augment": "mixupp"}, "did you mean 'mixup'"),
        ({"augment": "none+crop"}, "says none and some"),
        ({"augment": "usual+crop"}, "says usual and more"),
        ({"augment": "mixup+cutmix"}, "leave one of them out"),
        ({"augment": "mixup", "method": "gem"}, "gem has one for each task; leave mixup out of --augment"),
        ({"optimizer": "adam"}, "'optimizer' is wrong: input should be 'sgd' or 'adamw'"),
        ({"schedule": "linear"}, "'schedule' is wrong"),
        ({"warmup": 1.0}, "'warmup' is wrong"),
        ({"label_smoothing": -0.1}, "'label_smoothing' is wrong"),
        ({"head_lr": 0}, "'head_lr' is wrong"),
        ({"mix_alpha": 0}, "'mix_alpha' is wrong"),
        ({"randaugment_m": 31}, "'randaugment_m' is wrong"),
    ],
)
def test_mistakes(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(MdcgError, match=told):
        make_recipe(**{**DIGITS, **keys}).check_names()


def test_augmentations_are_words() -> None:
    assert parse_augment(" mixup + crop ") == ("crop", "mixup")


OURS = {"lr": 0.1, "schedule": "cosine", "weight_decay": 5e-4}


def ours(**keys: Any) -> RunSpec:
    dataset = toy_dataset([4] * 10, side=32, channels=3)
    return make_recipe(scenario="c10-5", method="md-replay", memory=500, batch_size=4, **keys).resolve(dataset)[0]


def test_a_method_brings_its_own_training() -> None:
    """What its recipe says, where nothing else is asked for; asked for is what is said, were it the protocol's."""
    brought = ours()
    assert (
        {key: getattr(brought, key) for key in OURS} == OURS == {key: METHODS["md-replay"].recipe[key] for key in OURS}
    )
    assert (brought.augment, brought.randaugment_n, brought.randaugment_m) == ("crop+flip+randaugment", 2, 9)
    assert preset_of(brought.model_copy(update={"batch_size": 32})) == "paper"  # that is: nothing was asked for
    plain = ours(lr=0.01, schedule="constant", weight_decay=0, augment="usual")
    assert plain == ours(lr=0.01, schedule="constant", weight_decay=0, augment="crop+flip")
    assert {name: getattr(plain, name) for name in TUNED} == TUNED
    assert (plain.lr, preset_of(plain)) == (0.01, None)
    assert (ours(optimizer="adamw").lr, ours(optimizer="adamw").schedule) == (1e-3, "cosine")
    (again,) = make_recipe(**{**plain.as_recipe(), "out": "runs"}).resolve(toy_dataset([4] * 10, side=32, channels=3))
    assert again.name == plain.name


def test_online_it_trains_as_others_do() -> None:
    online = ours(online=True)
    assert {name: getattr(online, name) for name in TUNED} == TUNED
    assert online.lr == 0.01


def test_images_that_are_taken_as_they_are_stay_so() -> None:
    dataset = dataclasses.replace(toy_dataset([4] * 10, side=32, channels=3), padding=0, flip=False)
    (found,) = make_recipe(scenario="c10-5", method="md-replay", memory=500).resolve(dataset)
    assert found.augment is None


@pytest.mark.parametrize(
    ("scenario", "memory", "lam", "decay"),
    [
        ("c10-5", 200, 0.1, 5e-4),  # 10,000 images a task, 20 of a class in memory
        ("c10-5", 2000, 1.0, 5e-4),
        ("c100-10", 200, 0.2, 0.0),  # 5,000 and two
        ("c100-10", 500, 0.5, 0.0),
        ("c100-10", 1000, 1.0, 5e-4),
        ("c100-10", 2000, 1.0, 5e-4),
        ("tym-10", 2000, 1.0, 5e-4),
    ],
)
def test_settings_that_suit_a_memory(scenario: str, memory: int, lam: float, decay: float) -> None:
    """The margin's weight is 5 M / N, at most 1; weights decay where a class has ten images: docs/beyond.md."""
    kind = METHODS["md-replay"]
    assert kind.fields_of(kind.suited_to(scenario, memory)) == {"lam": lam}
    assert kind.training_of(kind.suited_to(scenario, memory)) == {**kind.recipe, "weight_decay": decay}


def test_what_suits_a_dataset_of_ones_own() -> None:
    """Its images are counted: ten classes of four in five tasks; and what is asked for goes before."""
    own = mdcg.Dataset.from_arrays((np.zeros((40, 8, 8, 1), np.uint8), np.repeat(np.arange(10), 4)), name="mine")
    keys: dict[str, Any] = {"scenario": "mine-5", "method": "md-replay", "memory": 10, "backbone": "smallconv"}
    images = len(own.train) // 5
    (found,) = make_recipe(**keys).resolve(own)
    assert (found.hyperparameters["lam"], found.weight_decay) == (min(1.0, 50 / images), 0.0)
    (found,) = make_recipe(**{**keys, "memory": 100}).resolve(own)
    assert (found.hyperparameters["lam"], found.weight_decay) == (1.0, 5e-4)
    (found,) = make_recipe(**keys, set={"lam": 0.3}, weight_decay=1e-3).resolve(own)
    assert (found.hyperparameters["lam"], found.weight_decay) == (0.3, 1e-3)


def test_a_learner_has_what_suits_its_memory() -> None:
    images, names = np.zeros((40, 8, 8, 1), np.uint8), np.repeat(["a", "b"], 20)
    learner = mdcg.Learner("md-replay", memory=4, backbone="smallconv", epochs=1, hold_out=0, quiet=True)
    setup = learner.learn(images, names).saved_.setup
    assert (setup.hyperparameters["lam"], setup.weight_decay) == (0.5, 0.0)


def test_what_suits_a_learner_follows_its_classes() -> None:
    """Twenty images of a class in memory, then eight; fewer images come the second time."""
    learner = mdcg.Learner("md-replay", memory=40, backbone="smallconv", epochs=1, hold_out=0, quiet=True)
    images = np.random.default_rng(0).integers(0, 256, (400, 8, 8, 1), dtype=np.uint8)
    setup = learner.learn(images, np.repeat(["a", "b"], 200)).saved_.setup
    assert (setup.hyperparameters["lam"], setup.weight_decay) == (0.5, 5e-4)
    setup = learner.learn(images[:120], np.repeat(["c", "d", "e"], 40)).saved_.setup
    assert (setup.hyperparameters["lam"], setup.weight_decay) == (1.0, 0.0)


def test_some_classes_of_a_dataset_and_online_streams() -> None:
    """Four of ten classes in two tasks: 20,000 of CIFAR-10's images, 10,000 a task; online nothing is ruled."""
    dataset = toy_dataset([4] * 10, side=32, channels=3)
    tasks = [list(dataset.class_names[:2]), list(dataset.class_names[2:4])]
    keys: dict[str, Any] = {"method": "md-replay", "memory": 200, "batch_size": 4}
    (found,) = make_recipe(scenario={"dataset": "c10", "tasks": tasks}, **keys).resolve(dataset)
    assert (found.hyperparameters["lam"], found.weight_decay) == (0.1, 5e-4)
    (found,) = make_recipe(scenario="c10-5", online=True, **keys).resolve(dataset)
    assert (found.hyperparameters["lam"], found.weight_decay) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"weight_decay": -1}, "what suits method ruled is wrong: 'weight_decay' is wrong"),
        ({"wieght_decay": 0.0}, "what suits method ruled is wrong: beside its fields it may name lr, weight_decay"),
        ({"augment": "mixup"}, "what suits method ruled is wrong: beside its fields"),
    ],
)
def test_rules_that_cannot_be_followed(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], told: str) -> None:
    class Ruled(Replay):
        @classmethod
        def suited(cls, memory: int, classes: int, images: int) -> dict[str, Any]:
            return wrong

    monkeypatch.setitem(METHODS._known, "ruled", Ruled)
    with pytest.raises(MdcgError, match=told):
        make_recipe(scenario="c10-5", method="ruled", memory=50).resolve(toy_dataset([4] * 10, side=32, channels=3))


@pytest.mark.parametrize(
    ("scenario", "asked", "own"),
    [
        ("c10-5", {}, True),
        ("c100-10", {"memory": 200}, True),  # whose weights do not decay
        ("digits-5", {}, True),  # whose images are not mirrored
        ("c10-5", {"set": {"lam": 3.0}, "epochs": 1}, True),
        ("c10-5", {"optimizer": "adamw"}, True),  # with a learning rate of its own
        ("c10-5", {"lr": 0.03}, False),
        ("c10-5", {"optimizer": "adamw", "schedule": "constant"}, False),
        ("c10-5", {"weight_decay": 0.0}, False),
        ("c100-10", {"memory": 200, "weight_decay": 0.0005}, False),
        ("c10-5", {"augment": "usual"}, False),
        ("c10-5", {"augment": "crop+flip+randaugment+mixup"}, False),
        ("c10-5", {"randaugment_m": 5}, False),
        ("c10-5", {"method": "er-ace"}, False),  # which brings none
    ],
)
def test_which_runs_have_their_methods_own_training(scenario: str, asked: dict[str, Any], own: bool) -> None:
    dataset = stand_in(record_of(parse(scenario)[0]))
    assert dataset is not None
    recipe = make_recipe(**{"scenario": scenario, "method": "md-replay", "memory": 500, **asked})
    (spec,) = recipe.resolve(dataset)
    found = own_training(spec, dataset.classes)
    assert bool(found) == own
    assert found.items() <= dict(spec).items()
    assert own_training(spec.model_copy(update={"method": "gone"}), dataset.classes) == {}


def test_own_training_on_images_that_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the method adds nothing to them; where they are cropped, nothing was added because that was asked for."""
    plain = dataclasses.replace(record_of("digits"), preprocessing=Preprocessing(0, False))
    dataset = stand_in(plain)
    assert dataset is not None
    (spec,) = make_recipe(scenario="digits-5", method="md-replay", memory=500).resolve(dataset)
    assert spec.augment is None
    assert not own_training(spec, 10)
    monkeypatch.setattr("mdcg.recipes.presets.record_of", lambda name: plain)
    assert own_training(spec, 10)["lr"] == 0.1
    monkeypatch.undo()
    assert not own_training(spec.model_copy(update={"scenario": "gone-5"}), 10)  # nobody knows


def test_own_training_on_some_of_the_classes() -> None:
    """With ten and more images of each of these, weights decay."""
    dataset = stand_in(record_of("cifar100"))
    assert dataset is not None
    tasks = [[str(label), str(label + 1)] for label in range(0, 20, 2)]
    keys = {"scenario": {"dataset": "cifar100", "tasks": tasks}, "method": "md-replay", "memory": 500}
    (spec,) = make_recipe(**keys).resolve(dataset)
    assert spec.weight_decay > 0
    assert own_training(spec, 20)["weight_decay"] == spec.weight_decay
    assert not own_training(spec.model_copy(update={"weight_decay": 0.0}), 20)


@pytest.mark.parametrize("look", [{}, {"flip": False}, {"padding": 0}])
@pytest.mark.parametrize("memory", [40, 400])
def test_own_training_on_data_of_ones_own(look: dict[str, Any], memory: int) -> None:
    """Nothing is known of it later but the number of its classes."""
    images, labels = np.zeros((80, 8, 8, 3), np.uint8), np.arange(80) % 20
    things = mdcg.Dataset.from_arrays((images, labels), (images, labels), name="things", **look)
    (spec,) = make_recipe(scenario="things-5", method="md-replay", memory=memory).resolve(things)
    assert (spec.weight_decay == 0) == (memory < 200)
    assert own_training(spec, 20)["weight_decay"] == spec.weight_decay
    assert not own_training(spec.model_copy(update={"lr": 0.5}), 20)
