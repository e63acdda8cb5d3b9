"""The check of a method."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, cast, get_args

import torch
from pydantic import ValidationError
from torch import Tensor

from mdcg.errors import MdcgError
from mdcg.methods import METHODS, Method, Step, stack
from mdcg.methods.base import NeedsHead, Passes, TrainsOn
from mdcg.models import HEADS
from mdcg.recipes.recipe import checked_recipe
from mdcg.recipes.settings import explain
from mdcg.scenario import Stream
from mdcg.testing.groups import (
    CPU,
    Settings,
    check_company,
    check_finite,
    check_resumed,
    named_in_errors,
    no_global_draws,
    reason,
    require,
    same_member,
    toy_dataset,
    toy_group,
    train_from,
    trained,
)
from mdcg.train import state as states
from mdcg.train.fork import fork, founders
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.state import State

COUNTS = (10, 16, 22, 13, 18, 12)  # unequal, so that members take different numbers of steps
NEEDED = {  # what a method must declare to be given it
    "memory_logits": "uses_memory",
    "memory_labels": "uses_memory",
    "teacher_logits": "uses_teacher",  # or needs_teacher(), with some settings
    "teacher_current_logits": "uses_teacher, and 'all' as what teacher_sees() returns",
    "stored_logits": "stores_logits",
}


def check_method(method: type[Method] | str, **settings: Any) -> None:
    """Check a class, or a registered method, with its default settings or these.

    Its declarations agree with each other and with what its loss reads; the loss is one finite number per member, which
    no other member, random number or waiting for the device has a part in; it trains with every head that it can take;
    a member comes to the same bits alone as in company, stopped and resumed, and from a first task that others shared,
    also in a stream of the kinds that it says it can learn.
    """
    kind = METHODS[method] if isinstance(method, str) else method
    name = method if isinstance(method, str) else kind.__name__
    with named_in_errors(name):
        _check_declarations(kind, settings)
        dataset = toy_dataset(COUNTS)
        variants: list[tuple[Settings, Passes]] = [(settings, "joint")]
        if kind.published or kind.published_passes != "joint":
            variants.append(({**settings, **kind.published}, kind.published_passes))
        for chosen, passes in variants:
            group = toy_group(dataset, kind, _three_members(kind, chosen), passes=passes)
            watch = _Watch(group)
            together = trained(group, cast(Method, watch))
            if chosen is settings:
                _check_what_is_read(group.method, watch.read)
            for step in watch.steps:
                _check_loss(group, step)
            check_finite(group, together)
            check_company(group, together)
            check_resumed(group, together)
            check_fork(group, together)
        if stream := _stream_for(kind(**settings)):
            with named_in_errors(f"in a stream that it says it can learn ({stream.in_words()})"):
                members = _three_members(kind, settings)
                group = toy_group(dataset, kind, members, batch_size=8, epochs=1, stream=stream)
                together = trained(group)
                check_finite(group, together)
                check_company(group, together)
                check_resumed(group, together)
                check_fork(group, together)
        for head in HEADS.names():
            if _suits(kind, head):
                group = toy_group(toy_dataset([10] * 4), kind, [(0, 8, settings), (1, 8, settings)], 2, head, epochs=1)
                with named_in_errors(f"with the head {head}"):
                    check_finite(group, trained(group))


def _stream_for(method: Method) -> Stream | None:
    """A stream with all that a method says it can learn beside tasks of new classes; None: it says nothing."""
    names = [f"class {label}" for label in range(len(COUNTS))]
    back = ((names[2], names[0]), (names[4], names[2], names[1]), (names[0], names[4]))
    again = Stream(tasks=back, blurry=0.3) if method.learns_revisits else Stream()
    for stream in (again.model_copy(update={"online": method.online()}), again):
        with contextlib.suppress(MdcgError):  # with some settings it may be able to learn less
            method.check_stream("it", stream)
            return stream if stream != Stream() else None
    return None


def _built(kind: type[Method], settings: Settings) -> Method:
    try:
        return kind(**settings)
    except ValidationError as error:
        raise AssertionError(explain(error)) from error
    except TypeError as error:  # it is abstract
        raise AssertionError(f"it cannot be built ({reason(error)}); define 'loss'.") from error


def _suits(kind: type[Method], head: str) -> bool:
    grows_right = kind.needs_head == "any" or HEADS[head].grows == (kind.needs_head == "growing")
    return grows_right and (kind.uses_memory or not HEADS[head].fitted_layer)


def _check_declarations(kind: type[Method], settings: Settings) -> None:
    fields, declared = kind.model_fields.keys(), kind.__class_vars__
    require(kind.summary(), "it has no docstring; its first line is what 'mdcg list methods' shows.")
    for name in fields & Method.__class_vars__:
        require(False, f"'{name}' is a field, which is a hyperparameter; declare it as {name}: ClassVar[…].")
    for name in sorted(declared - Method.__class_vars__):
        meant = get_close_matches(name, Method.__class_vars__, 1, 0.8)
        require(not meant, f"it declares '{name}', which means nothing here; did you mean '{''.join(meant)}'?")
    for name, allowed in (("needs_head", NeedsHead), ("trains_on", TrainsOn), ("published_passes", Passes)):
        value, known = getattr(kind, name), get_args(allowed)
        require(value in known, f"{name} is {value!r}; it must be one of {', '.join(known)}.")
    require(kind.head in HEADS.names(), f"there is no head '{kind.head}'; 'mdcg list heads' shows which there are.")
    require(
        _suits(kind, kind.head),
        f"its head is '{kind.head}', and it needs_head '{kind.needs_head}'; declare a head that it can take.",
    )
    method = _built(kind, settings)
    require(
        method.uses_memory or not method.memory_draws(16, (2,)),
        "memory_draws asks for images of a memory that it does not have; declare uses_memory.",
    )
    for table in ("chosen", "grid"):
        unknown = sorted(getattr(kind, table).keys() - fields)
        require(not unknown, f"'{table}' names '{''.join(unknown[:1])}', which is no field; correct the name.")
    try:
        checked_recipe(kind)
    except MdcgError as error:
        require(False, f"its recipe is wrong: {error}")
    values = [(field, value) for field, values in kind.grid.items() for value in values]
    values += [
        (field, value) for field, cases in kind.chosen.items() for own in cases.values() for value in own.values()
    ]
    for given in (kind.published, kind.added, *({field: value} for field, value in values)):
        with named_in_errors("a value that it declares itself is refused"):
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
        require(
            answers[0] == answers[1] == answers[2],
            f"{name} depends on a float field, and is asked once for members that differ in it; let others decide it.",
        )


def _three_members(kind: type[Method], settings: Settings) -> list[tuple[int, int, Settings]]:
    """Three members that differ in seed, in memory size where they may, and in every float field that allows it."""
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
    """A step that notes which of its fields are read."""

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
            raise AssertionError(f"its loss fails {task} ({reason(error)}){advice}.") from error
        self.read |= vars(watched).get("read", set())
        learns = isinstance(loss, Tensor) and loss.requires_grad
        require(learns, f"its loss is no tensor with a gradient {task}; do not detach step.logits.")
        require(
            loss.shape == step.logits.shape[:1],
            f"its loss has shape {tuple(loss.shape)} {task} for {len(step.logits)} members; it must have one number "
            "for each: take no mean over the first axis.",
        )
        return loss


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _check_what_is_read(method: Method, read: set[str]) -> None:
    memory, teacher = {"memory_logits", "memory_labels"}, {"teacher_logits", "teacher_current_logits"}
    for declared, looks, what in (
        (method.replays(), memory | {"teacher_logits", "stored_logits"}, "uses_memory"),
        (method.needs_teacher(), teacher, "uses_teacher"),
        (method.stores_logits, {"stored_logits"}, "stores_logits"),
        (
            method.needs_teacher() and method.teacher_sees() == "all",
            {"teacher_current_logits"},
            "teacher_sees() as 'all'",
        ),
    ):
        require(
            not declared or looks & read,
            f"it declares {what}, and its loss never reads step.{sorted(looks)[0]}; read it, or leave that out.",
        )


def _check_loss(group: Group, step: Step) -> None:
    """Check one step of a task, for all members at once."""
    methods, task = [member.method for member in group.members], len(step.past) + 1
    method = stack(methods, CPU.device, CPU.dtype)
    leaves: dict[str, Any] = {
        name: value.clone().requires_grad_()
        for name, value in vars(step).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    with no_global_draws("its loss"):
        loss = method.loss(dataclasses.replace(step, **leaves))
    require(loss.isfinite().all(), f"its loss is not finite in task {task}; look for log(0), 0 / 0 and -inf times 0.")
    for k in range(len(methods)):
        found = torch.autograd.grad(loss[k], list(leaves.values()), retain_graph=True, materialize_grads=True)
        require(
            all(gradient.isfinite().all() for gradient in found),
            f"the gradient of its loss is not finite in task {task}; look for sqrt(0), log(0) and norms of zero.",
        )
        others = [j for j in range(len(methods)) if j != k]
        require(
            not any(gradient[others].any() for gradient in found),
            f"members meet in its loss in task {task}: that of one depends on the logits of another; compute along the "
            "later axes only.",
        )
    _check_graph(methods, step)


def _check_graph(methods: Sequence[Method], step: Step) -> None:
    """Check that a step can be captured, as far as tensors can tell that have a shape and no values."""
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
                f"({reason(error)}); use no .item(), .tolist(), `if` on a tensor, x[mask] or tensors made on the CPU."
            ) from error


def check_fork(group: Group, whole: State) -> None:
    first, parents = founders(group)
    if first is group:
        return
    begun = train_from(Trainer(first, CPU), states.fresh(first, CPU), tasks=1)
    forked = train_from(Trainer(group, CPU), fork(begun, group, parents, CPU))
    require(
        all(same_member(forked, k, whole, k) for k in range(len(group.members))),
        "it declares forks, and its settings or its memory matter in task 1; leave that out.",
    )
