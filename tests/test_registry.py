"""Methods and backbones from elsewhere: by registration and by entry point."""

from __future__ import annotations

import importlib.metadata
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from torch import Tensor, nn

import mdcg
from mdcg.errors import nearest, unknown
from mdcg.memory import Draw
from mdcg.methods.base import METHODS, cross_entropy
from mdcg.models.backbones import BACKBONES
from mdcg.registry import Registry


class Halved(mdcg.Method):
    """Cross-entropy, half of it from memory."""

    uses_memory: ClassVar[bool] = True
    share: float = 0.5

    def loss(self, step: mdcg.Step) -> Tensor:
        loss = cross_entropy(step.logits, step.labels)
        if step.old:
            loss = (1 - self.share) * loss + self.share * cross_entropy(*step.memory)
        return loss


def flat_net(channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 16), nn.ReLU())


@pytest.mark.usefixtures("all_digits")
def test_by_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))
    monkeypatch.setattr(BACKBONES, "_known", dict(BACKBONES._known))
    mdcg.METHODS.register("halved")(Halved)
    mdcg.register_backbone("flat", flat_net)
    result = mdcg.run(
        scenario="digits-2", method="halved", memory=30, backbone="flat", set={"share": 0.3}, epochs=2, out=tmp_path
    )
    assert result.ACC[0] > 40
    assert result.records[0].spec.hyperparameters == {"share": 0.3}
    assert len(result.learner.predict(result.dataset.test.images[:3])) == 3
    with pytest.raises(mdcg.MdcgError, match="already a method named 'halved'"):
        mdcg.METHODS.register("halved")(Halved)


CONTRADICTIONS: dict[str, dict[str, object]] = {
    "its teacher sees": {"uses_teacher": True},
    "keeps the logits of a memory": {"stores_logits": True, "needs_head": "fixed"},
    "needs_head = 'fixed'": {"stores_logits": True, "uses_memory": True},
    "its memory is filled before": {
        "stores_logits": True,
        "needs_head": "fixed",
        "uses_memory": True,
        "fills_memory_first": lambda self: True,
    },
    "gradients of a memory": {"gradient_per_task": True},
    "does not define 'combine'": {"gradient_per_task": True, "uses_memory": True},
    "trains on a memory": {"trains_on": "memory", "uses_memory": True},
    "a second memory and uses no first": {"second_memory_size": lambda self: 20},
    "draws from a second memory and has none": {
        "uses_memory": True,
        "memory_draws": lambda self, batch, past: [Draw(batch, second=True)] if past else [],
    },
    "come before those with a pass of their own": {
        "uses_memory": True,
        "memory_draws": lambda self, batch, past: [Draw(batch), Draw(batch, joins=True)] if past else [],
    },
    "'added' names what is no field": {"added": {"weight": 1.0}},
    "'published' names what is no field": {"published": {"pases": "separate"}},
}


@pytest.mark.parametrize("reason", CONTRADICTIONS)
def test_declarations_that_contradict_each_other(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))
    declared = CONTRADICTIONS[reason]
    METHODS.register("odd")(type("Odd", (METHODS["naive"],), {**declared, "__annotations__": {}}))
    head = "fixed" if declared.get("needs_head") == "fixed" else None
    with pytest.raises(mdcg.MdcgError, match="method odd: its declarations do not agree: ") as caught:
        mdcg.run(scenario="digits-2", method="odd", memory=30, head=head)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_teacher_as_methods_had_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))

    @METHODS.register("former")
    class Former(Halved):
        uses_teacher: ClassVar[bool] = True
        teacher_sees: ClassVar[Any] = "all"

    with pytest.raises(mdcg.MdcgError, match="'teacher_sees' is a method, not a value"):
        mdcg.run(scenario="digits-2", method="former", memory=30)


def test_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("halved", "tests.test_registry:Halved", "mdcg.methods")
    monkeypatch.setattr("mdcg.registry.entry_points", lambda group: [point] if group == "mdcg.methods" else [])
    registry: Registry[type[mdcg.Method]] = Registry("method", "mdcg.methods")
    assert registry.names() == ["halved"]
    assert registry["halved"] is Halved


def test_broken_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("gone", "no_such_module:Thing", "mdcg.methods")
    monkeypatch.setattr("mdcg.registry.entry_points", lambda group: [point])
    registry: Registry[type[mdcg.Method]] = Registry("method", "mdcg.methods")
    with pytest.raises(mdcg.MdcgError, match="fix or uninstall that package"):
        registry["gone"]


def test_an_entry_point_that_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(name="gone", value="package:Thing", load=lambda: sys.exit(0))
    monkeypatch.setattr("mdcg.registry.entry_points", lambda group: [point])
    registry: Registry[type[mdcg.Method]] = Registry("method", "mdcg.methods")
    with pytest.raises(mdcg.MdcgError, match=r"could not be loaded \(it called sys.exit\); fix or uninstall"):
        registry["gone"]


def typed(name: str, module: str = "__main__") -> Any:
    """A class as a cell of a notebook defines it."""
    return type(name, (), {"__module__": module, "__qualname__": name})


def test_defined_again_in_a_notebook(caplog: pytest.LogCaptureFixture) -> None:
    registry: Registry[Any] = Registry("method", "mdcg.none")
    first, second = typed("Mine"), typed("Mine")
    registry.register("mine")(first)
    registry.register("mine")(first)
    assert not caplog.records
    registry.register("mine")(second)
    assert registry["mine"] is second
    assert registry.names() == ["mine"]
    assert caplog.messages == ["the method 'mine' is defined anew: its name now means the new one."]
    made = [partial(second), partial(second)]  # as backbones may be, and objects that are called
    for one in (*made, second()):
        registry.register("mine")(one)
    assert registry["mine"] not in made


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (typed("Mine", "their_package"), typed("Mine")),
        (typed("Mine"), typed("Mine", "their_package")),
        (typed("Mine", "their_package"), typed("Mine", "their_package")),
        (typed("Mine"), typed("Yours")),
    ],
)
def test_what_is_somebody_elses_stays(before: Any, now: Any) -> None:
    registry: Registry[Any] = Registry("head", "mdcg.none")
    registry.register("mine")(before)
    with pytest.raises(mdcg.MdcgError, match="already a head named 'mine'; choose another name"):
        registry.register("mine")(now)
    assert registry["mine"] is before


def test_for_a_while() -> None:
    """A name that is taken is not lost, even where it might be defined anew."""
    registry: Registry[Any] = Registry("head", "mdcg.none")
    first = typed("Mine")
    with registry.temporary("mine", first):
        assert registry["mine"] is first
        with pytest.raises(mdcg.MdcgError, match="already a head"), registry.temporary("mine", typed("Mine")):
            pass
    assert registry.names() == []


def test_very_many_names_are_not_all_told() -> None:
    names = [f"run{number:03}" for number in range(1200)]
    assert str(unknown("run", "nothing", names)).endswith(
        "Known: run000, run001, run002, run003, run004, run005, run006, run007, run008, run009 and 1,190 others."
    )
    assert str(unknown("run", "run7777", names)).startswith("unknown run 'run7777'; did you mean 'run777'?")


def test_the_nearest_name_of_a_run() -> None:
    """One that begins alike, or has most of the words: letters of a digest that happen to agree say nothing."""
    known = [f"digits-5_md-cg_m100_s{seed}_{digest}" for seed, digest in enumerate(("0a1b", "9c9c", "77aa", "3c4d"))]
    for asked, seed in (
        ("digits-5_md-cg_m100_s1", 1),
        ("digits-5_md-cg_m100_s2_0a1c", 2),
        ("Digits-5_MD-CG_m100_s3_", 3),
    ):
        assert f"did you mean '{known[seed]}'?" in str(unknown("run", asked, known))
    assert nearest("digits-5_md-cg_m100_s9_77ab", known) in known
    assert nearest("something else", known) is None
    assert nearest("", known) is None
    assert nearest("x", []) is None
