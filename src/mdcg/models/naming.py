"""What a person gives as a backbone, and the name under which this process then knows it.

Everything below this point works with names: they are part of runs, checkpoints and saved models. A name never brings
code with it. `package.module:function` is imported when a person writes it in a call or on the command line, and not
because a file says so.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import re
from collections.abc import Callable, Iterator

from torch import nn

from mdcg.errors import FOREIGN, MdcgError, reason_of
from mdcg.models.backbones import BACKBONES, Factory, backbone_names, unknown_backbone
from mdcg.tensors import pack

Given = str | nn.Module | Factory  # all that can be a backbone
PLAIN = (bool, int, float, str, tuple, list, dict, type(None))


def backbone_name(given: Given, may_import: bool) -> str:
    """The name of a backbone, which is registered under it for as long as the process lives.

    `given` is a name, a module with its weights, a function that takes the number of channels, or the text
    `package.module:function`; that is imported only if `may_import`.

    >>> backbone_name("resnet18", may_import=False)
    'resnet18'
    >>> backbone_name("torch.nn:Flatten", may_import=True)
    'torch.nn:Flatten'
    """
    if not isinstance(given, str):
        return _registered(given)
    if given not in backbone_names():
        if not may_import or ":" not in given:
            raise unknown_backbone(given)
        thing = _imported(given)
        BACKBONES.register(given)(Copies(thing) if isinstance(thing, nn.Module) else thing)
    return given


class Copies:
    """A factory that gives copies of a module as it was when it was given: its weights are the initial ones."""

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module).cpu().float()

    def __call__(self, channels: int) -> nn.Module:
        return copy.deepcopy(self.module)

    def kinds(self) -> list[type[nn.Module]]:
        """The classes that the module and its parts are of."""
        return list(dict.fromkeys(type(part) for part in self.module.modules()))

    def structure(self) -> str:
        """What the module is made of, weights apart, as text that is the same in every process."""
        return "\n".join(_lines(self.module))

    def name(self) -> str:
        """The class's qualified name, for readers, and a digest of structure and weights."""
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        weights = pack({key: value.detach().clone() for key, value in state.items()}, {})
        content = self.structure().encode() + weights
        kind = type(self.module)
        return f"{kind.__module__}.{kind.__qualname__}-{hashlib.blake2b(content, digest_size=5).hexdigest()}"


def _lines(module: nn.Module) -> Iterator[str]:
    for path, part in module.named_modules():
        own = {key: value for key, value in sorted(vars(part).items()) if isinstance(value, PLAIN) and key[0] != "_"}
        own.pop("training", None)  # which is ours to say
        yield re.sub(r" at 0x\w+", "", f"{path}: {type(part).__module__}.{type(part).__qualname__} {own}")
    yield " ".join(name for name, parameter in module.named_parameters() if parameter.requires_grad)


def _registered(thing: nn.Module | Factory) -> str:
    """The name of an object: that which it has, or a new one."""
    if isinstance(thing, nn.Module):
        return _registered_copies(thing)
    if not callable(thing):
        raise MdcgError(
            f"a backbone is a name, an nn.Module, or a function that makes one, not {type(thing).__name__}; see "
            "docs/backbones.md."
        )
    for name in BACKBONES.names():
        if BACKBONES[name] is thing:
            return name
    try:
        spoken = _spoken(thing)
    except Exception as error:  # an object of anybody's
        raise MdcgError(
            f"the {type(thing).__name__} given as backbone has no name ({reason_of(error)}); give a function that "
            "makes the network."
        ) from error
    numbered = (spoken if number == 1 else f"{spoken}-{number}" for number in range(1, len(BACKBONES.names()) + 2))
    name = next(one for one in numbered if one not in BACKBONES.names())  # two lambdas are called the same
    BACKBONES.register(name)(thing)
    return name


def _registered_copies(module: nn.Module) -> str:
    """The name of a module, by its content: one that has been trained since is another one."""
    try:
        copies = Copies(module)
        name = copies.name()
    except Exception as error:  # whatever a user's module may raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise MdcgError(
            f"the {type(module).__name__} given as backbone cannot be copied ({reason}); give a function that makes it."
        ) from error
    if name not in BACKBONES.names():
        BACKBONES.register(name)(copies)
    return name


def _spoken(factory: Factory) -> str:
    """The name of a function as a person would write it to have it imported: so it is the same backbone."""
    thing = getattr(factory, "func", factory)  # of a partial
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def _imported(text: str) -> Callable[[int], nn.Module] | nn.Module:
    module, _, path = text.partition(":")
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except FOREIGN as error:
        raise MdcgError(
            f"the backbone '{text}' cannot be imported ({reason_of(error)}); write package.module:function, of a "
            "package that is installed or lies in this folder.",
            about="backbone",
        ) from error
    if not callable(found):
        raise MdcgError(
            f"the backbone '{text}' is a {type(found).__name__}, not a function that makes an nn.Module.",
            about="backbone",
        )
    return found
