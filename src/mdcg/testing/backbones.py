"""The check of a backbone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mdcg.data.record import Shape
from mdcg.errors import MdcgError
from mdcg.models import Model, build_model
from mdcg.models.backbones import BACKBONES, backbone_names
from mdcg.models.layers import one_by_one
from mdcg.models.stacked import Stacked
from mdcg.saved import SavedModel
from mdcg.testing.groups import (
    Settings,
    check_company,
    check_finite,
    check_resumed,
    named_in_errors,
    require,
    toy_dataset,
    toy_group,
    trained,
)


def check_backbone(
    backbone: str | Callable[[int], nn.Module], shape: Shape = (1, 8, 8), pretrained: bool = False
) -> None:
    """Check a registered backbone, or a function that takes the number of channels, on images of a shape (C, H, W).

    Its weights follow from the seed alone, and differ between seeds unless it is `pretrained`; it gives finite
    features, and gradients of all that it learns; a member comes to the same bits alone, in company, and stopped and
    resumed; what is saved predicts the same when it is loaded.
    """
    if isinstance(backbone, str):
        with named_in_errors(backbone):
            _check_backbone(backbone, shape, pretrained)
    else:
        name = getattr(backbone, "__name__", type(backbone).__name__)
        with named_in_errors(name), BACKBONES.temporary(f"{name}, checked", backbone):
            _check_backbone(f"{name}, checked", shape, pretrained)


def _check_backbone(name: str, shape: Shape, pretrained: bool) -> None:
    require(name in backbone_names(), "there is no such backbone; register it first, or give the function itself.")
    model = _model(name, shape, [0, 1, 2])
    first, again, alone = (_model(name, shape, [seed]).state_dict() for seed in (0, 0, 1))
    for key, value in model.backbone.state_dict().items():
        own = f"backbone.{key}"
        require(
            torch.equal(first[own], again[own]),
            f"'{key}' differs between two networks of the same seed; draw weights from torch's generator only.",
        )
        require(torch.equal(value[1:2], alone[own]), f"'{key}' of a seed depends on which others are made beside it.")
    learned = [(key, value) for key, value in model.backbone.named_parameters() if value.requires_grad]
    require(
        pretrained or not learned or any(not torch.equal(value[0], value[1]) for _, value in learned),
        "it ignores its seed, for two seeds have the same weights; draw them from torch's generator, which is seeded "
        "for each member, or say pretrained=True.",
    )
    if isinstance(model.backbone, Stacked):
        _check_tensors_are_known(model.backbone)
    _check_features(model.backbone, shape, learned)
    dataset = toy_dataset([18, 33, 20, 25], side=shape[1], channels=shape[0])
    members: list[tuple[int, int, Settings]] = [(0, 8, {}), (1, 12, {})]
    group = toy_group(dataset, "md-cg", members, tasks=2, backbone=name, epochs=1)  # which copies it, as a teacher
    together = trained(group)
    check_finite(group, together)
    check_company(group, together)
    check_resumed(group, together)
    saved = SavedModel.of(group, together, 0)
    with tempfile.TemporaryDirectory() as folder:
        saved.save(Path(folder) / "model.safetensors")
        loaded = SavedModel.load(Path(folder) / "model.safetensors")
    images = dataset.test.images
    require(
        np.array_equal(saved.probabilities(images), loaded.probabilities(images)),
        "saved and loaded it predicts something else; keep all that it needs in parameters and buffers.",
    )


def _model(name: str, shape: Shape, seeds: Sequence[int]) -> Model:
    try:
        return build_model(name, "incremental", shape, seeds)
    except MdcgError as error:
        raise AssertionError(str(error)) from error


def _check_tensors_are_known(backbone: Stacked) -> None:
    for path, module in backbone.pattern.named_modules():
        for name, value in vars(module).items():
            require(
                not isinstance(value, Tensor),
                f"'{f'{path}.{name}'.lstrip('.')}' is a tensor that is neither saved nor moved; make it a buffer.",
            )


def _check_features(backbone: nn.Module, shape: Shape, learned: Sequence[tuple[str, Tensor]]) -> None:
    images = torch.randn(3, 16, *shape, generator=torch.Generator().manual_seed(0))
    features = one_by_one(backbone.train(), images)
    width = getattr(backbone, "features", None)
    require(
        features.shape == (3, 16, width),
        f"it gives shape {tuple(features.shape[1:])} for 16 images; it must give (16, {width}), its features.",
    )
    require(features.isfinite().all(), "its features are not finite; look for log(0), 0 / 0 and weights that explode.")
    if not learned:
        return
    found = torch.autograd.grad(features.square().sum(), [value for _, value in learned], allow_unused=True)
    for (key, _), gradient in zip(learned, found, strict=True):
        shown = backbone.names[key] if isinstance(backbone, Stacked) else key
        require(
            gradient is not None,
            f"no gradient reaches '{shown}'; use it in forward without detach, or let it not require gradients.",
        )
        require(gradient is None or gradient.isfinite().all(), f"the gradient of '{shown}' is not finite.")
    backbone.eval()
    with torch.no_grad():
        require(
            torch.allclose(backbone(images), one_by_one(backbone, images), rtol=1e-3, atol=1e-4),
            "members computed at once, as on a GPU, give other features than one by one; let them not meet.",
        )
