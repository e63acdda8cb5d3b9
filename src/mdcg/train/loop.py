"""The loop: tasks, epochs, steps. The same for every method and device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mdcg import metrics
from mdcg.errors import MdcgError
from mdcg.methods import Method, Step, stack
from mdcg.models.kernels.beside import beside, join
from mdcg.switches import switched_off
from mdcg.train import state as states
from mdcg.train.augment import Pixels
from mdcg.train.epoch import KEPT_AT, EpochDraws, Prefetcher, steps_per_epoch
from mdcg.train.evaluate import evaluate, logits_of
from mdcg.train.fitting import fit_head
from mdcg.train.graph import WARM_UP, GraphedSteps
from mdcg.train.group import Group
from mdcg.train.images import on_device
from mdcg.train.mixing import Mix, mixed, mixes, partners_of
from mdcg.train.past_tasks import PastTasks, flat, parts
from mdcg.train.precision import Compute
from mdcg.train.recolour import recoloured, recolours
from mdcg.train.schedule import RATE
from mdcg.train.signals import Stopped
from mdcg.train.smoothing import label_smoothing
from mdcg.train.state import HistoryRow, PlainValues, State
from mdcg.train.stored_logits import keep, no_logits

SAVING = 0.03  # the share of the time that saving may take, beyond the first epoch and a stop


class Watcher(Protocol):
    """Whatever is told of the steps, and of each epoch with the row of each member."""

    def step(self, count: int) -> None: ...
    def epoch(self, task: int, epoch: int, loss: float, rows: Sequence[HistoryRow]) -> None: ...


class Probing(Protocol):
    """Whatever looks at the state as it changes, and leaves it as it is."""

    @property
    def needs_start(self) -> bool:
        """Whether it compares with the model as it was when the task began."""

    def next_look(self, step: int, last: int) -> int:
        """The next step after this one, within an epoch, after which it wants to look; the last, if there is none."""

    def look(self, trainer: Trainer, state: State, epoch: int, step: int) -> None: ...


@dataclass(frozen=True)
class Batch:
    """A batch of one step: the current images, then those from memory."""

    images: Tensor  # (K, places, C, H, W)
    labels: Tensor  # (K, places)
    index: Tensor  # (K, places) into the training images
    current: int  # so many are current
    passes: tuple[int, ...]  # so many go through the network together, one such group after the other
    kept_at: Tensor | None = None  # (K, places) in a memory whose logits change with the stream, see `KEPT_AT`
    mix: Mix | None = None  # what the images were mixed of, where they were

    def part(self, start: int, end: int) -> Batch:
        """Take some places as a batch of its own, all current."""
        own, size = slice(start, end), end - start
        return Batch(
            self.images[:, own],
            self.labels[:, own],
            self.index[:, own],
            size,
            (size,),
            None if self.kept_at is None else self.kept_at[:, own],
            None if self.mix is None else self.mix.part(start, end),
        )


class Trainer:
    """Trains one group from a state to the end of a task, or until all its members have failed.

    `save` is called with the state after an epoch, unless that would take too much of the time, and when
    `should_stop` turns true. `probes` look at it.
    """

    def __init__(
        self,
        group: Group,
        compute: Compute,
        save: Callable[[dict[str, Tensor], PlainValues], None] = lambda tensors, values: None,
        should_stop: Callable[[], bool] = lambda: False,
        watcher: Watcher | None = None,
        probes: Probing | None = None,
    ) -> None:
        self.group, self.compute, self.probes = group, compute, probes
        self.save, self.should_stop, self.watcher = save, should_stop, watcher
        dataset, device = group.dataset, compute.device
        self.images = on_device(dataset.train.images, device)
        held_out = group.training.hold_out > 0
        self.eval_images = self.images if held_out else on_device(dataset.test.images, device)
        self.pixels = Pixels.of(dataset, device, compute.dtype, dataset.padding, compute.maps)
        self.raw = self.pixels.raw()
        self._draws = Prefetcher(group)
        self.graphs = device.type == "cuda" and not switched_off("MDCG_GRAPHS", "off")
        self._graph: GraphedSteps | None = None  # of the current task
        self._plain_steps = 0  # of the current task
        self._past: PastTasks | None = None  # of the current task
        self._save_again = 0.0  # not before this time
        self.method: Method = stack([member.method for member in group.members], device, compute.dtype)
        self.smoothing = label_smoothing(group, compute)

    def train(self, state: State, tasks: int | None = None) -> State:
        """Train to the end of task number `tasks`, or of the last."""
        try:
            self._train(state, tasks or len(self.group.sizes))
        finally:  # a graph holds on to its memory, its state and this trainer
            self.forget_task()
        return state

    def forget_task(self) -> None:
        """Release what was made for the steps of one task."""
        self._graph, self._past, self._plain_steps = None, None, 0

    def _train(self, state: State, tasks: int) -> None:
        with self.compute.settings(self.group.threads):
            while state.task < tasks and len(state.failures(self.group)) < len(self.group.members):
                if not state.begun:
                    self.begin_task(state)
                    self.forget_task()
                    self._look(state, 0)
                state.model.train()
                self._train_epoch(state)
                self._fit_head(state)
                self._look(state, state.epoch + 1)
                self._finish_epoch(state)
                if time.perf_counter() >= self._save_again:
                    self._save(state)

    def _train_epoch(self, state: State) -> None:
        started = time.perf_counter()
        drawn = self._draws.draw(state.memories, state.task, state.epoch)
        fewest, most = int(drawn.steps.min()), int(drawn.steps.max())
        _follow(state)
        if self._graph is not None:
            self._graph.load(drawn, state.step)
        else:
            draws = drawn.to(self.compute.device)
        while state.step < most:
            if self.should_stop():
                state.seconds += time.perf_counter() - started
                self._save(state)
                raise Stopped(f"stopped in task {state.task + 1}, epoch {state.epoch + 1}")
            resting = state.step >= fewest  # some members, that is
            if self._graph is not None:
                end = min(most if resting else fewest, self._next_pause(state, most))
                count = self._graph.run(end - state.step, resting)
            else:
                count = self._plain_step(state, draws, resting)
            state.step += count
            if self.watcher:
                self.watcher.step(count)
            if state.step < most and state.step == self._next_look(state.step - 1, most):
                self.compute.wait()
                before = time.perf_counter()
                self._look(state, state.epoch, state.step)
                _follow(state)
                started += time.perf_counter() - before
            ends = state.step == most and self.group.stages.closes(state.task)  # where all is evaluated anyway
            if not ends and self._evaluates_at(state):
                self._evaluate_within(state)
        self.compute.wait()
        state.seconds += time.perf_counter() - started

    def _fit_head(self, state: State) -> None:
        """Fit to the memory what the head wants to be fitted, after the last step of a task."""
        if state.epoch + 1 < self.group.training.epochs or not self.group.stages.closes(state.task):
            return
        started = time.perf_counter()
        together = self.compute.device.type == "cuda"
        fit_head(state, self.group, self.images, self.pixels, self.compute, together)
        self.compute.wait()
        state.seconds += time.perf_counter() - started

    def _next_look(self, step: int, last: int) -> int:
        return self.probes.next_look(step, last) if self.probes else last

    def _evaluates_at(self, state: State) -> bool:
        """Whether accuracy is asked for within the epoch: of an online stream, which has but one per task."""
        every = self.group.training.evaluate_every
        return self.group.online and every > 0 and self._step_of_task(state) % every == 0

    def _next_pause(self, state: State, last: int) -> int:
        """The next step after which somebody looks or accuracy is asked for."""
        every, look = self.group.training.evaluate_every, self._next_look(state.step, last)
        if not (self.group.online and every):
            return look
        return min(look, state.step + every - self._step_of_task(state) % every)

    def _step_of_task(self, state: State) -> int:
        """The step of an online task, of which the stage may be a part."""
        starts, tasks = self.group.streams[0].starts, self.group.stages.tasks
        return int(starts[state.task] - starts[tasks.index(tasks[state.task])]) + state.step

    def _evaluate_within(self, state: State) -> None:
        """Note the accuracy on all classes so far, in the middle of a task."""
        correct = evaluate(state.model, self.eval_images, self.group, self.pixels, self.compute)
        task = self.group.stages.tasks[state.task]
        for rows, own, view in zip(state.within, correct, self.group.views, strict=True):
            seen = list({c for done in range(task + 1) for c in view.scenario.classes_of(done)})
            rows.append((self._step_of_task(state), metrics.overall(own[seen], view.eval_total[seen])))

    def _look(self, state: State, epoch: int, step: int = 0) -> None:
        if self.probes:
            self.probes.look(self, state, epoch, step)

    def _plain_step(self, state: State, draws: EpochDraws, resting: bool) -> int:
        # The last one as if members rested: nothing is compiled while a graph is captured, and all that train do so.
        rehearsed = self.graphs and self._plain_steps + 1 == WARM_UP
        self.train_step(state, draws, state.step, resting or rehearsed)
        self._plain_steps += 1
        if self.graphs and self._plain_steps == WARM_UP:
            self._graph = GraphedSteps(partial(self.train_step, state), draws)
            self._graph.load(draws, state.step + 1)
        return 1

    def train_step(self, state: State, draws: EpochDraws, step: int | Tensor, resting: bool = False) -> None:
        """Update every member once; or, if some rest, those that have so many steps."""
        batch = self.batch(draws, step)
        if self._nothing_kept_yet(state, step):
            batch = batch.part(0, batch.current)
        active = draws.steps > step if resting else None
        at_rest = [buffer.clone() for buffer in state.model.statistics()] if resting else None
        loss, logits, gradients = self.gradients(state, batch)
        state.optimizer.step(gradients, active, self.rate(draws, step))
        _follow(state)
        if batch.kept_at is not None and state.stored_logits is not None:
            state.stored_logits.put(batch.kept_at[:, : batch.current], logits)
        with torch.no_grad():
            labels = batch.mix.mostly(batch.labels) if batch.mix else batch.labels
            hits = (logits.argmax(-1) == labels[:, : batch.current]).sum(1)
            if active is not None and at_rest is not None:
                _restore(state, at_rest, active)
                loss, hits = torch.where(active, loss, 0), torch.where(active, hits, 0)
            state.loss_sum += loss
            state.hits += hits

    def _nothing_kept_yet(self, state: State, step: int | Tensor) -> bool:
        """Whether it is the first step of an online stream that is replayed from its second step on."""
        first = isinstance(step, int) and step == 0 and state.task == 0  # a graph's steps come later
        return first and self.group.online and not self.group.boundaries

    def rate(self, draws: EpochDraws, step: int | Tensor) -> Tensor | None:
        """The factor (K,) of the learning rates in one step, where it is not 1 throughout."""
        return draws.more_at(step, RATE)[RATE] if RATE in draws.more else None

    def batch(self, draws: EpochDraws, step: int | Tensor) -> Batch:
        """Make the batch of one step from its draws."""
        index, labels, corner, flipped = draws.at(step)
        places = index.flatten(), corner.flatten(0, 1), flipped.flatten()
        more, size = draws.more_at(step), self.group.training.batch_size
        if recolours(more):
            x = recoloured(self.raw.view(self.images, *places), more, self.raw, self.pixels)
        else:
            x = self.pixels.view(self.images, *places)
        batch = Batch(x.unflatten(0, index.shape), labels, index, size, draws.passes, more.get(KEPT_AT))
        return _mixed(batch, more) if mixes(more) else batch

    def gradients(self, state: State, batch: Batch) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Compute the loss (K,), the logits of the current images, and the gradient of every parameter."""
        if not (self.method.gradient_per_task and state.task):
            return self._gradient(state, batch)
        memory = batch.part(batch.current, batch.images.shape[1])
        past = self.past(state).gradients(memory.images, memory.labels, state.teacher)
        loss, logits, gradient = self._gradient(state, batch.part(0, batch.current))
        return loss, logits, parts(self.method.combine(flat(gradient), past), gradient)

    def past(self, state: State) -> PastTasks:
        """The object that gives gradients of past tasks' memories; made by the first that asks for it in a task."""
        if self._past is None or not self._past.is_of(state):
            self._past = None  # before the next one takes as much memory
            self._past = PastTasks(state, self.group, self.compute)
        return self._past

    def _gradient(self, state: State, batch: Batch) -> tuple[Tensor, Tensor, list[Tensor]]:
        loss, logits = self.forward(state, batch)
        # Of the sum: where torch is given gradients to begin with, it imports sympy first, which takes a second or two.
        found = torch.autograd.grad(loss.sum(), state.optimizer.parameters, materialize_grads=True)
        return loss.detach(), logits, list(found)

    def forward(self, state: State, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the loss (K,) and the logits of the current images."""
        x, labels, size = batch.images, batch.labels, batch.current
        past = self.group.past(state.task)
        with self.compute.autocast():
            taught = taught_current = None
            if state.teacher is not None:
                everything = self.method.teacher_sees() == "all"
                with torch.no_grad(), beside(x):
                    taught = state.teacher.logits(x if everything else x[:, size:])
                if everything:
                    taught_current, taught = taught[:, :size], taught[:, size:]
            # In training BatchNorm normalises by the images of one pass: which ones share it matters.
            parts = [state.model.logits(part) for part in x.split(batch.passes, 1)]
            logits = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
            join(x)
        current, of_memory = logits, None
        if replays := x.shape[1] > size:  # backward, one `split` is one kernel, where two slices would be five
            current, of_memory = logits.split((size, x.shape[1] - size), 1)
        step = Step(
            logits=current,
            labels=labels[:, :size],
            old=sum(past),
            memory_logits=of_memory,
            memory_labels=labels[:, size:] if replays else None,
            teacher_logits=taught,
            teacher_current_logits=taught_current,
            past=past,
            stored_logits=_stored(state, batch) if replays else None,
            revisits=self.group.revisits,
            smoothing=self.smoothing,
        )
        loss = self.method.loss(step)
        if batch.mix:
            loss = self._with_partners(loss, step, batch.mix)
        if loss.shape != (members := (len(self.group.members),)):
            raise MdcgError(
                f"the loss of {type(self.group.method).__name__} has shape {tuple(loss.shape)} for {members[0]} "
                "members; it must have one number for each: take no mean over the first axis."
            )
        return loss, current.detach()

    def _with_partners(self, loss: Tensor, step: Step, mix: Mix) -> Tensor:
        """Add the loss with the labels, and the stored logits, of the images' partners."""
        size, share, stored = step.labels.shape[1], mix.weight.to(loss.dtype), step.stored_logits
        other = replace(
            step,
            labels=mix.labels[:, :size],
            memory_labels=None if step.memory_labels is None else mix.labels[:, size:],
            stored_logits=None if stored is None else partners_of(stored, mix.partner[:, size:] - size),
        )
        return share * loss + (1 - share) * self.method.loss(other)

    def begin_task(self, state: State) -> None:
        """Begin a task, first storing the logits of the images that came into memory after the last one."""
        if self.method.stores_logits and self.group.online:
            if state.stored_logits is None:
                outputs = state.model.head.capacity(self.group.outputs)
                state.stored_logits = no_logits(state.loss_sum, self.group.places + 1, outputs, len(self.images))
        elif self.method.stores_logits and state.task > 0:
            asked = partial(logits_of, state.model, self.images, pixels=self.pixels, compute=self.compute)
            state.stored_logits = keep(state.stored_logits, state.memories, len(self.images), asked)
        states.begin_task(state, self.group)
        if state.task > 0 and self.probes and self.probes.needs_start:
            state.start = states.frozen_copy(state.model)

    def _finish_epoch(self, state: State) -> None:
        """Write the epoch into the history; after a task's last epoch, evaluate and fill the memory."""
        started = time.perf_counter()
        training, epoch, stages = self.group.training, state.epoch, self.group.stages
        if not stages.closes(state.task):  # the task goes on
            states.end_task(state, self.group)
            state.task, state.step = state.task + 1, 0
            return
        task = stages.tasks[state.task]
        parts = [stage for stage, of_task in enumerate(stages.tasks) if of_task == task]
        steps = np.sum([steps_per_epoch(self.group, stage) for stage in parts], 0)
        losses = (state.loss_sum.double().cpu() / torch.from_numpy(steps)).tolist()
        hits = state.hits.cpu().tolist()
        last = epoch + 1 == training.epochs
        every = training.evaluate_every
        correct = None
        if last or (every and (epoch + 1) % every == 0):
            correct = evaluate(state.model, self.eval_images, self.group, self.pixels, self.compute)
        for k in range(len(self.group.members)):
            row: HistoryRow = {
                "task": task + 1,
                "epoch": epoch + 1,
                "loss": losses[k],
                "train_accuracy": 100 * hits[k] / int(steps[k] * training.batch_size),
            }
            if correct is not None:
                view = self.group.views[k]
                tasks = [view.scenario.classes_of(done) for done in range(task + 1)]
                R = metrics.accuracy_matrix([correct[k]] * len(tasks), view.eval_total, tasks)
                row["accuracy"] = R[-1].tolist()
            if state.within[k]:
                row["within"], state.within[k] = state.within[k], []
            state.history[k].append(row)
        state.loss_sum.zero_()
        state.hits.zero_()
        state.epoch, state.step = epoch + 1, 0
        if last and correct is not None:
            state.correct[:, task] = correct
            states.end_task(state, self.group)
            state.task, state.epoch = state.task + 1, 0
        state.seconds += time.perf_counter() - started
        if self.watcher:  # whose time is not the run's
            self.watcher.epoch(task, epoch, sum(losses) / len(losses), [rows[-1] for rows in state.history])

    def _save(self, state: State) -> None:
        started = time.perf_counter()
        self.save(*states.dump(state))
        done = time.perf_counter()
        state.seconds += done - started
        self._save_again = done + (done - started) * (1 / SAVING - 1)


def _follow(state: State) -> None:
    """Let what the kernels keep of the weights follow these."""
    backbone = state.model.resnet()
    if backbone is not None:
        backbone.follow()


def _mixed(batch: Batch, more: Mapping[str, Tensor]) -> Batch:
    x, mix = mixed(batch.images, batch.labels, more)
    return replace(batch, images=x, mix=mix)


def total_steps(group: Group) -> int:
    """The number of steps of a whole run, for a progress display."""
    return sum(group.training.epochs * _most_steps(group, task) for task in range(len(group.sizes)))


def steps_done(group: Group, state: State) -> int:
    """The number of `total_steps` that were done when `state` was saved."""
    done = sum(group.training.epochs * _most_steps(group, task) for task in range(state.task))
    if state.task < len(group.sizes):
        done += state.epoch * _most_steps(group, state.task) + state.step
    return done


def _most_steps(group: Group, task: int) -> int:
    return int(steps_per_epoch(group, task).max())


def _stored(state: State, batch: Batch) -> Tensor | None:
    """What was stored of the answers to a batch's memory images."""
    if state.stored_logits is None:
        return None
    if batch.kept_at is not None:
        return state.stored_logits.in_places(batch.kept_at[:, batch.current :])
    return state.stored_logits.at(batch.index[:, batch.current :])


@torch.no_grad()
def _restore(state: State, buffers: list[Tensor], active: Tensor) -> None:
    """Put back the running statistics of members that rest."""
    for buffer, before in zip(state.model.statistics(), buffers, strict=True):
        buffer.copy_(torch.where(active.view(-1, *[1] * (buffer.ndim - 1)), buffer, before))
