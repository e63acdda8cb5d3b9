"""A sweep on a Ray cluster: on one whose node is lost on the way, and, quickly, on a stand-in for Ray."""

from __future__ import annotations

import pickle
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mdcg
from tests.conftest import RECIPE
from tests.execute.test_sweep import outcome

ray = pytest.importorskip("ray")
from mdcg.execute.context import Context  # noqa: E402
from mdcg.execute.plan import Undone  # noqa: E402
from mdcg.execute.ray import RETRIES, RayExecutor  # noqa: E402
from mdcg.execute.unfinished import begun  # noqa: E402


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()  # type: ignore[no-untyped-call]


class StandIn:
    """Ray's interface without its processes: a task travels by pickle, and is done when it is waited for."""

    exceptions = ray.exceptions

    def __init__(self, errors: dict[int, Exception]) -> None:
        self.errors = errors  # of the tasks that go wrong, by number
        self.tasks: list[Callable[[], Any]] = []
        self.ended = False

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}, {"Alive": False, "Resources": {"CPU": 8.0}}]

    def remote(self, **options: int) -> Callable[[Callable[..., Any]], Any]:
        assert options == {"max_retries": RETRIES, "num_cpus": 1}

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
    assert len(stand_in.tasks) == 4
    assert Counter(re.sub(r" \(.*", "", reason) for reason in left.values()) == {"its worker was lost": 3, "no disk": 3}
    assert outcome(work).items() < outcome(here).items()
    assert len(outcome(work)) == 6
    stand_in.errors = {}
    assert work.run(quiet=True, executor=RayExecutor(None)) == Undone()
    assert outcome(work) == outcome(here)


@pytest.mark.slow
@pytest.mark.usefixtures("all_digits")  # as Ray's processes have them
def test_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "sweep.yaml"
    recipe.write_text(
        RECIPE.replace("epochs: 1", "epochs: 3").replace("seeds: 0-2", "seeds: 0-1").replace(", md-cg]", "]")
    )
    undisturbed = mdcg.Sweep.read(recipe, out=tmp_path / "here", device="cpu")
    assert undisturbed.run(quiet=True) == Undone()
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    work = mdcg.Sweep.read(recipe, out=tmp_path / "there", device="cpu", members=2)
    lost = threading.Event()

    def lose_a_node() -> None:
        """Once both are at work and something has been saved."""
        while sum(any(folder.glob("*.safetensors")) for folder, _ in begun(work.context.store)) < 2:
            time.sleep(0.05)
        cluster.remove_node(nodes[1], allow_graceful=False)
        lost.set()

    killer = threading.Thread(target=lose_a_node, daemon=True)
    killer.start()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    assert work.run(quiet=True, executor=RayExecutor(None)) == Undone()
    assert lost.is_set()
    assert outcome(work) == outcome(undisturbed)
    assert not begun(work.context.store)


def test_no_cluster_there(tmp_path: Path) -> None:
    with pytest.raises(mdcg.MdcgError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "):
        RayExecutor("127.0.0.1:1").prepare(Context(tmp_path))
