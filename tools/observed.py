"""A plugin for pytest: which tests execute which lines; or only the tests that were chosen, in that order.

What it is to do is in the environment, for it is also loaded by the workers of pytest-xdist.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

Lines = set[tuple[CodeType, int]]


def pytest_configure(config: pytest.Config) -> None:
    if folder := os.environ.get("OBSERVED_INTO"):
        config.pluginmanager.register(Observer(Path(folder), os.environ["OBSERVED_BELOW"] + os.sep))
    if chosen := os.environ.get("CHOSEN_TESTS"):
        config.pluginmanager.register(Chosen(Path(chosen)))


class Observer:
    """Writes the lines below a folder that each test executes, and how long it takes."""

    def __init__(self, into: Path, below: str) -> None:
        self._into, self._below = into, below
        self._now: Lines = set()
        self._shared: dict[Any, Lines] = {}  # what fixtures for several tests execute, which all of them depend on
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._tests: dict[str, dict[str, Any]] = {}

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        in_function = code.co_flags & inspect.CO_OPTIMIZED  # all else runs once, as the module is imported
        return self._line if in_function and code.co_filename.startswith(self._below) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self._now.add((frame.f_code, frame.f_lineno))
        return self._line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        for module in [
            one for name, one in sys.modules.items() if name.split(".")[0] in ("tests", Path(self._below).name)
        ]:
            for value in list(vars(module).values()):  # what one test left in a cache, another would not execute
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()
        self._now, begun = set(), time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            fixtures = getattr(item, "_fixtureinfo", None)
            for fixture in [one for some in (fixtures.name2fixturedefs.values() if fixtures else ()) for one in some]:
                self._now |= self._shared.get(fixture, set())
            found: dict[str, list[int]] = {}
            for code, line in self._now:
                found.setdefault(code.co_filename.removeprefix(self._below), []).append(line)
            self._tests[item.nodeid] = {"seconds": time.perf_counter() - begun, "lines": found}
            if "server" in getattr(item, "fixturenames", ()):
                self._tests[item.nodeid]["elsewhere"] = True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before, self._now = self._now, set()
        try:
            return (yield)
        finally:
            self._shared[fixturedef] = self._now
            self._now = before | self._now

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = (self._passed - self._failed) & self._tests.keys()  # what a worker ran is told here too
        told = {"tests": {name: self._tests[name] for name in passed}, "failed": sorted(self._failed)}
        (self._into / f"{os.getpid()}.json").write_text(json.dumps(told))


class Chosen:
    """Runs the tests that a file names, in its order, and notes which failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._order = {name: number for number, name in enumerate(path.read_text().splitlines())}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self._order), key=lambda one: self._order[one.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._path.with_suffix(".failed").write_text(report.nodeid)
