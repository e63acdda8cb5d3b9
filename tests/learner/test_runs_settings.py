"""A Learner that goes on with a run whose settings it has no parameters for."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import mdcg
from mdcg.learner.tables import info_panel
from mdcg.methods import METHODS


def test_a_learner_goes_on_as_the_run_was_trained(tmp_path: Path) -> None:
    """Moments of AdamW and all settings that a Learner has no parameters for."""
    keys: dict[str, Any] = {
        "optimizer": "adamw", "schedule": "cosine", "warmup": 0.1, "weight_decay": 0.01, "augment": "crop+cutmix",
        "mix_alpha": 0.5, "label_smoothing": 0.1,
    }  # fmt: skip
    learner = mdcg.run(
        scenario="digits-2", method="replay", memory=20, epochs=1, **keys, out=tmp_path, quiet=True
    ).learner
    before = learner.saved_
    assert before is not None
    assert before.setup.optimizer == "adamw"
    assert before.setup.augment == ("cutmix",)
    images = torch.randint(0, 256, (30, 8, 8), dtype=torch.uint8).numpy()
    learner.learn(images, ["new"] * 15 + ["newer"] * 15)
    after = learner.saved_
    assert after is not None
    for name in ("optimizer", "schedule", "warmup", "weight_decay", "augment", "mix_alpha", "label_smoothing", "lr"):
        assert getattr(after.setup, name) == getattr(before.setup, name), name
    assert after.kept is not None
    kinds = {name.split(".")[0] for name in after.kept.optimizer}
    assert kinds == {"mean", "square", "mean_weight", "square_weight"}
    assert (
        after.kept.optimizer["mean_weight.head.classifier.weight"].shape[-1] == 12
    )  # the new classes' columns are younger
    learner.save(tmp_path / "learner.mdcg")
    assert mdcg.Learner.load(tmp_path / "learner.mdcg").saved_.setup == after.setup


def test_a_method_brings_its_own_training(tmp_path: Path) -> None:
    """As in a run; what it began with stays, and an lr that is given counts."""
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
    learner = mdcg.Learner("md-replay", memory=20, backbone="smallconv", epochs=1, hold_out=0, quiet=True)
    learner.learn(images[:20], ["cat", "dog"] * 10).save(tmp_path / "model.safetensors")
    setup = learner.saved_.setup
    own = METHODS["md-replay"].recipe
    assert {key: getattr(setup, key) for key in own if key != "augment"} == {
        key: value for key, value in own.items() if key != "augment"
    }
    assert setup.augment == ("randaugment",)
    told = Console(width=200, record=True, file=io.StringIO())
    told.print(info_panel(learner.saved_, tmp_path / "model.safetensors"))
    schedule = "learning rate 0.1, momentum 0.8, schedule cosine, weight decay 0.0005"
    assert f"{schedule}, crop by {setup.padding} pixel, flip, randaugment" in told.export_text()
    plain = replace(setup, padding=0, flip=False, augment=(), schedule="constant", weight_decay=0.0)
    told.print(info_panel(replace(learner.saved_, setup=plain), tmp_path / "model.safetensors"))
    assert "learning rate 0.1, momentum 0.8\n" in re.sub(" +\n", "\n", told.export_text())
    again = mdcg.Learner.load(tmp_path / "model.safetensors").set_params(quiet=True)
    assert again.learn(images[20:40], ["emu"] * 20).saved_.setup.lr == own["lr"]
    assert again.set_params(lr=0.02).learn(images[40:], ["gnu"] * 20).saved_.setup.lr == 0.02
    plain = mdcg.Learner("md-replay", backbone="smallconv", epochs=1, padding=0, flip=False, hold_out=0, quiet=True)
    assert plain.learn(images[:20], ["cat", "dog"] * 10).saved_.setup.augment == ()  # taken as they are
    assert mdcg.Learner("md-cg").lr is None


def test_what_is_done_with_images_can_be_chosen(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    learner = mdcg.Learner(memory=20, backbone="smallconv", epochs=1, hold_out=0, augment="usual", quiet=True)
    assert learner.learn(images[:20], ["cat", "dog"] * 10).saved_.setup.augment == ()
    learner.save(tmp_path / "model.safetensors")
    again = mdcg.Learner.load(tmp_path / "model.safetensors").set_params(quiet=True)
    assert again.learn(images[20:40], ["emu"] * 20).saved_.setup.augment == ()
    again.set_params(augment="jitter+randaugment").learn(images[40:], ["gnu"] * 20)
    assert again.saved_.setup.augment == ("jitter", "randaugment")
