"""The optimisers, for members that may differ in every number and stop at different steps.

A number in which all members agree stays a plain float, and the loops over all parameters are `torch._foreach_…`. Where
members differ, or a schedule moves the learning rate, it is a tensor (K,) on the device, of float64. SGD is a kernel of
our own where the fused kernels are in use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from mdcg.models import kernels
from mdcg.models.layers import Conv2d
from mdcg.tensors import below
from mdcg.train.group import Group, OptimizerName
from mdcg.train.precision import Compute

if TYPE_CHECKING:
    from mdcg.models.kernels.update import Plan

Number = float | Tensor  # the same for all members, or one for each (K,)
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of AdamW, torch's defaults
TINY = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to a norm


class Optimizer(ABC):
    """Whatever moves parameters along their gradients, with learning rates by the beginnings of their names.

    What it remembers of a parameter goes by the parameter's name, so that it outlives a head's growth: what existed
    keeps it, what is new starts at zero.
    """

    remembered: ClassVar[tuple[str, ...]] = ()  # kinds of tensors with a parameter's shape
    counted: ClassVar[tuple[str, ...]] = ()  # kinds with one number per member, or per column once these differ in age

    def __init__(
        self,
        lr: Number,
        lr_below: Mapping[str, Number] | None = None,
        weight_decay: Number = 0.0,
        clip: Tensor | None = None,
    ) -> None:
        self.lr, self.lr_below, self.weight_decay, self.clip = lr, lr_below or {}, weight_decay, clip
        self.parameters: list[Tensor] = []
        self.memory: dict[str, dict[str, Tensor]] = {kind: {} for kind in (*self.remembered, *self.counted)}
        self._places: list[tuple[Number, list[int]]] = []  # of parameters with the same learning rate
        self._convs: list[Conv2d | None] = []  # whose weights the parameters are

    def follow(self, named: Iterable[tuple[str, nn.Parameter]], convs: Iterable[Conv2d] = ()) -> None:
        """Take up the parameters of a new or grown model; of some of them the kernels keep copies, see `copies`."""
        known, self.parameters = self.memory, []
        self.memory = {kind: {} for kind in known}
        by_lr: dict[float, tuple[Number, list[int]]] = {}
        for name, parameter in named:
            if not parameter.requires_grad:
                continue
            for kind in self.remembered:
                self.memory[kind][name] = _grown(known[kind].get(name), parameter)
            for kind in self.counted:
                was = known[self.remembered[0]].get(name)
                self.memory[kind][name] = _aged(known[kind].get(name), was, parameter)
            lr = self.lr_of(name)
            by_lr.setdefault(lr if isinstance(lr, float) else id(lr), (lr, []))[1].append(len(self.parameters))
            self.parameters.append(parameter)
        self._places = list(by_lr.values())
        by_weight: dict[Tensor, Conv2d] = {conv.weight: conv for conv in convs}
        self._convs = [by_weight.get(parameter) for parameter in self.parameters]

    @property
    def decays(self) -> bool:
        """Whether any member's weights decay."""
        return not isinstance(self.weight_decay, float) or self.weight_decay != 0

    def lr_of(self, name: str) -> Number:
        """The learning rate of a parameter."""
        return next((lr for prefix, lr in self.lr_below.items() if name.startswith(prefix)), self.lr)

    def forget(self) -> None:
        """Forget all that it remembers: the model begins anew."""
        for own in self.memory.values():
            own.clear()

    def dump(self) -> dict[str, Tensor]:
        """All that it remembers, by KIND.PARAMETER."""
        return {f"{kind}.{name}": value for kind, own in self.memory.items() for name, value in own.items()}

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Remember what `dump` gave; `follow` comes next."""
        for kind in self.memory:
            self.memory[kind] = {name: value.to(device) for name, value in below(f"{kind}.", tensors).items()}

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], active: Tensor | None = None, factor: Tensor | None = None) -> None:
        """Update all members, or those for which `active` (K,) is true; the others stay to the bit.

        `factor` (K,) is what the schedule makes of the learning rates.
        """
        gradients = list(gradients) if self.clip is None else clipped(gradients, self.clip)
        if kernels.in_use() and self._by_kernel(gradients, active, factor):
            return
        moved = (
            [] if active is None else [*self.parameters, *(one for own in self.memory.values() for one in own.values())]
        )
        before = [value.detach().clone() for value in moved]
        self._update(gradients, factor)
        if active is not None:
            for value, was in zip(moved, before, strict=True):
                value.copy_(torch.where(each(active, value), value, was))

    def _by_kernel(self, gradients: list[Tensor], active: Tensor | None, factor: Tensor | None) -> bool:
        """Make the whole step with a fused kernel, if there is one for it; else do nothing."""
        return False

    @abstractmethod
    def _update(self, gradients: list[Tensor], factor: Tensor | None) -> None:
        """Move the parameters of all members."""

    def _rates(self, factor: Tensor | None) -> Iterable[tuple[Number, list[int]]]:
        """The learning rates of this step, each with the places of its parameters."""
        return ((lr if factor is None else lr * factor, places) for lr, places in self._places)


class SGD(Optimizer):
    """The update v ← μ v + g, p ← p − η v, with g + λ p in place of g where weights decay.

    Without decay it is the paper's optimiser (Section 4.1).
    """

    remembered: ClassVar[tuple[str, ...]] = ("velocity",)

    def __init__(
        self,
        lr: Number,
        momentum: Number,
        lr_below: Mapping[str, Number] | None = None,
        weight_decay: Number = 0.0,
        clip: Tensor | None = None,
    ) -> None:
        super().__init__(lr, lr_below, weight_decay, clip)
        self.momentum = momentum
        self._plan: Plan | None = None  # of the kernel's programs, for the present parameters

    def follow(self, named: Iterable[tuple[str, nn.Parameter]], convs: Iterable[Conv2d] = ()) -> None:
        super().follow(named, convs)
        self._plan = None

    @property
    def velocity(self) -> dict[str, Tensor]:
        """The velocities v, by the parameters' names."""
        return self.memory["velocity"]

    def _by_kernel(self, gradients: list[Tensor], active: Tensor | None, factor: Tensor | None) -> bool:
        from mdcg.models.kernels import copies, update

        if self._plan is None:
            if not all(_in_one_piece(parameter) for parameter in self.parameters):
                return False
            like = self.parameters[0]
            rates = [(_of_each(lr, like), places) for lr, places in self._places]
            momentum, decay = _of_each(self.momentum, like), _of_each(self.weight_decay, like)
            self._plan = update.plan(self.parameters, rates, momentum, decay)
        kept = [None if conv is None else copies.current(conv) for conv in self._convs]
        update.move(
            self._plan, self.parameters, self._in_order(gradients), list(self.velocity.values()), kept, factor, active
        )
        for conv, copy in zip(self._convs, kept, strict=True):
            if conv is not None and copy is not None:
                copies.moved_along(conv, copy)
        return True

    def _in_order(self, gradients: list[Tensor]) -> list[Tensor]:
        """The gradients, in memory as their parameters: those of GEM, or of plain convolutions, may lie otherwise."""
        return [
            own if own.stride() == parameter.stride() else torch.empty_like(parameter).copy_(own)
            for own, parameter in zip(gradients, self.parameters, strict=True)
        ]

    def _update(self, gradients: list[Tensor], factor: Tensor | None) -> None:
        velocities = list(self.velocity.values())
        if not by_member(gradients[0]) and self._in_one_pass(gradients, velocities, factor):
            return
        if self.decays:
            decay = scaled(self.parameters, self.weight_decay)
            torch._foreach_add_(decay, gradients)
            gradients = decay
        scale(velocities, self.momentum)
        torch._foreach_add_(velocities, gradients)
        for lr, places in self._rates(factor):
            add_scaled([self.parameters[place] for place in places], [velocities[place] for place in places], -lr)

    def _in_one_pass(self, gradients: list[Tensor], velocities: list[Tensor], factor: Tensor | None) -> bool:
        """Update in a single pass over memory, if all members agree in every number; else do nothing."""
        momentum, decay, rates = self.momentum, self.weight_decay, list(self._rates(factor))
        if not (isinstance(momentum, float) and isinstance(decay, float)):
            return False
        if not all(isinstance(lr, float) for lr, _ in rates) or not all(map(_dense, self.parameters)):
            return False
        alike = self._in_order(gradients)  # in another order, numbers would be met one by one
        for lr, places in rates:
            own = [[tensors[place] for place in places] for tensors in (self.parameters, alike, velocities)]
            torch._fused_sgd_(
                *own, weight_decay=decay, momentum=momentum, lr=lr, dampening=0.0, nesterov=False, maximize=False,
                is_first_step=False,
            )  # fmt: skip
        torch.autograd.graph.increment_version(self.parameters)  # which this one does not do by itself
        return True


class AdamW(Optimizer):
    """The update of Loshchilov and Hutter (2019): weights decay by themselves, p ← p − η λ p, apart from the moments.

    The moments m and s are running means of g and g². Both start at zero, and are divided by the weight that the
    gradients have in them, the running mean of ones: 1 − βᵗ after t steps. A head's new columns have weights of their
    own, so that they start as all others did.
    """

    remembered: ClassVar[tuple[str, ...]] = ("mean", "square")
    counted: ClassVar[tuple[str, ...]] = ("mean_weight", "square_weight")

    def _update(self, gradients: list[Tensor], factor: Tensor | None) -> None:
        means, squares, *weights = (list(own.values()) for own in self.memory.values())
        for moment, new, weight, beta in zip(
            (means, squares), (gradients, list(torch._foreach_mul(gradients, gradients))), weights, BETAS, strict=True
        ):
            torch._foreach_mul_(moment, beta)
            torch._foreach_add_(moment, torch._foreach_mul(new, 1 - beta))
            torch._foreach_mul_(weight, beta)
            torch._foreach_add_(weight, 1 - beta)
        updates = [mean / weight for mean, weight in zip(means, weights[0], strict=True)]
        bottoms = [square / weight for square, weight in zip(squares, weights[1], strict=True)]
        torch._foreach_sqrt_(bottoms)
        torch._foreach_add_(bottoms, EPSILON)
        torch._foreach_div_(updates, bottoms)
        for lr, places in self._rates(factor):
            parameters = [self.parameters[place] for place in places]
            if self.decays:
                scale(parameters, 1 - lr * self.weight_decay)
            add_scaled(parameters, [updates[place] for place in places], -lr)


OPTIMIZERS: dict[OptimizerName, type[Optimizer]] = {"sgd": SGD, "adamw": AdamW}


def is_kind(kind: str) -> bool:
    """Whether some optimiser remembers something of this name."""
    return any(kind in (*one.remembered, *one.counted) for one in OPTIMIZERS.values())


def fits(kind: str, value: Tensor, shape: torch.Size) -> bool:
    """Whether an optimiser can have remembered this of a parameter of such a shape."""
    if any(kind in one.remembered for one in OPTIMIZERS.values()):
        return value.shape == shape
    return value.ndim == len(shape) and all(own in (1, length) for own, length in zip(value.shape, shape, strict=True))


def make_optimizer(group: Group, compute: Compute) -> Optimizer:
    """The optimiser of a group's members, each with its own numbers."""
    numbers = [member.numbers for member in group.members]

    def number(values: Sequence[float]) -> Number:
        if len(set(values)) == 1:
            return float(values[0])
        return torch.tensor(values, dtype=torch.float64, device=compute.device)

    lr_below: dict[str, Number] = {}
    for prefix, own in (
        ("backbone.", [one.backbone_lr for one in numbers]),
        ("head.", [one.head_lr for one in numbers]),
    ):
        if any(lr is not None for lr in own):
            lr_below[prefix] = number([one.lr if lr is None else lr for one, lr in zip(numbers, own, strict=True)])
    lr, weight_decay = number([one.lr for one in numbers]), number([one.weight_decay for one in numbers])
    clips = [one.clip or torch.inf for one in numbers]
    clip = torch.tensor(clips, dtype=compute.dtype, device=compute.device) if min(clips) < torch.inf else None
    if group.training.optimizer == "adamw":
        return AdamW(lr, lr_below, weight_decay, clip)
    return SGD(lr, number([one.momentum for one in numbers]), lr_below, weight_decay, clip)


def each(numbers: Tensor, like: Tensor) -> Tensor:
    """One number for each member, (K,), in a shape that meets a tensor (K, …)."""
    return numbers.view(-1, *[1] * (like.ndim - 1))


def cast(number: Tensor, tensors: list[Tensor]) -> Tensor:
    """A number in the format of the tensors that it is for."""
    return number.to(tensors[0].dtype) if tensors else number


def scale(tensors: list[Tensor], number: Number) -> None:
    """Multiply tensors (K, …) by a number, in place."""
    if isinstance(number, float):
        torch._foreach_mul_(tensors, number)
    else:
        own = cast(number, tensors)
        for tensor in tensors:
            tensor.mul_(each(own, tensor))


def scaled(tensors: list[Tensor], number: Number) -> list[Tensor]:
    """Multiply tensors (K, …) by a number."""
    if isinstance(number, float):
        return list(torch._foreach_mul(tensors, number))
    own = cast(number, tensors)
    return [tensor * each(own, tensor) for tensor in tensors]


def add_scaled(tensors: list[Tensor], others: list[Tensor], number: Number) -> None:
    """Add a multiple of others to tensors (K, …), in place."""
    if isinstance(number, float):
        torch._foreach_add_(tensors, others, alpha=number)
    elif by_member(number):  # as each of them would alone: this sum may be rounded once or twice
        for k, factor in enumerate(number.tolist()):
            torch._foreach_add_([tensor[k] for tensor in tensors], [other[k] for other in others], alpha=factor)
    else:
        own = cast(number, tensors)
        for tensor, other in zip(tensors, others, strict=True):
            tensor.addcmul_(other, each(own, tensor))


def clipped(gradients: Sequence[Tensor], most: Tensor) -> list[Tensor]:
    """The gradients, those of each member shortened to a norm of `most` (K,) where they are longer."""
    flat = torch.cat([gradient.flatten(1) for gradient in gradients], 1)
    # One member after the other, where they are: a sum may be taken apart differently in company.
    norms = torch.stack([own.norm() for own in flat]) if by_member(flat) else torch.linalg.vector_norm(flat, dim=1)
    return scaled(list(gradients), (most / (norms + TINY)).clamp_max(1))


def _of_each(number: Number, like: Tensor) -> Tensor:
    """A number of each member, (K,), where `like` is."""
    if isinstance(number, Tensor):
        return number
    return torch.full((len(like),), number, dtype=torch.float64, device=like.device)


def _in_one_piece(parameter: Tensor) -> bool:
    """Whether it is of float32, and one member after the other in memory, without gaps."""
    apart = parameter.stride(0) == parameter[0].numel() or not parameter.numel()
    return parameter.dtype == torch.float32 and _dense(parameter) and apart


def _dense(parameter: Tensor) -> bool:
    """Whether there are no gaps between its numbers in memory."""
    return torch.empty_like(parameter, device="meta").stride() == parameter.stride()


def by_member(like: Tensor) -> bool:
    """Whether members are computed one after the other, as on a CPU."""
    return not like.is_cuda


def _grown(old: Tensor | None, parameter: Tensor) -> Tensor:
    """What is remembered of a parameter, of its present shape: new places are zero."""
    grown = torch.zeros_like(parameter, requires_grad=False)
    if old is not None:
        grown[tuple(slice(length) for length in old.shape)] = old
    return grown


def _aged(old: Tensor | None, was: Tensor | None, parameter: Tensor) -> Tensor:
    """A number for each member, or for each column along an axis that has grown since it `was` as before."""
    if old is None or was is None:
        return parameter.new_zeros(len(parameter), *[1] * (parameter.ndim - 1), requires_grad=False)
    sizes = list(zip(parameter.shape, was.shape, old.shape, strict=True))
    shape = [len(parameter), *(now if now != before or own > 1 else 1 for now, before, own in sizes[1:])]
    grown = parameter.new_zeros(shape, requires_grad=False)
    grown[tuple(slice(min(length, before)) for length, (_, before, _) in zip(shape, sizes, strict=True))] = old
    return grown
