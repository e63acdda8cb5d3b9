"""The heads, from features to one logit per class, growing with every task.

A head's columns are ordered by arrival; growing appends, so that what was learned keeps its place and its
exact value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdcg.errors import MdcgError
from mdcg.models.layers import Linear
from mdcg.registry import Registry

HEADS: Registry[type[Head]]
Rngs = Sequence[np.random.Generator]
MOST_SCALED = 2**29  # gates times classes of a cascade, whose table of both then takes 2 GiB


#: What says how a head grows: who has another one of these grows in a way of its own.
GROWTH = {"grow", "make_room", "columns", "new_gates", "note_gates", "count_gates"}


class Head(nn.Module):
    """One growing linear layer: the usual incremental classifier."""

    #: Name, default and meaning of each setting; a setting may differ between members.
    settings: ClassVar[dict[str, tuple[float, str]]] = {}
    summary: ClassVar[str] = "one linear layer that grows with the classes"
    grows: ClassVar[bool] = True  # it has a logit for every class learned so far, and no others
    #: The layer that is fitted to the memory as each task but the first ends, by itself (`train.fitting`); "": none.
    #: Such a head has the setting `penalty`.
    fitted_layer: ClassVar[str] = ""

    def __init__(self, members: int, features: int, **settings: Sequence[float]) -> None:
        super().__init__()
        self.sizes: list[int] = []  # classes of each task so far
        self.total = 0  # classes there will be in the end, where that is known
        self.classifier = Linear(members, features)
        if unknown := sorted(settings.keys() - self.settings.keys()):
            raise TypeError(f"this head has no setting {', '.join(unknown)}")
        for name, values in settings.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))  # (K,)

    @classmethod
    def check(cls, settings: Mapping[str, float]) -> None:
        """Refuse settings that it cannot have, beyond those that are no numbers."""

    @classmethod
    def capacity(cls, total: int) -> int | None:
        """Classes that it can hold at most, made for `total` from the start; None: as many as come."""
        return None if cls.grows else total

    @classmethod
    def grows_as_ours(cls) -> bool:
        """Whether `columns` and `make_room` know how it grows: a user's head may do so in a way of its own."""
        return all(owner.__module__ == __name__ or not GROWTH & vars(owner).keys() for owner in cls.__mro__)

    @classmethod
    def columns(cls, sizes: Sequence[int], total: int) -> dict[str, int]:
        """The columns of each of its layers after tasks of so many classes, made for `total` from the start.

        Nothing is made to count them: so a file's claims are compared with its weights before they are believed.
        """
        return {"classifier": sum(sizes)}

    @classmethod
    def check_tasks(cls, sizes: Sequence[int], total: int) -> None:
        """Refuse tasks of so many classes, for which it has no room."""
        most, wanted = cls.capacity(total), sum(sizes)
        if most is not None and wanted > most:
            raise MdcgError(
                f"the head was made for at most {most} classes, and there would be {wanted}; begin anew with "
                f"most_classes={wanted} or more, or with another head."
            )

    @property
    def classes(self) -> int:
        """The number of classes learned so far; theirs are the first logits."""
        return sum(self.sizes)

    def make_room(self, sizes: Sequence[int]) -> None:
        """Be as after tasks of so many classes, at once, but for the weights, which are yet to come from a file."""
        self.check_tasks(sizes, self.total)
        self.sizes = [*sizes]
        for name, columns in self.columns(sizes, self.total).items():
            getattr(self, name).make_room(columns)

    def grow(self, classes: int, head_rngs: Rngs, gate_rngs: Rngs) -> None:
        """Add a task of so many classes."""
        self.sizes.append(classes)
        self.classifier.grow(classes, head_rngs)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classifier(features)
        return logits


class CascadedGates(Head):
    """Task-wise classifiers whose logits every later task may scale down (Section 3.2, Eq. 5).

    For a class of task i, f^{i,t} = h^i · Π_{j=i+1..t} sigmoid(γ g^j_i + β). All gates of all tasks are
    columns of one linear layer; `incidence` says which class each column scales. The product of sigmoids is
    the exponential of a sum of log-sigmoids, and that sum is one matrix product with `incidence`.
    """

    settings: ClassVar[dict[str, tuple[float, str]]] = {
        "gamma": (1.0, "slope of the gates' sigmoid (γ)"),
        "beta": (10.0, "offset of the gates' sigmoid (β)"),
    }
    summary: ClassVar[str] = "cascaded gates: each task scales every past class, per class (the paper's CG)"

    gamma: Tensor
    beta: Tensor
    incidence: Tensor

    def __init__(self, members: int, features: int, **settings: Sequence[float]) -> None:
        super().__init__(members, features, **settings)
        self.gates = Linear(members, features)
        self.register_buffer("incidence", torch.zeros(0, 0), persistent=False)  # (gates, classes), 0 or 1

    @classmethod
    def columns(cls, sizes: Sequence[int], total: int) -> dict[str, int]:
        return {**super().columns(sizes, total), "gates": cls.count_gates(sizes)}

    @classmethod
    def count_gates(cls, sizes: Sequence[int]) -> int:
        """The gates of all tasks together, as many as `new_gates` gives task after task."""
        return sum(itertools.accumulate(sizes[:-1]))

    @classmethod
    def check_tasks(cls, sizes: Sequence[int], total: int) -> None:
        super().check_tasks(sizes, total)
        if not cls.grows_as_ours():
            return
        gates, classes = cls.count_gates(sizes), sum(sizes)
        if gates * classes > MOST_SCALED:
            raise MdcgError(
                f"{gates:,} gates for {classes:,} classes in {len(sizes):,} tasks take too much memory; bring more "
                "classes with each task, or take the head single-gate, incremental or another without a cascade."
            )

    def make_room(self, sizes: Sequence[int]) -> None:
        super().make_room(sizes)
        fresh = []
        for task in range(len(sizes)):
            self.sizes = [*sizes[: task + 1]]
            fresh += self.new_gates()
        self.note_gates(fresh)

    def grow(self, classes: int, head_rngs: Rngs, gate_rngs: Rngs) -> None:
        self.check_tasks([*self.sizes, classes], self.total)
        super().grow(classes, head_rngs, gate_rngs)
        fresh = self.new_gates()
        self.gates.grow(len(fresh), gate_rngs)
        self.note_gates(fresh)

    def note_gates(self, fresh: list[range]) -> None:
        """Note which classes the newest gates scale."""
        gates, total = self.gates.outputs, self.classes
        incidence = self.incidence.new_zeros(gates, total)
        incidence[: self.incidence.shape[0], : self.incidence.shape[1]] = self.incidence
        for gate, scaled in enumerate(fresh, start=gates - len(fresh)):
            incidence[gate, scaled.start : scaled.stop] = 1
        self.incidence = incidence

    def new_gates(self) -> list[range]:
        """The classes that each gate of the newest task scales: here one gate per past class."""
        return [range(position, position + 1) for position in range(sum(self.sizes[:-1]))]

    def forward(self, features: Tensor) -> Tensor:
        logits = super().forward(features)
        if not self.gates.outputs:
            return logits
        return logits * torch.exp(self.add_up(self.log_openings(self.gates(features))))

    def add_up(self, log_openings: Tensor) -> Tensor:
        """The sum over each class's gates, (…, gates) → (…, classes)."""
        return log_openings @ self.incidence.to(log_openings.dtype)

    def log_openings(self, gates: Tensor, member: int | None = None) -> Tensor:
        """The logarithm of how far gates open, of all members (K, batch, gates), or of one (batch, gates)."""
        return F.logsigmoid(torch.addcmul(_of(self.beta, member), _of(self.gamma, member), gates))


class CascadedGatesWithOwn(CascadedGates):
    """Cascaded gates, from task 2 on also for each of the task's own classes, as in the paper's published code."""

    summary: ClassVar[str] = "cascaded gates, from task 2 on also for the task's own classes (the published code's CG)"

    @classmethod
    def count_gates(cls, sizes: Sequence[int]) -> int:
        return sum([*itertools.accumulate(sizes)][1:])

    def new_gates(self) -> list[range]:
        return [range(position, position + 1) for position in range(self.classes)] if len(self.sizes) > 1 else []


class SingleGate(CascadedGates):
    """One gate per past class, added once the class is past, with no cascade (the paper's S-CG)."""

    summary: ClassVar[str] = "one gate layer over all past classes, applied once (the paper's S-CG)"

    @classmethod
    def count_gates(cls, sizes: Sequence[int]) -> int:
        return sum(sizes[:-1])

    @classmethod
    def check_tasks(cls, sizes: Sequence[int], total: int) -> None:
        """Refuse nothing: without a cascade there is no table of gates and classes."""

    def make_room(self, sizes: Sequence[int]) -> None:
        Head.make_room(self, sizes)

    def new_gates(self) -> list[range]:
        start, end = sum(self.sizes[:-2]), sum(self.sizes[:-1])
        return [range(position, position + 1) for position in range(start, end)]

    def note_gates(self, fresh: list[range]) -> None:
        """Note nothing: gate number i is that of class number i, and the newest classes have none."""

    def add_up(self, log_openings: Tensor) -> Tensor:
        return F.pad(log_openings, (0, self.classes - self.gates.outputs))


class ScalarGates(CascadedGates):
    """One gate per past task and later task, cascaded: the whole past task is scaled by one number."""

    summary: ClassVar[str] = "cascaded gates, one number for each past task"

    @classmethod
    def count_gates(cls, sizes: Sequence[int]) -> int:
        return len(sizes) * (len(sizes) - 1) // 2

    def new_gates(self) -> list[range]:
        ends = np.cumsum(self.sizes[:-1])
        return [range(end - size, end) for size, end in zip(self.sizes, ends.tolist(), strict=False)]


class OpenGates(CascadedGates):
    """Cascaded gates that begin at 1 and learn from there: 2 sigmoid(γ g), where all g are 0 at first.

    The paper's gates begin at sigmoid(10), where their slope is 4.5e-5, and stay there. The slope of these is γ/2.
    What would open them further than `cap` is cut; at `cap` itself they can still be closed.
    """

    settings: ClassVar[dict[str, tuple[float, str]]] = {
        "gamma": (1.0, "slope of the gates' sigmoid (γ)"),
        "cap": (1.0, "how far a gate may open, up to 2, where nothing is cut"),
    }
    summary: ClassVar[str] = "cascaded gates that begin at 1 and receive gradients there; not in the paper"

    cap: Tensor

    @classmethod
    def check(cls, settings: Mapping[str, float]) -> None:
        if not 0 < settings["cap"] <= 2:
            why = "give a cap above 0, and no more than 2, where nothing is cut."
            raise MdcgError(f"gates cannot open up to {settings['cap']:g}; {why}", about="set.cap")
        if settings["gamma"] <= 0:
            raise MdcgError(f"gates cannot learn with γ = {settings['gamma']:g}; give one above 0.", about="set.gamma")

    def grow(self, classes: int, head_rngs: Rngs, gate_rngs: Rngs) -> None:
        before = self.gates.outputs
        super().grow(classes, head_rngs, gate_rngs)
        with torch.no_grad():
            self.gates.weight[..., before:] = 0
            self.gates.bias[:, before:] = 0

    def log_openings(self, gates: Tensor, member: int | None = None) -> Tensor:
        opened = math.log(2) + F.logsigmoid(_of(self.gamma, member) * gates)
        most = _of(self.cap, member).log()
        return torch.where(opened > most, most, opened)  # a maximum would halve the gradient where they are equal


class SingleOpenGate(OpenGates, SingleGate):
    """One open gate per past class, which all later tasks go on training: as many gates as there are past classes."""

    summary: ClassVar[str] = "open gates, one for each past class, at linear cost; not in the paper"


PENALTY = (0.1, "weight of the penalty on what the fit to the memory changes")
LARGEST = 1e6  # penalty: a fit that moves nothing but biases


class FittedGates(SingleOpenGate):
    """One open gate per past class, which the fit to the memory may close, or open up to 2 (`train.fitting`).

    In a task's steps gates are trained too, by a loss that sees more of the new classes than of the past ones.
    """

    settings: ClassVar[dict[str, tuple[float, str]]] = {
        **OpenGates.settings,
        "cap": (2.0, OpenGates.settings["cap"][1]),
        "penalty": PENALTY,
    }
    summary: ClassVar[str] = (
        "open gates, one for each past class, fitted to the memory after each task; not in the paper"
    )
    fitted_layer: ClassVar[str] = "gates"

    @classmethod
    def check(cls, settings: Mapping[str, float]) -> None:
        super().check(settings)
        _check_penalty(settings)


class FittedClassifier(Head):
    """One linear layer that is fitted to the memory after each task (`train.fitting`): what gates have to beat."""

    settings: ClassVar[dict[str, tuple[float, str]]] = {"penalty": PENALTY}
    summary: ClassVar[str] = "one linear layer that grows, fitted to the memory after each task; not in the paper"
    fitted_layer: ClassVar[str] = "classifier"

    @classmethod
    def check(cls, settings: Mapping[str, float]) -> None:
        _check_penalty(settings)


def _check_penalty(settings: Mapping[str, float]) -> None:
    if not 0 <= settings["penalty"] <= LARGEST:
        told = f"the penalty of a fit cannot be {settings['penalty']:g}; give 0 to {LARGEST:g}."
        raise MdcgError(told, about="set.penalty")


class FixedHead(Head):
    """One linear layer with a logit for every class there will be, all of them in the softmax from the start."""

    summary: ClassVar[str] = "one linear layer with all of the scenario's classes from the start (DER)"
    grows: ClassVar[bool] = False

    @classmethod
    def columns(cls, sizes: Sequence[int], total: int) -> dict[str, int]:
        return {"classifier": total}

    def grow(self, classes: int, head_rngs: Rngs, gate_rngs: Rngs) -> None:
        if not self.sizes:
            self.classifier.grow(self.total, head_rngs)
        self.sizes.append(classes)
        if self.classes > self.total:
            raise MdcgError(f"the head was made for {self.total:,} classes, too few for {self.classes:,}.")


class Simplex(Head):
    """Fixed classifiers at equal angles (Pernici et al., 2021): the corners of a regular simplex.

    In n dimensions there are n + 1 unit vectors with products −1/n: with a = √(1 + 1/n) and b = −(√(n+1) + 1) n^(−3/2)
    they are a·eᵢ + b·1 for each axis i, and 1/√n. Only the projection of the features into these n dimensions is
    learned, and the products with all corners come down to one sum.
    """

    summary: ClassVar[str] = "fixed classifiers, the 1,001 corners of a simplex, on a learned projection (RPC)"
    grows: ClassVar[bool] = False
    dimensions: ClassVar[int] = 1000

    @classmethod
    def capacity(cls, total: int) -> int:
        return cls.dimensions + 1

    @classmethod
    def columns(cls, sizes: Sequence[int], total: int) -> dict[str, int]:
        return {"classifier": cls.dimensions}

    def grow(self, classes: int, head_rngs: Rngs, gate_rngs: Rngs) -> None:
        if not self.sizes:
            self.classifier.grow(self.dimensions, head_rngs)
        self.sizes.append(classes)
        if self.classes > self.dimensions + 1:
            raise MdcgError(f"the simplex has {self.dimensions + 1:,} corners, too few for {self.classes:,} classes.")

    def forward(self, features: Tensor) -> Tensor:
        projected = super().forward(features)
        n = self.dimensions
        total = projected.sum(-1, keepdim=True)
        axes = math.sqrt(1 + 1 / n) * projected - (math.sqrt(n + 1) + 1) / n**1.5 * total
        return torch.cat([axes, total / math.sqrt(n)], -1)


def _of(setting: Tensor, member: int | None) -> Tensor:
    """A setting (K,) as it is multiplied with what all members or one of them gave."""
    return setting[:, None, None] if member is None else setting[member]


HEADS = Registry("head", "mdcg.heads")
HEADS.register("incremental")(Head)
HEADS.register("cascaded-gates")(CascadedGates)
HEADS.register("cascaded-gates-with-own")(CascadedGatesWithOwn)
HEADS.register("fixed")(FixedHead)
HEADS.register("single-gate")(SingleGate)
HEADS.register("scalar-gates")(ScalarGates)
HEADS.register("open-gates")(OpenGates)
HEADS.register("single-open-gate")(SingleOpenGate)
HEADS.register("fitted-gates")(FittedGates)
HEADS.register("fitted-classifier")(FittedClassifier)
HEADS.register("simplex")(Simplex)


def grown_head(name: str, features: int, sizes: Sequence[int]) -> Head:
    """One member of a head as it is after tasks of so many classes, to count in."""
    kind = HEADS[name]
    made = kind(1, features, **{setting: [default] for setting, (default, _) in kind.settings.items()})
    made.total = sum(sizes)
    rngs = [np.random.default_rng(0)]
    for classes in sizes:
        made.grow(classes, rngs, rngs)
    return made.float()
