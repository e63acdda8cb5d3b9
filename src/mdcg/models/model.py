"""A model: a backbone and a head, K members of each."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mdcg.draws import Purpose, stream
from mdcg.errors import MdcgError
from mdcg.models.backbones import blank_backbone, build_backbone
from mdcg.models.heads import HEADS, Head
from mdcg.models.layers import BatchNorm2d, one_by_one
from mdcg.models.resnet import ResNet
from mdcg.models.stacked import Stacked
from mdcg.tensors import Damaged

TRAINED = (torch.float32, torch.float64)  # what weights are, whatever a backbone computes in


class Model(nn.Module):
    """A model f(x) = h(b(x)) from images (K, batch, C, H, W) to logits (K, batch, classes)."""

    def __init__(self, backbone: nn.Module, head: Head, seeds: Sequence[int]) -> None:
        super().__init__()
        self.backbone, self.head, self.seeds = backbone, head, tuple(seeds)
        self.frozen = False  # the backbone, for good

    def freeze(self) -> None:
        """Keep the backbone as it is from now on: it takes no gradients, and BatchNorm's statistics stay."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Model:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def statistics(self) -> list[Tensor]:
        """The members' buffers, BatchNorm's running statistics above all; each has the leading axis K."""
        kept = self.state_dict(keep_vars=True)
        return [buffer for name, buffer in self.named_buffers() if name in kept]

    def retained(self) -> list[float | None]:
        """How much of itself each of `statistics` keeps as a batch moves it; all, 1, of a setting or a count.

        None where that cannot be known: of a buffer of a user's own.
        """
        kept = self.state_dict(keep_vars=True)
        return [_retained(self, name) for name, _ in self.named_buffers() if name in kept]

    def repeated(self, times: int) -> Model:
        """Make a model of `times`·K members: all of them as they are now, then all of them once more, and so on."""
        wide = copy.deepcopy(self)
        wide.seeds = self.seeds * times
        for name, value in self.state_dict(keep_vars=True).items():
            path, _, leaf = name.rpartition(".")
            shape, member = (times * len(value), *value.shape[1:]), math.prod(value.shape[1:])
            # In the same order in memory, which the fused kernels count on.
            many = value.detach().new_empty_strided(shape, (member, *value.stride()[1:]))
            many.unflatten(0, (times, len(value))).copy_(value.detach())
            learned = isinstance(value, nn.Parameter)
            setattr(wide.get_submodule(path), leaf, nn.Parameter(many, value.requires_grad) if learned else many)
        return wide

    def resnet(self) -> ResNet | None:
        """The part of the backbone for which there are fused kernels."""
        return next((part for part in self.backbone.modules() if isinstance(part, ResNet)), None)

    def grow(self, classes: int) -> None:
        """Make room for the next task's classes; new weights come from each member's own seed."""
        task = len(self.head.sizes)
        self.head.grow(
            classes,
            [stream(seed, Purpose.HEAD, task) for seed in self.seeds],
            [stream(seed, Purpose.GATES, task) for seed in self.seeds],
        )

    def logits(self, images: Tensor) -> Tensor:
        """Compute the logits, of all members at once on a GPU, one after the other on a CPU."""
        logits: Tensor = self(images) if images.is_cuda else one_by_one(self, images)
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Compute what the head is given, (K, batch, features), in the same way as `logits`."""
        found: Tensor = self.backbone(images) if images.is_cuda else one_by_one(self.backbone, images)
        return found

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        # Under autocast only the backbone computes in bf16: logits and gates stay in full precision.
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.head(features.to(self.head.classifier.weight.dtype))
        return logits


def _retained(model: Model, name: str) -> float | None:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    if isinstance(owner, Stacked):
        if not owner.normalises_once:
            return None
        owner, leaf = owner.owner(leaf)
    if isinstance(owner, Head) and leaf in owner.settings:
        return 1
    if isinstance(owner, BatchNorm2d | nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and owner.momentum is not None:
        return 1 if leaf == "num_batches_tracked" else 1 - owner.momentum
    return None


def build_model(
    backbone: str,
    head: str,
    shape: tuple[int, int, int],
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[float]] | None = None,
    dtype: torch.dtype = torch.float32,
    classes: int = 0,
    trained: bool = True,
) -> Model:
    """Build K members with an empty head; `settings` gives the head's settings, one value per member.

    `classes` is how many there will be in the end, for a head that has all of them from the start. A backbone that is
    not to be `trained` may hold dropout.

    >>> model = build_model("smallconv", "cascaded-gates", (1, 8, 8), seeds=[0, 1])
    >>> model.grow(2)
    >>> model(torch.zeros(2, 5, 1, 8, 8)).shape
    torch.Size([2, 5, 2])
    """
    body = build_backbone(backbone, shape, [stream(seed, Purpose.BACKBONE) for seed in seeds], trained)
    return Model(body, _empty_head(HEADS[head], len(seeds), body, settings or {}, classes), seeds).to(dtype)


def _empty_head(
    kind: type[Head], members: int, body: nn.Module, settings: Mapping[str, Sequence[float]], classes: int
) -> Head:
    """A head before its first task, with the settings that are given and the defaults of others."""
    chosen = {name: [default] * members for name, (default, _) in kind.settings.items()}
    chosen |= {name: list(values) for name, values in settings.items()}
    made = kind(members, body.features, **chosen)  # type: ignore[arg-type]
    made.total = classes
    return made


def model_of(
    weights: Mapping[str, Tensor],
    backbone: str,
    head: str,
    shape: tuple[int, int, int],
    seed: int,
    settings: Mapping[str, float],
    classes: int,
    sizes: Sequence[int],
) -> Model:
    """Make the one member that has these weights, after tasks of so many classes.

    They may come from a file: what is said of them is compared with them before there is memory for anything, and they
    are `Damaged` where it does not fit. It may have a backbone that is not to be trained, as `build_model` says.
    """
    kind, members = HEADS[head], 1
    try:
        kind.check_tasks(sizes, classes)
    except MdcgError as error:  # whose advice is for those who train
        raise Damaged("its head has no room for its classes") from error
    layers = kind.columns(sizes, classes) if kind.grows_as_ours() else {}
    found = {name: weights.get(f"head.{name}.weight", torch.empty(0)).shape for name in layers}
    if any(found[name][-1] != columns for name, columns in layers.items()):
        raise Damaged("its weights do not fit its classes")
    body = blank_backbone(backbone, shape)
    made = _empty_head(kind, members, body, {name: [value] for name, value in settings.items()}, classes)
    model = Model(body, made, [seed])
    if any(found[name] != (members, body.features, columns) for name, columns in layers.items()):
        raise Damaged("its weights do not fit its network")
    if layers:
        made.make_room(sizes)
    else:  # a user's head
        for size in sizes:
            model.grow(size)
    wanted = model.state_dict()
    if _layout(wanted) != _layout(weights) or weights["head.classifier.weight"].dtype not in TRAINED:
        raise Damaged("its weights do not fit its network")
    if any(parameter.is_meta for parameter in body.parameters()):
        body.to_empty(device="cpu")
    model.to(weights["head.classifier.weight"].dtype).load_state_dict(weights)
    return model


def _layout(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, bool]]:
    """Shapes, and what counts and what measures."""
    return {name: (value.shape, value.is_floating_point()) for name, value in state.items()}
