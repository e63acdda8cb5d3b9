"""A sweep on a Ray cluster: on one whose node is lost on the way, and, quickly, on a stand-in for Ray."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mdcg
from tests.conftest import RECIPE, Cli
from tests.execute.test_sweep import outcome

ray = pytest.importorskip("ray")
from mdcg.errors import MachineError  # noqa: E402
from mdcg.execute import progress  # noqa: E402
from mdcg.execute.context import Context  # noqa: E402
from mdcg.execute.group import _capacity  # noqa: E402
from mdcg.execute.plan import Job, Undone  # noqa: E402
from mdcg.execute.ray import RETRIES, RayExecutor, work_on  # noqa: E402
from mdcg.execute.unfinished import begun  # noqa: E402
from mdcg.testing.abuse.nodes import LocalCluster  # noqa: E402
from mdcg.train.capacity import Meter  # noqa: E402
from mdcg.train.group import Group  # noqa: E402
from mdcg.train.precision import Compute  # noqa: E402


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    made = LocalCluster()
    yield made
    made.close()


class StandIn:
    """Ray's interface without its processes: a task travels by pickle, and is done when it is waited for."""

    exceptions = ray.exceptions

    def __init__(self, errors: dict[int, Exception], gpus: int = 0) -> None:
        self.errors = errors  # of the tasks that go wrong, by number
        self.gpus = gpus
        self.asked: dict[str, float] = {}  # for a task
        self.head = "127.0.0.1:1"  # where nobody answers
        self.tasks: list[Callable[[], Any]] = []
        self.ended = False

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.head)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}, {"Alive": False, "Resources": {"CPU": 8.0}}]

    def remote(self, **options: float) -> Callable[[Callable[..., Any]], Any]:
        self.asked = options

        def decorate(function: Callable[..., Any]) -> Any:
            def start(*given: Any) -> int:
                travelled = pickle.dumps((function, given))

                def work() -> Any:
                    there, arguments = pickle.loads(travelled)  # noqa: S301
                    return pickle.loads(pickle.dumps(there(*arguments)))  # noqa: S301

                self.tasks.append(work)
                return len(self.tasks) - 1

            return SimpleNamespace(remote=start)

        return decorate

    def wait(self, waiting: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, task: int) -> Any:
        if task in self.errors:
            raise self.errors[task]
        return self.tasks[task]()

    def shutdown(self) -> None:
        self.ended = True


def test_every_group_is_a_task(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is lost for good, and in another something fails: the other runs are as those of a sweep here."""
    here = mdcg.Sweep.read(recipe, out=tmp_path / "here", device="cpu")
    assert here.run(quiet=True) == Undone()
    crashed, failed = ray.exceptions.WorkerCrashedError(), ray.exceptions.RayTaskError("f", "", OSError("no disk"))
    stand_in = StandIn({1: crashed, 2: failed})
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: stand_in)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    work = mdcg.Sweep.read(recipe, out=tmp_path / "there", device="cpu", members=3)
    left = work.run(quiet=True, executor=RayExecutor(None)).left
    assert stand_in.ended
    assert stand_in.asked == {"max_retries": RETRIES, "num_cpus": 1}
    assert len(stand_in.tasks) == 4
    assert Counter(re.sub(r" \(.*", "", reason) for reason in left.values()) == {"its worker was lost": 3, "no disk": 3}
    assert outcome(work).items() < outcome(here).items()
    assert len(outcome(work)) == 6
    stand_in.errors = {}
    assert work.run(quiet=True, executor=RayExecutor(None)) == Undone()
    assert outcome(work) == outcome(here)


def test_the_head_is_lost(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    class Headless(StandIn):
        def wait(self, waiting: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
            listening.close()
            return [], waiting

    stand_in = Headless({})
    stand_in.head = "127.0.0.1:{1}".format(*listening.getsockname())
    monkeypatch.setattr(StandIn, "cancel", lambda _, task, force: None, raising=False)
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: stand_in)
    monkeypatch.setattr("mdcg.execute.ray.PATIENCE", 0.0)
    work = mdcg.Sweep.read(recipe, out=tmp_path / "there", device="cpu")
    with pytest.raises(MachineError, match=r"the head of the Ray cluster, 127\.0\.0\.1:\d+, no longer answers"):
        work.run(quiet=True, executor=RayExecutor())
    assert stand_in.ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped(
    number: int, cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(StandIn):
        def wait(self, waiting: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
            os.kill(os.getpid(), number)
            return [], waiting

    stand_in = Stopping({})
    cancelled: list[int] = []
    monkeypatch.setattr(StandIn, "cancel", lambda _, task, force: cancelled.append(task), raising=False)
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: stand_in)
    answer = cli("sweep", recipe, "--on", "ray", "--out", tmp_path / "runs")
    assert (answer.code, answer.err) == (128 + number, "mdcg: stopped; give the same command again to go on.\n")
    assert cancelled == [0, 1]
    assert stand_in.ended


def test_what_ray_prints_is_not_among_the_results(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On standard output, which is for one JSON object: a lost worker is told in a sentence, elsewhere."""

    class Talking(StandIn):
        def get(self, task: int) -> Any:
            print("\x1b[33m(raylet)\x1b[0m A worker died or was killed. To troubleshoot:\n  [state-dump] much of it")
            return Undone(), []

    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: Talking({}))
    answer = cli("sweep", recipe, "--on", "ray", "--out", tmp_path / "runs", "--json")
    assert json.loads(answer.out)["failed"] == {}
    assert caplog.messages.count("Ray says: (raylet) A worker died or was killed.") == 2
    assert "state-dump" not in answer.err


def test_jobs_share_a_gpu(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two has half of it: of what Ray counts, of the slots that are planned for, and of the memory."""
    stand_in = StandIn({}, gpus=2)
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: stand_in)
    done: list[tuple[Job, Context]] = []
    caps: list[float] = []

    def note(job: Job, context: Context) -> Undone:
        done.append((job, context))
        return Undone()

    monkeypatch.setattr("mdcg.execute.ray.do_job", note)
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", caps.append)
    work = mdcg.Sweep.read(recipe, out=tmp_path / "there", only={"method": ["replay"]})  # six runs
    for shared, sizes in ((1, [3, 3]), (2, [2, 2, 2])):
        work.run(quiet=True, executor=RayExecutor(None, jobs_per_gpu=shared))
        assert stand_in.asked == {"max_retries": RETRIES, "num_gpus": 1 / shared}
        jobs, contexts = zip(*done, strict=True)
        assert [len(job.specs) for job in jobs] == sizes
        assert {(context.device, context.slots, context.gpu_share) for context in contexts} == {
            ("cuda", 2 * shared, 1 / shared)
        }
        done.clear()
    assert caps == [0.5] * 3
    RayExecutor(None, jobs_per_gpu=7).execute([], replace(work.context, device="cuda"), progress.SILENT)
    assert stand_in.asked["num_gpus"] == 0.1428  # 7 · 0.1429 would be more than one
    stand_in.gpus = 0
    with pytest.raises(mdcg.MdcgError, match="no GPU can be shared; leave --jobs-per-gpu out"):
        work.plan(executor=RayExecutor(None, jobs_per_gpu=2))


def test_the_share_of_the_memory_is_what_groups_are_sized_by(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is free of the whole GPU; and what the process holds already is part of it."""
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (900, 1_000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda: 60)
    assert [Meter(share).free() for share in (1, 0.5, 0.25, 0.01)] == [900, 440, 190, 0]
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (300, 1_000))  # others take more than their share
    assert Meter(0.5).free() == 300
    given: list[float] = []

    def fit(group: Group, compute: Compute, meter: Meter) -> int:
        given.append(meter.share)
        return 3

    def surely(group: Group, compute: Compute, meter: Meter) -> bool:
        given.append(meter.share)
        return False

    monkeypatch.setattr("mdcg.execute.group.members_that_fit", fit)
    monkeypatch.setattr("mdcg.execute.group.surely_fit", surely)
    work = mdcg.Sweep.read(recipe, out=tmp_path, device="cpu")
    on_a_gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    monkeypatch.setattr(Context, "compute", lambda *_: on_a_gpu)
    assert _capacity(work.specs[:2], replace(work.context, gpu_share=0.5)) == 3
    assert given == [0.5, 0.5]


def test_sharing_is_for_clusters(cli: Cli, recipe: Path) -> None:
    assert "give it together with --on ray" in cli("sweep", recipe, "--jobs-per-gpu", 2).sentence()


@pytest.mark.slow
@pytest.mark.usefixtures("all_digits")  # as Ray's processes have them
def test_a_node_is_lost(cluster: LocalCluster, tmp_path: Path) -> None:
    recipe = tmp_path / "sweep.yaml"
    recipe.write_text(
        RECIPE.replace("epochs: 1", "epochs: 12").replace("seeds: 0-2", "seeds: 0-1").replace(", md-cg]", "]")
    )
    undisturbed = mdcg.Sweep.read(recipe, out=tmp_path / "here", device="cpu")
    assert undisturbed.run(quiet=True) == Undone()
    work = mdcg.Sweep.read(recipe, out=tmp_path / "there", device="cpu", members=2)
    lost = threading.Event()

    def lose_a_node() -> None:
        """Once both are at work and something has been saved."""
        while sum(any(folder.glob("*.safetensors")) for folder, _ in begun(work.context.store)) < 2:
            time.sleep(0.05)
        cluster.remove(cluster.nodes[1])
        lost.set()

    killer = threading.Thread(target=lose_a_node, daemon=True)
    killer.start()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    assert work.run(quiet=True, executor=RayExecutor(None)) == Undone()
    assert lost.is_set()
    assert outcome(work) == outcome(undisturbed)
    assert not begun(work.context.store)


@pytest.mark.slow
@pytest.mark.parametrize("address", [None, "local"])
def test_a_cluster_that_is_started_here_is_out_of_others_reach(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every socket that any of its processes listens on; and it is not another one that the environment names."""
    psutil = pytest.importorskip("psutil")
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    before = dict(os.environ)
    try:
        RayExecutor(address).prepare(Context(tmp_path))
        assert {name: os.environ[name] for name in before} == before
        assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
        assert ray.get(ray.remote(lambda: os.getpid()).remote()) != os.getpid()
        here = psutil.Process()
        heard = {
            (process.name(), one.laddr.ip.removeprefix("::ffff:"))
            for process in (here, *here.children(recursive=True))
            for one in process.net_connections()
            if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM
        }
    finally:
        ray.shutdown()
    assert {name for name, _ in heard} >= {"gcs_server", "raylet"}
    assert {ip for _, ip in heard} == {"127.0.0.1"}


def test_a_ray_that_listens_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn({})
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(StandIn, "is_initialized", lambda _: False)
    monkeypatch.setattr(StandIn, "init", lambda _, **options: started.append(options), raising=False)
    monkeypatch.setattr(StandIn, "nodes", lambda _: [{"NodeManagerAddress": "192.0.2.2"}])
    monkeypatch.setattr(StandIn, "_private", ray._private, raising=False)
    monkeypatch.setattr(StandIn, "__version__", "9.9", raising=False)
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: stand_in)
    with pytest.raises(mdcg.MdcgError, match=r"this version of Ray \(9\.9\) would listen to other machines too"):
        RayExecutor().prepare(Context(tmp_path))
    assert stand_in.ended
    assert [(options["address"], options["include_dashboard"]) for options in started] == [("local", False)]


@pytest.mark.parametrize(
    ("gpus", "asked", "device", "slots"),
    [(0, "auto", "cpu", 2), (0, "cpu", "cpu", 2), (3, "auto", "cuda", 3), (3, "cuda", "cuda", 3), (3, "cpu", "cpu", 2)],
)
def test_a_task_for_every_gpu_or_else_for_the_cpus(
    gpus: int, asked: str, device: str, slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandIn({}, gpus=gpus)
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: stand_in)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    there = RayExecutor().prepare(Context(tmp_path, device=asked))
    assert (there.device, there.slots, there.remote, there.gpu_share) == (device, slots, True, 1)
    monkeypatch.setattr(StandIn, "cluster_resources", lambda _: {"CPU": 0.5})
    if not gpus:
        assert RayExecutor().prepare(Context(tmp_path, device=asked)).slots == 1
    elif asked == "cuda":
        with pytest.raises(mdcg.MdcgError, match="this Ray cluster has no GPU"):
            RayExecutor().prepare(Context(tmp_path, device=asked))


def test_what_a_worker_does(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries until nothing is left or time is up, tells what the library said meanwhile, and leaves no trace."""
    sweep = mdcg.Sweep.read(recipe, out=tmp_path, device="cpu")
    job, library = Job(sweep.specs[:2], 1, None, measured=False), logging.getLogger("mdcg")
    handlers, tried = list(library.handlers), list[Job]()

    def in_use(job: Job, context: Context) -> Undone:
        tried.append(job)
        library.info("number %s", len(tried))
        left = {} if len(tried) == 3 else {job.specs[0].name: "in use"}
        return Undone(left=left, failed={"a": "b"}, errors=(OSError("which may not travel"),))

    monkeypatch.setattr("mdcg.execute.ray.do_job", in_use)
    monkeypatch.setattr("time.sleep", lambda _: None)
    undone, said = work_on(job, sweep.context, 1)
    assert (undone, undone.errors) == (Undone(failed={"a": "b"}), ())
    assert [text for _, text in said] == ["number 1", "number 2", "number 3"]
    assert tried == [job] * 3
    tried.clear()
    monkeypatch.setattr("mdcg.execute.ray.TIMEOUT", -1.0)
    assert work_on(job, sweep.context, 1)[0].left == {job.specs[0].name: "in use"}  # time is up

    def no_disk(*_: object) -> Undone:
        raise MachineError("the disk is full.")

    monkeypatch.setattr("mdcg.execute.ray.do_job", no_disk)
    undone, said = work_on(job, sweep.context, 1)
    assert (undone, said) == (Undone(left={spec.name: "the disk is full." for spec in job.specs}), [])
    assert library.handlers == handlers


@pytest.mark.parametrize("address", [None, "192.0.2.1"])
def test_a_token_that_is_missing_is_told(address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **options: Any) -> None:
        raise ray.exceptions.AuthenticationError("Token authentication is enabled but no token was found. Ensure that")

    stand_in = StandIn({})
    monkeypatch.setattr(StandIn, "is_initialized", lambda _: False)
    monkeypatch.setattr(StandIn, "init", refuse, raising=False)
    monkeypatch.setattr(StandIn, "_private", ray._private, raising=False)
    monkeypatch.setattr("mdcg.execute.ray.extra", lambda *names: stand_in)
    with pytest.raises(mdcg.MdcgError, match=r"\(Token authentication is enabled but no token was found\); "):
        RayExecutor(address).prepare(Context(tmp_path))


def test_no_cluster_there(tmp_path: Path) -> None:
    with pytest.raises(mdcg.MdcgError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "):
        RayExecutor("127.0.0.1:1").prepare(Context(tmp_path))
