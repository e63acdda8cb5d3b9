"""Checkpoints of every kind of group are taken for what they are, and damaged ones refused before anything is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mdcg.methods import METHODS
from mdcg.scenario import Stream
from mdcg.tensors import pack, unpack
from mdcg.testing.groups import CPU
from mdcg.train import checkpoint, loop
from mdcg.train import state as states
from mdcg.train.checked import check_fits
from mdcg.train.checkpoint import Checkpoints
from mdcg.train.group import Group
from mdcg.train.loop import Trainer
from mdcg.train.state import PlainValues
from tests.conftest import toy_dataset, toy_group

Saved = tuple[dict[str, Tensor], PlainValues]


def with_stream(group: Group, stream: Stream) -> Group:
    epochs = 1 if stream.online else group.training.epochs
    return replace(group, training=replace(group.training, stream=stream, epochs=epochs))


def all_saved(group: Group, monkeypatch: pytest.MonkeyPatch) -> list[Saved]:
    """What is saved when every epoch is, and before some steps."""
    monkeypatch.setattr(loop, "SAVING", 1.0)
    found: list[bytes] = []
    state = states.fresh(group, CPU)
    state.forked = True

    def steps() -> bool:
        found.append(pack(*states.dump(state)))
        return False

    Trainer(group, CPU, lambda tensors, values: found.append(pack(tensors, values)), steps).train(state)
    return list(map(unpack, found))


STREAMS = {
    "tasks": Stream(),
    "unequal": Stream(sizes=(3, 1, 1)),
    "returning": Stream(tasks=(("class 1", "class 4"), ("class 0",), ("class 4", "class 2", "class 0"))),
    "blurry": Stream(blurry=0.3),
    "online": Stream(online=True),
    "both": Stream(online=True, blurry=0.3),
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    (name, stream, {})
    for name in METHODS.names()
    for stream in STREAMS
    if (METHODS[name].learns_revisits or not STREAMS[stream].revisits)
    and (METHODS[name].online() or not STREAMS[stream].online)
] + [
    ("md", "online", {"look_ahead": 2}),
    ("md-cg", "both", {"look_ahead": 2}),
    ("ld", "tasks", {"second_memory": 6}),
    ("er-lode", "tasks", {"distils": "memory"}),
]


@pytest.mark.parametrize(("method", "stream", "settings"), CASES, ids=lambda one: str(one) or "usual")
def test_whatever_is_saved_fits(
    method: str, stream: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = METHODS[method]
    members = [(seed, 12 if kind.uses_memory else 0, settings) for seed in (0, 1)][: 1 if settings else 2]
    group = with_stream(toy_group(toy_dataset([20, 19, 18, 17, 16]), kind, members, tasks=3), STREAMS[stream])
    for tensors, values in all_saved(group, monkeypatch):
        check_fits(tensors, values, group)


@pytest.fixture(scope="module")
def der() -> tuple[Group, bytes]:
    """A group, and what is saved of it within task 2."""
    group = toy_group(toy_dataset([12, 11, 10, 9]), "der", [(0, 8, {}), (1, 9, {})], tasks=2)
    with pytest.MonkeyPatch.context() as patch:
        within = [saved for saved in all_saved(group, patch) if saved[1]["task"] == 1 and saved[1]["step"]]
    return group, pack(*within[0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 2**63}, {"epoch": 2}, {"task": 7}, {"task": 0.5}, {"step": 10**6}, {"sizes": [10**9]}, {"sizes": [2]},
        {"seconds": [None]}, {"seconds": float("inf")}, {"has_teacher": True}, {"history": [[{}], [{}]]},
        {"history": []}, {"within": [[[0]], []]}, {"memories": {}}, {"begun": False},
        {"memories": {"memory.0": [[0, -1]], "memory.1": []}},
    ],
    ids=str,
)  # fmt: skip
def test_a_header_with_anything_in_it(
    wrong: dict[str, Any], tmp_path: Path, der: tuple[Group, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    group, saved = der
    tensors, values = unpack(saved)
    content = pack(tensors, {"version": checkpoint.VERSION, **values, **wrong})
    (tmp_path / f"00000000-00000000-00000001.{checkpoint._digest(content)}.safetensors").write_bytes(content)
    assert Checkpoints(tmp_path).restore(lambda _: group, CPU) is None
    (said,) = caplog.messages
    assert "cannot be used (it" in said
    assert said.endswith("starting from the beginning.")


def test_logits_of_nothing(der: tuple[Group, bytes]) -> None:
    """Of a memory that has images they are not the logits: that is said, not what fails on the way."""
    group, saved = der
    tensors, values = unpack(saved)
    _, _, outputs = tensors["kept.logits"].shape
    nothing = {"kept.index": torch.zeros(2, 0, dtype=torch.int64), "kept.logits": torch.zeros(2, 0, outputs)}
    with pytest.raises(ValueError, match="its logits do not fit its memory"):
        check_fits({**tensors, **nothing}, values, group)


@pytest.mark.parametrize("version", [checkpoint.VERSION - 1, checkpoint.VERSION + 1, None, str(checkpoint.VERSION)])
def test_a_checkpoint_of_another_version(
    version: object, tmp_path: Path, der: tuple[Group, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """What it says may mean something else: it is refused although all of it would fit, and the one before is used."""
    group, saved = der
    tensors, values = unpack(saved)
    Checkpoints(tmp_path).save(tensors, {**values, "step": 0, "seconds": values["seconds"]})
    content = pack(tensors, {"version": version, **values})
    newest = tmp_path / f"99999999-00000000-00000001.{checkpoint._digest(content)}.safetensors"
    newest.write_bytes(content)
    state = Checkpoints(tmp_path).restore(lambda _: group, CPU)
    assert state is not None
    assert state.step == 0 < values["step"]
    (said,) = caplog.messages
    assert f"it has format version {version}, not {checkpoint.VERSION}" in said
    assert said.endswith("going back to the one before it.")
    assert not newest.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("correct", torch.full((2, 2, 4), -1)), ("correct", torch.zeros(2, 2, 4)), ("hits", torch.zeros(2)),
        ("loss_sum", torch.zeros(2, dtype=torch.int32)), ("memory.0", torch.full((8,), 10**9)),
        ("memory.0", torch.zeros(8)), ("kept.index", torch.zeros(2, 9)), ("kept.logits", torch.zeros(2, 9, 3)),
        ("measured.0", torch.zeros(3)), ("measured.0", torch.tensor([91, 91], dtype=torch.uint8)),
        ("model.head.classifier.weight", torch.zeros(2, 4, 8, dtype=torch.int32)),
        ("velocity.head.classifier.weight", torch.zeros(2, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_tensors_that_do_not_fit(name: str, value: Tensor, tmp_path: Path, der: tuple[Group, bytes]) -> None:
    group, saved = der
    tensors, values = unpack(saved)
    Checkpoints(tmp_path).save(tensors, values)
    assert Checkpoints(tmp_path).restore(lambda _: group, CPU) is not None
    Checkpoints(tmp_path / "other").save({**tensors, name: value}, values)
    assert Checkpoints(tmp_path / "other").restore(lambda _: group, CPU) is None
