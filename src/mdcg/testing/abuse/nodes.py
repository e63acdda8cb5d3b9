"""Sweeps on a Ray cluster that lose a node or a worker on the way."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mdcg.execute.plan import Undone
from mdcg.execute.ray import RayExecutor, on_the_loopback
from mdcg.execute.sweep import Sweep
from mdcg.execute.unfinished import begun
from mdcg.testing.abuse.campaign import CannotTry, Failure, Part
from mdcg.testing.abuse.work import TIMEOUT, differences, outcome

NODES = 2  # beside the head, which trains nothing; each takes one group at a time
RECIPE = """
scenario: digits-2
epochs: 3
seeds: 0-1
axes:
  method: [replay, der]
  memory: [30, 60]
"""
LOSSES = ("a node is removed", "a worker is killed", "a worker is stopped", "a node is stopped")


@dataclass
class LocalCluster:
    """A Ray cluster of several nodes on this machine, which no other machine can reach."""

    ray: Any = field(default_factory=lambda: importlib.import_module("ray"))
    nodes: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._closing = contextlib.ExitStack()
        self._closing.enter_context(on_the_loopback(self.ray))
        utils = importlib.import_module("ray.cluster_utils")
        head = {"num_cpus": 0, "include_dashboard": False}
        self._cluster = utils.Cluster(initialize_head=True, head_node_args=head)
        self._closing.callback(self._cluster.shutdown)
        self._closing.callback(self.ray.shutdown)
        self.complete()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def complete(self) -> None:
        """Add nodes in place of those that are gone."""
        while len(self.nodes) < NODES:
            self.nodes.append(self._cluster.add_node(num_cpus=1))
        self._cluster.wait_for_nodes()

    def remove(self, node: Any) -> None:
        """Take a node away, without telling anybody before."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def raylet(self, node: Any) -> int:
        """The process that manages a node."""
        return int(node.all_processes["raylet"][0].process.pid)

    def workers(self, node: Any) -> list[int]:
        """The processes of a node that work on tasks or are about to."""
        psutil = importlib.import_module("psutil")  # which comes with Ray
        found = []
        for process in psutil.Process(self.raylet(node)).children():
            try:
                if process.cmdline()[0].startswith("ray::") and "Agent" not in process.cmdline()[0]:
                    found.append(process.pid)
            except (psutil.Error, IndexError):
                continue  # it has just ended
        return found

    def close(self) -> None:
        self._closing.close()


class Nodes(Part):
    """Sweeps on a Ray cluster that lose a node or a worker on the way: the same bits, no group left over."""

    name, usual = "ray", 20

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if find_spec("ray") is None:
            raise CannotTry("Ray is not installed (pip install 'mdcg[cluster]')")
        self._recipe = folder / "recipe.yaml"
        self._recipe.write_text(RECIPE)
        self._cluster: LocalCluster | None = None
        self._wanted: dict[str, object] = {}
        self._seconds = 0.0  # that a sweep takes which nobody disturbs

    def trial(self, number: int, rng: random.Random) -> Failure | None:
        cluster = self._cluster or self._made()
        loss, which, share, pause = rng.choice(LOSSES), rng.randrange(NODES), rng.random(), rng.uniform(0.5, 5)
        cluster.complete()
        node = cluster.nodes[which]
        acts: dict[str, Callable[[], bool]] = {
            "a node is removed": lambda: _removed(cluster, node),
            "a worker is killed": lambda: _signalled(cluster.workers(node)[:1], signal.SIGKILL),
            "a worker is stopped": lambda: _stopped(cluster.workers(node)[:1], pause),
            "a node is stopped": lambda: _stopped([cluster.raylet(node), *cluster.workers(node)], pause),
        }
        lost = False
        while not lost:  # too late, or before anybody was there: once more, at another moment
            delay = share * self._seconds
            lost, wrong = self._swept(cluster, delay, acts[loss])
            share *= 0.7
            if wrong:
                return Failure(f"{loss} {delay:.1f} s after a sweep began", wrong)
        return None

    def _made(self) -> LocalCluster:
        """Start the cluster; find out what comes of a sweep that nobody disturbs, and how long it takes there."""
        here = self.folder / "here"
        Sweep.read(self._recipe, out=here, device="cpu", members=2).run(quiet=True)
        self._wanted = outcome(here)
        self._cluster = LocalCluster()
        started = time.perf_counter()
        _, wrong = self._swept(self._cluster, 0, lambda: True)
        if wrong:
            raise AssertionError(f"a sweep on Ray fails undisturbed: {wrong}")
        self._seconds = time.perf_counter() - started
        return self._cluster

    def _swept(self, cluster: LocalCluster, delay: float, act: Callable[[], bool]) -> tuple[bool, str]:
        """Run a sweep and do something to it: whether that was done, and what is wrong in the end, in words."""
        out = self.folder / "there"
        shutil.rmtree(out, ignore_errors=True)
        sweep = Sweep.read(self._recipe, out=out, device="cpu", members=2)
        cluster.ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        done: Future[Undone] = Future()
        threading.Thread(target=_run, args=(sweep, done), daemon=True).start()
        until = time.monotonic() + delay
        while time.monotonic() < until and not done.done():
            time.sleep(0.01)
        acted = False
        while not acted and not done.done():
            acted = act()
        try:
            undone = done.result(TIMEOUT)
        except TimeoutError:
            self.close()
            return acted, f"it does not end within {TIMEOUT:g} s"
        except Exception as error:
            return acted, f"{type(error).__name__}: {error}"
        wrong = "; ".join([*undone.failed.values(), *undone.left.values()])
        wrong = wrong or differences(outcome(out), self._wanted)
        left = "a group is left over" if begun(sweep.context.store) else ""
        return acted, "; ".join(filter(None, (wrong, left)))

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        super().close()


def _run(sweep: Sweep, done: Future[Undone]) -> None:
    try:
        done.set_result(sweep.run(quiet=True, executor=RayExecutor()))
    except BaseException as error:
        done.set_exception(error)


def _removed(cluster: LocalCluster, node: Any) -> bool:
    cluster.remove(node)
    return True


def _signalled(processes: list[int], number: int) -> bool:
    """Send a signal to processes; whether there was any."""
    there = False
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)
            there = True
    return there


def _stopped(processes: list[int], seconds: float) -> bool:
    """Stop processes for a while; whether there was any."""
    there = _signalled(processes, signal.SIGSTOP)
    if there:
        time.sleep(seconds)
        _signalled(processes, signal.SIGCONT)
    return there
