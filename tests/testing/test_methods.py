"""`check_method`: ours pass, and each check fails for a method that is wrong in just this."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor

from mdcg.memory import Draw
from mdcg.methods import METHODS, Method, Step, cross_entropy
from mdcg.methods.base import Choices, NeedsHead, TeacherSees, Value
from mdcg.testing import check_method


@pytest.mark.parametrize("method", METHODS.names())
def test_our_methods(method: str) -> None:
    check_method(method)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("md-replay", {"current_in_memory": True, "memory_batch": "twice", "temperature": 2.0}),
        ("md-replay", {"distils": "nothing"}),
        ("md-replay", {"distils": "all", "among": "past"}),
        ("er-ace", {"distils": "all", "temperature": 2.0}),
        ("er-lode", {"distils": "memory"}),
        ("der", {"distils": "all"}),
    ],
)
def test_our_methods_with_what_others_bring(method: str, settings: dict[str, Any]) -> None:
    check_method(method, **settings)


class Plain(Method):
    """Cross-entropy."""

    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step.logits, step.labels)


class Replayed(Plain):
    """Cross-entropy, of memory images too."""

    uses_memory: ClassVar[bool] = True
    share: float = Field(0.5, ge=0, le=1)

    def loss(self, step: Step) -> Tensor:
        loss = super().loss(step)
        return loss + self.share * cross_entropy(*step.memory) if step.old else loss


class Required(Plain):
    """A setting that has no default."""

    scale: float

    def loss(self, step: Step) -> Tensor:
        return self.scale * super().loss(step)


def test_methods_of_ones_own() -> None:
    check_method(Replayed)
    check_method(Replayed, share=1.0)
    check_method(Required, scale=0.5)
    with pytest.raises(AssertionError, match="Required: 'scale' is wrong: field required"):
        check_method(Required)


class Undocumented(Plain):
    pass


class LossLess(Method):
    """No loss at all."""


class Misspelt(Plain):
    """A declaration that nobody reads."""

    use_memory: ClassVar[bool] = True


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pydantic sees it, too

    class Hyper(Plain):
        """A declaration that became a hyperparameter."""

        uses_teacher: bool = False  # type: ignore[misc]


class Contradicting(Plain):
    """Keeps logits of no memory."""

    needs_head: ClassVar[NeedsHead] = "fixed"
    head: ClassVar[str] = "fixed"
    stores_logits: ClassVar[bool] = True


class Needing(Plain):
    """A word that is none."""

    needs_head: ClassVar[Any] = "fixd"


class Headless(Plain):
    """A head that is none."""

    head: ClassVar[str] = "incremntal"


class Otherwise(Plain):
    """Trains in a way that there is none of."""

    recipe: ClassVar[Mapping[str, Value]] = {"schedule": "cosin"}


class Deeper(Plain):
    """Sets what is the run's own matter."""

    recipe: ClassVar[Mapping[str, Value]] = {"backbone": "resnet56"}


class Usual(Plain):
    """Adds what is done anyway."""

    recipe: ClassVar[Mapping[str, Value]] = {"augment": "usual"}


class Unsuited(Plain):
    """A head that it cannot take."""

    needs_head: ClassVar[NeedsHead] = "fixed"


class Chosen(Replayed):
    """A choice for a field that is none."""

    chosen: ClassVar[Mapping[str, Choices]] = {"shar": {"c10-5": {500: 0.1}}}


class Grid(Replayed):
    """A grid with a value that it refuses."""

    grid: ClassVar[Mapping[str, Sequence[float]]] = {"share": (0.5, 1.5)}


class Secret(Plain):
    """Draws from a memory that it does not declare."""

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        return [Draw(batch)] if past else []


class ByWeight(Replayed):
    """As many memory images as the first member's weight says."""

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        return [Draw(int(batch * self.share))] if past else []


class Undeclared(Plain):
    """Reads a memory that it does not declare."""

    def loss(self, step: Step) -> Tensor:
        loss = super().loss(step)
        return loss + cross_entropy(*step.memory) if step.old else loss


class TooSoon(Replayed):
    """Reads the memory in task 1."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) + cross_entropy(*step.memory)


class Unread(Plain):
    """Declares a memory that it does not read."""

    uses_memory: ClassVar[bool] = True


class Untaught(Replayed):
    """Declares a teacher that it does not ask."""

    uses_teacher: ClassVar[bool] = True


class TaughtAll(Replayed):
    """Asks its teacher about more than it reads."""

    uses_teacher: ClassVar[bool] = True

    def teacher_sees(self) -> TeacherSees:
        return "all"

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) + (0 * step.teacher.mean((1, 2)) if step.old else 0)


class Branching(Replayed):
    """Decides by a float field."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) if self.share > 0.1 else cross_entropy(step.logits, step.labels)


class Averaged(Plain):
    """One loss for all."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step).mean()


class Mixing(Plain):
    """Members meet in a mean over all of them."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) + 0.1 * step.logits.square().mean()


class Counting(Plain):
    """Members meet in their labels, which have no gradient."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) * (1 + (step.labels == step.labels[:1]).double().mean(1)).float()


class Infinite(Plain):
    """The logarithm of zero."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) + (0 * step.logits).log().mean((1, 2))


class Steep(Plain):
    """A gradient that is no number, of a loss that is one."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) + (0 * step.logits).square().sum((1, 2)).sqrt()


class Exploding(Plain):
    """A loss that training makes infinite."""

    def loss(self, step: Step) -> Tensor:
        return 1e6 * step.logits.square().mean((1, 2)) + super().loss(step)


class Detached(Plain):
    """Nothing to follow."""

    def loss(self, step: Step) -> Tensor:
        return cross_entropy(step.logits.detach(), step.labels)


class Noisy(Plain):
    """Something random in the loss."""

    def noise(self) -> float:
        return 0

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) * (1 + 0.1 * self.noise())


class Random(Noisy):
    """Draws from torch's global generator."""

    def noise(self) -> float:
        return float(torch.rand(()))


class RandomNumpy(Noisy):
    """Draws from numpy's."""

    def noise(self) -> float:
        return float(np.random.rand())  # noqa: NPY002


class RandomPython(Noisy):
    """Draws from Python's."""

    def noise(self) -> float:
        return random.random()


class Waiting(Plain):
    """Waits for the device."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) * (2 if step.logits.max().item() > 0 else 1)


class Masking(Plain):
    """A shape that depends on values."""

    def loss(self, step: Step) -> Tensor:
        loss = super().loss(step)
        return loss + 0 * torch.stack([own[own > 0].sum() for own in step.logits])


class Elsewhere(Plain):
    """A tensor that stays on the CPU."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) * torch.ones(len(step.labels))


class Projected(Plain):
    """Combines gradients with a question to the device."""

    uses_memory: ClassVar[bool] = True
    gradient_per_task: ClassVar[bool] = True

    def combine(self, gradient: Tensor, past: Tensor) -> Tensor:
        return gradient if (gradient * past.sum(1)).sum() > 0 else gradient + past.sum(1)


CALLS = {"Remembering": 0}


class Remembering(Plain):
    """Keeps count, and is not the same when it is called again."""

    def loss(self, step: Step) -> Tensor:
        CALLS["Remembering"] += 1
        return super().loss(step) * (1 + CALLS["Remembering"] % 7)


class Beginning(Plain):
    """Knows the first step of a task by what it keeps in itself."""

    _task: int = 0

    def loss(self, step: Step) -> Tensor:
        task = 1 + len(step.past)
        first = task != self._task
        object.__setattr__(self, "_task", task)
        return super().loss(step) * (1 + first)


class Forking(Plain):
    """Says that task 1 does not depend on its weight."""

    uses_memory: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    weight: float = 0.5

    def loss(self, step: Step) -> Tensor:
        loss = self.weight * super().loss(step)
        return loss + cross_entropy(*step.memory) if step.old else loss


class Narrow(Plain):
    """Counts on a head without other classes."""

    def loss(self, step: Step) -> Tensor:
        missing = step.logits.shape[-1] - sum(step.past) - 3  # of tasks of two classes
        return super().loss(step) / (1 if missing < 0 else 0)


WRONG: list[tuple[Any, str]] = [
    (Undocumented, "it has no docstring"),
    (LossLess, "define 'loss'"),
    (Misspelt, "it declares 'use_memory', which means nothing here; did you mean 'uses_memory'?"),
    (Hyper, "'uses_teacher' is a field, which is a hyperparameter; declare it as uses_teacher: ClassVar"),
    (Contradicting, "its declarations do not agree: it keeps the logits of a memory that it does not use"),
    (Needing, "needs_head is 'fixd'; it must be one of any, growing, fixed"),
    (Otherwise, "its recipe is wrong: 'schedule' is wrong"),
    (Deeper, "its recipe is wrong: it may name lr, weight_decay"),
    (Usual, "its recipe is wrong: augment names what is added to crop and flip"),
    (Headless, "there is no head 'incremntal'"),
    (Unsuited, "its head is 'incremental', and it needs_head 'fixed'"),
    (Chosen, "'chosen' names 'shar', which is no field"),
    (Grid, "a value that it declares itself is refused: 'share' is wrong: input should be less than or equal to 1"),
    (Secret, "memory_draws asks for images of a memory that it does not have; declare uses_memory"),
    (ByWeight, "memory_draws depends on a float field"),
    (Undeclared, "its loss reads step.memory_logits in task 2, where there is none; declare uses_memory"),
    (TooSoon, "its loss reads step.memory_logits in task 1, where there is none"),
    (Unread, "it declares uses_memory, and its loss never reads"),
    (Untaught, "it declares uses_teacher, and its loss never reads"),
    (TaughtAll, "it declares teacher_sees() as 'all', and its loss never reads step.teacher_current_logits"),
    (Branching, "its loss fails in task 1 (RuntimeError: Boolean value of Tensor with more than one value"),
    (Averaged, "its loss has shape () in task 1 for 3 members"),
    (Mixing, "members meet in its loss in task 1: that of one depends on the logits of another"),
    (Counting, "a member comes to another result in company than alone"),
    (Infinite, "its loss is not finite in task 1"),
    (Steep, "the gradient of its loss is not finite in task 1"),
    (Exploding, "its loss is not finite after some steps of training"),
    (Detached, "its loss is no tensor with a gradient in task 1"),
    (Random, "draws from the global generator of torch"),
    (RandomNumpy, "draws from the global generator of numpy"),
    (RandomPython, "draws from the global generator of random"),
    (Waiting, "its loss cannot become part of a CUDA graph"),
    (Masking, "its loss cannot become part of a CUDA graph"),
    (Elsewhere, "its loss cannot become part of a CUDA graph"),
    (Projected, "combine cannot become part of a CUDA graph"),
    (Remembering, "a member comes to another result in company than alone"),
    (Beginning, "stopped and resumed it comes to another result"),
    (Forking, "it declares forks, and its settings or its memory matter in task 1"),
    (Narrow, "with the head "),
]


@pytest.mark.parametrize(("kind", "said"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_methods(kind: type[Method], said: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(kind)
    assert str(caught.value).startswith(f"{kind.__name__}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
