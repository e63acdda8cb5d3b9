"""A Learner that goes on with a run whose settings it has no parameters for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import mdcg


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
