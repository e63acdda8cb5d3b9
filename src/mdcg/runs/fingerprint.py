"""The fingerprint of code that is not mdcg's own: a run of an edited method, head or backbone is another run.

It is of the source of a class and its base classes, or of a function, and of what these name in their own package:
functions, classes and plain values. Of a backbone the initial weights count too, whatever code they come from.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from mdcg.errors import MdcgError
from mdcg.methods import METHODS
from mdcg.models import HEADS
from mdcg.models.backbones import BACKBONES, MEMBERED
from mdcg.models.naming import Copies
from mdcg.models.stacked import initialised
from mdcg.tensors import pack

NOT_THE_USERS = {"mdcg", "torch", "pydantic", "abc", "builtins", "typing"}  # packages that base classes come from
PLAIN = (bool, int, float, complex, str, bytes, type(None))
_found: dict[tuple[int, int], tuple[object, str]] = {}  # with what each is of, so that its id stays its own


def fingerprint(method: str, head: str, backbone: str, channels: int) -> str:
    """Compute the fingerprint, as "method:1a2b3c4d5e+backbone:6f7a8b9c0d"; empty where all of it is mdcg's own.

    Code is looked at once: an edit counts from the moment that the edited file is loaded.
    """
    parts = {"method": _digest(METHODS[method]), "head": _digest(HEADS[head])}
    if backbone not in MEMBERED:
        parts["backbone"] = _digest(BACKBONES[backbone], channels)
    return "+".join(f"{kind}:{digest}" for kind, digest in parts.items() if digest)


def changed(one: str, other: str) -> set[str]:
    """The kinds of code, method, head or backbone, in which two fingerprints differ."""
    return {part.split(":")[0] for part in {*one.split("+")} ^ {*other.split("+")} if part}


def _digest(thing: Any, channels: int = 0) -> str:
    """The digest of a class; or of a factory, with the weights that it makes for so many channels."""
    key = id(thing), channels
    if key not in _found:
        content = "\n".join(_texts(thing, set())).encode() + (_initial_weights(thing, channels) if channels else b"")
        _found[key] = thing, hashlib.blake2b(content, digest_size=5).hexdigest() if content else ""
    return _found[key][1]


def _initial_weights(factory: Callable[[int], nn.Module], channels: int) -> bytes:
    """The initial weights, with names and shapes; none if the factory fails, as the run will say, or if they vary."""

    def made() -> bytes:
        module = initialised(factory, channels, seed=0)
        learned = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return pack({name: value.detach().clone() for name, value in state.items()}, {"learned": learned})

    try:
        content = made()
        return content if content == made() else b""
    except MdcgError:
        return b""


def _texts(thing: Any, seen: set[int]) -> Iterator[str]:
    """The code of a thing, and of all that it is made of."""
    if isinstance(thing, Copies):  # of a module
        yield thing.structure()
        for kind in thing.kinds():
            yield from _texts(kind, seen)
        return
    if isinstance(thing, functools.partial):
        yield _written(thing.args) + _written(thing.keywords)
        thing = thing.func
    if not isinstance(thing, type | FunctionType):  # an object that can be called, or a method of one
        yield _written(vars(getattr(thing, "__self__", thing)) if hasattr(thing, "__dict__") else None)
        thing = getattr(thing, "__func__", type(thing))
    if id(thing) in seen or _package(thing) in NOT_THE_USERS:
        return
    seen.add(id(thing))
    try:
        yield inspect.getsource(thing)
    except (OSError, TypeError):  # typed into a shell or a notebook
        yield _compiled(thing)
    for function in _functions(thing):
        for name, value in _named(function):
            if isinstance(value, type | FunctionType):
                yield from _texts(value, seen) if _package(value) == _package(thing) else ()
            else:
                yield f"{name} = {_written(value)}"
    for base in thing.__mro__[1:] if isinstance(thing, type) else ():
        yield from _texts(base, seen)


def _functions(thing: type | FunctionType) -> list[FunctionType]:
    if isinstance(thing, FunctionType):
        return [thing]
    members = [getattr(value, "fget", getattr(value, "__func__", value)) for value in vars(thing).values()]
    return [member for member in members if isinstance(member, FunctionType) and member.__module__ == thing.__module__]


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The things that a function and those within it name outside themselves, also those in modules of its package."""
    enclosed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in enclosed if name != "__class__")
    names = [name for name in dict.fromkeys(_names(function.__code__)) if not name.startswith("__")]
    for name in names:
        value = function.__globals__.get(name)
        if not isinstance(value, ModuleType):
            yield from [(name, value)] if name in function.__globals__ else []
        elif _package(value) == _package(function):
            yield from ((f"{name}.{own}", vars(value)[own]) for own in names if own in vars(value))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _compiled(thing: type | FunctionType) -> str:
    """The stand-in for a source that cannot be had: the byte code with its constants, the values of a class."""
    codes = [(one.__qualname__, one.__code__, one.__defaults__, one.__kwdefaults__) for one in _functions(thing)]
    if not isinstance(thing, type):
        return _written(codes)
    values = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
    fields = {name: re.sub(r" at 0x\w+", "", repr(field)) for name, field in getattr(thing, "model_fields", {}).items()}
    return _written([thing.__qualname__, codes, values, fields])


def _written(value: object) -> str:
    """Write a plain value, a container of such or byte code as text, alike in every process; of all else the type."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, CodeType):
        return _written([value.co_code, value.co_names, value.co_varnames, value.co_consts])
    if isinstance(value, dict):
        return _written(list(value.items()))
    if isinstance(value, list | tuple):
        return f"({','.join(map(_written, value))})"
    if isinstance(value, set | frozenset):
        return f"({','.join(sorted(map(_written, value)))})"
    return type(value).__name__


def _package(thing: Any) -> str:
    module = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    return str(module).split(".")[0]
