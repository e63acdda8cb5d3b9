"""What authors of methods and backbones check theirs with, in one line of pytest.

    def test_mine() -> None:
        check_method(Mine)

A check trains tiny groups on a CPU, for some seconds, and raises an AssertionError with one sentence that says what is
wrong and what to do. mdcg's own methods and backbones are held to the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from mdcg.data import Dataset, Split
from mdcg.errors import MdcgError
from mdcg.learner import Learner
from mdcg.methods import METHODS, Method, Step, stack
from mdcg.methods.base import NeedsHead, Passes, TrainsOn
from mdcg.models import HEADS, Model, build_model
from mdcg.models.backbones import BACKBONES, backbone_names
from mdcg.models.members import one_by_one
from mdcg.models.stacked import Stacked
from mdcg.recipes.recipe import explain
from mdcg.tensors import pack, unpack
from mdcg.train import state as states
from mdcg.train.fork import fork, founders
from mdcg.train.group import Group, Member, Training
from mdcg.train.loop import Trainer, total_steps
from mdcg.train.precision import compute
from mdcg.train.signals import Stopped
from mdcg.train.state import State

Settings = Mapping[str, Any]
Shape = tuple[int, int, int]
COUNTS = (33, 48, 64, 40, 57, 36)  # unequal, so that members take different numbers of steps
CPU = compute("cpu", "fp32")
NEEDED = {  # what a method must declare to be given it
    "memory_logits": "uses_memory",
    "memory_labels": "uses_memory",
    "teacher_logits": "uses_teacher",
    "teacher_current_logits": "uses_teacher, and 'all' as what teacher_sees() returns",
    "kept_logits": "keeps_logits",
}


def check_method(method: type[Method] | str, **settings: Any) -> None:
    """Check a class, or a registered method, with its default settings or these.

    Its declarations agree with each other and with what its loss reads; the loss is one finite number per member, which
    no other member, random number or waiting for the device has a part in; it trains with every head that it can take;
    a member comes to the same bits alone as in company, stopped and resumed, and from a first task that others shared.
    """
    kind = METHODS[method] if isinstance(method, str) else method
    name = method if isinstance(method, str) else kind.__name__
    with _of(name):
        _check_declarations(kind, settings)
        dataset = toy_dataset(COUNTS)
        variants: list[tuple[Settings, Passes]] = [(settings, "joint")]
        if kind.published or kind.published_passes != "joint":
            variants.append(({**settings, **kind.published}, kind.published_passes))
        for chosen, passes in variants:
            group = toy_group(dataset, kind, _three_members(kind, chosen), passes=passes)
            watch = _Watch(group)
            together = _trained(group, watch)
            if chosen is settings:
                _check_what_is_read(group.method, watch.read)
            for step in watch.steps:
                _check_loss(group, step)
            _check_finite(group, together)
            _check_company(group, together)
            _check_resumed(group, together)
            _check_fork(group, together)
        for head in HEADS.names():
            if _suits(kind, head):
                group = toy_group(toy_dataset([18] * 4), kind, [(0, 8, settings), (1, 8, settings)], 2, head, epochs=1)
                with _of(f"with the head {head}"):
                    _check_finite(group, _trained(group))


def check_backbone(
    backbone: str | Callable[[int], nn.Module], shape: Shape = (1, 8, 8), pretrained: bool = False
) -> None:
    """Check a registered backbone, or a function that takes the number of channels, on images of a shape (C, H, W).

    Its weights follow from the seed alone, and differ between seeds unless it is `pretrained`; it gives finite
    features, and gradients of all that it learns; a member comes to the same bits alone, in company, and stopped and
    resumed; what is saved predicts the same when it is loaded.
    """
    if isinstance(backbone, str):
        with _of(backbone):
            _check_backbone(backbone, shape, pretrained)
    else:
        name = getattr(backbone, "__name__", type(backbone).__name__)
        with _of(name), BACKBONES.lent(f"{name}, checked", backbone):
            _check_backbone(f"{name}, checked", shape, pretrained)


def toy_dataset(counts: Sequence[int], side: int = 8, channels: int = 1, seed: int = 0) -> Dataset:
    """Noisy images around one random pattern per class; as many of each class as asked for."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 256, (len(counts), side, side, channels))

    def split(sizes: Sequence[int]) -> Split:
        labels = np.repeat(np.arange(len(sizes)), sizes)
        noisy = patterns[labels] + rng.normal(0, 60, (len(labels), side, side, channels))
        return Split(torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)), labels.astype(np.int64))

    return Dataset(
        name="toy",
        train=split(counts),
        test=split([5 + i % 3 for i in range(len(counts))]),
        class_names=tuple(f"class {i}" for i in range(len(counts))),
        mean=(0.5,) * channels,
        std=(0.3,) * channels,
        padding=1,
        flip=True,
        fingerprint="toy",
    )


def toy_group(
    dataset: Dataset,
    method: str | type[Method],
    members: Sequence[tuple[int, int, Settings]],
    tasks: int = 3,
    head: str | None = None,
    **training: Any,
) -> Group:
    """Members as (seed, memory, hyperparameters)."""
    kind = METHODS[method] if isinstance(method, str) else method
    chosen = head or kind.head
    settings = {name: default for name, (default, _) in HEADS[chosen].settings.items()}
    usual: dict[str, Any] = {"backbone": "smallconv", "epochs": 2, "batch_size": 16, "rate": 0.05, "momentum": 0.8}
    return Group(
        Training(tasks=tasks, head=chosen, **{**usual, **training}),
        tuple(Member(seed, memory, kind(**hyper), settings) for seed, memory, hyper in members),
        dataset,
    )


@contextlib.contextmanager
def _of(name: str) -> Iterator[None]:
    """Whatever is wrong within is said of this."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error.__cause__


def _require(holds: object, wrong: str) -> None:
    if not holds:
        raise AssertionError(wrong)


def _reason(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0].rstrip('.')}" if said else type(error).__name__


@contextlib.contextmanager
def _no_global_draws(what: str) -> Iterator[None]:
    def generators() -> list[object]:
        return [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]  # noqa: NPY002

    before = generators()
    yield
    for whose, was, now in zip(("torch", "numpy", "random"), before, generators(), strict=True):
        _require(
            was == now,
            f"{what} draws from the global generator of {whose}, so that a run depends on its company; draw nothing.",
        )


# Methods


def _built(kind: type[Method], settings: Settings) -> Method:
    try:
        return kind(**settings)
    except ValidationError as error:
        raise AssertionError(explain(error)) from error
    except TypeError as error:  # it is abstract
        raise AssertionError(f"it cannot be built ({_reason(error)}); define 'loss'.") from error


def _suits(kind: type[Method], head: str) -> bool:
    return kind.needs_head == "any" or HEADS[head].grows == (kind.needs_head == "growing")


def _check_declarations(kind: type[Method], settings: Settings) -> None:
    fields, declared = kind.model_fields.keys(), kind.__class_vars__
    _require(kind.summary(), "it has no docstring; its first line is what 'mdcg list methods' shows.")
    for name in fields & Method.__class_vars__:
        _require(False, f"'{name}' is a field, which is a hyperparameter; declare it as {name}: ClassVar[…].")
    for name in sorted(declared - Method.__class_vars__):
        meant = get_close_matches(name, Method.__class_vars__, 1, 0.8)
        _require(not meant, f"it declares '{name}', which means nothing here; did you mean '{''.join(meant)}'?")
    for name, allowed in (("needs_head", NeedsHead), ("trains_on", TrainsOn), ("published_passes", Passes)):
        value, known = getattr(kind, name), get_args(allowed)
        _require(value in known, f"{name} is {value!r}; it must be one of {', '.join(known)}.")
    _require(kind.head in HEADS.names(), f"there is no head '{kind.head}'; 'mdcg list heads' shows which there are.")
    _require(
        _suits(kind, kind.head),
        f"its head is '{kind.head}', and it needs_head '{kind.needs_head}'; declare a head that it can take.",
    )
    method = _built(kind, settings)
    _require(
        method.uses_memory or not method.memory_draws(16, (2,)),
        "memory_draws asks for images of a memory that it does not have; declare uses_memory.",
    )
    for table in ("chosen", "grid"):
        unknown = sorted(getattr(kind, table).keys() - fields)
        _require(not unknown, f"'{table}' names '{''.join(unknown[:1])}', which is no field; correct the name.")
    values = [(field, value) for field, values in kind.grid.items() for value in values]
    values += [
        (field, value) for field, cases in kind.chosen.items() for own in cases.values() for value in own.values()
    ]
    for given in (kind.published, kind.added, *({field: value} for field, value in values)):
        with _of("a value that it declares itself is refused"):
            _built(kind, {**settings, **given})
    # Of the first member, and for all of them.
    asked: dict[str, Callable[[Method], object]] = {
        "memory_draws": lambda one: one.memory_draws(16, (2, 2)),
        "teacher_sees": lambda one: one.teacher_sees(),
        "fills_memory_first": lambda one: one.fills_memory_first(),
        "second_memory_size": lambda one: one.second_memory_size(),
    }
    for name, answer in asked.items():
        answers = [answer(kind(**different)) for _, _, different in _three_members(kind, settings)]
        _require(
            answers[0] == answers[1] == answers[2],
            f"{name} depends on a float field, and is asked once for members that differ in it; let others decide it.",
        )


def _three_members(kind: type[Method], settings: Settings) -> list[tuple[int, int, Settings]]:
    """They differ in seed, in memory size where they may, and in every float field that allows it."""
    method, different = kind(**settings), [dict(settings) for _ in range(3)]
    for name, field in kind.model_fields.items():
        if field.annotation is float:
            usual = getattr(method, name)
            for own, value in zip(different[1:], (usual / 2, usual * 2) if usual else (0.5, 1.0), strict=True):
                with contextlib.suppress(ValidationError):
                    kind(**{**own, name: value})
                    own[name] = value
    sizes = (20, 20, 20) if kind.gradient_per_task else (6, 20, 47)
    return list(zip((0, 1, 1), sizes, different, strict=True))


class _WatchedStep(Step):
    """Notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in NEEDED:
            vars(self).setdefault("read", set()).add(name)
        return super().__getattribute__(name)


class _Watch:
    """A group's method that notes the first step of each task, and what its loss reads in any."""

    def __init__(self, group: Group) -> None:
        self.method = stack([member.method for member in group.members], CPU.device, CPU.dtype)
        self.steps: list[Step] = []
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def loss(self, step: Step) -> Tensor:
        known = {field.name: getattr(step, field.name) for field in dataclasses.fields(Step)}
        watched = _WatchedStep(**known)
        if len(self.steps) == len(step.past):
            self.steps.append(Step(**{name: _detached(value) for name, value in known.items()}))
        task = f"in task {len(step.past) + 1}"
        try:
            loss = self.method.loss(watched)
        except Exception as error:
            missing = [name for name in vars(watched).get("read", ()) if known[name] is None]
            if missing:
                raise AssertionError(
                    f"its loss reads step.{missing[0]} {task}, where there is none; declare {NEEDED[missing[0]]}, and "
                    "ask for step.old first: task 1 has neither memory nor teacher."
                ) from error
            advice = (
                "; a float field holds a tensor here, one value per member" if "Boolean value" in str(error) else ""
            )
            raise AssertionError(f"its loss fails {task} ({_reason(error)}){advice}.") from error
        self.read |= vars(watched).get("read", set())
        learns = isinstance(loss, Tensor) and loss.requires_grad
        _require(learns, f"its loss is no tensor with a gradient {task}; do not detach step.logits.")
        return loss


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _check_what_is_read(method: Method, read: set[str]) -> None:
    memory, teacher = {"memory_logits", "memory_labels"}, {"teacher_logits", "teacher_current_logits"}
    for declared, looks, what in (
        (method.replays(), memory | {"teacher_logits", "kept_logits"}, "uses_memory"),
        (method.uses_teacher, teacher, "uses_teacher"),
        (method.keeps_logits, {"kept_logits"}, "keeps_logits"),
        (method.uses_teacher and method.teacher_sees() == "all", {"teacher_current_logits"}, "teacher_sees() as 'all'"),
    ):
        _require(
            not declared or looks & read,
            f"it declares {what}, and its loss never reads step.{sorted(looks)[0]}; read it, or leave that out.",
        )


def _check_loss(group: Group, step: Step) -> None:
    """One step of a task, for all members at once."""
    methods, task = [member.method for member in group.members], len(step.past) + 1
    method = stack(methods, CPU.device, CPU.dtype)
    leaves: dict[str, Any] = {
        name: value.clone().requires_grad_()
        for name, value in vars(step).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    with _no_global_draws("its loss"):
        loss = method.loss(dataclasses.replace(step, **leaves))
    _require(
        isinstance(loss, Tensor) and loss.shape == (len(methods),),
        f"its loss has shape {tuple(getattr(loss, 'shape', ()))} in task {task} for {len(methods)} members; it must "
        "have one number for each: take no mean over the first axis.",
    )
    _require(loss.isfinite().all(), f"its loss is not finite in task {task}; look for log(0), 0 / 0 and -inf times 0.")
    for k in range(len(methods)):
        found = torch.autograd.grad(loss[k], list(leaves.values()), retain_graph=True, materialize_grads=True)
        _require(
            all(gradient.isfinite().all() for gradient in found),
            f"the gradient of its loss is not finite in task {task}; look for sqrt(0), log(0) and norms of zero.",
        )
        others = [j for j in range(len(methods)) if j != k]
        _require(
            not any(gradient[others].any() for gradient in found),
            f"members meet in its loss in task {task}: that of one depends on the logits of another; compute along the "
            "later axes only.",
        )
    _check_graph(methods, step)


def _check_graph(methods: Sequence[Method], step: Step) -> None:
    """Whether a step can be captured, as far as tensors can tell that have a shape and no values."""
    nowhere, members = torch.device("meta"), len(methods)
    method = stack(methods, nowhere, CPU.dtype)
    known: dict[str, Any] = {
        name: value.to(nowhere) if isinstance(value, Tensor) else value for name, value in vars(step).items()
    }
    calls: dict[str, Callable[[], object]] = {"its loss": lambda: method.loss(Step(**known))}
    if method.gradient_per_task:
        gradient, past = torch.empty(members, 9, device=nowhere), torch.empty(members, 2, 9, device=nowhere)
        calls["combine"] = lambda: method.combine(gradient, past)
    for what, call in calls.items():
        try:
            call()
        except Exception as error:
            raise AssertionError(
                f"{what} cannot become part of a CUDA graph, for it waits for a value or leaves the device "
                f"({_reason(error)}); use no .item(), .tolist(), `if` on a tensor, x[mask] or tensors made on the CPU."
            ) from error


# What both kinds share


def _trained(group: Group, watch: _Watch | None = None) -> State:
    trainer = Trainer(group, CPU)
    if watch:
        trainer.method = cast(Method, watch)
    with _no_global_draws("it"):
        return _going_on(trainer, states.fresh(group, CPU))


def _going_on(trainer: Trainer, state: State, tasks: int | None = None) -> State:
    try:
        return trainer.train(state, tasks)
    except (AssertionError, Stopped):
        raise
    except Exception as error:
        raise AssertionError(f"training fails in task {state.task + 1} ({_reason(error)}).") from error


def _check_finite(group: Group, state: State) -> None:
    _require(
        not state.failures(group),
        "its loss is not finite after some steps of training; look for log(0), 0 / 0 and gradients that explode.",
    )


def _same(one: State, k: int, other: State, j: int) -> bool:
    """Whether two members are, to the bit, weights, answers, memory and history."""
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    return (
        all(torch.equal(ours[name][k], theirs[name][j]) for name in ours)
        and np.array_equal(one.correct[k], other.correct[j])
        and np.array_equal(one.memories[k].indices(), other.memories[j].indices())
        and one.history[k] == other.history[j]
    )


def _check_company(group: Group, together: State) -> None:
    for k, member in enumerate(group.members):
        alone = _trained(dataclasses.replace(group, members=(member,)))
        _require(
            _same(alone, 0, together, k),
            "a member comes to another result in company than alone; let members have no part in each other: no "
            "mean over the first axis, nothing random, nothing kept from one call to the next.",
        )
    one, other = group.members[-2:]
    if group.method.uses_memory and one != other:
        weights = together.model.state_dict()["head.classifier.weight"]
        _require(
            not torch.equal(weights[-2], weights[-1]),
            "neither its memory nor its settings make any difference; use them, or declare no uses_memory.",
        )


def _check_resumed(group: Group, undisturbed: State) -> None:
    """Stopped three times, each time saved and taken up by methods that are built anew, as by another process."""
    saved: list[tuple[dict[str, Tensor], states.Row]] = []
    state, steps = states.fresh(group, CPU), total_steps(group) // 4
    for _ in range(3):
        stop = itertools.chain(itertools.repeat(False, steps), itertools.repeat(True)).__next__
        with contextlib.suppress(Stopped):
            _going_on(Trainer(group, CPU, lambda *dumped: saved.append(dumped), stop), state)
        members = [
            dataclasses.replace(one, method=type(one.method)(**one.method.model_dump())) for one in group.members
        ]
        group = dataclasses.replace(group, members=tuple(members))
        state = states.revive(*unpack(pack(*saved[-1])), group, CPU)
    _going_on(Trainer(group, CPU), state)
    _require(
        all(_same(state, k, undisturbed, k) for k in range(len(group.members))),
        "stopped and resumed it comes to another result; keep no state but what is saved: parameters and buffers.",
    )


def _check_fork(group: Group, whole: State) -> None:
    first, parents = founders(group)
    if first is group:
        return
    begun = _going_on(Trainer(first, CPU), states.fresh(first, CPU), tasks=1)
    forked = _going_on(Trainer(group, CPU), fork(begun, group, parents, CPU))
    _require(
        all(_same(forked, k, whole, k) for k in range(len(group.members))),
        "it declares forks, and its settings or its memory matter in task 1; leave that out.",
    )


# Backbones


def _check_backbone(name: str, shape: Shape, pretrained: bool) -> None:
    _require(name in backbone_names(), "there is no such backbone; register it first, or give the function itself.")
    model = _model(name, shape, [0, 1, 2])
    first, again, alone = (_model(name, shape, [seed]).state_dict() for seed in (0, 0, 1))
    for key, value in model.backbone.state_dict().items():
        own = f"backbone.{key}"
        _require(
            torch.equal(first[own], again[own]),
            f"'{key}' differs between two networks of the same seed; draw weights from torch's generator only.",
        )
        _require(torch.equal(value[1:2], alone[own]), f"'{key}' of a seed depends on which others are made beside it.")
    learned = [(key, value) for key, value in model.backbone.named_parameters() if value.requires_grad]
    _require(
        pretrained or not learned or any(not torch.equal(value[0], value[1]) for _, value in learned),
        "it ignores its seed, for two seeds have the same weights; draw them from torch's generator, which is seeded "
        "for each member, or say pretrained=True.",
    )
    if isinstance(model.backbone, Stacked):
        _check_tensors_are_known(model.backbone)
    _check_features(model.backbone, shape, learned)
    dataset = toy_dataset([18, 33, 20, 25], side=shape[1], channels=shape[0])
    members: list[tuple[int, int, Settings]] = [(0, 8, {}), (1, 12, {})]
    group = toy_group(dataset, "md-cg", members, tasks=2, backbone=name, epochs=1)  # which copies it, as a teacher
    together = _trained(group)
    _check_finite(group, together)
    _check_company(group, together)
    _check_resumed(group, together)
    learner = Learner.of(group, together, 0)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / "model.safetensors")
        loaded = Learner.load(Path(folder) / "model.safetensors")
    _require(
        np.array_equal(learner.predict_proba(dataset.test.images), loaded.predict_proba(dataset.test.images)),
        "saved and loaded it predicts something else; keep all that it needs in parameters and buffers.",
    )


def _model(name: str, shape: Shape, seeds: Sequence[int]) -> Model:
    try:
        return build_model(name, "incremental", shape, seeds)
    except MdcgError as error:
        raise AssertionError(str(error)) from error


def _check_tensors_are_known(backbone: Stacked) -> None:
    for path, module in backbone.pattern.named_modules():
        for name, value in vars(module).items():
            _require(
                not isinstance(value, Tensor),
                f"'{f'{path}.{name}'.lstrip('.')}' is a tensor that is neither saved nor moved; make it a buffer.",
            )


def _check_features(backbone: nn.Module, shape: Shape, learned: Sequence[tuple[str, Tensor]]) -> None:
    images = torch.randn(3, 16, *shape, generator=torch.Generator().manual_seed(0))
    features = one_by_one(backbone.train(), images)
    width = getattr(backbone, "features", None)
    _require(
        features.shape == (3, 16, width),
        f"it gives shape {tuple(features.shape[1:])} for 16 images; it must give (16, {width}), its features.",
    )
    _require(features.isfinite().all(), "its features are not finite; look for log(0), 0 / 0 and weights that explode.")
    if not learned:
        return
    found = torch.autograd.grad(features.square().sum(), [value for _, value in learned], allow_unused=True)
    for (key, _), gradient in zip(learned, found, strict=True):
        shown = backbone.names[key] if isinstance(backbone, Stacked) else key
        _require(
            gradient is not None,
            f"no gradient reaches '{shown}'; use it in forward without detach, or let it not require gradients.",
        )
        _require(gradient is None or gradient.isfinite().all(), f"the gradient of '{shown}' is not finite.")
    backbone.eval()
    with torch.no_grad():
        _require(
            torch.allclose(backbone(images), one_by_one(backbone, images), rtol=1e-3, atol=1e-4),
            "members computed at once, as on a GPU, give other features than one by one; let them not meet.",
        )
