"""A sweep on a Ray cluster: one task for each group of runs; Ray decides where, and starts anew what was lost.

All nodes must see the folder of runs and the dataset under the same path. A group whose worker or node is lost is given
to another one, which goes on from the group's last checkpoint.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mdcg.errors import MachineError, MdcgError
from mdcg.execute.context import Context
from mdcg.execute.local import do_job
from mdcg.execute.plan import Job, Undone
from mdcg.execute.progress import Display
from mdcg.execute.unfinished import is_begun
from mdcg.extras import extra

logger = logging.getLogger(__name__)
RETRIES = 20  # nodes that a group may lose
POLL = 1.0  # seconds between two looks at what is running
Messages = list[tuple[int, str]]  # messages of the library, each with its level
TIMEOUT = 60.0  # seconds that a lost node's process may take to die, holding on to its runs


class RayExecutor:
    """The executor of the cluster at `address`; without one that of Ray's environment, or one started here."""

    def __init__(self, address: str | None) -> None:
        self._ray = extra("ray", "cluster", "training on a cluster")
        self._address = address

    def prepare(self, context: Context) -> Context:
        """The context with the cluster's device: its GPUs where it has any, unless another is asked for."""
        if context.given is not None:
            raise MdcgError(
                f"the dataset {context.given.name} was given in Python and is in this process alone, where a cluster "
                "cannot reach it; train here, or put its images into a folder that all nodes see, for folder:PATH."
            )
        if not self._ray.is_initialized():
            _connect(self._ray, self._address)
        has = self._ray.cluster_resources()
        device = ("cuda" if has.get("GPU", 0) >= 1 else "cpu") if context.device == "auto" else context.device
        if device == "cuda" and not has.get("GPU", 0):
            raise MdcgError("this Ray cluster has no GPU; leave --device out, or write --device cpu.")
        slots = has.get("GPU", 0) if device == "cuda" else has.get("CPU", 1) // self._cpus()
        out, data = context.out.resolve(), context.data and context.data.resolve()
        return replace(context, out=out, data=data, device=device, remote=True, slots=max(1, int(slots)))

    def execute(self, jobs: Sequence[Job], context: Context, display: Display) -> Undone:
        ray, undone = self._ray, Undone()
        share = {"num_gpus": 1} if context.device == "cuda" else {"num_cpus": self._cpus()}
        task = ray.remote(max_retries=RETRIES, **share)(work_on)
        waiting = {task.remote(job, context, torch.get_num_threads()): job for job in jobs}
        begun_before = {id(job) for job in jobs if is_begun(context.store, job.specs)}
        try:
            while waiting:
                ended, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
                for one in ended:
                    job = waiting.pop(one)
                    of_this, messages = _outcome(ray, one, job, context)
                    for level, text in messages:
                        logger.log(level, "%s", text)
                    undone |= of_this
                    display.job_ends(job, of_this)
                new = [job for job in waiting.values() if id(job) not in begun_before]
                display.running(sum(len(job.specs) for job in new if is_begun(context.store, job.specs)))
        finally:
            for one in waiting:
                ray.cancel(one, force=True)
            ray.shutdown()
        return undone

    def _cpus(self) -> int:
        """The CPUs of a task: as many as PyTorch has threads here, and no more than one node has."""
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


def _outcome(ray: Any, task: Any, job: Job, context: Context) -> tuple[Undone, Messages]:
    """The result of a task that ended, well or not: what went wrong with it is no reason to stop the others."""
    try:
        undone, messages = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        undone, messages = _all_left(job, context, str(error.cause)), []
    except ray.exceptions.RayError as error:  # more nodes were lost than can be borne
        reason = f"its worker was lost ({str(error).splitlines()[0].rstrip('.')})"
        undone, messages = _all_left(job, context, reason), []
    return undone, messages


def _all_left(job: Job, context: Context, reason: str) -> Undone:
    store = context.store
    return Undone(left={spec.name: reason for spec in job.specs if store.finished(spec) is None})


class _MessageCollector(logging.Handler):
    """Keeps the library's messages, with their levels, to be told where somebody reads them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: Messages = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append((record.levelno, record.getMessage()))


def work_on(job: Job, context: Context, threads: int) -> tuple[Undone, Messages]:
    """Do a job in a Ray worker; return what it left undone, and the library's messages."""
    torch.set_num_threads(threads)  # as where the sweep was started: results depend on their number
    collector, library = _MessageCollector(), logging.getLogger("mdcg")
    library.addHandler(collector)
    library.setLevel(logging.INFO)
    give_up = time.monotonic() + TIMEOUT
    try:
        while True:
            undone = replace(do_job(job, context), errors=())  # which may not travel
            if not undone.left or time.monotonic() > give_up:
                return undone, collector.messages
            time.sleep(0.5)
    except MachineError as error:  # this node's disk or GPU: not the runs' failure
        return _all_left(job, context, str(error)), collector.messages
    finally:
        library.removeHandler(collector)
