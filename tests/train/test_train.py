"""The parts of a step, and a whole run against a plain loop written with PyTorch's own pieces."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mdcg.data import load
from mdcg.draws import Purpose, stream
from mdcg.errors import MdcgError
from mdcg.execute.context import Context
from mdcg.execute.sweep import Sweep
from mdcg.memory import Memory
from mdcg.recipes.grid import GridCell
from mdcg.recipes.recipe import make_recipe
from mdcg.runs.store import Store
from mdcg.tensors import pack, unpack
from mdcg.train import state as states
from mdcg.train.augment import Pixels
from mdcg.train.epoch import draw_epoch, steps_per_epoch
from mdcg.train.evaluate import evaluate
from mdcg.train.graph import AT_ONCE
from mdcg.train.loop import Trainer, steps_done, total_steps
from mdcg.train.optimizer import SGD
from mdcg.train.precision import Compute, compute
from mdcg.train.signals import Stopped
from tests.conftest import published_settings, toy_dataset, toy_group

CPU64 = Compute(torch.device("cpu"), "fp64")


def test_views_are_crops_flips_and_normalisation() -> None:
    dataset = toy_dataset([8, 8], side=6, channels=3)
    pixels = Pixels.of(dataset, torch.device("cpu"), torch.float64, padding=2)
    images = dataset.train.images[:5]
    corner = torch.tensor([[0, 0], [4, 4], [2, 2], [1, 3], [3, 0]])
    flipped = torch.tensor([False, True, True, False, True])
    views = pixels.view(images, torch.arange(5), corner, flipped)
    for n in range(5):
        for row in range(6):
            for column in range(6):
                y = int(corner[n, 0]) + row - 2
                x = int(corner[n, 1]) + (5 - column if flipped[n] else column) - 2
                for c in range(3):
                    raw = int(images[n, y, x, c]) if 0 <= y < 6 and 0 <= x < 6 else 0
                    assert views[n, c, row, column].item() == pytest.approx((raw / 255 - 0.5) / 0.3, abs=1e-12)
    middle = torch.full((5, 2), 2)
    still = pixels.view(images, torch.arange(5), middle, torch.zeros(5, dtype=torch.bool))
    torch.testing.assert_close(still, pixels.normalise(images))


def test_sgd_equals_torchs() -> None:
    ours = [torch.randn(3, 4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)]
    theirs = [torch.nn.Parameter(p.clone()) for p in ours]
    optimizer = SGD(0.1, 0.8)
    optimizer.follow((str(i), torch.nn.Parameter(p)) for i, p in enumerate(ours))
    reference = torch.optim.SGD(theirs, lr=0.1, momentum=0.8)
    for step in range(4):
        gradients = [torch.randn_like(p) for p in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
        optimizer.step(gradients, active=torch.tensor([True] * 3) if step % 2 else None)
    for mine, other in zip(optimizer.parameters, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-14, atol=1e-14)


def test_sgd_leaves_resting_members_alone() -> None:
    optimizer = SGD(0.1, 0.8)
    parameter = torch.nn.Parameter(torch.randn(2, 3))
    optimizer.follow([("p", parameter)])
    optimizer.step([torch.randn(2, 3)])
    before, velocity = parameter.detach().clone(), optimizer.velocity["p"].clone()
    optimizer.step([torch.randn(2, 3)], active=torch.tensor([True, False]))
    assert torch.equal(parameter[1], before[1])
    assert torch.equal(optimizer.velocity["p"][1], velocity[1])
    assert not torch.equal(parameter[0], before[0])


def test_an_epoch_visits_every_image() -> None:
    group = toy_group(toy_dataset([20, 25, 30, 21, 19, 40]), "replay", [(0, 12, {}), (1, 30, {})])
    memories = [Memory(12), Memory(30)]
    for memory, view in zip(memories, group.views, strict=True):
        memory.add(view.arrivals(0), np.random.default_rng(0))
    draws = draw_epoch(group, memories, 1, 0)
    for k, view in enumerate(group.views):
        own = view.train_indices(view.scenario.positions(1))
        steps = -(-len(own) // 16)
        assert draws.steps[k] == steps == steps_per_epoch(group, 1)[k]
        current = draws.index[k, :steps, :16].flatten()
        counts = torch.bincount(current, minlength=155)[own]
        assert counts.min() >= 1
        assert counts.sum() == steps * 16
        assert counts.max() <= 2  # the last batch is filled from a second round
        assert set(draws.index[k, :steps, 16:].flatten().tolist()) <= set(memories[k].indices().tolist())
        position = view.train_positions[draws.index[k].numpy()]
        assert (draws.labels[k].numpy() == position).all()
        assert draws.corner[k].max() <= 2
    again = draw_epoch(group, memories, 1, 0)
    other = draw_epoch(group, memories, 1, 1)
    assert torch.equal(draws.index, again.index)
    assert not torch.equal(draws.index, other.index)


def test_methods_see_the_same_views_of_the_current_images() -> None:
    dataset = toy_dataset([20] * 6)
    with_memory = toy_group(dataset, "replay", [(0, 12, {})])
    without = toy_group(dataset, "naive", [(0, 0, {})])
    memory = Memory(12)
    memory.add(with_memory.views[0].arrivals(0), np.random.default_rng(0))
    a, b = draw_epoch(with_memory, [memory], 1, 3), draw_epoch(without, [Memory(0)], 1, 3)
    assert torch.equal(a.index[:, :, :16], b.index)
    assert torch.equal(a.corner[:, :, :16], b.corner)
    assert torch.equal(a.flipped[:, :, :16], b.flipped)


def test_a_run_equals_a_plain_loop() -> None:
    """MD-CG over two tasks, against torch.optim.SGD and the loss written out once more."""
    group = toy_group(toy_dataset([20] * 4), "md-cg", [(3, 9, {"lam": 0.7})], tasks=2)
    trainer = Trainer(group, CPU64)
    ours = trainer.train(states.fresh(group, CPU64))

    state = states.fresh(group, CPU64)
    model, view = state.model, group.views[0]
    memory = Memory(9)
    velocity: dict[str, torch.Tensor] = {}
    for task in range(2):
        model.grow(2)
        teacher = copy.deepcopy(model).eval()
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
        for name, parameter in model.named_parameters():  # momentum outlives the task (row 22 of the choices)
            buffer = torch.zeros_like(parameter)
            if name in velocity:
                buffer[tuple(slice(n) for n in velocity[name].shape)] = velocity[name]
            optimizer.state[parameter]["momentum_buffer"] = buffer
        for epoch in range(2):
            draws = draw_epoch(group, [memory], task, epoch)
            for step in range(int(draws.steps[0])):
                batch = trainer.batch(draws, step)
                x, labels = batch.images, batch.labels
                logits = model(x)[0]
                y = labels[0, :16] - 2 * task
                loss = F.cross_entropy(logits[:16, 2 * task :], y)
                if task:
                    p = logits[:16].softmax(1)
                    truth = p[torch.arange(16), labels[0, :16]]
                    loss = loss + 0.7 * F.relu(p[:, :2].max(1).values - truth + 1 / 3).mean()
                    with torch.no_grad():
                        taught = teacher(x[:, 16:])[0].log_softmax(1)
                    student = logits[16:].log_softmax(1)
                    loss = loss + F.kl_div(student, taught, log_target=True, reduction="batchmean")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        velocity = {name: optimizer.state[p]["momentum_buffer"] for name, p in model.named_parameters()}
        memory.add(view.arrivals(task), stream(3, Purpose.KEEP, task))
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["md-cg", "gem", "gdumb", pytest.param("ld", marks=pytest.mark.slow)])
def test_the_path_of_graphs_gives_the_same_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several steps per replay, counted on the device, with draws in fixed buffers and members that rest.

    Where there is no GPU, work is not captured but done: everything else is as with graphs.
    """
    if not torch.cuda.is_available():
        monkeypatch.setattr("mdcg.train.graph.capture", lambda work, pool: work)
        monkeypatch.setattr("mdcg.train.past_tasks.together", lambda model, compute: True)
    sizes = (60, 60) if method == "gem" else (70, 120)
    # LD as published: passes of unequal size, and a second memory
    settings, passes = (published_settings(method), "separate") if method == "ld" else ({}, "joint")
    members = [(seed, size, settings) for seed, size in enumerate(sizes)]
    group = toy_group(toy_dataset([70, 95, 60, 90, 80, 75]), method, members, passes=passes)
    machine = Compute(torch.device("cuda" if torch.cuda.is_available() else "cpu"), "fp64")
    plain, graphed = Trainer(group, machine), Trainer(group, machine)
    plain.graphs, graphed.graphs = False, True
    counts: list[int] = []
    monkeypatch.setattr(graphed, "watcher", SimpleNamespace(step=counts.append, epoch=lambda *told: None))
    wanted, got = plain.train(states.fresh(group, machine)), graphed.train(states.fresh(group, machine))
    assert {1, AT_ONCE} == set(counts)
    assert sum(counts) == total_steps(group)
    rounding = 1e-9 if torch.cuda.is_available() else 0  # cuDNN may add in another order each time
    for name, value in wanted.model.state_dict().items():
        torch.testing.assert_close(got.model.state_dict()[name], value, rtol=0, atol=rounding)
    assert (got.correct == wanted.correct).all()
    if not rounding:
        assert got.history == wanted.history


def test_evaluation_counts_correct_predictions() -> None:
    group = toy_group(toy_dataset([12, 15, 18, 13, 16, 12]), "naive", [(0, 0, {}), (5, 0, {})])
    trainer = Trainer(group, CPU64)
    state = trainer.train(states.fresh(group, CPU64))
    counted = evaluate(state.model, trainer.eval_images, group, trainer.pixels, CPU64)
    state.model.eval()
    for k, view in enumerate(group.views):
        expected = np.zeros(6, np.int64)
        for image, label in zip(group.dataset.test.images, group.dataset.test.labels, strict=True):
            x = trainer.pixels.normalise(image)[None, None].expand(2, 1, 1, 8, 8)
            with torch.no_grad():
                answer = int(state.model(x)[k, 0].argmax())
            position = view.scenario.order.index(int(label))
            expected[position] += answer == position
        assert counted[k].tolist() == expected.tolist()
        assert (state.correct[k, -1] == expected).all()


def test_nobody_expects_a_class_that_was_never_seen() -> None:
    """A head that has all outputs from the start may prefer one that no task has brought yet: that does not count."""
    group = toy_group(toy_dataset([12, 15, 18, 13, 16, 12]), "der", [(0, 6, {}), (5, 6, {})])
    trainer = Trainer(group, CPU64)
    state = trainer.train(states.fresh(group, CPU64), tasks=1)
    usual = evaluate(state.model, trainer.eval_images, group, trainer.pixels, CPU64)
    assert usual.any()
    with torch.no_grad():
        state.model.head.classifier.bias[:, 2:] += 1000  # of the classes to come
    assert state.model.logits(torch.zeros(2, 1, 1, 8, 8, dtype=torch.float64)).argmax(-1).min() >= 2
    found = evaluate(state.model, trainer.eval_images, group, trainer.pixels, CPU64)
    assert found.tolist() == usual.tolist() == state.correct[:, 0].tolist()


def test_held_out_images_are_not_trained_on() -> None:
    group = toy_group(toy_dataset([20] * 4), "cumulative", [(0, 0, {})], tasks=2, hold_out=0.25)
    view = group.views[0]
    assert view.eval_total.tolist() == [5] * 4
    trained = set(draw_epoch(group, [Memory(0)], 1, 0).index.flatten().tolist())
    assert trained.isdisjoint(view.eval_indices.tolist())
    assert len(trained) == 60


def test_history_has_a_row_per_epoch() -> None:
    group = toy_group(toy_dataset([20] * 4), "naive", [(0, 0, {}), (1, 0, {})], tasks=2, evaluate_every=1)
    state = Trainer(group, CPU64).train(states.fresh(group, CPU64))
    for k, rows in enumerate(state.history):
        assert [(row["task"], row["epoch"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
        assert [len(row["accuracy"]) for row in rows] == [1, 1, 2, 2]
        assert rows[3]["loss"] < rows[2]["loss"]  # new classes are learned quickly
        assert all(0 <= row["train_accuracy"] <= 100 for row in rows)
        total = group.views[k].eval_total
        assert rows[-1]["accuracy"][1] == pytest.approx(100 * state.correct[k, 1, 2:].sum() / total[2:].sum())


@pytest.mark.parametrize(("every", "after"), [(0, {5}), (1, {1, 2, 3, 4, 5}), (2, {2, 4, 5}), (3, {3, 5}), (9, {5})])
def test_accuracy_every_so_many_epochs(every: int, after: set[int]) -> None:
    """After each epoch whose number they divide, and always after a task's last."""
    dataset = toy_dataset([20] * 4)
    group = toy_group(dataset, "naive", [(0, 0, {})], tasks=2, evaluate_every=every, epochs=5)
    rows = Trainer(group, CPU64).train(states.fresh(group, CPU64)).history[0]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5] * 2
    assert [row["epoch"] for row in rows if "accuracy" in row] == sorted(after) * 2


def test_a_loss_that_is_not_finite_is_said() -> None:
    group = toy_group(toy_dataset([20] * 4), "naive", [(4, 0, {})], tasks=2, lr=1e30)
    state = Trainer(group, compute("cpu", "fp32")).train(states.fresh(group, compute("cpu", "fp32")))
    (told,) = state.failures(group).values()
    assert re.match(r"the loss of seed 4 is not finite in task 1, epoch \d; lower the learning rate", told)
    assert state.task == 0  # nothing is gained by going on


@pytest.mark.parametrize("method", ["md-cg", "ld"])
def test_stopped_at_any_step(method: str) -> None:
    """Stopped in the middle of an epoch, saved, and gone on with: the same bits as if nothing had happened."""
    # LD as published: passes of unequal size, and a second memory
    settings, passes = (published_settings(method), "separate") if method == "ld" else ({}, "joint")
    members = [(0, 9, settings), (1, 12, settings)]
    group = toy_group(toy_dataset([20, 33, 25, 20]), method, members, tasks=2, passes=passes)
    machine = compute("cpu", "fp32")
    undisturbed = Trainer(group, machine).train(states.fresh(group, machine))
    total = total_steps(group)
    saved: list[tuple[dict[str, torch.Tensor], states.PlainValues]] = []
    for stop_at in range(1, total, 3):
        left = iter([False] * stop_at + [True])
        stopping = Trainer(group, machine, lambda *dumped: saved.append(dumped), left.__next__)
        with pytest.raises(Stopped):
            stopping.train(states.fresh(group, machine))
        tensors, values = unpack(pack(*saved[-1]))
        state = states.restore(tensors, values, group, machine)
        assert steps_done(group, state) == stop_at
        state = Trainer(group, machine).train(state)
        for name, value in undisturbed.model.state_dict().items():
            assert torch.equal(state.model.state_dict()[name], value), (stop_at, name)
        assert state.history == undisturbed.history
        assert (state.correct == undisturbed.correct).all()


def test_one_diverging_member_does_not_harm_the_others(tmp_path: Path) -> None:
    words = {"scenario": "digits-2", "memory": 30, "epochs": 2, "out": tmp_path, "device": "cpu"}
    asked = [make_recipe(method="md", set={"lam": lam}, **words) for lam in (0.5, 1e38)]
    dataset = load("digits")
    specs = [spec for recipe in asked for spec in recipe.resolve(dataset)]
    assert len({spec.group_key() for spec in specs}) == 1
    undone = Sweep([GridCell({}, specs)], Context(tmp_path, device="cpu"), "").run()
    (reason,) = undone.failed.values()
    assert "the loss of seed 0, memory 30, lam 1e+38 is not finite in task 2" in reason
    good, bad = (Store(tmp_path).finished(spec) for spec in specs)
    assert bad is None
    assert good is not None
    alone = Sweep([GridCell({}, specs[:1])], Context(tmp_path / "alone", device="cpu"), "")
    assert not alone.run()
    assert [record.correct for record in alone.records().values()] == [good.correct]


def test_bf16_trains_with_float32_parameters() -> None:
    half = compute("cpu", "bf16")
    group = toy_group(toy_dataset([20] * 4), "md-cg", [(0, 8, {"lam": 0.5})], tasks=2)
    state = Trainer(group, half).train(states.fresh(group, half))
    assert all(p.dtype == torch.float32 for p in state.model.parameters())
    assert np.isfinite([row["loss"] for row in state.history[0]]).all()


def test_under_bf16_the_head_computes_in_full_precision() -> None:
    """Only the backbone is rounded: from its features on, logits and gates are what they are without autocast."""
    half = compute("cpu", "bf16")
    group = toy_group(toy_dataset([20] * 4), "md-cg", [(0, 8, {})], tasks=2)
    model = Trainer(group, half).train(states.fresh(group, half)).model.eval()
    images = torch.randn(1, 50, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), half.autocast():
        logits, features = model.logits(images), model.features(images)
    assert features.dtype == torch.bfloat16  # or the test shows nothing
    assert logits.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(logits, model.head(features.float()))


def test_asking_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(MdcgError, match=r"built without CUDA.*use --device cpu"):
        compute("cuda", "auto")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    for trouble in (
        "The NVIDIA driver on your system is too old (found version 11040)",
        "CUDA error: no kernel image is available for execution on the device",
        "No CUDA GPUs are available",
    ):

        def fail(*shape: int, device: str, said: str = trouble) -> None:
            raise RuntimeError(f"{said}.\nMore of it.")

        with monkeypatch.context() as patch:
            patch.setattr(torch, "zeros", fail)
            with pytest.raises(MdcgError) as told:
                compute("cuda", "auto")
        assert str(told.value) == f"no CUDA GPU can be used here ({trouble}); fix that, or use --device cpu."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute("auto", "auto") == Compute(torch.device("cpu"), "fp32")
