"""What is shown while runs train: bars where they can be drawn, elsewhere a line now and then, or nothing at all."""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

import mdcg
from mdcg.execute.cost import group_of
from mdcg.execute.plan import Undone
from mdcg.execute.progress import PlanDisplay
from mdcg.terminal import PlainConsole
from mdcg.train import display as shown
from mdcg.train import state as states
from mdcg.train.display import TrainingDisplay
from mdcg.train.loop import Trainer, total_steps
from mdcg.train.precision import compute
from tests.conftest import Cli, toy_dataset, toy_group

GROUP = toy_group(toy_dataset([8] * 6), "naive", [(0, 0, {})])
PAUSE = shown.PAUSE  # as people have it; tests have none of these lines
QUICK = ["run", "--scenario", "digits-2", "--method", "naive", "--epochs", "1", "--batch-size", "64"]


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(shown, "PAUSE", PAUSE)
    caplog.set_level(logging.INFO, "mdcg")
    return caplog


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "1 s"), (1.6, "2 s"), (59.4, "59 s"), (59.6, "1 min"), (61, "1 min 1 s"), (120, "2 min"),
        (9 * 60 + 59, "9 min 59 s"), (10 * 60 + 5, "10 min"), (11 * 60 + 5, "11 min"), (3599, "59 min"),
        (3600, "1 h 0 min"), (7260, "2 h 1 min"),
    ],
)  # fmt: skip
def test_how_long_something_takes(seconds: float, said: str) -> None:
    """Seconds from ten minutes on are nobody's concern."""
    assert shown.duration(seconds) == said


def train(display: TrainingDisplay, clock: Clock, *ends: float) -> None:
    """Epochs of ten steps each that end at these times."""
    for epoch, clock.now in enumerate(ends):
        display.step(10)
        display.epoch(0, epoch, 0.5, [])


def test_at_most_a_line_every_ten_seconds(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    with TrainingDisplay(clock=clock) as display:
        display.begin("mine", GROUP, 100, 20)
        train(display, clock, 5, 9.9, 12, 20, 21.9, 22, 200, 201)
    assert log.messages == [
        "mine: task 1, epoch 3, loss 0.500; about 18 s to go",  # 20 steps in the 7 s since the first, 50 are left
        "mine: task 1, epoch 6, loss 0.500; about 7 s to go",
        "mine: task 1, epoch 7, loss 0.500; about 32 s to go",
    ]


@pytest.mark.parametrize(
    ("is_terminal", "variables", "bars"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),  # which cannot draw over what it has drawn
        (False, {"TERM": "xterm"}, False),
        (False, {"TERM": "xterm", "FORCE_COLOR": "1"}, False),  # as job runners set it
    ],
)
def test_bars_or_lines(
    is_terminal: bool,
    variables: dict[str, str],
    bars: bool,
    clock: Clock,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bars where they can be drawn, lines elsewhere, and never both."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    for name in ("TERM", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with TrainingDisplay(clock=clock) as display:
        display.begin("mine", GROUP, 100, 0)
        train(display, clock, 15, 30)
    seen = screen.getvalue()
    for message in log.messages:  # which a handler may have printed there
        seen = seen.replace(message, "")
    assert (len(log.messages), "mine" in seen) == ((0, True) if bars else (2, False))


def test_what_comes_before_the_first_step_is_no_pace(clock: Clock) -> None:
    """A minute in which kernels are compiled, then a second for ten steps."""
    with TrainingDisplay(quiet=True, clock=clock) as display:
        display.begin("mine", GROUP, 1001, 0)
        clock.now = 60
        display.step(1)
        assert display.seconds_left() is None
        clock.now = 61
        display.step(10)
        assert display.seconds_left() == pytest.approx(99)


def test_of_a_short_training_there_is_no_line(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    with TrainingDisplay(clock=clock) as display:
        display.begin("mine", GROUP, 30, 0)
        train(display, clock, 3, 6, 9.9)
    assert log.messages == []


def test_when_all_is_done_no_time_is_left(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    with TrainingDisplay(clock=clock) as display:
        display.begin("mine", GROUP, 10, 0)
        train(display, clock, 15)
    assert log.messages == ["mine: task 1, epoch 1, loss 0.500"]


def test_quiet_is_quiet(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    with TrainingDisplay(quiet=True, clock=clock) as display:
        display.begin("mine", GROUP, 30, 0)
        train(display, clock, 50, 100, 150)
    assert log.messages == []


def test_lines_of_a_plan(tmp_path: Path, clock: Clock, log: pytest.LogCaptureFixture) -> None:
    """They count runs, and a line for a group that ended is one of them."""
    recipe = tmp_path / "two.yaml"
    recipe.write_text("scenario: digits-2\nmethod: naive\nepochs: 2\nseeds: 0-3\n")
    sweep = mdcg.Sweep.read(recipe, out=tmp_path / "runs", members=2)
    plan = sweep.plan()
    with PlanDisplay(plan, clock=clock) as display:
        for name, job in zip(("first", "second"), plan.jobs, strict=True):
            group = group_of(job.specs, sweep.context.dataset(job.specs[0]))
            steps = total_steps(group)
            display.begin(name, group, steps, 0)
            for epoch in range(2):
                display.step(steps // 2)
                clock.now += 9
                display.epoch(0, epoch, 0.25, [])
            display.job_ends(job, Undone())
    assert [re.sub("about .* to go", "soon", message) for message in log.messages] == [
        "first: task 1, epoch 2, loss 0.250; 0 of 4 runs done, 2 running, 2 left; soon",
        "2 of 4 runs done, 0 running, 2 left; soon",
        "second: task 1, epoch 2, loss 0.250; 2 of 4 runs done, 2 running, 0 left",
        "4 of 4 runs done, 0 running, 0 left",
    ]


def test_a_trainer_tells_it_directly(log: pytest.LogCaptureFixture) -> None:
    with TrainingDisplay(clock=itertools.count(0.0, 10.0).__next__) as display:
        display.begin("alone", GROUP, total_steps(GROUP), 0)
        machine = compute("cpu", "fp32")
        Trainer(GROUP, machine, watcher=display).train(states.fresh(GROUP, machine))
    assert [message.split(", loss")[0] for message in log.messages] == [
        f"alone: task {task}, epoch {epoch}" for task in (1, 2, 3) for epoch in (1, 2)
    ]


def test_the_command_line_prints_lines_as_its_own(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "PAUSE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some job runners do; it is no terminal
    answer = cli(*QUICK, "--out", runs)
    assert answer.code == 0
    lines = answer.err.splitlines()
    assert len(lines) == 2
    said = (
        r"mdcg: naive on digits-2: task 1, epoch 1, loss \d\.\d{3}; 0 of 1 runs done, 1 running, 0 left; about .* to go"
    )
    assert re.fullmatch(said, lines[0])


def test_a_terminal_has_bars_and_no_lines(
    clock: Clock, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with TrainingDisplay(clock=clock) as display:
        display.begin("mine [a]", GROUP, 40, 0)
        train(display, clock, 20, 40)
    assert "mine [a]" in screen.getvalue()
    assert "task 1, epoch 2, loss 0.500; about 40 s to go" in screen.getvalue()
    assert log.messages == []


def test_a_notebook_has_bars_in_its_cell(
    clock: Clock, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for what Jupyter brings along: rich draws into an output widget, and closes it at the end."""
    cell: list[Any] = []
    closed: list[Output] = []

    class Output:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *error: object) -> None: ...

        def clear_output(self, wait: bool) -> None: ...

        def close(self) -> None:
            closed.append(self)

    for module, content in {"IPython": {}, "IPython.display": {"display": cell.append}}.items():
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**content))
    monkeypatch.setitem(sys.modules, "ipywidgets", types.SimpleNamespace(Output=Output))
    monkeypatch.setattr(shown, "PlainConsole", partial(PlainConsole, force_jupyter=True))
    with TrainingDisplay(clock=clock) as display:
        display.begin("mine", GROUP, 20, 0)
        train(display, clock, 20, 40)
    assert any("mine" in getattr(output, "text", "") for output in cell)
    assert closed == [output for output in cell if isinstance(output, Output)]
    assert len(closed) == 1
    assert log.messages == []


def test_without_standard_error_a_display_works(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with TrainingDisplay(clock=clock) as display:
        display.begin("mine", GROUP, 20, 0)
        train(display, clock, 20, 40)


def closed_stderr(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "mdcg", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True)


def test_with_standard_error_closed_the_command_line_works(runs: Path) -> None:
    """What is not to be said there is not said elsewhere either."""
    done = closed_stderr(*QUICK, "--out", str(runs), "--json")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["runs"]) == 1
    wrong = closed_stderr("run", "--scenario", "digits-2", "--method", "nive")
    assert (wrong.returncode, wrong.stdout) == (2, "")
