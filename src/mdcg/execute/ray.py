"""A sweep on a Ray cluster: one task for each group of runs; Ray decides where, and starts anew what was lost.

All nodes must see the folder of runs and the dataset under the same path. A group whose worker or node is lost is given
to another one, which goes on from the group's last checkpoint.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mdcg.errors import MachineError, MdcgError
from mdcg.execute.plan import Warn, group_folder
from mdcg.execute.sweep import Job, Site, Undone, Watching, do
from mdcg.extras import extra
from mdcg.train.checkpoint import MEMBERS
from mdcg.train.group import Group

RETRIES = 20  # nodes that a group may lose
POLL = 1.0  # seconds between two looks at what is running
PATIENCE = 60.0  # seconds that a lost node's process may take to die, holding on to its runs


class OnRay:
    """The cluster at `address`; without one that of Ray's environment, or one started here."""

    def __init__(self, address: str | None) -> None:
        self._ray = extra("ray", "cluster", "training on a cluster")
        self._address = address

    def prepare(self, site: Site) -> Site:
        """With the cluster's device: its GPUs where it has any, unless another is asked for."""
        if not self._ray.is_initialized():
            _connect(self._ray, self._address)
        has = self._ray.cluster_resources()
        device = ("cuda" if has.get("GPU", 0) >= 1 else "cpu") if site.device == "auto" else site.device
        if device == "cuda" and not has.get("GPU", 0):
            raise MdcgError("this Ray cluster has no GPU; leave --device out, or write --device cpu.")
        slots = has.get("GPU", 0) if device == "cuda" else has.get("CPU", 1) // self._cpus()
        out, data = site.out.resolve(), site.data and site.data.resolve()
        return replace(site, out=out, data=data, device=device, remote=True, slots=max(1, int(slots)))

    def execute(self, jobs: Sequence[Job], site: Site, display: Watching, warn: Warn) -> Undone:
        ray, undone = self._ray, Undone()
        share = {"num_gpus": 1} if site.device == "cuda" else {"num_cpus": self._cpus()}
        task = ray.remote(max_retries=RETRIES, **share)(work_on)
        waiting = {task.remote(job, site, torch.get_num_threads()): job for job in jobs}
        begun_before = {id(job) for job in jobs if _begun(job, site)}
        try:
            while waiting:
                ended, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
                for one in ended:
                    job = waiting.pop(one)
                    of_this, said = _outcome(ray, one, job, site)
                    for text in said:
                        warn(text)
                    undone |= of_this
                    display.job_ends(job, of_this)
                going = [job for job in waiting.values() if _begun(job, site) and id(job) not in begun_before]
                display.running(sum(len(job.specs) for job in going))
        finally:
            for one in waiting:
                ray.cancel(one, force=True)
            ray.shutdown()
        return undone

    def _cpus(self) -> int:
        """Of a task: as many as PyTorch has threads here, and no more than one node has."""
        nodes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        return max(1, min(torch.get_num_threads(), int(max(nodes, default=1))))


def _connect(ray: Any, address: str | None) -> None:
    try:
        host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
        if colon:  # Ray itself would go on trying for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise MdcgError(
            f"no Ray cluster answers at {address or 'this machine'} ({reason}); check its address."
        ) from error


def _begun(job: Job, site: Site) -> bool:
    return (group_folder(site.store, job.specs) / MEMBERS).exists()


def _outcome(ray: Any, task: Any, job: Job, site: Site) -> tuple[Undone, list[str]]:
    """Of a task that ended, well or not: what went wrong with it is no reason to stop the others."""
    try:
        undone, said = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        undone, said = _all_left(job, site, str(error.cause)), []
    except ray.exceptions.RayError as error:  # more nodes were lost than can be borne
        undone, said = _all_left(job, site, f"its worker was lost ({str(error).splitlines()[0].rstrip('.')})"), []
    return undone, said


def _all_left(job: Job, site: Site, reason: str) -> Undone:
    store = site.store
    return Undone(left={spec.name: reason for spec in job.specs if store.finished(spec) is None})


class _Silent:
    """There is nobody to look, where the work is done."""

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        pass

    def step(self, count: int) -> None:
        pass

    def epoch(self, task: int, epoch: int, loss: float) -> None:
        pass


def work_on(job: Job, site: Site, threads: int) -> tuple[Undone, list[str]]:
    """What a Ray worker does: what it left undone, and warnings."""
    torch.set_num_threads(threads)  # as where the sweep was started: results depend on their number
    said: list[str] = []
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            undone = do(job, site, _Silent(), said.append)
        except MachineError as error:  # this node's disk or GPU: not the runs' failure
            return _all_left(job, site, str(error)), said
        if not undone.left or time.monotonic() > give_up:
            return undone, said
        time.sleep(0.5)
