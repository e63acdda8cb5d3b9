"""The stacking of a user's own network: K copies of it in one module, with `torch.func`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from mdcg.errors import FOREIGN, MdcgError, reason_of, warn_once

logger = logging.getLogger(__name__)
CLASSIFIERS = {"fc", "classifier", "head", "heads", "linear"}  # what networks call the layers that tell classes apart


class Stacked(nn.Module):
    """K independently initialised copies of a module that maps (batch, C, H, W) to (batch, features).

    The module may hold BatchNorm; its statistics are kept per member. Parameters that do not require gradients
    stay as they are. Where it is `trained` it may not draw random numbers of its own (dropout): a run must not depend
    on which others train beside it, and a step is a function of the state and its number, so that it can be repeated.
    """

    def __init__(
        self,
        factory: Callable[[int], nn.Module],
        shape: tuple[int, int, int],
        seeds: Sequence[int],
        trained: bool = True,
    ) -> None:
        super().__init__()
        copies = [initialised(factory, shape[0], seed) for seed in seeds]
        parameters, buffers = stack_module_state(copies)
        trainable = dict(copies[0].named_parameters())
        # Held apart from torch's registration: it is the pattern that runs, the stacked state that learns.
        self._pattern = [_blank(copies[0])]
        self.names = {_flat(name): name for name in (*parameters, *buffers)}
        for name, value in parameters.items():
            learns = trainable[name].requires_grad
            self.register_parameter(_flat(name), nn.Parameter(value.detach().clone(), requires_grad=learns))
        for name, value in buffers.items():
            self.register_buffer(_flat(name), value.clone())
        self.members = len(seeds)
        self.normalises_once = True  # in a forward pass, by each BatchNorm
        self.features = self._count_features(shape, trained)
        if trained:
            _warn_of_classifier(self.pattern, self.features)

    def forward(self, images: Tensor) -> Tensor:
        pattern = self.pattern.train(self.training)
        state = {self.names[key]: value for key, value in (*self.named_parameters(), *self.named_buffers())}

        def one(state: dict[str, Tensor], x: Tensor) -> Tensor:
            features: Tensor = functional_call(pattern, state, (x,))
            return features

        stacked: Tensor = vmap(one, randomness="error")(state, images)
        return stacked

    @property
    def pattern(self) -> nn.Module:
        """The user's module, without values."""
        return self._pattern[0]

    def owner(self, key: str) -> tuple[nn.Module, str]:
        """The module of the user's that holds this parameter or buffer, and the name that it has there."""
        path, _, name = self.names[key].rpartition(".")
        return self.pattern.get_submodule(path), name

    def member(self, k: int) -> nn.Module:
        """The user's module with a copy of member k's values, free of `torch.func`."""
        held = dict((*self.pattern.named_parameters(), *self.pattern.named_buffers()))
        copies: dict[int, Tensor] = {}  # of what is held, wherever the module holds it: weights may be tied
        for key, value in (*self.named_parameters(), *self.named_buffers()):
            own = value[k].detach().clone()
            learned = isinstance(value, nn.Parameter)
            copies[id(held[self.names[key]])] = nn.Parameter(own, value.requires_grad) if learned else own
        try:
            return copy.deepcopy(self.pattern, copies)
        except Exception as error:  # whatever a user's module may hold
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise MdcgError(
                f"the backbone cannot be copied: {reason}. It must be a module that copy.deepcopy can copy."
            ) from error

    def _count_features(self, shape: tuple[int, int, int], trained: bool) -> int:
        """Try the module on two blank images, with its statistics put back afterwards."""
        before = {name: buffer.clone() for name, buffer in self.named_buffers()}
        try:
            with torch.no_grad():
                out = self.train(trained)(torch.zeros(self.members, 2, *shape))
        except Exception as error:  # whatever a user's module may raise
            raise _unfit(error, shape) from error
        self.train()
        with torch.no_grad():
            for name, buffer in self.named_buffers():
                if self.names[name].endswith("num_batches_tracked") and (buffer - before[name] > 1).any():
                    self.normalises_once = False
                buffer.copy_(before[name])
        if out.ndim != 3:
            raise MdcgError(
                f"the backbone gives shape {tuple(out.shape[1:])} for two images; it must give (2, features)."
            )
        return int(out.shape[2])


def _warn_of_classifier(network: nn.Module, features: int) -> None:
    """Say, once, that a network came with its classifier, if its answers are that layer's and not features."""
    linear = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    name, last = linear[-1] if linear else ("", None)
    layer = name.partition(".")[0]
    if last is None or last.out_features != features or layer not in CLASSIFIERS:
        return
    warn_once(
        logger,
        f"the backbone ends in its own classifier, '{name}', whose {features:,} outputs are taken for features; to "
        f"learn from the features before it, take it off: network.{layer} = torch.nn.Identity().",
    )


def _unfit(error: Exception, shape: tuple[int, int, int]) -> MdcgError:
    """Why a module cannot be a backbone, from what it raised."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "random operation" in reason:  # as `vmap` calls it
        return MdcgError(
            "the backbone draws random numbers of its own while it trains, so that a run would depend on which others "
            "train beside it and could not be resumed: a step is a function of the state and its number. Let there be "
            "no dropout in it (p=0), or freeze it (backbone_lr=0, --backbone-lr 0)."
        )
    return MdcgError(
        f"the backbone failed on images of shape {shape}: {reason} A backbone maps (batch, C, H, W) to "
        "(batch, features)."
    )


def initialised(factory: Callable[[int], nn.Module], channels: int, seed: int) -> nn.Module:
    """Initialise a user's network from a seed."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = factory(channels)
    except FOREIGN as error:
        raise MdcgError(
            f"the backbone's factory failed when called with the number of channels, {channels}: {reason_of(error)}; "
            "correct it."
        ) from error
    if not isinstance(module, nn.Module):
        raise MdcgError(f"the backbone's factory must return an nn.Module, not {type(module).__name__}.")
    return module


def _blank(module: nn.Module) -> nn.Module:
    """The module without its values; weights that were tied stay tied, which `to("meta")` would undo."""
    blank: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for name, value in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            if value not in blank:
                empty = value.detach().to("meta")
                learned = isinstance(value, nn.Parameter)
                blank[value] = nn.Parameter(empty, value.requires_grad) if learned else empty
            setattr(part, name, blank[value])
    return module


def _flat(name: str) -> str:
    return name.replace(".", "__")


def member_seeds(rngs: Sequence[np.random.Generator]) -> list[int]:
    return [int(rng.integers(2**31)) for rng in rngs]
