"""A sweep on a Ray cluster: one task for each group of runs; Ray decides where, and starts anew what was lost.

All nodes must see the folder of runs and the dataset under the same path. A group whose worker or node is lost is given
to another one, which goes on from the group's last checkpoint.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from mdcg.errors import Busy, MachineError, MdcgError
from mdcg.experiments.plan import group_folder
from mdcg.experiments.sweep import Executor, Job, Site, Watching, do
from mdcg.extras import extra
from mdcg.train.checkpoint import MEMBERS
from mdcg.train.group import Group

RETRIES = 20  # nodes that a group may lose
POLL = 1.0  # seconds between two looks at what is running
PATIENCE = 60.0  # seconds that a lost node's process may take to die, holding on to its runs


def on_ray(address: str | None) -> Executor:
    """An executor for the cluster at `address`; without one Ray takes that of its environment, or starts one here."""
    ray = extra("ray", "cluster", "training on a cluster")

    def execute(jobs: Sequence[Job], site: Site, display: Watching, warn: Callable[[str], None]) -> dict[str, str]:
        if not jobs:
            return {}
        ours = not ray.is_initialized()
        if ours:
            _connect(ray, address)
        try:
            return _execute(ray, jobs, site, display, warn)
        finally:
            if ours:
                ray.shutdown()

    return execute


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


def _execute(
    ray: Any, jobs: Sequence[Job], site: Site, display: Watching, warn: Callable[[str], None]
) -> dict[str, str]:
    shared = replace(site, out=site.out.resolve(), data=site.data and site.data.resolve())
    waiting = {}
    for job in jobs:
        device = site.compute(job.specs[0]).device.type if site.device != "auto" else _kind(ray)
        threads = torch.get_num_threads()
        share = {"num_gpus": 1} if device == "cuda" else {"num_cpus": min(threads, int(_most_cpus(ray)))}
        remote = ray.remote(max_retries=RETRIES, **share)(work_on)
        waiting[remote.remote(job, replace(shared, device=device), threads)] = job
    failures: dict[str, str] = {}
    try:
        while waiting:
            ended, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
            for task in ended:
                job = waiting.pop(task)
                failed, said = _outcome(ray, task, job)
                for text in said:
                    warn(text)
                failures |= failed
                display.job_ends(job, failed)
            begun = [job for job in waiting.values() if (group_folder(site.store, job.specs) / MEMBERS).exists()]
            display.running(sum(len(job.specs) for job in begun))
    finally:
        for task in waiting:
            ray.cancel(task, force=True)
    return failures


def _outcome(ray: Any, task: Any, job: Job) -> tuple[dict[str, str], list[str]]:
    try:
        failures, said = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, MdcgError):
            raise MdcgError(f"on {job.specs[0].name}: {cause}") from error
        raise
    except ray.exceptions.RayError as error:  # more nodes were lost than can be borne
        reason = f"its worker was lost ({str(error).splitlines()[0].rstrip('.')})"
        return {spec.name: reason for spec in job.specs}, []
    return failures, said


def _kind(ray: Any) -> str:
    return "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"


def _most_cpus(ray: Any) -> float:
    """Of the largest node: a task must fit on one."""
    return max((node["Resources"].get("CPU", 1.0) for node in ray.nodes() if node["Alive"]), default=1.0)


class _Silent:
    """There is nobody to look, where the work is done."""

    def begin(self, title: str, group: Group, total: int, done: int) -> None:
        pass

    def step(self, count: int) -> None:
        pass

    def epoch(self, task: int, epoch: int, loss: float) -> None:
        pass


def work_on(job: Job, site: Site, threads: int) -> tuple[dict[str, str], list[str]]:
    """What a Ray worker does: failures by run, and warnings."""
    torch.set_num_threads(threads)  # as where the sweep was started: results depend on their number
    said: list[str] = []
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return do(job, site, _Silent(), said.append), said
        except Busy:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.5)
        except MachineError as error:
            # This node's disk or GPU: said once, and left to a later sweep rather than noted as the runs' failure.
            return {spec.name: str(error) for spec in job.specs}, said
