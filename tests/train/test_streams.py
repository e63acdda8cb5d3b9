"""Streams: which image is seen when, against brute force; and training on them."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from mdcg.draws import Purpose, stream
from mdcg.execute.cost import work
from mdcg.methods import Step
from mdcg.methods.md import MarginDampening
from mdcg.scenario import Stream
from mdcg.testing.groups import CPU, check_company, check_resumed
from mdcg.train import state as states
from mdcg.train.epoch import draw_epoch, steps_per_epoch
from mdcg.train.group import Group
from mdcg.train.loop import Trainer, total_steps
from mdcg.train.online import OnlineStream, Stages, find_stages, reservoir
from mdcg.train.precision import Compute
from mdcg.train.signals import Stopped
from tests.conftest import toy_dataset, toy_group

CPU64 = Compute(torch.device("cpu"), "fp64")


@st.composite
def class_tasks(draw: st.DrawFn, classes: int) -> tuple[tuple[str, ...], ...]:
    """Tasks of some of the classes, some of which come back."""
    names = [f"class {label}" for label in range(classes)]
    task = st.lists(st.sampled_from(names), min_size=1, max_size=classes, unique=True).map(tuple)
    return tuple(draw(st.lists(task, min_size=1, max_size=5)))


@given(st.data(), st.lists(st.integers(3, 12), min_size=4, max_size=6), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
@settings(max_examples=60)
def test_every_image_comes_in_one_task(data: st.DataObject, counts: list[int], blurry: float) -> None:
    """Of its own tasks or, if borders are blurry, of a neighbour's; and how many do."""
    tasks = data.draw(class_tasks(len(counts)))
    dataset = toy_dataset(counts)
    group = toy_group(dataset, "naive", [(data.draw(st.integers(0, 9)), 0, {})], tasks=len(tasks))
    group = _with(group, Stream(tasks=tasks, blurry=blurry))
    view, last = group.views[0], len(tasks) - 1
    came = Counter[int]()
    for number in range(len(tasks)):
        came.update(view.task_images(number).tolist())
    labels = dataset.train.labels
    wanted = {f"class {label}": np.flatnonzero(labels == label).tolist() for label in range(len(counts))}
    named = {name for task in tasks for name in task}
    assert came == Counter({image: 1 for name in named for image in wanted[name]})

    for name in named:
        own = [number for number, task in enumerate(tasks) if name in task]
        images = len(wanted[name])
        shares = {number: images // len(own) + (place < images % len(own)) for place, number in enumerate(own)}
        expected = Counter[int]()
        for number, share in shares.items():
            moved = round(blurry * share) if last else 0
            before = 0 if number == 0 else moved if number == last else moved // 2
            for where, count in ((number - 1, before), (number + 1, moved - before), (number, share - moved)):
                if count:
                    expected[where] += count
        position = view.scenario.order.index(int(name.split()[1]))
        got = {t: len(view.arrivals(t).get(position, ())) for t in range(len(tasks))}
        assert {t: count for t, count in got.items() if count} == dict(expected)


def test_the_head_has_a_class_before_its_first_image_comes() -> None:
    for blurry in (0.0, 0.4):
        group = _with(toy_group(toy_dataset([20] * 7), "replay", [(2, 9, {})], tasks=4), Stream(sizes=(3, 1, 2, 1)))
        group = _with(group, Stream(sizes=(3, 1, 2, 1), blurry=blurry))
        state = states.fresh(group, CPU64)
        for task in range(4):
            state.task = task
            states.begin_task(state, group)
            assert max(group.views[0].arrivals(task)) < state.model.head.classes
            states.end_task(state, group)
        assert state.model.head.sizes == [3, 1, 2, 1]


@given(st.integers(0, 200), st.integers(1, 30), st.integers(0, 99))
def test_a_reservoir_as_a_list(images: int, places: int, seed: int) -> None:
    """Algorithm R, one image after the other."""
    taken = reservoir(images, places, np.random.default_rng(seed))
    random = np.random.default_rng(seed).random(images)
    held: list[int] = []
    for number in range(images):
        if len(held) < places:
            held.append(number)
            assert taken[number] == number
            continue
        place = int(random[number] * (number + 1))
        assert taken[number] == (place if place < places else -1)
        if place < places:
            held[place] = number
    coming = OnlineStream(np.arange(images), taken, np.array([0, images]), np.array([0]), 1, places)
    assert [int(number) for number in coming.held(images) if number >= 0] == held


def test_a_reservoir_holds_every_image_with_the_same_probability() -> None:
    held = np.zeros(40)
    for seed in range(3000):
        taken = reservoir(40, 8, np.random.default_rng(seed))
        last = {place: number for number, place in enumerate(taken) if place >= 0}
        held[list(last.values())] += 1
    assert np.abs(held / 3000 - 8 / 40).max() < 5 * np.sqrt(0.2 * 0.8 / 3000)


@given(
    st.lists(st.integers(9, 40), min_size=1, max_size=4),
    st.integers(2, 9),
    st.integers(1, 25),
    st.booleans(),
    st.integers(0, 9),
)
def test_what_an_online_stream_brings_and_replays(
    sizes: list[int], batch: int, memory: int, past_only: bool, seed: int
) -> None:
    """Against a list of what is held, changed image by image."""
    ends = np.cumsum([0, *sizes])
    tasks = [np.arange(start, end) for start, end in itertools.pairwise(ends)]
    coming = OnlineStream.of(tasks, seed, batch, memory)
    coming = coming.sparing_the_past() if past_only else coming
    held: dict[int, int] = {}
    seen: list[int] = []
    for task, own in enumerate(tasks):
        images, places = coming.batches(task)
        drawn, drawn_places = coming.draw(task, 5, past_only, np.random.default_rng(0))
        assert len(images) == len(drawn) == len(own) // batch
        past = set(seen)
        for step, row in enumerate(images):
            allowed = {place: image for place, image in held.items() if not past_only or image in past}
            if allowed:
                assert {(int(p), int(i)) for p, i in zip(drawn_places[step], drawn[step], strict=True)} <= set(
                    allowed.items()
                )
                if len(allowed) >= 5:
                    assert len(set(drawn[step].tolist())) == 5
            assert past_only <= (bool(allowed) or task == 0)  # of past tasks something is always left
            for image, place in zip(row.tolist(), places[step].tolist(), strict=True):
                if place >= 0:
                    held[place] = image
            seen += row.tolist()
        assert set(images.flatten().tolist()) <= set(own.tolist())
        after = coming.held(int(coming.starts[task + 1]))
        assert {place: int(coming.images[n]) for place, n in enumerate(after) if n >= 0} == held
    assert len(seen) == len(set(seen))  # each image once
    assert sum(sizes) - len(seen) < batch * len(sizes)


KINDS = {
    "unequal": Stream(sizes=(3, 1, 2)),
    "returning": Stream(tasks=(("class 1", "class 4"), ("class 0",), ("class 4", "class 2", "class 0"))),
    "blurry": Stream(blurry=0.3),
    "online": Stream(online=True),
    "both": Stream(online=True, blurry=0.3),
}


@pytest.mark.parametrize(
    ("method", "kind"),
    [*(("md-cg", kind) for kind in KINDS), ("der", "online"), ("replay", "both"), ("er-ace", "both")],
)
def test_the_path_of_graphs_gives_the_same_bits(method: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in test_train.py; that members come to the same bits alone and resumed is `check_method`'s."""
    if not torch.cuda.is_available():
        monkeypatch.setattr("mdcg.train.graph.capture", lambda work, pool: work)
    machine = Compute(torch.device("cuda" if torch.cuda.is_available() else "cpu"), "fp64")
    group = toy_group(toy_dataset([40, 55, 33, 47, 50, 41]), method, [(0, 12, {}), (1, 20, {})], batch_size=8, epochs=1)
    group = _with(group, KINDS[kind])
    plain, graphed = Trainer(group, machine), Trainer(group, machine)
    plain.graphs, graphed.graphs = False, True
    counts: list[int] = []
    monkeypatch.setattr(graphed, "watcher", SimpleNamespace(step=counts.append, epoch=lambda *told: None))
    wanted, got = plain.train(states.fresh(group, machine)), graphed.train(states.fresh(group, machine))
    assert max(counts) > 1
    assert sum(counts) == total_steps(group)
    rounding = 1e-9 if torch.cuda.is_available() else 0
    for name, value in wanted.model.state_dict().items():
        torch.testing.assert_close(got.model.state_dict()[name], value, rtol=0, atol=rounding)
    assert (got.correct == wanted.correct).all()


def test_an_online_run_of_der_equals_a_plain_loop() -> None:
    """With the logits that each image had when it came, in a dictionary."""
    group = toy_group(
        toy_dataset([30, 41, 33, 28]), "der", [(3, 7, {"alpha": 0.3, "beta": 0.7})], tasks=2, batch_size=8
    )
    group = _with(group, Stream(online=True))
    trainer = Trainer(group, CPU64)
    ours = trainer.train(states.fresh(group, CPU64))

    state = states.fresh(group, CPU64)
    model, coming = state.model, group.streams[0]
    model.grow(2)
    model.grow(2)  # all classes have a logit from the start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    model.train()
    answers: dict[int, torch.Tensor] = {}
    held: dict[int, int] = {}
    for task in range(2):
        draws = draw_epoch(group, [], task, 0)
        _, places = coming.batches(task)
        for step in range(int(draws.steps[0])):
            batch = trainer.batch(draws, step)
            first = task == step == 0
            logits = model(batch.images[:, :8] if first else batch.images)[0]
            y = batch.labels[0]
            loss = F.cross_entropy(logits[:8], y[:8])
            if not first:
                replayed = batch.index[0, 8:].tolist()
                assert set(replayed) <= set(held.values())
                stored = torch.stack([answers[image] for image in replayed])
                loss = loss + 0.3 * F.mse_loss(logits[8:], stored) + 0.7 * F.cross_entropy(logits[8:], y[8:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for place, image, answer in zip(places[step].tolist(), batch.index[0, :8].tolist(), logits, strict=False):
                if place >= 0:
                    held[place] = image
                    answers[image] = answer.detach()
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-9, atol=1e-11)
    assert set(ours.memories[0].indices().tolist()) == set(held.values())
    assert ours.stored_logits is not None
    for image in held.values():
        torch.testing.assert_close(ours.stored_logits.of_member(0, np.array([image]))[0], answers[image])


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=25)
def test_margin_dampening_of_old_and_new_images(seed: int, old: int, new: int) -> None:
    """A past class has cross-entropy over all classes, a new one margin and cross-entropy among the new."""
    generator = torch.Generator().manual_seed(seed)
    classes = old + new
    logits, memory, teacher = (torch.randn(1, 6, classes, generator=generator).double() for _ in range(3))
    labels = torch.randint(classes, (1, 6), generator=generator)
    method = MarginDampening(lam=0.4)
    loss = method.loss(Step(logits, labels, old, memory, labels, teacher_logits=teacher, past=(old,), revisits=True))
    total = F.kl_div(memory[0].log_softmax(1), teacher[0].log_softmax(1), log_target=True, reduction="batchmean")
    for row, y in zip(logits[0], labels[0].tolist(), strict=True):
        p = row.softmax(0)
        if y < old:
            total = total - p[y].log() / 6
        else:
            margin = max(0.0, float(p[:old].max() - p[y]) + 1 / (classes - 1))
            total = total + (0.4 * margin - row[old:].softmax(0)[y - old].log()) / 6
    assert loss.item() == pytest.approx(total.item())


def test_which_images_of_a_class_return_is_drawn_from_a_stream_of_its_own() -> None:
    """By the run's seed and the class's place: dealt as evenly as can be to the tasks that it is in."""
    tasks = (("class 1", "class 3"), ("class 0", "class 3"), ("class 2",), ("class 3", "class 0"))
    dataset = toy_dataset([7, 8, 9, 11])
    for seed in (0, 5):
        view = _with(toy_group(dataset, "naive", [(seed, 0, {})], tasks=4), Stream(tasks=tasks)).views[0]
        for label, own in ((3, (0, 1, 3)), (0, (1, 3))):
            position = view.scenario.order.index(label)
            images = np.flatnonzero(dataset.train.labels == label)
            keys = stream(seed, Purpose.RETURN, position).random(len(images))
            parts = np.array_split(images[np.argsort(keys, kind="stable")], len(own))
            for task, part in zip(own, parts, strict=True):
                came = view.task_images(task)
                assert sorted(came[dataset.train.labels[came] == label]) == sorted(part)


def test_the_newest_stage_with_new_classes() -> None:
    stages = Stages(sizes=(0, 2, 0, 3, 0), tasks=(0, 0, 1, 1, 1))
    assert [stages.latest(stage) for stage in range(5)] == [0, 1, 1, 3, 3]
    assert [stages.closes(stage) for stage in range(5)] == [False, True, False, False, True]


def test_accuracy_within_an_online_task() -> None:
    """Every so many batches, on the classes of the tasks that have begun; it changes nothing."""
    members: list[tuple[int, int, dict[str, float]]] = [(0, 12, {}), (1, 9, {})]
    watched, unwatched = (
        _with(
            toy_group(toy_dataset([40] * 4), "replay", members, tasks=2, batch_size=8, evaluate_every=every),
            Stream(online=True),
        )
        for every in (2, 0)
    )
    seen, plain = (Trainer(group, CPU64).train(states.fresh(group, CPU64)) for group in (watched, unwatched))
    for name, value in plain.model.state_dict().items():
        assert torch.equal(seen.model.state_dict()[name], value)
    for rows in seen.history:
        assert [[step for step, _ in row["within"]] for row in rows] == [[2, 4, 6, 8]] * 2
        assert all(0 <= accuracy <= 100 for row in rows for _, accuracy in row["within"])
    stopped = iter([False] * 5 + [True])
    saved: list[tuple[dict[str, torch.Tensor], states.PlainValues]] = []
    with pytest.raises(Stopped):
        Trainer(watched, CPU64, lambda *dumped: saved.append(dumped), stopped.__next__).train(
            states.fresh(watched, CPU64)
        )
    again = Trainer(watched, CPU64).train(states.restore(*saved[-1], watched, CPU64))
    assert again.history == seen.history


@given(st.integers(0, 30), st.integers(2, 30))
def test_an_online_epoch_has_whole_batches(more: int, batch: int) -> None:
    counts = [30 + more, 31, 32, 33]
    assume(min(counts) * 2 >= batch)
    group = toy_group(toy_dataset(counts), "naive", [(4, 0, {})], tasks=2, batch_size=batch, epochs=1)
    group = _with(group, Stream(online=True))
    for task in range(2):
        own = group.views[0].task_images(task)
        draws = draw_epoch(group, [], task, 0)
        assert draws.index.shape == (1, len(own) // batch, batch)
        assert int(steps_per_epoch(group, task)[0]) == len(own) // batch
        order = np.argsort(stream(4, Purpose.ORDER, task).random(len(own)), kind="stable")
        assert draws.index.flatten().tolist() == own[order][: draws.index.numel()].tolist()


@given(st.data(), st.integers(1, 6), st.integers(2, 5))
@settings(max_examples=60)
def test_stages_are_found_as_by_looking_at_batch_after_batch(data: st.DataObject, look_ahead: int, batch: int) -> None:
    steps = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    starts = np.cumsum([0, *steps])
    classes = np.array([[data.draw(st.integers(0, 5)) for _ in range(batch)] for _ in range(int(starts[-1]))])
    stages, order = find_stages(classes, starts[:-1], look_ahead)
    seen: list[int] = []
    expected = []
    for step, row in enumerate(classes.tolist()):
        new = [c for c in row if c not in seen]
        arrived: list[int] = []
        if new:
            for ahead in classes[step : step + look_ahead].tolist():
                arrived += [c for c in dict.fromkeys(ahead) if c not in seen + arrived]
        seen += arrived
        if arrived or step in starts[:-1]:
            task = max(t for t, start in enumerate(starts[:-1]) if start <= step)
            expected.append((step, len(arrived), task))
    assert list(zip(stages.starts, stages.sizes, stages.tasks, strict=True)) == expected
    assert order == seen
    assert [stages.closes(stage) for stage in range(len(expected))] == [
        stage + 1 == len(expected) or expected[stage + 1][2] != task for stage, (_, _, task) in enumerate(expected)
    ]


def test_a_run_that_finds_its_tasks_is_told_nothing_it_needs() -> None:
    """Where classes come task by task, and each at once, it finds the tasks: its results are those of a told one."""
    dataset = toy_dataset([40, 55, 33, 47, 50, 41])
    told, found = (
        _with(
            toy_group(dataset, "md-cg", [(1, 12, {"look_ahead": ahead}), (1, 20, {"look_ahead": ahead})], batch_size=8),
            Stream(online=True),
        )
        for ahead in (0, 3)
    )
    assert found.stages.sizes == (2, 2, 2)
    first, second = (Trainer(group, CPU64).train(states.fresh(group, CPU64)) for group in (told, found))
    same = {name: first.model.state_dict()[name].shape for name in first.model.state_dict()}
    assert same == {name: value.shape for name, value in second.model.state_dict().items()}
    # Outputs are numbered by arrival, so that within a task weights start in another order.
    orders = [group.views[0].scenario.order for group in (told, found)]
    assert [set(order[2 * t : 2 * t + 2]) for order in orders[:1] for t in range(3)] == [
        set(orders[1][2 * t : 2 * t + 2]) for t in range(3)
    ]
    assert [sorted(memory.indices()) for memory in first.memories] == [
        sorted(memory.indices()) for memory in second.memories
    ]


@pytest.mark.parametrize("kind", ["returning", "blurry"])
def test_tasks_with_past_classes(kind: str) -> None:
    """Alone as in company, stopped and resumed; `check_method` has online streams of all methods."""
    members = [(0, 12, {"lam": 0.5}), (1, 20, {"lam": 1.0})]
    group = _with(toy_group(toy_dataset([20, 25, 13, 17, 20, 16]), "md-cg", members, batch_size=8), KINDS[kind])
    together = Trainer(group, CPU).train(states.fresh(group, CPU))
    check_company(group, together)
    check_resumed(group, together)


@pytest.mark.parametrize("blurry", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_a_run_that_finds_its_tasks(blurry: float) -> None:
    """Alone as in company, stopped and resumed; R has a row for each task, however many stages there were."""
    members = [(2, 12, {"look_ahead": 2, "lam": 0.5}), (2, 20, {"look_ahead": 2, "lam": 1.0})]
    group = toy_group(toy_dataset([40, 55, 33, 47, 50, 41]), "md-cg", members, batch_size=4)
    group = _with(group, Stream(online=True, blurry=blurry))
    together = Trainer(group, CPU).train(states.fresh(group, CPU))
    check_company(group, together)
    check_resumed(group, together)
    assert together.correct.shape == (2, 3, 6)
    assert [row["task"] for row in together.history[0]] == [1, 2, 3]
    assert sum(group.sizes) == 6
    view = group.views[0]
    for task in range(3):
        now = {view.scenario.order[c] for c in view.scenario.classes_of(task)}
        assert now == set(group._told[0].scenario.order[2 * task : 2 * task + 2])
    if blurry:
        assert len(group.sizes) > 3  # some classes were late, or early: stages and tasks do not begin together


def test_classes_of_a_task_that_are_found_apart() -> None:
    """The second class of a task comes late: images of the first are then of a past class, and learned as such."""
    group = toy_group(
        toy_dataset([60] * 4), "md", [(0, 12, {"look_ahead": 1})], tasks=2, batch_size=4, evaluate_every=3
    )
    group = _with(group, Stream(online=True))
    images = [group._told[0].task_images(task) for task in range(2)]
    late = [np.concatenate([own[:60], own[60:]]) for own in images]  # one class, then the other
    coming = replace(group._streams[0], images=np.concatenate(late))
    group.__dict__["_streams"] = (coming,)
    assert group.stages.sizes == (1, 1, 1, 1)
    assert group.revisits
    state = Trainer(group, CPU64).train(states.fresh(group, CPU64))
    assert not state.failures(group)
    for row in state.history[0]:
        assert [step for step, _ in row["within"]] == list(range(3, 30, 3))
    assert work(group) == 4 * int(coming.starts[-1]) + 4 * (int(coming.starts[-1]) - 15)


def _with(group: Group, coming: Stream) -> Group:
    tasks = len(coming.tasks or coming.sizes or ()) or group.training.tasks
    epochs = 1 if coming.online else group.training.epochs
    return replace(group, training=replace(group.training, stream=coming, tasks=tasks, epochs=epochs))
