"""A sweep on a Ray cluster: one task for each group of runs; Ray decides where, and starts anew what was lost.

All nodes must see the folder of runs and the dataset under the same path. A group whose worker or node is lost is given
to another one, which goes on from the group's last checkpoint.

Whoever reaches the ports of a cluster can have code run there: one that is started here listens to this machine alone.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from mdcg.errors import MachineError, MdcgError, reason_of
from mdcg.execute.context import Context
from mdcg.execute.local import do_job
from mdcg.execute.plan import Job, Undone
from mdcg.execute.progress import Display
from mdcg.execute.unfinished import is_begun
from mdcg.extras import extra
from mdcg.train.signals import Stopped, StopSignals

logger = logging.getLogger(__name__)
RETRIES = 20  # nodes that a group may lose
POLL = 1.0  # seconds between two looks at what is running
Messages = list[tuple[int, str]]  # messages of the library, each with its level
TIMEOUT = 60.0  # seconds that a lost node's process may take to die, holding on to its runs
PATIENCE = 30.0  # seconds without the head; after 60 Ray ends the process that asks, wherever it is


class RayExecutor:
    """The executor of the cluster at `address`, "auto" for that of Ray's environment; without one, of one started here.

    A GPU is shared by so many jobs at a time, each with its share of the memory.
    """

    def __init__(self, address: str | None = None, jobs_per_gpu: int = 1) -> None:
        self._ray = extra("ray", "cluster", "training on a cluster")
        self._address = None if address == "local" else address  # as Ray calls one that it starts
        self._jobs_per_gpu = jobs_per_gpu

    def prepare(self, context: Context) -> Context:
        """The context with the cluster's device: its GPUs where it has any, unless another is asked for."""
        if context.given is not None:
            raise MdcgError(
                f"the dataset {context.given.name} was given in Python and is in this process alone, where a cluster "
                "cannot reach it; train here, or put its images into a folder that all nodes see, for folder:PATH."
            )
        if not self._ray.is_initialized():
            if self._address is None:
                _start(self._ray)
            else:
                _connect(self._ray, self._address)
        has = self._ray.cluster_resources()
        device = ("cuda" if has.get("GPU", 0) >= 1 else "cpu") if context.device == "auto" else context.device
        if device == "cuda" and not has.get("GPU", 0):
            raise MdcgError("this Ray cluster has no GPU; leave --device out, or write --device cpu.")
        if device != "cuda" and self._jobs_per_gpu > 1:
            raise MdcgError("these runs train on CPUs, where no GPU can be shared; leave --jobs-per-gpu out.")
        slots = has.get("GPU", 0) * self._jobs_per_gpu if device == "cuda" else has.get("CPU", 1) // self._cpus()
        out, data = context.out.resolve(), context.data and context.data.resolve()
        there = replace(context, out=out, data=data, device=device, remote=True, slots=max(1, int(slots)))
        return replace(there, gpu_share=1 / self._jobs_per_gpu)

    def execute(self, jobs: Sequence[Job], context: Context, display: Display) -> Undone:
        ray = self._ray
        # Ray counts in ten-thousandths: rounded up, so many would not fit.
        gpu = 10_000 // self._jobs_per_gpu / 10_000
        share = {"num_gpus": gpu} if context.device == "cuda" else {"num_cpus": self._cpus()}
        task = ray.remote(max_retries=RETRIES, **share)(work_on)
        waiting = {task.remote(job, context, torch.get_num_threads()): job for job in jobs}
        with contextlib.redirect_stdout(_RaysWords()), StopSignals() as stop:  # at SIGTERM Ray would crash
            try:
                return self._wait(waiting, context, display, stop)
            finally:
                for one in waiting:
                    ray.cancel(one, force=True)
                ray.shutdown()

    def _wait(self, waiting: dict[Any, Job], context: Context, display: Display, stop: StopSignals) -> Undone:
        """Wait for tasks; those that have ended are taken out."""
        ray, undone = self._ray, Undone()
        begun_before = {id(job) for job in waiting.values() if is_begun(context.store, job.specs)}
        head = _Head(ray.get_runtime_context().gcs_address)
        while waiting:
            ended, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
            if stop.signal is not None:
                raise _stopped(stop.signal)
            head.check()
            for one in ended:
                job = waiting.pop(one)
                of_this, messages = _outcome(ray, one, job, context)
                for level, text in messages:
                    logger.log(level, "%s", text)
                undone |= of_this
                display.job_ends(job, of_this)
            new = [job for job in waiting.values() if id(job) not in begun_before]
            display.running(sum(len(job.specs) for job in new if is_begun(context.store, job.specs)))
        return undone

    def _cpus(self) -> int:
        """The CPUs of a task: as many as PyTorch has threads here, and no more than one node has."""
        nodes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        return max(1, min(torch.get_num_threads(), int(max(nodes, default=1))))


def _stopped(signal: int) -> Stopped:
    stopped = Stopped("stopped")
    stopped.signal = signal
    return stopped


class _Head:
    """The head of a cluster, which all others need."""

    def __init__(self, address: str) -> None:
        self._address, self._seen = address, time.monotonic()
        self._in_reach = self._answers()  # not where Ray's client is between the two

    def check(self) -> None:
        """Say so, if it is lost."""
        if not self._in_reach or self._answers():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > PATIENCE:
            raise MachineError(
                f"the head of the Ray cluster, {self._address}, no longer answers; start it anew, and give the same "
                "command again to go on."
            )

    def _answers(self) -> bool:
        try:
            _call(self._address)
        except OSError:
            return False
        return True


def _call(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _connect(ray: Any, address: str) -> None:
    """Join a cluster that is there."""
    try:
        place = address.removeprefix("ray://")
        if ":" in place:  # Ray itself would go on trying for minutes
            _call(place)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise MdcgError(
            f"no Ray cluster answers at {address} ({_first(error)}); check its address and, if it asks for a token, "
            "RAY_AUTH_MODE=token and the token itself."
        ) from error


def _start(ray: Any) -> None:
    """Start a cluster on this machine, which no other machine can reach."""
    try:
        with on_the_loopback(ray):
            ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise MdcgError(
            f"Ray cannot be started on this machine ({_first(error)}); give the address of a cluster, as "
            "--on ray:ADDRESS, or train without --on."
        ) from error
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    if not all(ipaddress.ip_address(address).is_loopback for address in addresses):
        ray.shutdown()
        raise MdcgError(
            f"this version of Ray ({ray.__version__}) would listen to other machines too; start a cluster where you "
            "trust the network, and give its address, as --on ray:ADDRESS."
        )


def _first(error: Exception) -> str:
    """The first sentence of what Ray says."""
    return reason_of(error).partition(". ")[0]


@contextlib.contextmanager
def on_the_loopback(ray: Any) -> Iterator[None]:
    """Let Ray's processes that are started in here listen on 127.0.0.1 alone, as they do on systems without clusters.

    A node's address that is asked for by name would be replaced by one that others can reach.
    """
    constants, name = ray._private.ray_constants, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    enabled, variable = constants.ENABLE_RAY_CLUSTER, os.environ.get(name)
    constants.ENABLE_RAY_CLUSTER, os.environ[name] = False, "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        del os.environ[name]
        if variable is not None:
            os.environ[name] = variable


def _outcome(ray: Any, task: Any, job: Job, context: Context) -> tuple[Undone, Messages]:
    """The result of a task that ended, well or not: what went wrong with it is no reason to stop the others."""
    try:
        done: tuple[Undone, Messages] = ray.get(task)
        return done
    except ray.exceptions.RayTaskError as error:
        reason = str(error.cause)
    except ray.exceptions.RayError as error:  # more nodes were lost than can be borne
        reason = f"its worker was lost ({str(error).splitlines()[0].rstrip('.')})"
    return _all_left(job, context, reason), []


def _all_left(job: Job, context: Context, reason: str) -> Undone:
    """All runs without a result. To be asked when no error is being handled: a result that is missing would be taken
    for part of the machine's trouble."""
    store = context.store
    return Undone(left={spec.name: reason for spec in job.specs if store.finished(spec) is None})


class _RaysWords(io.TextIOBase):
    """Takes what Ray prints, on standard output, when something was lost: of each text the first sentence is told."""

    def write(self, text: str) -> int:
        first = re.sub(r"\x1b\[[\d;]*m", "", text).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        if first:
            logger.info("Ray says: %s.", first)
        return len(text)


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
    if context.gpu_share < 1:
        torch.cuda.set_per_process_memory_fraction(context.gpu_share)  # what is beyond it is another job's
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
        trouble = str(error)
    finally:
        library.removeHandler(collector)
    return _all_left(job, context, trouble), collector.messages
