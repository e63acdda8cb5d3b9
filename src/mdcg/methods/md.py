"""Margin Dampening (the paper, Section 3.1): push past probabilities below the true one, no further.

From task 2 on, with |Y| classes seen, the loss of a current image (x, y) and a memory image x_m is

    λ max(0, max p_past(x) − p_y(x) + m) + CE(softmax over the new classes, y) + KL(p̄(x_m) ‖ p(x_m)),

m = 1 / (|Y| − 1), p the softmax over all classes and p̄ the same of the teacher: the model as it was when the
task began. Memory images are never trained on. An image of a past class, in a stream that brings some again, has
the cross-entropy over all classes, CE(p(x), y), in place of the first two terms.

The paper writes KL(p ‖ p̄); the other direction, that of its published code, is the one that gives its numbers on
C100-10 (docs/choices.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mdcg import paper
from mdcg.memory import Draw
from mdcg.methods.base import (
    METHODS,
    Choices,
    Divergence,
    Method,
    NeedsHead,
    Step,
    Value,
    cross_entropies,
    cross_entropy,
    distillation,
)
from mdcg.models import kernels

#: Of the digits, chosen as the paper chose the others: its grid, ACC on 10% of the training images held out.
DIGITS = {"digits-5": {50: 1.0, 100: 1.0, 200: 1.0}}


@METHODS.register("md")
class MarginDampening(Method):
    """Margin Dampening: a margin loss against past classes, distillation on memory."""

    uses_memory: ClassVar[bool] = True
    uses_teacher: ClassVar[bool] = True
    learns_revisits: ClassVar[bool] = True
    learns_online: ClassVar[bool] = True
    needs_head: ClassVar[NeedsHead] = "growing"
    forks: ClassVar[bool] = True
    chosen: ClassVar[Mapping[str, Choices]] = {"lam": {**paper.chosen("md")["lam"], **DIGITS}}
    grid: ClassVar[Mapping[str, Sequence[float]]] = paper.grid("md")
    published: ClassVar[Mapping[str, Value]] = {"memory_batch": "each-class"}
    added: ClassVar[Mapping[str, Value]] = {"look_ahead": 0}

    lam: float = Field(
        0.25,
        ge=0,
        description="weight of the margin loss (λ), 0.01 to 1 in the paper; the paper's choice is used where it has "
        "one for the scenario and memory size",
    )
    divergence: Divergence = Field(
        "teacher-student", description="KL(teacher ‖ student), or student-teacher: KL(student ‖ teacher), as written"
    )
    memory_batch: Literal["as-current", "each-class", "twice"] = Field(
        "as-current",
        description="as many memory images as current ones, each-class: at least one of every past class, or twice: "
        "two for each current one",
    )

    look_ahead: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="in an online stream, batches looked ahead for new classes, at which a task is begun without being "
        "told; 0: it is told where tasks begin",
    )

    def looks_ahead(self) -> int:
        return self.look_ahead

    def memory_draws(self, batch: int, past: Sequence[int]) -> list[Draw]:
        classes = sum(past)
        if self.memory_batch != "each-class" or not classes:
            return super().memory_draws(2 * batch if self.memory_batch == "twice" else batch, past)
        return [Draw(classes * max(1, batch // classes) + batch % classes, odd_to_one=True)]

    def loss(self, step: Step) -> Tensor:
        if not step.old:
            return cross_entropy(step.logits, step.labels, step.smoothing)
        remembered = self.retention(step)
        if step.revisits:
            return self._of_old_and_new(step) + remembered
        margin = margin_loss(step.logits, step.labels, step.old).mean(1)
        current = cross_entropy(step.logits[..., step.old :], step.labels - step.old, step.smoothing)
        return self.lam * margin + current + remembered

    def retention(self, step: Step) -> Tensor:
        """The part of the loss that keeps what past tasks taught, from task 2 on."""
        return distillation(step.memory[0], step.teacher, self.divergence)

    def _of_old_and_new(self, step: Step) -> Tensor:
        """The loss of current images of which some are of past classes."""
        among_all = cross_entropies(step.logits, step.labels, step.smoothing)
        if step.logits.shape[-1] == step.old:  # no class is new
            return among_all.mean(1)
        new = step.labels - step.old
        among_new = cross_entropies(step.logits[..., step.old :], new.clamp_min(0), step.smoothing)
        margin = margin_loss(step.logits, step.labels, step.old)
        weight = torch.as_tensor(self.lam, dtype=margin.dtype, device=margin.device).view(-1, 1)
        return torch.where(new >= 0, weight * margin + among_new, among_all).mean(1)


def margin_loss(logits: Tensor, labels: Tensor, old: int) -> Tensor:
    """The margin loss MD_t of each image (Eq. 4): (K, batch, classes), (K, batch) → (K, batch)."""
    if kernels.take(logits, labels=labels):
        from mdcg.models.kernels import losses

        return losses.margins(logits, labels, old)
    p = logits.softmax(-1)
    margin = 1 / (logits.shape[-1] - 1)
    truth = p.gather(-1, labels[..., None])[..., 0]
    return (p[..., :old].amax(-1) - truth + margin).clamp_min(0)
