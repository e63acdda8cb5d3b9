"""The base class of methods: declarations and a loss."""

from __future__ import annotations

import contextlib
import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor
from torch.nn import functional as F

from mdcg.data import record_of
from mdcg.errors import MdcgError
from mdcg.memory import Draw
from mdcg.models import kernels
from mdcg.registry import Registry, first_line
from mdcg.scenario import Stream, parse

Value = bool | int | float | str
Choices = Mapping[str, Mapping[int, float]]  # a hyperparameter's value by scenario and memory size
NeedsHead = Literal["any", "growing", "fixed"]
TeacherSees = Literal["memory", "all"]
Divergence = Literal["teacher-student", "student-teacher"]
Preset = Literal["paper", "published"]  # the paper's settings, or those of its published code
Passes = Literal["joint", "separate"]  # whether memory images go through the network with the current ones
TrainsOn = Literal["task", "seen", "memory"]
#: What a method may set of a run, see `Method.recipe`.
TRAINING = ("lr", "weight_decay", "schedule", "warmup", "clip", "label_smoothing", "augment")


@dataclass(frozen=True)
class Step:
    """A training step as the loss sees it, for K members at once.

    Classes are columns in order of arrival: the first `old` belong to earlier tasks, the rest to this one.
    """

    logits: Tensor  # (K, batch, classes) of the current images; a head that does not grow has more columns
    labels: Tensor  # (K, batch)
    old: int
    memory_logits: Tensor | None = None  # (K, batch, classes) of images drawn from memory, once it has any
    memory_labels: Tensor | None = None  # (K, batch)
    teacher_logits: Tensor | None = None  # (K, batch, classes): the teacher's logits of the same memory images
    teacher_current_logits: Tensor | None = None  # the same of the current images, for a teacher that sees all
    past: tuple[int, ...] = ()  # classes of each earlier task
    stored_logits: Tensor | None = None  # (K, batch, outputs): what was answered to the memory images as they came in
    revisits: bool = False  # current images may be of past classes; their labels are then below `old`
    smoothing: Tensor | None = None  # (K,) of labels, for `cross_entropy`; None: nobody asks for any

    @property
    def memory(self) -> tuple[Tensor, Tensor]:
        """The memory batch's logits and labels, for a step that has one."""
        assert self.memory_logits is not None
        assert self.memory_labels is not None
        return self.memory_logits, self.memory_labels

    @property
    def teacher(self) -> Tensor:
        """The teacher's logits of the memory images, for a step that has them."""
        assert self.teacher_logits is not None
        return self.teacher_logits

    @property
    def teacher_current(self) -> Tensor:
        """The teacher's logits of the current images, for a step that has them."""
        assert self.teacher_current_logits is not None
        return self.teacher_current_logits

    @property
    def stored(self) -> Tensor:
        """The stored logits of the memory images, for a step that has them."""
        assert self.stored_logits is not None
        return self.stored_logits


class Method(BaseModel):
    """A way of learning a sequence of tasks.

    Class variables declare what the method needs; fields are its hyperparameters. Once members are stacked, a
    `float` field holds one value per member, shape (K,); fields of other types are shared by all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    head: ClassVar[str] = "incremental"  # the head it uses unless another is asked for
    # It tells old from new logits, so the head may have no others; or it compares logits of different tasks, so the
    # head must have all of them from the start.
    needs_head: ClassVar[NeedsHead] = "any"
    uses_memory: ClassVar[bool] = False  # keeps images; from task 2 on, every step brings a batch of them
    uses_teacher: ClassVar[bool] = False  # keeps the model as it was when the task began
    stores_logits: ClassVar[bool] = False  # of the images in memory, as they were at the end of the images' task
    gradient_per_task: ClassVar[bool] = False  # see `combine`; each task has a fixed share of the memory then
    trains_on: ClassVar[TrainsOn] = "task"  # the task's images, all so far, those in memory
    starts_anew: ClassVar[bool] = False  # forgets all weights when a task begins
    # The streams that it can learn besides tasks of new classes: those in which past classes come again, see
    # `Step.revisits`; and those in which each image comes once, where it may do without being told of tasks: `old` and
    # `past` are then empty, and the memory batch, from the second step on, may hold what came a moment ago.
    learns_revisits: ClassVar[bool] = False
    learns_online: ClassVar[bool] = False
    needs_boundaries: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = {}  # of each field, what the paper chose
    grid: ClassVar[Mapping[str, Sequence[float]]] = {}  # of each field, the values that a search tries
    # How it trains where nothing else is asked for, if not as the dataset's protocol says: keys of a recipe, those of
    # TRAINING. `augment` is added to the crop or flip of datasets that have one. Online streams do without all of it.
    recipe: ClassVar[Mapping[str, Value]] = {}
    rule: ClassVar[str] = ""  # what `suited` makes of it, in a clause for `mdcg list`
    published: ClassVar[Mapping[str, Value]] = {}  # fields as in the paper's published code, where it departs from it
    published_passes: ClassVar[Passes] = "joint"  # the same of the run's forward passes,
    published_epochs: ClassVar[Mapping[str, int]] = {}  # and of its epochs, by dataset
    # So that older results still count: fields that came later, with the value that says what runs did before, and
    # fields that are gone, with the value that says what runs do now. In a run's name the first are left out where they
    # have that value, the second stay.
    added: ClassVar[Mapping[str, Value]] = {}
    removed: ClassVar[Mapping[str, Value]] = {}
    # Its settings and memory do not matter in task 1, which is then trained once per seed. Not inherited.
    forks: ClassVar[bool] = False

    @classmethod
    def replays(cls) -> bool:
        """Whether a step has current images and, beside them, some from memory that share its loss."""
        return cls.uses_memory and cls.trains_on != "memory" and not cls.gradient_per_task

    @classmethod
    def online(cls) -> bool:
        """Whether it learns online streams: it says so, or a class that it was made of, and takes no second look."""
        return cls.learns_online and cls.trains_on == "task" and not (cls.gradient_per_task or cls.starts_anew)

    @model_validator(mode="after")
    def _declarations_agree(self) -> Method:
        fields = type(self).model_fields.keys()
        if not callable(self.teacher_sees):  # before it is asked
            raise ValueError("its declarations do not agree: 'teacher_sees' is a method, not a value")
        draws = self.memory_draws(2, (1,)) if self.replays() else []
        for wrong, reason in (
            (not self.added.keys() <= fields, "'added' names what is no field"),
            (not self.published.keys() <= fields, "'published' names what is no field"),
            (bool(self.removed.keys() & fields), "'removed' names a field that it has"),
            (
                any(draw.second for draw in draws) and not self.second_memory_size(),
                "it draws from a second memory and has none (second_memory_size)",
            ),
            (
                any(later.joins and not draw.joins for draw, later in itertools.pairwise(draws)),
                "draws that join the current images come before those with a pass of their own",
            ),
            (
                self.needs_teacher() and self.teacher_sees() == "memory" and not self.uses_memory,
                "its teacher sees the memory's images and it uses no memory",
            ),
            (self.stores_logits and not self.uses_memory, "it keeps the logits of a memory that it does not use"),
            (
                self.stores_logits and self.needs_head != "fixed",
                "logits can be kept only with needs_head = 'fixed', where they stay comparable",
            ),
            (
                self.stores_logits and self.fills_memory_first(),
                "logits are kept when a task is over, and its memory is filled before",
            ),
            (self.second_memory_size() and not self.uses_memory, "it has a second memory and uses no first"),
            (self.gradient_per_task and not self.uses_memory, "it asks for gradients of a memory that it does not use"),
            (
                self.gradient_per_task and type(self).combine is Method.combine,
                "it asks for gradients per task and does not define 'combine'",
            ),
            (
                self.trains_on == "memory" and not (self.uses_memory and self.fills_memory_first()),
                "it trains on a memory that is not used or not filled first (uses_memory, fills_memory_first)",
            ),
        ):
            if wrong:
                raise ValueError(f"its declarations do not agree: {reason}")
        return self

    @abstractmethod
    def loss(self, step: Step) -> Tensor:
        """The loss of each member, shape (K,)."""

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        """The batches that a step takes from memory, given the batch size and the classes of each past task."""
        return [Draw(batch)] if self.uses_memory and past else []

    def fills_memory_first(self) -> bool:
        """Whether images go into memory when their task begins, not when it is over."""
        return False

    def second_memory_size(self) -> int:
        """The size of a second memory, besides the one that was asked for; draws say whether they are from it."""
        return 0

    def looks_ahead(self) -> int:
        """The batches that it looks ahead for classes it has not seen, to begin a task by itself where such classes
        arrive: in an online stream, of whose tasks it is then not told. 0: it is."""
        return 0

    def needs_teacher(self) -> bool:
        """Whether it keeps the model as it was when the task began: always, or with these settings."""
        return self.uses_teacher

    def teacher_sees(self) -> TeacherSees:
        """Which images the teacher is asked about."""
        return "memory"

    def combine(self, gradient: Tensor, past: Tensor) -> Tensor:
        """The gradient to follow, given one for the current images and one for the memory of each past task.

        All parameters' gradients lie in one vector: (K, P) and (K, tasks, P) → (K, P). `loss` gave all of them.
        """
        raise NotImplementedError

    def check_stream(self, name: str, stream: Stream) -> None:
        """Refuse a stream that the method, which is called `name`, cannot learn."""
        if self.looks_ahead() and not stream.online:
            raise MdcgError(
                f"{name} looks ahead for new classes in online streams alone; leave look_ahead out, or give --online.",
                about="set.look_ahead",
            )
        draws = self.memory_draws(2, (1,))
        # In place of a reservoir of what has come, they ask for a memory of whole tasks.
        whole = any(draw.once or draw.second or draw.classes or draw.odd_to_one for draw in draws)
        whole = whole or (self.needs_boundaries and self.fills_memory_first())
        for asked, able, what in (
            (stream.revisits, self.learns_revisits, "in which past classes come again"),
            (stream.online, self.online() and not whole, "in which each image comes once"),
        ):
            if asked and not able:
                able_ones = [other for other in METHODS.names() if _learns(METHODS[other], stream)]
                settings = " with these settings" if whole and self.online() else ""
                others = f"these can: {', '.join(able_ones)}" if able_ones else "no method can"
                raise MdcgError(f"{name} cannot learn a stream {what}{settings}; {others}.", about="method")

    @classmethod
    def suited(cls, memory: int, classes: int, images: int) -> dict[str, Value]:
        """What suits a memory of so many images for so many classes, where a task brings so many images.

        Fields, and keys of `TRAINING` but for `augment`. Nothing, unless the method has a rule; what the paper chose
        goes before it. Only a method with a memory is asked.
        """
        return {}

    @classmethod
    def suited_to(cls, scenario: str, memory: int, learned: int | None = None) -> dict[str, Value]:
        """What suits a scenario of which so many classes were learned, or all.

        If it is not known of its dataset how large it is: nothing or, with `learned`, as if tasks had one image.
        """
        if not cls.uses_memory:
            return {}
        classes = images = tasks = 0
        with contextlib.suppress(MdcgError):  # of a run that was read: its dataset may be gone
            dataset, tasks = parse(scenario)
            record = record_of(dataset)
            classes, images = record.classes, record.images
        if not images:
            return cls.suited(memory, learned, 1) if learned else {}
        learned = learned or classes
        return cls.suited(memory, learned, images * learned // classes // tasks)

    @classmethod
    def fields_of(cls, suited: Mapping[str, Value]) -> dict[str, Value]:
        """The fields among what suits."""
        return {key: value for key, value in suited.items() if key in cls.model_fields}

    @classmethod
    def training_of(cls, suited: Mapping[str, Value]) -> dict[str, Value]:
        """How it trains where nothing else is asked for: `recipe`, as suits."""
        return {**cls.recipe, **{key: value for key, value in suited.items() if key in TRAINING}}

    @classmethod
    def tuned(cls, scenario: str, memory: int) -> dict[str, float]:
        """The hyperparameters that the paper chose for a scenario and memory size, where it did."""
        found = {field: table.get(scenario, {}).get(memory) for field, table in cls.chosen.items()}
        return {field: value for field, value in found.items() if value is not None}

    @classmethod
    def streams(cls) -> str:
        """The streams that it can learn, in words, for `mdcg list`.

        >>> METHODS["er-lode"].streams()
        'learns tasks of new classes; online, told of tasks'
        """
        told = "told of tasks" if cls.needs_boundaries else "not told of tasks"
        kinds = ["tasks of new classes", *["past classes again"] * cls.learns_revisits]
        return "; ".join([f"learns {', '.join(kinds)}", *[f"online, {told}"] * cls.online()])

    @classmethod
    def training(cls) -> str:
        """How it trains where nothing else is asked for, in words, for `mdcg list`; empty if as the dataset's protocol.

        >>> METHODS["md-cg"].training()
        ''
        """
        usual = ", ".join(f"{key} {value}" for key, value in cls.recipe.items())
        return "; ".join(part for part in (usual, cls.rule) if part)

    @classmethod
    def summary(cls) -> str:
        """The first line of its docstring, for `mdcg list`."""
        return first_line(cls)


METHODS: Registry[type[Method]] = Registry("method", "mdcg.methods")


def _learns(kind: type[Method], stream: Stream) -> bool:
    return (kind.learns_revisits or not stream.revisits) and (kind.online() or not stream.online)


def stack(methods: Sequence[Method], device: torch.device, dtype: torch.dtype) -> Method:
    """Stack K members' settings into one method whose float fields are tensors (K,)."""
    first = methods[0]
    values: dict[str, Any] = {
        name: torch.tensor([getattr(method, name) for method in methods], dtype=dtype, device=device)
        for name, field in type(first).model_fields.items()
        if field.annotation is float
    }
    return first.model_copy(update=values)


def shared_settings(method: Method) -> dict[str, Any]:
    """The settings in which members of one group must agree: all that are not `float`."""
    fields = type(method).model_fields
    return {name: getattr(method, name) for name, field in fields.items() if field.annotation is not float}


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: Tensor | None = None) -> Tensor:
    """The mean cross-entropy of each member, see `cross_entropies`: (K, batch, classes), (K, batch) → (K,)."""
    return cross_entropies(logits, labels, smoothing).mean(1)


def cross_entropies(logits: Tensor, labels: Tensor, smoothing: Tensor | None = None) -> Tensor:
    """The cross-entropy of each image: (K, batch, classes), (K, batch) → (K, batch).

    With `smoothing` (K,), a label is 1 − ε of its own class and ε of all classes alike, as in torch; classes whose
    logit is −∞ are none.
    """
    if smoothing is None and kernels.take(logits, labels=labels):
        from mdcg.models.kernels import losses

        return losses.cross_entropies(logits, labels)
    by_class = logits.transpose(1, 2)
    if smoothing is None:
        return F.cross_entropy(by_class, labels, reduction="none")
    there, share = by_class > -torch.inf, smoothing[:, None, None]
    wanted = share * there / there.sum(1, keepdim=True)
    wanted = wanted.scatter_add(1, labels[:, None], (1 - share).expand(-1, 1, labels.shape[1]))
    return -torch.where(there, wanted * by_class.log_softmax(1), 0).sum(1)


def kl_divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """The mean KL(p ‖ q) of each member, p and q the softmax of the first and second logits: (K,)."""
    return kl_divergences(logits, reference).mean(1)


def kl_divergences(logits: Tensor, reference: Tensor) -> Tensor:
    """The KL(p ‖ q) of each image: (K, batch, classes) twice → (K, batch)."""
    if kernels.take(logits, reference):
        from mdcg.models.kernels import losses

        return losses.divergences(logits, reference)
    log_p, log_q = logits.log_softmax(-1), reference.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def distillation(student: Tensor, teacher: Tensor, direction: Divergence) -> Tensor:
    """The mean divergence of each member between its answers and its teacher's: (K,)."""
    return kl_divergence(teacher, student) if direction == "teacher-student" else kl_divergence(student, teacher)
