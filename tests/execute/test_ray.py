"""A sweep on a Ray cluster, one of whose two nodes is lost on the way."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import mdcg
from tests.conftest import RECIPE
from tests.execute.test_sweep import outcome

ray = pytest.importorskip("ray")
from mdcg.execute.context import Context  # noqa: E402
from mdcg.execute.plan import Undone  # noqa: E402
from mdcg.execute.ray import RayExecutor  # noqa: E402
from mdcg.execute.unfinished import begun  # noqa: E402


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()  # type: ignore[no-untyped-call]


def test_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "sweep.yaml"
    recipe.write_text(RECIPE.replace("epochs: 1", "epochs: 5").replace("seeds: 0-2", "seeds: 0-1"))
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
