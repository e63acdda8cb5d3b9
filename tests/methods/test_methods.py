"""Losses against the formulas, written out with loops over members, images and classes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from mdcg.methods import METHODS, Step, stack
from mdcg.methods.md import margin_loss
from mdcg.methods.md_cg import MDCG
from mdcg.methods.replay import Replay

SHAPES = [(1, 4, 2, 2), (3, 5, 4, 2), (2, 3, 7, 5), (2, 6, 2, 8)]  # members, batch, old classes, new classes


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / sum(powers) for power in powers]


def a_step(members: int, batch: int, old: int, new: int) -> Step:
    generator = torch.Generator().manual_seed(members * 1000 + batch * 100 + old * 10 + new)

    def logits() -> Tensor:
        return 2 * torch.randn(members, batch, old + new, generator=generator, dtype=torch.float64)

    return Step(
        logits=logits(),
        labels=torch.randint(old, old + new, (members, batch), generator=generator),
        old=old,
        memory_logits=logits(),
        memory_labels=torch.randint(0, max(old, 1), (members, batch), generator=generator),
        teacher_logits=logits(),
        teacher_current_logits=logits(),
        past=(1, old - 1) if old > 1 else (),
        stored_logits=logits(),
    )


def first_step(members: int, batch: int, classes: int) -> Step:
    step = a_step(members, batch, 0, classes)
    return Step(step.logits, step.labels, 0)


def plain_cross_entropy(logits: list[list[float]], labels: list[int]) -> float:
    return sum(-math.log(softmax(row)[label]) for row, label in zip(logits, labels, strict=True)) / len(labels)


def plain_md(step: Step, k: int, lam: float) -> float:
    logits, labels, old = step.logits[k].tolist(), step.labels[k].tolist(), step.old
    margin = 1 / (len(logits[0]) - 1)
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        p = softmax(row)
        total += lam * max(0.0, max(p[:old]) - p[label] + margin)
        total += -math.log(softmax(row[old:])[label - old])
    divergence = 0.0
    for row, taught in zip(step.memory[0][k].tolist(), step.teacher[k].tolist(), strict=True):
        p, q = softmax(row), softmax(taught)
        divergence += plain_divergence(q, p)
    return (total + divergence) / len(labels)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["md", "md-cg"])
def test_margin_dampening(name: str, shape: tuple[int, int, int, int]) -> None:
    step = a_step(*shape)
    weights = [0.1 + 0.4 * k for k in range(shape[0])]
    method = stack([METHODS[name](**{"lam": lam}) for lam in weights], torch.device("cpu"), torch.float64)
    expected = [plain_md(step, k, lam) for k, lam in enumerate(weights)]
    torch.testing.assert_close(method.loss(step), torch.tensor(expected, dtype=torch.float64))


def plain_distance(step: Step, k: int, temperature: float, classes: int | None = None) -> float:
    """T² KL(teacher ‖ student) at a temperature, among the first classes, over the memory images of past classes."""
    rows = zip(step.memory[0][k].tolist(), step.memory[1][k].tolist(), step.teacher[k].tolist(), strict=True)
    return plain_mean_divergence([(row, t) for row, label, t in rows if label < step.old], temperature, classes)


def plain_current_distance(step: Step, k: int, temperature: float) -> float:
    """The same of the current images, among the past classes."""
    rows = zip(step.logits[k].tolist(), step.teacher_current[k].tolist(), strict=True)
    return plain_mean_divergence(list(rows), temperature, step.old)


def plain_mean_divergence(
    rows: list[tuple[list[float], list[float]]], temperature: float, classes: int | None
) -> float:
    found = [
        temperature**2 * plain_divergence(*(softmax([x / temperature for x in which[:classes]]) for which in (t, row)))
        for row, t in rows
    ]
    return sum(found) / max(1, len(found))


def with_own_classes_in_memory(step: Step) -> Step:
    """The step with every other memory image of a class of the task itself; those of the first member all are."""
    assert step.memory_labels is not None
    labels = step.memory_labels.clone()
    labels[:, ::2] = step.labels[:, ::2]
    labels[0] = step.labels[0]
    return replace(step, memory_labels=labels)


@pytest.mark.parametrize("shape", SHAPES)
def test_replayed_margin_dampening(shape: tuple[int, int, int, int]) -> None:
    """The margin and the new classes as in MD; of memory images the divergence and the cross-entropy, each weighted."""
    step = with_own_classes_in_memory(a_step(*shape))
    settings = [
        {"lam": 0.1 + 0.4 * k, "replay": 0.5 + k, "distil": 2.0 - 0.5 * k, "temperature": 1.0 + 1.5 * k}
        for k in range(shape[0])
    ]
    members = [METHODS["md-replay"](distils="memory", **own) for own in settings]  # type: ignore[call-arg]
    found = stack(members, torch.device("cpu"), torch.float64).loss(step)
    for k, own in enumerate(settings):
        current = plain_md(step, k, own["lam"]) - plain_md_distance(step, k)
        replayed = plain_cross_entropy(step.memory[0][k].tolist(), step.memory[1][k].tolist())
        expected = current + own["distil"] * plain_distance(step, k, own["temperature"]) + own["replay"] * replayed
        assert float(found[k]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_replayed_margin_dampening(shape: tuple[int, int, int, int]) -> None:
    """Of each member's loss with its own settings, by its logits, current and of the memory, as derived by hand."""
    step = a_step(*shape)
    assert step.memory_logits is not None
    asked = [step.logits.requires_grad_(), step.memory_logits.requires_grad_()]
    settings = [{"lam": 0.2 + k, "replay": 0.5 + k, "temperature": 1.0 + k} for k in range(shape[0])]
    members = [METHODS["md-replay"](**own) for own in settings]
    losses = stack(members, torch.device("cpu"), torch.float64).loss(step)
    found = torch.autograd.grad(losses.sum(), asked)
    for k, own in enumerate(settings):
        expected = (
            plain_current_gradient(step, k, own["lam"], own["temperature"]),
            plain_memory_gradient(step, k, own["replay"], own["temperature"]),
        )
        for gradients, by_hand in zip(found, expected, strict=True):
            torch.testing.assert_close(gradients[k], torch.tensor(by_hand, dtype=torch.float64))


def plain_current_gradient(step: Step, k: int, lam: float, temperature: float) -> list[list[float]]:
    """∂p_i/∂z_j = p_i ([i = j] − p_j) for the margin, softmax − truth for the cross-entropy, T (p_T − p̄_T)."""
    old, gradients = step.old, []
    rows = zip(step.logits[k].tolist(), step.labels[k].tolist(), step.teacher_current[k].tolist(), strict=True)
    for row, label, taught in rows:
        p, among_new = softmax(row), softmax(row[old:])
        top = max(range(old), key=p.__getitem__)
        gradient = [0.0] * len(row)
        if p[top] - p[label] + 1 / (len(row) - 1) > 0:
            for j in range(len(row)):
                gradient[j] += lam * (p[top] * ((j == top) - p[j]) - p[label] * ((j == label) - p[j]))
        for j in range(old, len(row)):
            gradient[j] += among_new[j - old] - (j == label)
        cold, teacher = (softmax([value / temperature for value in answer[:old]]) for answer in (row, taught))
        for j in range(old):
            gradient[j] += temperature * (cold[j] - teacher[j])
        gradients.append([value / step.logits.shape[1] for value in gradient])
    return gradients


def plain_memory_gradient(step: Step, k: int, replay: float, temperature: float) -> list[list[float]]:
    logits, labels = step.memory
    gradients = []
    for row, label, taught in zip(logits[k].tolist(), labels[k].tolist(), step.teacher[k].tolist(), strict=True):
        p = softmax(row)
        cold, teacher = (softmax([value / temperature for value in answer]) for answer in (row, taught))
        gradient = [replay * (p[j] - (j == label)) + temperature * (cold[j] - teacher[j]) for j in range(len(row))]
        gradients.append([value / logits.shape[1] for value in gradient])
    return gradients


def plain_md_distance(step: Step, k: int) -> float:
    rows = zip(step.memory[0][k].tolist(), step.teacher[k].tolist(), strict=True)
    found = [plain_divergence(softmax(taught), softmax(row)) for row, taught in rows]
    return sum(found) / len(found)


@pytest.mark.parametrize("shape", SHAPES)
def test_without_replay_it_is_margin_dampening(shape: tuple[int, int, int, int]) -> None:
    step = a_step(*shape)
    settings = {"replay": 0.0, "distils": "memory", "temperature": 1.0, "lam": 0.3}
    ours, papers = METHODS["md-replay"](**settings), METHODS["md"](lam=0.3)  # type: ignore[call-arg]
    torch.testing.assert_close(ours.loss(step), papers.loss(step), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("among", ["all", "past"])
@pytest.mark.parametrize("distils", ["memory", "all"])
@pytest.mark.parametrize("name", ["der", "er-ace", "er-lode", "md-replay"])
def test_a_teacher_for_any_method(name: str, distils: str, among: str, shape: tuple[int, int, int, int]) -> None:
    """The same loss and, weighted, the divergence from the teacher; without a teacher, in task 1, the same loss."""
    step = with_own_classes_in_memory(a_step(*shape))
    seen = replace(step, teacher_current_logits=step.logits.flip(1) + 0.1) if distils == "all" else step
    untaught = METHODS[name](distils="nothing")  # type: ignore[call-arg]
    settings = {"distils": distils, "among": among, "distil": 0.7, "distil_current": 0.4, "temperature": 2.0}
    taught = METHODS[name](**settings)
    assert (taught.needs_teacher(), taught.teacher_sees()) == (True, distils)
    assert not untaught.needs_teacher()
    alone = replace(step, teacher_logits=None)
    added = taught.loss(seen) - untaught.loss(alone)
    classes = step.old if among == "past" else None
    expected = [0.7 * plain_distance(step, k, 2, classes) for k in range(shape[0])]
    if distils == "all":
        expected = [have + 0.4 * plain_current_distance(seen, k, 2) for k, have in enumerate(expected)]
    assert added.tolist() == pytest.approx(expected)
    assert taught.loss(alone).tolist() == untaught.loss(alone).tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("among", ["all", "past"])
@pytest.mark.parametrize("distils", ["memory", "all"])
def test_the_other_divergence_of_replayed_margin_dampening(
    distils: str, among: str, shape: tuple[int, int, int, int]
) -> None:
    """KL(student ‖ teacher), of memory images and of current ones: what is weighted is what it adds."""
    step = with_own_classes_in_memory(a_step(*shape))
    settings: dict[str, Any] = {"distil": 0.7, "distil_current": 0.4, "temperature": 2.0, "among": among}
    named = {"distils": distils, "divergence": "student-teacher", **settings}
    added = METHODS["md-replay"](**named).loss(step) - METHODS["md-replay"](distils="nothing").loss(step)  # type: ignore[call-arg]
    assert step.memory_logits is not None
    swapped = replace(step, memory_logits=step.teacher_logits, teacher_logits=step.memory_logits)
    classes = step.old if among == "past" else None
    expected = [0.7 * plain_distance(swapped, k, 2, classes) for k in range(shape[0])]
    if distils == "all":
        other = replace(step, logits=step.teacher_current, teacher_current_logits=step.logits)
        expected = [have + 0.4 * plain_current_distance(other, k, 2) for k, have in enumerate(expected)]
    assert added.tolist() == pytest.approx(expected)


def smoothed(row: list[float], label: int, share: float) -> float:
    """The cross-entropy of a label that is 1 − ε of its own class and ε of all alike."""
    p = softmax(row)
    return -sum(((1 - share) * (c == label) + share / len(p)) * math.log(value) for c, value in enumerate(p))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("new", [True, False], ids=["some are new", "none is new"])
def test_margin_dampening_where_classes_return(shape: tuple[int, int, int, int], smooth: bool, new: bool) -> None:
    """Images of past classes among all, the others as ever; every cross-entropy has each member's own smoothing."""
    members, batch, old, _ = shape
    step = a_step(*shape)
    labels = step.labels.clone()
    labels[:, ::2] = step.memory[1][:, ::2]  # every other image is of a past class
    shares = [0.3 * (k + 1) / members for k in range(members)] if smooth else [0.0] * members
    smoothing = torch.tensor(shares, dtype=torch.float64) if smooth else None
    step = replace(step, labels=labels, revisits=True, smoothing=smoothing)
    if not new:
        step = replace(step, old=step.logits.shape[-1])
    weights = [0.1 + 0.4 * k for k in range(members)]
    method = stack([METHODS["md"](**{"lam": lam}) for lam in weights], torch.device("cpu"), torch.float64)
    expected = []
    for k, (lam, share) in enumerate(zip(weights, shares, strict=True)):
        total = 0.0
        for row, label in zip(step.logits[k].tolist(), labels[k].tolist(), strict=True):
            if label < step.old:
                total += smoothed(row, label, share)
                continue
            p = softmax(row)
            total += lam * max(0.0, max(p[:old]) - p[label] + 1 / (len(row) - 1))
            total += smoothed(row[old:], label - old, share)
        expected.append(total / batch + plain_md_distance(step, k))
    torch.testing.assert_close(method.loss(step), torch.tensor(expected, dtype=torch.float64))


def test_margin_by_hand() -> None:
    """Four classes, two of them old: m = 1/3, and the loss is zero exactly where the margin is kept."""
    p = torch.tensor([[[0.4, 0.1, 0.3, 0.2], [0.1, 0.1, 0.7, 0.1], [0.25, 0.25, 0.25, 0.25]]], dtype=torch.float64)
    labels = torch.tensor([[2, 2, 3]])
    expected = torch.tensor([[0.4 - 0.3 + 1 / 3, 0.0, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(margin_loss(p.log(), labels, old=2), expected)


def test_margin_pushes_both_ways_until_it_is_kept() -> None:
    logits = torch.tensor([[[2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0]]], requires_grad=True)
    margin_loss(logits, torch.tensor([[2, 2]]), old=2).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0, 0] > 0  # the largest past logit goes down
    assert logits.grad[0, 0, 2] < 0  # the true one goes up
    assert not logits.grad[0, 1].any()  # the margin is kept: nothing moves


@pytest.mark.parametrize("shape", SHAPES)
def test_replay_trains_on_both_batches(shape: tuple[int, int, int, int]) -> None:
    step = a_step(*shape)
    memory_logits, memory_labels = step.memory
    expected = [
        plain_cross_entropy(
            step.logits[k].tolist() + memory_logits[k].tolist(), step.labels[k].tolist() + memory_labels[k].tolist()
        )
        for k in range(shape[0])
    ]
    torch.testing.assert_close(METHODS["replay"]().loss(step), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("shape", SHAPES)
def test_er_ace(shape: tuple[int, int, int, int]) -> None:
    """New images compete only with classes that are in their own batch."""
    step = a_step(*shape)
    expected = []
    for k in range(shape[0]):
        labels = step.labels[k].tolist()
        present = sorted(set(labels))
        among = [[row[c] for c in present] for row in step.logits[k].tolist()]
        new = plain_cross_entropy(among, [present.index(label) for label in labels])
        expected.append(new + plain_cross_entropy(step.memory[0][k].tolist(), step.memory[1][k].tolist()))
    torch.testing.assert_close(METHODS["er-ace"]().loss(step), torch.tensor(expected, dtype=torch.float64))


def test_er_ace_leaves_absent_classes_alone() -> None:
    step = a_step(2, 4, 3, 5)
    step.logits.requires_grad_()
    (gradient,) = torch.autograd.grad(METHODS["er-ace"]().loss(step).sum(), step.logits)
    assert torch.isfinite(gradient).all()
    for k in range(2):
        absent = [c for c in range(8) if c not in step.labels[k].tolist()]
        assert not gradient[k][:, absent].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_er_lode(shape: tuple[int, int, int, int]) -> None:
    members, _, old, new = shape
    step = a_step(*shape)
    weights = [0.1 + 0.3 * k for k in range(members)]
    expected = []
    for k, rho in enumerate(weights):
        total = 0.0
        for row, label in zip(step.logits[k].tolist(), step.labels[k].tolist(), strict=True):
            total += -math.log(softmax(row[old:])[label - old])
            total += rho * new / old * -math.log(sum(softmax(row)[old:]))
        replayed = plain_cross_entropy(step.memory[0][k].tolist(), step.memory[1][k].tolist())
        expected.append(total / len(step.labels[k]) + replayed)
    method = stack([METHODS["er-lode"](**{"rho": rho}) for rho in weights], torch.device("cpu"), torch.float64)
    torch.testing.assert_close(method.loss(step), torch.tensor(expected, dtype=torch.float64))


def test_er_lode_is_cross_entropy_taken_apart() -> None:
    """With ρ·|new|/|old| = 1 the two parts are the whole."""
    step = a_step(2, 6, 4, 2)
    whole = METHODS["naive"]().loss(step) + METHODS["naive"]().loss(Step(*step.memory, 4))
    torch.testing.assert_close(METHODS["er-lode"](**{"rho": 2.0}).loss(step), whole)


def plain_divergence(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_distillation(shape: tuple[int, int, int, int]) -> None:
    step = a_step(*shape)
    weights = [0.1 + 0.3 * k for k in range(shape[0])]
    expected = []
    for k, alpha in enumerate(weights):
        rows = zip(step.memory[0][k].tolist(), step.teacher[k].tolist(), strict=True)
        divergence = sum(plain_divergence(softmax(taught), softmax(row)) for row, taught in rows) / shape[1]
        expected.append(plain_cross_entropy(step.logits[k].tolist(), step.labels[k].tolist()) + alpha * divergence)
    method = stack([METHODS["ld"](**{"alpha": alpha}) for alpha in weights], torch.device("cpu"), torch.float64)
    torch.testing.assert_close(method.loss(step), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("shape", SHAPES)
def test_ss_il(shape: tuple[int, int, int, int]) -> None:
    members, batch, old, _ = shape
    step = a_step(*shape)
    heats = [1.0 + k for k in range(members)]
    expected = []
    for k, heat in enumerate(heats):
        total = 0.0
        for row, label in zip(step.logits[k].tolist(), step.labels[k].tolist(), strict=True):
            total += -math.log(softmax(row[old:])[label - old])
        for row, label in zip(step.memory[0][k].tolist(), step.memory[1][k].tolist(), strict=True):
            total += -math.log(softmax(row[:old])[label])
        for student, teacher in ((step.logits, step.teacher_current), (step.memory[0], step.teacher)):
            for row, taught in zip(student[k].tolist(), teacher[k].tolist(), strict=True):
                for task in (slice(0, 1), slice(1, old)):  # as `past` in a_step
                    p = softmax([value / heat for value in taught[task]])
                    total += heat**2 * plain_divergence(p, softmax([value / heat for value in row[task]]))
        expected.append(total / (2 * batch))
    method = stack([METHODS["ss-il"](**{"temperature": heat}) for heat in heats], torch.device("cpu"), torch.float64)
    torch.testing.assert_close(method.loss(step), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("shape", SHAPES)
def test_der(shape: tuple[int, int, int, int]) -> None:
    members, batch, old, new = shape
    step = a_step(*shape)
    weights = [(0.1 + 0.3 * k, 0.8 - 0.2 * k) for k in range(members)]
    expected = []
    for k, (alpha, beta) in enumerate(weights):
        rows = zip(step.memory[0][k].tolist(), step.stored[k].tolist(), strict=True)
        distance = sum((a - b) ** 2 for row, kept in rows for a, b in zip(row, kept, strict=True))
        replayed = plain_cross_entropy(step.memory[0][k].tolist(), step.memory[1][k].tolist())
        current = plain_cross_entropy(step.logits[k].tolist(), step.labels[k].tolist())
        expected.append(current + alpha * distance / (batch * (old + new)) + beta * replayed)
    settings = [METHODS["der"](**{"alpha": alpha, "beta": beta}) for alpha, beta in weights]
    method = stack(settings, torch.device("cpu"), torch.float64)
    torch.testing.assert_close(method.loss(step), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["naive", "cumulative", "gdumb", "gem"])
def test_bounds_use_all_classes(name: str, shape: tuple[int, int, int, int]) -> None:
    step = a_step(*shape)
    expected = [plain_cross_entropy(step.logits[k].tolist(), step.labels[k].tolist()) for k in range(shape[0])]
    torch.testing.assert_close(METHODS[name]().loss(step), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", METHODS.names())
def test_first_task_is_plain_cross_entropy(name: str) -> None:
    step = first_step(2, 5, 3)
    method = stack([METHODS[name]()] * 2, torch.device("cpu"), torch.float64)
    expected = [plain_cross_entropy(step.logits[k].tolist(), step.labels[k].tolist()) for k in range(2)]
    torch.testing.assert_close(method.loss(step), torch.tensor(expected, dtype=torch.float64))


def test_a_member_has_no_part_in_anothers_loss() -> None:
    step = a_step(3, 4, 2, 2)
    step.logits.requires_grad_()
    loss = MDCG(lam=0.5).loss(step)
    (gradient,) = torch.autograd.grad(loss[1], step.logits)
    assert gradient[1].any()
    assert not gradient[[0, 2]].any()


def test_declarations() -> None:
    needs = {name: (METHODS[name].uses_memory, METHODS[name].uses_teacher) for name in METHODS.names()}
    assert needs["naive"] == needs["cumulative"] == (False, False)
    assert needs["replay"] == (True, False)
    assert needs["md"] == needs["md-cg"] == (True, True)
    assert METHODS["md"].head == "incremental"
    assert METHODS["md-cg"].head == "cascaded-gates"
    assert METHODS["cumulative"].trains_on == "seen"


def test_the_papers_weights() -> None:
    """From the two tables of its Appendix "Hyperparameters selection"."""
    lode, ld = METHODS["er-lode"].tuned, METHODS["ld"].tuned
    assert [lode("c10-5", memory) for memory in (200, 2000)] == [{"rho": 0.2}, {"rho": 0.5}]
    assert [lode("tym-10", memory) for memory in (2000, 5000)] == [{"rho": 0.1}, {"rho": 0.5}]
    assert [ld("c100-10", memory) for memory in (500, 1000)] == [{"alpha": 1.0}, {"alpha": 0.75}]
    der = {
        "c10-5": {200: (0.1, 0.5), 500: (0.5, 0.8), 1000: (0.5, 0.1), 2000: (0.2, 0.8)},
        "c100-10": {200: (0.1, 0.8), 500: (0.1, 1.0), 1000: (0.1, 0.8), 2000: (0.1, 0.8)},
        "tym-10": {2000: (0.1, 0.2), 5000: (0.1, 0.2)},
        "tym-20": {2000: (0.1, 0.5), 5000: (0.1, 0.1)},
        "tym-50": {2000: (0.1, 0.2), 5000: (0.1, 0.1)},
    }
    for scenario, memories in der.items():
        for memory, (alpha, beta) in memories.items():
            assert METHODS["der"].tuned(scenario, memory) == {"alpha": alpha, "beta": beta}
    assert ld("tym-10", 2000) == lode("c10-5", 300) == METHODS["replay"].tuned("c10-5", 500) == {}


def test_the_papers_lambda() -> None:
    chosen = METHODS["md-cg"].tuned
    assert [chosen("c10-5", memory)["lam"] for memory in (200, 500, 1000, 2000)] == [0.1, 0.25, 0.25, 0.5]
    assert [chosen("c100-10", memory)["lam"] for memory in (200, 500, 1000, 2000)] == [0.1, 0.5, 0.25, 1.0]
    assert chosen("tym-50", 5000) == {"lam": 0.1}
    assert chosen("c10-5", 333) == {}


@pytest.mark.parametrize("lam", [-1, float("nan"), float("inf"), "much", "0.5", True])
def test_bad_weights_are_refused(lam: object) -> None:
    with pytest.raises(ValidationError):
        METHODS["md"](**{"lam": lam})


def test_how_a_method_trains_in_words() -> None:
    class Ruled(Replay):
        rule: ClassVar[str] = "lr 0.1 where the memory is small"

    class Both(Ruled):
        recipe: ClassVar[dict[str, Any]] = {"lr": 0.05}

    assert METHODS["replay"].training() == ""
    assert Ruled.training() == "lr 0.1 where the memory is small"
    assert Both.training() == "lr 0.05; lr 0.1 where the memory is small"
